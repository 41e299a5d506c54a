"""reader.py: a StorageReader of torch.distributed.checkpoint over a Holdfast run."""

import ctypes
import io
import os
import uuid
from ctypes import byref

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from . import _ids, _items, _library, _objects
from ._library import HoldfastError
from ._survey import FORMAT

# Of temporary memory at once, for tensors that are not read in place.
BATCH_BYTES = 256 << 20


class Checkpoint:
    """One checkpoint, opened by its name: "RUN", "RUN@STEP", "RUN@ID" or its own
    directory. Reads only; any number of them, beside a job that saves."""

    def __init__(self, name):
        self.name = name
        self._handle = _library.new("reader_open", os.fsencode(name))
        info = _library.ReaderInfo()
        _library.call("reader_get_info", self._handle, byref(info))
        self.step = info.step
        self.id = info.id.decode()
        self.path = info.path.decode()
        self._numbers = {}  # of items, by (name, kind)
        self._bytes = {}
        infos = {}
        for number in range(info.items):
            item = _library.ItemInfo()
            _library.call("reader_item", self._handle, number, byref(item))
            key = (item.name.decode(), item.kind.decode())
            self._numbers[key] = number
            self._bytes[number] = item.bytes
            infos[key] = (item.dtype, list(item.shape[: item.dimensions]))
        self.planner_data = None
        self.objects_of = {}  # the rank that has it, by name
        self.tensors = {}  # Item, by name
        self._packed = {}
        self._saved = {}  # objects that are items: their numbers
        if (_objects.name_of(0), _objects.KIND) in infos:
            try:
                self._take_head(infos)
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise HoldfastError(
                    "DATA_LOSS",
                    f"reading {self.path}: item {_objects.name_of(0)!r} does not say "
                    f"what the checkpoint holds: {type(error).__name__}: {error}",
                ) from error
        else:
            self._take_foreign(infos)

    def close(self):
        handle, self._handle = self._handle, None
        if handle is not None:
            _library.free("reader_free", handle)

    def __del__(self):
        if getattr(self, "_handle", None) is not None:
            self.close()

    def _take_head(self, infos):
        """Of a checkpoint that HoldfastWriter has saved."""
        head = self._pack(0).head.get("checkpoint")
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            found = head.get("format") if isinstance(head, dict) else head
            raise HoldfastError(
                "FAILED_PRECONDITION",
                f"reading {self.path}: it was saved in the format {found!r} of "
                f"holdfast_ckpt, this one reads {FORMAT}; use a newer package",
            )
        for name, rank in head["objects_of"].items():
            if type(rank) is not int or rank < 0:
                raise ValueError(f"object {name!r} is said to be of rank {rank!r}")
        self.objects_of = head["objects_of"]
        if head["planner_data"] is not None:
            self.planner_data = {
                name: tuple(path) for name, path in head["planner_data"].items()
            }
        for name, entry in head["tensors"].items():
            dtype = _items.dtype_of(entry["dtype"])
            if dtype is None:
                raise HoldfastError(
                    "FAILED_PRECONDITION",
                    f"reading {self.path}: tensor {name!r} has the dtype "
                    f"{entry['dtype']}, which torch {torch.__version__} does not know",
                )
            item = _items.item_of_entry(
                name, dtype, entry["shape"], entry.get("folds")
            )
            self.tensors[name] = item
            if 0 in item.shape:
                continue
            expected = (item.number, list(item.stored_shape))
            if infos.get((name, item.kind)) != expected:
                raise HoldfastError(
                    "DATA_LOSS",
                    f"reading {self.path}: tensor {name!r} is said to be stored as "
                    f"{expected}, found is {infos.get((name, item.kind))}",
                )

    def _take_foreign(self, infos):
        """Of any other: a weight under its name, the rest as "kind.name". What
        ckptctl import --from dcp has made names its kinds as we do, and has objects as
        items of their own."""
        for (name, kind), (number, shape) in infos.items():
            if kind == _items.SAVED_KIND and number == _library.U8:
                self._saved[name] = self._numbers[(name, kind)]
                self.objects_of[name] = None
                continue
            item = _items.item_of_stored(name, kind, number, shape)
            if item is None:
                continue
            fqn = name if kind in ("weight", _items.KIND) else f"{kind}.{name}"
            if kind.startswith("torch."):
                fqn = name
            if fqn in self.tensors:
                raise HoldfastError(
                    "FAILED_PRECONDITION",
                    f"reading {self.path}: two items would be {fqn!r}",
                )
            self.tensors[fqn] = item
            self._numbers[(fqn, item.kind)] = self._numbers[(name, kind)]

    def _bytes_of(self, number):
        data = torch.empty(self._bytes[number], dtype=torch.uint8)
        self.read([(number, (), (), data)])
        return data

    def _pack(self, rank):
        if rank not in self._packed:
            name = _objects.name_of(rank)
            number = self._numbers.get((name, _objects.KIND))
            if number is None:
                raise HoldfastError(
                    "DATA_LOSS", f"reading {self.path}: there is no item {name!r}"
                )
            data = self._bytes_of(number)
            try:
                self._packed[rank] = _objects.Packed(data.numpy())
            except ValueError as error:
                raise HoldfastError(
                    "DATA_LOSS", f"reading {self.path}: item {name!r}: {error}"
                ) from error
        return self._packed[rank]

    def object_bytes(self, name):
        """KeyError: there is no such object."""
        rank = self.objects_of[name]
        if name in self._saved:
            return self._bytes_of(self._saved[name]).numpy().tobytes()
        try:
            return self._pack(rank).get(name)
        except KeyError:
            raise HoldfastError(
                "DATA_LOSS",
                f"reading {self.path}: object {name!r} should be in "
                f"{_objects.name_of(rank)!r}, and is not",
            ) from None

    def read(self, wants):
        """`wants`: (item's number, first, count, contiguous tensor in memory); an empty
        count is the whole item."""
        boxes = (_library.BoxRead * max(1, len(wants)))()
        for box, (number, first, count, tensor) in zip(boxes, wants):
            box.struct_bytes = ctypes.sizeof(_library.BoxRead)
            box.item = number
            for d, (offset, length) in enumerate(zip(first, count)):
                box.first[d], box.count[d] = offset, length
            box.memory = tensor.data_ptr()
            box.memory_bytes = tensor.numel() * tensor.element_size()
        _library.call("reader_read", self._handle, boxes, len(wants))

    def want(self, fqn, offsets, sizes, tensor):
        """An entry for read(): that part of a tensor, which is a box of its item."""
        item = self.tensors[fqn]
        first, count = item.box(offsets, sizes)
        return (self._numbers[(fqn, item.kind)], first, count, tensor)

    def tensor(self, fqn, offsets=None, sizes=None):
        """That part of a tensor (all of it), in memory of its own."""
        item = self.tensors[fqn]
        offsets = (0,) * len(item.shape) if offsets is None else tuple(offsets)
        sizes = item.shape if sizes is None else tuple(sizes)
        if 0 in sizes:
            return torch.empty(sizes, dtype=item.dtype)
        part = Part(self, fqn, offsets, sizes)
        self.read([part.want])
        return part.result()

    def metadata(self):
        """As DCP's planners want it: each tensor is one chunk."""
        entries = {}
        for fqn, item in self.tensors.items():
            size = torch.Size(item.shape)
            entries[fqn] = TensorStorageMetadata(
                properties=TensorProperties(dtype=item.dtype),
                size=size,
                chunks=[
                    ChunkStorageMetadata(
                        offsets=torch.Size([0] * len(size)), sizes=size
                    )
                ],
            )
        for name in self.objects_of:
            entries[name] = BytesStorageMetadata()
        return Metadata(entries, planner_data=self.planner_data)


class Part:
    """A part of a tensor that is read into memory of its own: it, or the smallest box
    around it where dimensions are folded."""

    def __init__(self, checkpoint, fqn, offsets, sizes):
        item = checkpoint.tensors[fqn]
        self._offsets, self._sizes = offsets, sizes
        self._whole = (offsets, sizes)
        if not item.is_box(offsets, sizes):
            self._whole = item.around(offsets, sizes)
        self._memory = torch.empty(self._whole[1], dtype=item.dtype)
        self.bytes = self._memory.numel() * self._memory.element_size()
        self.want = checkpoint.want(fqn, *self._whole, self._memory)

    def result(self):
        tensor = self._memory
        for d, (offset, size) in enumerate(zip(self._offsets, self._sizes)):
            tensor = tensor.narrow(d, offset - self._whole[0][d], size)
        return tensor


class HoldfastReader(StorageReader):
    """Loads from `name`: "RUN" (its newest), "RUN@STEP", "RUN@ID", or the directory of
    one checkpoint. With checkpoint_id "step-120": step 120 of the run.

    All ranks load the checkpoint that rank 0 sees. Every byte that is read is checked;
    tensors in memory are read into directly. Objects that are no tensors go to the
    planner as the bytes that its writer made; DCP's planner gives them to torch.load.
    """

    def __init__(self, name: str | os.PathLike) -> None:
        super().__init__()
        self._base = os.fspath(name)
        self._name = self._base
        self._open = None
        self._load_id = str(uuid.uuid4())

    @property
    def checkpoint(self):
        """What is read: its step, id and path."""
        if self._open is None:
            self._open = Checkpoint(self._name)
        return self._open

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        self._load_id = str(uuid.uuid4())
        self._open = None
        self._name = self._base
        if checkpoint_id is not None:
            run = self._base.rpartition("@")[0] or self._base
            if os.path.isdir(self._base):  # its name has an '@'
                run = self._base
            self._name = f"{run}@{_ids.step_in(checkpoint_id, run)}"

    def read_metadata(self, *args) -> Metadata:
        self._open = None  # a reader that is used again finds what is new
        metadata = self.checkpoint.metadata()
        metadata.storage_meta = StorageMeta(
            checkpoint_id=self.checkpoint.path, load_id=self._load_id
        )
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args, **kwargs
    ) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        for plan in plans:
            plan.storage_data = self.checkpoint.id
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        if plan.storage_data not in (None, self.checkpoint.id):
            # A newer one was committed while the ranks were looking.
            run = os.path.dirname(os.path.dirname(self.checkpoint.path))
            self._open = Checkpoint(f"{run}@{plan.storage_data}")
        direct, apart = [], []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                self._load_object(item, planner)
            elif 0 not in item.lengths:
                self._sort(item, planner, direct, apart)
        self._read_direct(direct, planner)
        self._read_apart(apart, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return _ids.is_id(checkpoint_id)

    def _load_object(self, item, planner):
        data = self.checkpoint.object_bytes(item.storage_index.fqn)
        planner.load_bytes(item, io.BytesIO(data))

    def _sort(self, item, planner, direct, apart):
        fqn = item.storage_index.fqn
        if fqn not in self.checkpoint.tensors:
            raise HoldfastError(
                "NOT_FOUND",
                f"reading {self.checkpoint.path}: it has no tensor {fqn!r}; was the "
                "checkpoint that the ranks load changed while they planned?",
            )
        stored = self.checkpoint.tensors[fqn]
        target = planner.resolve_tensor(item).detach()
        offsets, sizes = tuple(item.storage_offsets), tuple(item.lengths)
        if tuple(target.shape) != sizes:
            raise ValueError(
                f"tensor {fqn!r}: {list(sizes)} at {list(offsets)} was planned, the "
                f"planner resolves it to the shape {list(target.shape)}"
            )
        in_place = (
            target.device.type == "cpu"
            and target.dtype == stored.dtype
            and target.is_contiguous()
            and not target.is_conj()
            and not target.is_neg()
            and stored.is_box(offsets, sizes)
        )
        (direct if in_place else apart).append((item, offsets, sizes, target))

    def _read_direct(self, parts, planner):
        self.checkpoint.read(
            [
                self.checkpoint.want(item.storage_index.fqn, offsets, sizes, target)
                for item, offsets, sizes, target in parts
            ]
        )
        for item, _, _, target in parts:
            planner.commit_tensor(item, target)

    def _read_apart(self, parts, planner):
        """Through temporary memory, a batch at a time."""
        batch, size = [], 0
        for at, (item, offsets, sizes, target) in enumerate(parts):
            part = Part(self.checkpoint, item.storage_index.fqn, offsets, sizes)
            batch.append((item, part, target))
            size += part.bytes
            if size < BATCH_BYTES and at + 1 < len(parts):
                continue
            self.checkpoint.read([part.want for _, part, _ in batch])
            for item, part, target in batch:
                target.copy_(part.result())
                planner.commit_tensor(item, target)
            batch, size = [], 0
