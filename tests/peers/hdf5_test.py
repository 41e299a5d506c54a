"""tests/peers/hdf5_test.py: archives, against the real h5py.

A run of ours is exported and read by h5py as a stranger would read it; it comes
back on another layout without a difference; what h5py changed or made is what is
imported; and what it compressed is refused.
"""

import json
import pathlib
import subprocess
import tempfile
import unittest

import h5py
import numpy

import programs

CONFIG = """
model.layers = 3
model.hidden = 64
model.heads = 4
model.kv_heads = 2
model.ffn = 96
model.vocab = 259
model.seq_len = 32
model.tied = false
batch.global_seqs = 4
batch.micro_seqs = 1
train.steps = 3
data.eval_fraction = 0
"""


def values(dataset):
    """A dataset's numbers in float64, by its own description."""
    numbers = dataset[()]
    if dataset.attrs["dtype"] == b"bfloat16":
        numbers = (numbers.astype("u4") << 16).view("f4")
    return numbers.astype("f8")


def to_bfloat16(numbers):
    """The bits of float32 numbers rounded to the nearest, ties to even."""
    bits = numbers.view("u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("u2")


class Hdf5(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.temporary.name)
        data = programs.make_data(cls.folder, 259)
        config = cls.folder / "config.toml"
        config.write_text(CONFIG + f'data.paths = ["{data}"]\n')
        cls.run_dir = cls.folder / "run"
        programs.run("holdfast", "train", "--config", config, "--run", cls.run_dir)
        cls.archive = cls.folder / "run.h5"
        cls.report = programs.ckptctl(
            "export", cls.run_dir, "--to", "hdf5", "--out", cls.archive)
        cls.shown = programs.ckptctl("show", cls.run_dir, "--hash")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def bring_back(self, archive, out, *options, code=0):
        arguments = ("import", archive, "--from", "hdf5", "--out", self.folder / out, *options)
        if code:
            return programs.run("ckptctl", *arguments, code=code)
        return programs.ckptctl(*arguments)

    def diff(self, out, code):
        command = [str(programs.BUILD / "bin/ckptctl"), "diff", str(self.run_dir),
                   str(self.folder / out), "--json"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(ended.returncode, code, ended.stderr)
        return json.loads(ended.stdout)

    def test_a_stranger_reads_all_of_it(self):
        with h5py.File(self.archive) as file:
            self.assertEqual(file.attrs["format"], b"holdfast archive 1")
            self.assertEqual(file.attrs["step"], 3)
            self.assertEqual(file.attrs["layout"].decode(), self.shown["layout"])
            self.assertEqual(file.attrs["checkpoint"].decode(), self.shown["id"])
            self.assertEqual(file.attrs["digest"].decode(), self.shown["digest"])
            self.assertIn("layers = 3", file["attributes"].attrs[".config"].decode())
            for name, value in self.shown["attributes"].items():
                self.assertEqual(file["attributes"].attrs[name].decode(), value, name)
            found = set()
            for item in self.shown["items"]:
                dataset = file["state"][item["name"]][item["kind"]]
                self.assertEqual(list(dataset.shape), item["shape"])
                self.assertEqual(dataset.attrs["digest"].decode(), item["digest"])
                numbers = values(dataset)
                self.assertTrue(numpy.isfinite(numbers).all())
                found.add((item["name"], item["kind"], dataset.dtype.name))
            self.assertIn(("lm_head.weight", "weight", "uint16"), found)
            self.assertIn(("lm_head.weight", "exp_avg_sq", "float32"), found)
            for name, group in file["state"].items():
                # The weight is the master, rounded: the bits mean what is said.
                numpy.testing.assert_array_equal(
                    group["weight"][()], to_bfloat16(group["master"][()]), name)
                self.assertTrue((values(group["exp_avg_sq"]) >= 0).all())
            self.assertEqual(sum(len(group) for group in file["state"].values()),
                             len(self.shown["items"]))

    def test_it_comes_back_without_a_difference_on_another_layout(self):
        for out, options in (("tp2", ("--tp", 2)), ("pp3", ("--pp", 3, "--dp", 2))):
            report = self.bring_back(self.archive, out, *options)
            self.assertEqual(report["digest"], self.shown["digest"])
            self.assertEqual(report["step"], 3)
            self.assertTrue(self.diff(out, 0)["equal"])
        verified = programs.ckptctl("verify", self.folder / "tp2", "--hash")
        self.assertEqual(verified["digest"], self.shown["digest"])

    def test_what_was_changed_has_another_digest_until_that_goes_too(self):
        changed = self.folder / "changed.h5"
        changed.write_bytes(self.archive.read_bytes())
        with h5py.File(changed, "r+") as file:
            file["state/model.norm.weight/master"][5] += 1
        message = self.bring_back(changed, "changed", code=65)
        self.assertIn("model.norm.weight", message)
        with h5py.File(changed, "r+") as file:
            del file["state/model.norm.weight/master"].attrs["digest"]
        self.bring_back(changed, "changed2")
        difference = self.diff("changed2", 1)
        self.assertEqual([(item["name"], item["kind"], item["different"])
                          for item in difference["items"]],
                         [("model.norm.weight", "master", 1)])
        self.assertAlmostEqual(difference["items"][0]["abs_max"], 1.0, places=5)

    def test_what_h5py_made_is_read(self):
        made = self.folder / "made.h5"
        matrix = numpy.arange(12, dtype="f4").reshape(3, 4)
        with h5py.File(made, "w") as file:
            file.create_group("attributes").attrs["note"] = numpy.bytes_("by hand")
            file["state/wte/weight"] = matrix
            file["state/wte/half"] = matrix.astype("f2")
            file["state/count/tensor"] = numpy.int64(7)
        self.bring_back(made, "made", "--dp", 2)
        back = self.folder / "back.h5"
        programs.ckptctl("export", self.folder / "made", "--to", "hdf5", "--out", back)
        with h5py.File(back) as file:
            numpy.testing.assert_array_equal(file["state/wte/weight"][()], matrix)
            self.assertEqual(file["state/wte/half"].dtype, numpy.float16)
            numpy.testing.assert_array_equal(file["state/wte/half"][()], matrix)
            self.assertEqual(file["state/count/tensor"][()], 7)
            self.assertEqual(file["attributes"].attrs["note"], b"by hand")

    def test_what_it_compressed_is_refused_with_the_way_out(self):
        packed = self.folder / "packed.h5"
        with h5py.File(packed, "w") as file:
            file.create_group("attributes")
            file.create_dataset("state/wte/weight", data=numpy.zeros((64, 64), "f4"),
                                compression="gzip")
        message = self.bring_back(packed, "packed", code=78)
        self.assertIn("h5repack -l CONTI -f NONE", message)
        self.assertFalse((self.folder / "packed").exists())


if __name__ == "__main__":
    unittest.main()
