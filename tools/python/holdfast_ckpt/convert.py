"""convert.py: a checkpoint of DCP's own files into a run, and back.

Both ways the bytes of every tensor, the bytes of every object and the names in the
nested state are the same after it. One process. Into a run it holds the state in
memory once (that is what a save writes from); into DCP's files a piece of 256 MiB.
"""

import io
import os
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from ._dcp_directory import DcpDirectory
from ._library import HoldfastError
from .reader import Checkpoint
from .writer import HoldfastWriter, close_all

PIECE_BYTES = 256 << 20


class BadName(ValueError):
    """What should name a checkpoint does not: "RUN@1200" or "RUN@ID" is expected."""


class _Pump(SavePlanner):
    """A planner that saves what `source` has and nothing else, each piece read when
    it is written."""

    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
        pass

    def __init__(self, source):
        self.source = source

    def create_local_plan(self):
        items = [
            WriteItem(index=MetadataIndex(fqn), type=WriteItemType.BYTE_IO)
            for fqn in self.source.objects()
        ]
        for fqn, properties, size, chunks in self.source.tensors():
            for i, chunk in enumerate(chunks):
                items.append(
                    WriteItem(
                        index=MetadataIndex(fqn, chunk.offsets, i),
                        type=WriteItemType.SHARD,
                        tensor_data=TensorWriteData(
                            chunk=chunk, properties=properties, size=size
                        ),
                    )
                )
        return SavePlan(items, planner_data=self.source.planner_data)

    def create_global_plan(self, all_plans):
        plans, metadata = create_default_global_save_plan(all_plans)
        metadata.planner_data = self.source.planner_data
        return plans, metadata

    def finish_plan(self, new_plan):
        return new_plan

    def resolve_data(self, write_item):
        index = write_item.index
        if write_item.type == WriteItemType.BYTE_IO:
            return io.BytesIO(self.source.object_bytes(index.fqn))
        chunk = write_item.tensor_data.chunk
        return self.source.part(index.fqn, chunk.offsets, chunk.sizes)


class _FromDcp(DcpDirectory):
    def part(self, fqn, offsets, _sizes):
        return self.chunk(fqn, offsets)


class _FromRun:
    def __init__(self, checkpoint):
        self._checkpoint = checkpoint
        self.planner_data = checkpoint.planner_data

    def objects(self):
        return self._checkpoint.objects_of

    def object_bytes(self, fqn):
        return self._checkpoint.object_bytes(fqn)

    def tensors(self):
        for fqn, item in self._checkpoint.tensors.items():
            properties = TensorProperties(dtype=item.dtype)
            size = torch.Size(item.shape)
            yield fqn, properties, size, list(_pieces(item))

    def part(self, fqn, offsets, sizes):
        return self._checkpoint.tensor(fqn, offsets, sizes)


def _pieces(item):
    """Chunks of whole rows, of at most PIECE_BYTES where a row allows it."""
    shape = item.shape
    rows = shape[0] if shape else 1
    size = item.element_bytes
    for length in shape:
        size *= length
    step = max(1, rows if size == 0 else PIECE_BYTES * rows // size)
    if not shape or step >= rows:
        yield ChunkStorageMetadata(torch.Size([0] * len(shape)), torch.Size(shape))
        return
    for first in range(0, rows, step):
        count = min(step, rows - first)
        yield ChunkStorageMetadata(
            torch.Size([first] + [0] * (len(shape) - 1)),
            torch.Size([count, *shape[1:]]),
        )


def _save(writer, source):
    with warnings.catch_warnings():
        # "torch.distributed is disabled ...": so it is.
        warnings.simplefilter("ignore")
        dcp.save({}, storage_writer=writer, planner=_Pump(source), no_dist=True)


def dcp_to_holdfast(directory, run, step=None):
    """Makes a checkpoint of the run; what it has stays. The report of the save."""
    writer = HoldfastWriter(run, step=step, no_dist=True)
    _save(writer, _FromDcp(directory))
    close_all()
    return writer.last_report


def holdfast_to_dcp(name, directory):
    """`directory` is new or empty. The checkpoint that was read."""
    if os.path.isdir(directory) and os.listdir(directory):
        raise ValueError(f"{directory} is not empty; name a new directory")
    try:
        checkpoint = Checkpoint(name)
    except HoldfastError as error:
        if error.code == "INVALID_ARGUMENT":
            raise BadName(error.message) from None
        raise
    _save(dcp.FileSystemWriter(directory, sync_files=True), _FromRun(checkpoint))
    return checkpoint
