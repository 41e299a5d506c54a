"""holdfast_ckpt_test.py: tools/python/holdfast_ckpt by its parts, in one process.

Names, boxes and packed objects without any file; what a hostile file is answered; a
checkpoint that was not saved by DCP. Needs the real torch.
"""

import io
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import warnings
from ctypes import c_uint8

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.environ.get("HOLDFAST_BUILD", os.path.join(ROOT, "build/release"))
os.environ.setdefault(
    "HOLDFAST_CKPT_LIBRARY", os.path.join(BUILD, "libholdfast_ckpt.so")
)
sys.path.insert(0, os.path.join(ROOT, "tools/python"))
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402

import holdfast_ckpt  # noqa: E402
from holdfast_ckpt import HoldfastError, HoldfastReader, HoldfastWriter  # noqa: E402
from holdfast_ckpt import __main__ as command  # noqa: E402
from holdfast_ckpt import _ids, _items, _library, _memory, _objects  # noqa: E402
from holdfast_ckpt import _handle, _job, _meeting, _ranks, reader  # noqa: E402


class ItemsTest(unittest.TestCase):
    def test_dimensions_that_nobody_cuts_become_one(self):
        shape = (8, 2, 3, 2, 2)
        rows = [((0, 0, 0, 0, 0), (4, 2, 3, 2, 2)), ((4, 0, 0, 0, 0), (4, 2, 3, 2, 2))]
        self.assertEqual(_items.folds_of(shape, rows), [[0], [1], [2], [3, 4]])
        last = [((0, 0, 0, 0, 0), (8, 2, 3, 2, 1)), ((0, 0, 0, 0, 1), (8, 2, 3, 2, 1))]
        self.assertEqual(_items.folds_of(shape, last), [[0], [1], [2, 3], [4]])
        six = (2,) * 6
        corner = [(tuple(o), (1,) * 6) for o in itertools.product((0, 1), repeat=6)]
        self.assertIsNone(_items.folds_of(six, corner))

    def test_a_box_of_a_folded_tensor_is_that_part_of_it(self):
        whole = torch.arange(8 * 2 * 3 * 2 * 2).reshape(8, 2, 3, 2, 2)
        item = _items.Item.of("t", whole.dtype, whole.shape, [[0], [1], [2], [3, 4]])
        stored = whole.reshape(item.stored_shape)
        offsets, sizes = (2, 1, 0, 1, 0), (3, 1, 2, 1, 2)
        self.assertFalse(_items.Item.of("t", whole.dtype, whole.shape,
                                        [[0], [1, 2], [3], [4]]).is_box(offsets, sizes))
        first, count = item.box(offsets, sizes)
        part = stored
        for d in range(4):
            part = part.narrow(d, first[d], count[d])
        expected = whole
        for d in range(5):
            expected = expected.narrow(d, offsets[d], sizes[d])
        self.assertTrue(torch.equal(part.reshape(sizes), expected))

    def test_dtypes_that_are_not_there_are_bytes_with_a_name(self):
        item = _items.Item.of("t", torch.complex64, (3, 5))
        self.assertEqual((item.number, item.kind), (_library.U8, "torch.complex64"))
        self.assertEqual(item.stored_shape, [3, 40])
        self.assertEqual(item.box((1, 2), (2, 3)), ([1, 16], [2, 24]))
        scalar = _items.Item.of("t", torch.int16, ())
        self.assertEqual(scalar.stored_shape, [2])
        self.assertEqual(scalar.box((), ()), ([0], [2]))
        back = _items.item_of_stored("t", item.kind, item.number, item.stored_shape)
        self.assertEqual(back, item)
        self.assertIsNone(_items.item_of_stored("t", "torch.nothing", _library.U8, [3]))
        self.assertIsNone(_items.item_of_stored("t", "torch.int16", _library.U8, [3]))


class IdsTest(unittest.TestCase):
    def test_a_checkpoint_id_names_a_step(self):
        for good in (120, "120", "step-120", "/runs/a/step-000120", "global_step120/"):
            self.assertEqual(_ids.step_in(good, "/runs/a"), 120, good)
        for bad in ("latest", "step-", "/runs/b/step-120", "12x"):
            with self.assertRaisesRegex(ValueError, "checkpoint_id"):
                _ids.step_in(bad, "/runs/a")
            self.assertEqual(_ids.is_id(bad), bad == "/runs/b/step-120")


class ObjectsTest(unittest.TestCase):
    def test_what_is_packed_comes_back_with_room_behind_it(self):
        objects = {"a": b"x" * 1000, "b": b"", "ü": b"\0\1"}
        data = _objects.pack(objects, {"checkpoint": {"format": 1}})
        room = _objects.room_for(len(data))
        packed = _objects.Packed(data + bytes(room - len(data)))
        self.assertEqual(packed.head["checkpoint"], {"format": 1})
        self.assertEqual({n: packed.get(n) for n in packed.names()}, objects)

    def test_bytes_that_are_none_are_refused_whatever_they_are(self):
        good = _objects.pack({"a": b"1234"}, {})
        for at in range(len(good)):
            for bit in (1, 128):
                bad = bytearray(good)
                bad[at] ^= bit
                try:
                    _objects.Packed(bad).names()
                except ValueError:
                    pass  # and nothing else
        for size in range(len(good)):
            with self.assertRaises(ValueError):
                _objects.Packed(good[:size])


class OneProcessTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="hf-")
        self.addCleanup(directory.cleanup)
        self.addCleanup(holdfast_ckpt.close_all)
        self.root = directory.name
        self.run_dir = os.path.join(self.root, "run")

    def test_what_was_staged_is_written_from_where_it_is(self):
        state = {"w": torch.arange(5000.0), "tied": None, "view": torch.arange(30)[3:9]}
        state["tied"] = state["w"]
        for step in (1, 2, 3):
            state["w"] += step
            expected = state["w"].clone()
            future = dcp.async_save(state, storage_writer=HoldfastWriter(self.run_dir))
            state["w"].zero_()
            future.result()
            state["w"].copy_(expected)
            job = next(iter(holdfast_ckpt._job._jobs.values()))
            staged = [
                part.fqn
                for part, piece in job._declared.items()
                if piece.arena is not job._arena
            ]
            self.assertEqual(len(staged), 1, staged)  # w or tied; the view is copied
            loaded = {k: torch.zeros_like(v) for k, v in state.items()}
            dcp.load(loaded, storage_reader=HoldfastReader(self.run_dir))
            for name, tensor in state.items():
                self.assertTrue(torch.equal(loaded[name], tensor), f"{name}, {step}")

    def test_a_state_is_staged_in_a_thread_when_that_is_asked(self):
        writer = HoldfastWriter(self.run_dir, stage_in_thread=True)
        live = torch.full((4000,), 1.0)
        for step in (1, 2, 3):
            response = dcp.async_save({"w": live.fill_(step)}, storage_writer=writer)
            response.staging_completion.result()
            live.fill_(-1.0)
            response.upload_completion.result()
            loaded = {"w": torch.zeros(4000)}
            dcp.load(loaded, storage_reader=HoldfastReader(f"{self.run_dir}@{step}"))
            self.assertEqual(loaded["w"].unique().tolist(), [step])

    def test_a_save_between_staging_and_its_write_spoils_neither(self):
        writer = HoldfastWriter(self.run_dir)
        dcp.async_save({"w": torch.full((4000,), 1.0)}, storage_writer=writer).result()
        live = torch.full((4000,), 2.0)
        dcp.async_save({"w": live}, storage_writer=writer).result()
        staged = writer.stage({"w": live})
        live.fill_(3.0)
        dcp.save({"w": live}, storage_writer=writer, checkpoint_id="step-30")
        again = writer.stage({"w": live.fill_(4.0)})
        dcp.save(staged, storage_writer=writer, checkpoint_id="step-31")
        dcp.save(again, storage_writer=writer, checkpoint_id="step-32")
        for step, value in ((30, 3.0), (31, 2.0), (32, 4.0)):
            loaded = {"w": torch.zeros(4000)}
            dcp.load(loaded, storage_reader=HoldfastReader(f"{self.run_dir}@{step}"))
            self.assertEqual(loaded["w"].unique().tolist(), [value], step)

    def test_what_stays_is_what_was_asked(self):
        for step in range(1, 6):
            dcp.save(
                {"n": step},
                storage_writer=HoldfastWriter(self.run_dir, keep_last=2),
                checkpoint_id=step,
            )
        holdfast_ckpt.close_all()
        there = [
            step
            for step in range(1, 6)
            if reader_of(f"{self.run_dir}@{step}", step) is not None
        ]
        self.assertEqual(there, [4, 5])

    def test_a_trainers_checkpoint_is_read_too(self):
        os.mkdir(self.run_dir)
        handle = _handle.Handle(self.run_dir, {}, _ranks.Alone(), _meeting.Single())
        arena = _memory.Arena()
        for kind, number, dtype in (
            ("weight", _library.BF16, torch.bfloat16),
            ("exp_avg", _library.F32, torch.float32),
        ):
            piece = arena.take(dtype.itemsize * 60)
            piece.tensor(dtype, (6, 10)).copy_(torch.arange(60.0).reshape(6, 10))
            handle.add("model.w", kind, number, (6, 10), [0, 0], [6, 10], piece)
        handle.open()
        handle.save(5, {})
        handle.close()
        state = {
            "model.w": torch.zeros(6, 10),  # DCP converts dtypes as well
            "exp_avg.model.w": torch.zeros(6, 10),
        }
        dcp.load(
            state,
            storage_reader=HoldfastReader(self.run_dir),
            planner=dcp.DefaultLoadPlanner(flatten_state_dict=False),
        )
        for tensor in state.values():
            self.assertTrue(torch.equal(tensor, torch.arange(60.0).reshape(6, 10)))
        self.convert(0, "holdfast-to-dcp", self.run_dir, os.path.join(self.root, "dcp"))

    def save_with_head(self, step, head, *tensors):
        """A checkpoint with that head, and these (name, kind, number, tensor)."""
        data = _objects.pack({}, head)
        handle = _handle.Handle(self.run_dir, {}, _ranks.Alone(), _meeting.Single())
        arena = _memory.Arena()
        piece = arena.take(_objects.room_for(len(data)))
        piece.flat()[: len(data)] = torch.frombuffer(
            bytearray(data), dtype=torch.uint8
        )
        items = [(_objects.name_of(0), _objects.KIND, _library.U8, (piece.size,), piece)]
        for name, kind, number, tensor in tensors:
            piece = arena.take(tensor.numel() * tensor.itemsize)
            piece.tensor(tensor.dtype, tensor.shape).copy_(tensor)
            items.append((name, kind, number, tuple(tensor.shape), piece))
        for name, kind, number, shape, piece in items:
            first = [0] * len(shape)
            handle.add(name, kind, number, shape, first, list(shape), piece)
        handle.open()
        handle.save(step, {})
        handle.close()

    def test_a_head_that_says_nonsense_is_damage(self):
        os.mkdir(self.run_dir)
        for step, head in enumerate(
            (
                {},
                {"checkpoint": 3},
                {"checkpoint": {"format": 99}},
                {"checkpoint": {"format": 1}},
                {"checkpoint": {"format": 1, "tensors": [], "objects_of": {},
                                "planner_data": None}},
                {"checkpoint": {"format": 1, "objects_of": {}, "planner_data": None,
                                "tensors": {"x": {"dtype": "float32", "shape": [3]}}}},
                {"checkpoint": {"format": 1, "objects_of": {}, "planner_data": None,
                                "tensors": {"x": {"dtype": "save", "shape": [3]}}}},
                *({"checkpoint": {"format": 1, "objects_of": {"x": rank},
                                  "planner_data": None, "tensors": {}}}
                  for rank in (None, -1, True, "0", [0])),
            ),
            start=1,
        ):
            self.save_with_head(step, head)
            with self.assertRaises(HoldfastError) as caught:
                reader.Checkpoint(f"{self.run_dir}@{step}")
            self.assertIn(caught.exception.code, ("DATA_LOSS", "FAILED_PRECONDITION"))
            self.assertIn(self.run_dir, str(caught.exception))

    def test_a_head_that_says_more_than_is_stored_is_damage(self):
        """Whose elements would be read into a larger tensor, or to other places, with
        what was in that memory before in between."""
        os.mkdir(self.run_dir)
        stored = torch.arange(24.0).reshape(4, 6)
        good = {"dtype": "float32", "shape": [4, 6]}
        deep = {"dtype": "float32", "shape": [4, 3, 2], "folds": [[0], [1, 2]]}
        bad = (
            {"shape": [4, 6, 9], "folds": [[0], [1]]},  # a dimension of no group
            {"shape": [4, 6], "folds": [[0], [1], []]},
            {"shape": [4, 6], "folds": [[0], [1], [0]]},
            {"shape": [6, 4], "folds": [[1], [0]]},
            {"shape": [4, 6, 6], "folds": [[0], [2]]},
            {"shape": [4, 6], "folds": [[0], [-1]]},
            {"shape": [4, -3, -2], "folds": [[0], [1, 2]]},
            {"shape": [4.0, 6]},
            {"shape": [4, 6], "folds": [[False], [True]]},
            {"shape": [4, 6], "folds": {}},
            {"shape": {"4": 6}},
            {"shape": [0, 1 << 70]},
        )
        entries = [good, deep, *({"dtype": "float32", **entry} for entry in bad)]
        for step, entry in enumerate(entries, start=1):
            head = {"format": 1, "objects_of": {}, "planner_data": None,
                    "tensors": {"x": entry}}  # fmt: skip
            self.save_with_head(
                step, {"checkpoint": head}, ("x", _items.KIND, _library.F32, stored)
            )
            name = f"{self.run_dir}@{step}"
            if entry is good or entry is deep:
                found = reader.Checkpoint(name).tensor("x")
                self.assertTrue(torch.equal(found, stored.reshape(entry["shape"])))
                continue
            with self.assertRaises(HoldfastError, msg=entry) as caught:
                reader.Checkpoint(name).tensor("x")
            self.assertEqual(caught.exception.code, "DATA_LOSS", entry)
            self.assertIn("tensor 'x'", str(caught.exception))

    # --- conversion

    def convert(self, code, *arguments):
        errors, sys.stderr = sys.stderr, io.StringIO()
        output, sys.stdout = sys.stdout, io.StringIO()
        try:
            found = command.main(["convert", *arguments])
            said = sys.stderr.getvalue()
        finally:
            sys.stderr, sys.stdout = errors, output
        self.assertEqual(found, code, said)
        return said

    def dcp_directory(self, **state):
        path = os.path.join(self.root, "theirs")
        dcp.save(state, checkpoint_id=path)
        return path

    def change_metadata(self, path, change):
        name = os.path.join(path, ".metadata")
        with open(name, "rb") as file:
            metadata = pickle.load(file)  # of our own making
        change(metadata)
        with open(name, "wb") as file:
            pickle.dump(metadata, file)

    def test_a_pickle_that_wants_more_is_not_executed(self):
        path = self.dcp_directory(w=torch.ones(3))
        mark = os.path.join(self.root, "executed")

        class Hostile:
            def __reduce__(self):
                return os.system, (f"touch {mark}",)

        for hostile in (
            pickle.dumps(Hostile()),
            # Through what is allowed: a dotted name (protocol 4).
            b"\x80\x04\x8c\x05torch\x8c\x0bSize.__new__\x93.",
            b"garbage",
        ):
            with open(os.path.join(path, ".metadata"), "wb") as file:
                file.write(hostile)
            said = self.convert(78, "dcp-to-holdfast", path, self.run_dir)
            self.assertIn(".metadata", said)
        self.assertFalse(os.path.exists(mark))

    def test_a_pickle_changes_no_class_of_torchs(self):
        path = self.dcp_directory(w=torch.ones(3))
        index = torch.distributed.checkpoint.metadata.MetadataIndex
        layout = torch.serialization._get_layout
        for named, attribute in (
            (b"torch.distributed.checkpoint.metadata\nMetadataIndex", b"__hash__"),
            (b"torch.serialization\n_get_layout", b"__doc__"),
        ):
            # GLOBAL, then BUILD with (None, {attribute: None}).
            with open(os.path.join(path, ".metadata"), "wb") as file:
                file.write(b"\x80\x02c" + named + b"\nN}X" +
                           len(attribute).to_bytes(4, "little") + attribute + b"Ns\x86b.")
            before = (index.__hash__, layout.__doc__)
            self.convert(78, "dcp-to-holdfast", path, self.run_dir)
            self.assertEqual((index.__hash__, layout.__doc__), before)
        hash(index("w"))

    def test_a_pipe_or_a_link_for_a_file_is_refused_at_once(self):
        path = self.dcp_directory(w=torch.ones(3))
        name = os.path.join(path, ".metadata")
        os.rename(name, name + ".kept")
        os.mkfifo(name)
        self.assertIn("no regular file",
                      self.convert(78, "dcp-to-holdfast", path, self.run_dir))
        os.remove(name)
        os.symlink(name + ".kept", name)
        self.assertIn(".metadata",
                      self.convert(78, "dcp-to-holdfast", path, self.run_dir))

    def test_a_tensor_of_another_dtype_than_the_metadata_says_is_refused(self):
        path = self.dcp_directory(w=torch.tensor([0.1, 0.2, 0.3]))

        def narrow(metadata):
            metadata.state_dict_metadata["w"].properties.dtype = torch.bfloat16

        self.change_metadata(path, narrow)
        said = self.convert(78, "dcp-to-holdfast", path, self.run_dir)
        self.assertIn("is of torch.float32, .metadata says torch.bfloat16", said)

    def test_places_outside_the_directory_or_the_file_are_refused(self):
        def place(metadata):
            return next(iter(metadata.storage_data.values()))

        outside = os.path.join(self.root, "outside")
        with open(outside, "wb") as file:
            file.write(bytes(100_000))

        def climb(metadata):
            place(metadata).relative_path = "../outside"

        def absolute(metadata):
            place(metadata).relative_path = outside

        def behind(metadata):
            place(metadata).offset = 10**9

        def long(metadata):
            place(metadata).length = 10**15

        def negative(metadata):
            place(metadata).offset = -5

        def missing(metadata):
            metadata.storage_data.clear()

        for change in (climb, absolute, behind, long, negative, missing):
            path = self.dcp_directory(w=torch.ones(3))
            self.change_metadata(path, change)
            said = self.convert(78, "dcp-to-holdfast", path, self.run_dir)
            self.assertIn(path, said, change.__name__)

    def test_what_ckptctl_imports_from_dcp_is_loaded_by_dcp(self):
        state = {
            "w": torch.arange(600.0).reshape(20, 30),
            "mask": torch.arange(7) > 3,
            "odd": torch.arange(6, dtype=torch.int16).reshape(2, 3),
            "n": 4,
            "nested": {"lr": 0.5, "names": ["a", "b"]},
        }
        path = self.dcp_directory(**state)
        subprocess.run(
            [os.path.join(BUILD, "bin/ckptctl"), "import", path, "--from", "dcp",
             "--out", self.run_dir],
            check=True, capture_output=True,
        )
        loaded = {
            "w": torch.zeros(20, 30),
            "mask": torch.zeros(7, dtype=torch.bool),
            "odd": torch.zeros(2, 3, dtype=torch.int16),
            "n": 0,
            "nested": {"lr": 0, "names": None},
        }
        dcp.load(loaded, storage_reader=HoldfastReader(self.run_dir))
        for name in ("w", "mask", "odd"):
            self.assertTrue(torch.equal(loaded[name], state[name]), name)
        self.assertEqual((loaded["n"], loaded["nested"]), (4, state["nested"]))

    def test_a_directory_that_is_not_empty_is_not_written_into(self):
        dcp.save({"w": torch.ones(3)}, storage_writer=HoldfastWriter(self.run_dir))
        holdfast_ckpt.close_all()
        said = self.convert(78, "holdfast-to-dcp", self.run_dir, self.root)
        self.assertIn("not empty", said)
        self.assertIn("no .metadata",
                      self.convert(66, "dcp-to-holdfast", self.root, self.run_dir))
        self.assertIn("step 77", self.convert(
            66, "holdfast-to-dcp", f"{self.run_dir}@77", os.path.join(self.root, "x")))
        self.assertIn("after the '@'", self.convert(
            64, "holdfast-to-dcp", f"{self.run_dir}@foo", os.path.join(self.root, "x")))
        self.convert(66, "holdfast-to-dcp", f"{self.run_dir}-no",
                     os.path.join(self.root, "x"))
        self.convert(64, "dcp-to-holdfast", self.root, self.run_dir, "--step", "-3")


def reader_of(name, step):
    try:
        found = reader.Checkpoint(name)
    except HoldfastError:
        return None
    return found if found.step == step else None


class TwoRanks:
    """Rank 0 of two that have the same, and what it says to the other."""

    rank, size, key = 0, 2, (0, 1)

    def __init__(self):
        self.said = []

    def gather(self, value):
        return [value, {**value, "tensors": {}} if isinstance(value, dict) else value]

    def broadcast(self, value):
        self.said.append(value)
        return value


class Plan:
    items, planner_data = (), None


class FailureTest(unittest.TestCase):
    def job(self):
        root = tempfile.TemporaryDirectory()
        self.addCleanup(root.cleanup)
        return _job.Job(os.path.join(root.name, "run"), TwoRanks())

    def test_what_rank_0_cannot_decide_is_said_to_all(self):
        job = self.job()
        with unittest.mock.patch.object(
            _meeting, "make_directory", side_effect=OSError("no space for the meeting")
        ), self.assertRaisesRegex(HoldfastError, "no space for the meeting"):
            job.save(Plan, None, 1, {})
        self.assertEqual(len(job.ranks.said), 1)  # the other rank does not wait
        self.assertIn("no space for the meeting", job.ranks.said[0]["error"])

    def test_an_option_that_is_none_leaves_nothing_behind(self):
        job, made = self.job(), []
        make = _meeting.make_directory

        def keep():
            made.append(make())
            return made[-1]

        with unittest.mock.patch.object(_meeting, "make_directory", keep):
            with self.assertRaisesRegex(HoldfastError, "no_such"):
                job.save(Plan, None, 1, {"no_such": 1})
        self.assertEqual([os.path.exists(path) for path in made], [False])


class MemoryTest(unittest.TestCase):
    def test_pieces_have_pages_of_their_own_and_outlive_nothing(self):
        arena = _memory.Arena()
        pieces = [arena.take(size) for size in (1, 4096, 4097, 40 << 20, 100)]
        spans = sorted((p.address, p.address + p.room) for p in pieces)
        for (_, end), (begin, _) in zip(spans, spans[1:]):
            self.assertLessEqual(end, begin)
        for piece in pieces:
            self.assertEqual(piece.address % 4096, 0)
        tensor = torch.empty(0, dtype=torch.uint8).set_(pieces[2].storage())
        self.assertEqual(tensor.data_ptr(), pieces[2].address)
        pieces.clear()
        tensor.fill_(7)  # its storage keeps the block
        self.assertEqual(
            bytes((c_uint8 * 4).from_address(tensor.data_ptr())), b"\7\7\7\7"
        )


if __name__ == "__main__":
    unittest.main()
