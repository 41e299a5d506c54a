"""_survey.py: what a plan asks a rank to save, and what all of them together save.

No file and no other rank is touched; objects are resolved, tensors are not.
"""

import math
from dataclasses import dataclass

import torch
from torch.distributed.checkpoint.planner import WriteItemType

from . import _items, _library, _objects

FORMAT = 1


@dataclass(frozen=True)
class Part:
    """A chunk of a tensor that this rank stores."""

    fqn: str
    dtype: torch.dtype
    shape: tuple
    offsets: tuple
    sizes: tuple

    @property
    def name(self):
        return f"tensor {self.fqn!r}, {list(self.sizes)} at {list(self.offsets)}"

    @property
    def empty(self):
        return 0 in self.sizes

    @property
    def bytes(self):
        return self.dtype.itemsize * math.prod(self.sizes)


class Survey:
    """What a plan asks this rank to save."""

    def __init__(self, plan, planner):
        self.parts = {}  # by Part: the plan's item
        self.objects = {}
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                self._add_object(item, planner)
            else:
                self._add_part(item)
        self.paths = self._paths(plan)

    def _add_object(self, item, planner):
        data = planner.resolve_data(item)
        if not hasattr(data, "getbuffer"):
            raise TypeError(
                f"object {item.index.fqn!r}: the planner resolves it to a "
                f"{type(data).__name__}; io.BytesIO is expected"
            )
        self.objects[item.index.fqn] = bytes(data.getbuffer())

    def _add_part(self, item):
        data = item.tensor_data
        why = _items.unfit(data.properties.dtype, data.properties.layout)
        if why:
            raise TypeError(f"tensor {item.index.fqn!r}: {why}")
        part = Part(
            item.index.fqn,
            data.properties.dtype,
            tuple(data.size),
            tuple(data.chunk.offsets),
            tuple(data.chunk.sizes),
        )
        self.parts[part] = item

    def _paths(self, plan):
        """The places in the nested state of what is saved here; None: it is flat."""
        data = plan.planner_data
        if data is None:
            return None
        if not isinstance(data, dict):
            raise TypeError(
                f"the plan's planner_data is a {type(data).__name__}; the mapping of "
                "DefaultSavePlanner, or None, is expected"
            )
        names = [*self.objects, *(part.fqn for part in self.parts)]
        try:
            return {n: _objects.path_to_json(data[n]) for n in names if n in data}
        except TypeError as error:
            raise TypeError(f"the plan's planner_data has {error}") from None

    def summary(self):
        return {
            "tensors": {
                p.fqn: (_items.dtype_name(p.dtype), p.shape) for p in self.parts
            },
            "deep": [
                (p.fqn, p.offsets, p.sizes)
                for p in self.parts
                if len(p.shape) > _library.DIMENSIONS_MAX
            ],
            "objects": list(self.objects),
            "paths": self.paths,
        }


def head_of(summaries):
    """What the checkpoint holds, for readers, of what all ranks store."""
    tensors, objects, paths, chunks = {}, {}, None, {}
    for rank, summary in enumerate(summaries):
        for fqn, (dtype, shape) in summary["tensors"].items():
            entry = {"dtype": dtype, "shape": list(shape)}
            if tensors.setdefault(fqn, entry) != entry:
                raise ValueError(
                    f"tensor {fqn!r}: rank {rank} says that it is {entry}, another "
                    f"that it is {tensors[fqn]}"
                )
        for fqn, offsets, sizes in summary["deep"]:
            chunks.setdefault(fqn, []).append((offsets, sizes))
        for fqn in summary["objects"]:
            if objects.setdefault(fqn, rank) != rank:
                raise ValueError(
                    f"object {fqn!r}: rank {objects[fqn]} and rank {rank} both save it"
                )
        if summary["paths"] is not None:
            paths = {**(paths or {}), **summary["paths"]}
    for fqn, of_tensor in chunks.items():
        folds = _items.folds_of(tensors[fqn]["shape"], of_tensor)
        if folds is None:
            raise ValueError(
                f"tensor {fqn!r}: {len(tensors[fqn]['shape'])} dimensions, of which "
                "more than four are cut over the ranks; an item has at most four that "
                "can be"
            )
        tensors[fqn]["folds"] = folds
    both = sorted(set(tensors) & set(objects))
    if both:
        raise ValueError(f"{both[0]!r} is a tensor on one rank, an object on another")
    return {
        "format": FORMAT,
        "ranks": len(summaries),
        "tensors": tensors,
        "objects_of": objects,
        "planner_data": paths,
    }


def folds_in(head):
    return {n: t["folds"] for n, t in head["tensors"].items() if "folds" in t}
