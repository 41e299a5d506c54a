"""_items.py: how a tensor of torch is an item of a checkpoint. Pure.

An item has at most four dimensions and one of seven dtypes. What has a number
there is stored as it is, with the kind "tensor". Everything else is bytes: dtype
u8, the last dimension times the element's size, and the kind says what it was,
"torch.float8_e4m3fn". More than four dimensions are folded: neighbours that nobody
cuts become one.
"""

import math
from dataclasses import dataclass

import torch

from . import _library
from ._library import DIMENSIONS_MAX

KIND = "tensor"
# Of an object that is an item of its own: the bytes that torch.save has made.
SAVED_KIND = "torch.save"

_NATIVE = {
    torch.bfloat16: _library.BF16,
    torch.float16: _library.F16,
    torch.float32: _library.F32,
    torch.float64: _library.F64,
    torch.int32: _library.I32,
    torch.int64: _library.I64,
    torch.uint8: _library.U8,
}
_OF_NATIVE = {number: dtype for dtype, number in _NATIVE.items()}
_QUANTIZED = tuple(
    getattr(torch, name)
    for name in ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")
    if hasattr(torch, name)
)


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def dtype_of(name):
    """The dtype that `name`, "float8_e4m3fn", means; None if this torch has none."""
    dtype = getattr(torch, name, None)
    return dtype if isinstance(dtype, torch.dtype) else None


def unfit(dtype, layout):
    """Why a tensor cannot be saved; "" when it can."""
    if layout != torch.strided:
        return f"its layout is {layout}; only strided tensors can be saved"
    if dtype in _QUANTIZED:
        return f"its dtype is {dtype}; save int_repr(), scales and zero points"
    return ""


def folds_of(shape, chunks):
    """The dimensions that are one of an item each: [[0], [1], [2, 3, 4]].

    `chunks` are the (offsets, sizes) of all that is saved of the tensor: a
    dimension that some chunk cuts begins a group, so that every chunk is a box of
    the item. None: there would be more than four groups.
    """
    groups = [[d] for d in range(len(shape))]
    cut = [
        any(sizes[d] != shape[d] for _, sizes in chunks) for d in range(len(shape))
    ]
    for d in range(len(shape) - 1, 0, -1):
        if len(groups) <= DIMENSIONS_MAX:
            break
        if not cut[d]:
            at = next(i for i, group in enumerate(groups) if group[0] == d)
            groups[at - 1] += groups.pop(at)
    return groups if len(groups) <= DIMENSIONS_MAX else None


@dataclass(frozen=True)
class Item:
    """A tensor as an item: its own shape and dtype, and what is stored."""

    fqn: str
    dtype: torch.dtype
    shape: tuple
    folds: tuple  # of tuples of dimensions

    @staticmethod
    def of(fqn, dtype, shape, folds=None):
        if folds is None:
            folds = [[d] for d in range(len(shape))]
        return Item(fqn, dtype, tuple(shape), tuple(tuple(f) for f in folds))

    @property
    def native(self):
        return self.dtype in _NATIVE

    @property
    def kind(self):
        return KIND if self.native else str(self.dtype)

    @property
    def number(self):
        return _NATIVE.get(self.dtype, _library.U8)

    @property
    def element_bytes(self):
        return self.dtype.itemsize

    @property
    def stored_shape(self):
        lengths = [math.prod(self.shape[d] for d in fold) for fold in self.folds]
        return self._in_bytes(lengths, scalar=1)

    def _in_bytes(self, lengths, scalar):
        if self.native:
            return lengths
        if not lengths:
            return [scalar * self.element_bytes]
        return lengths[:-1] + [lengths[-1] * self.element_bytes]

    def is_box(self, offsets, sizes):
        """Is that part of the tensor a box of the item?"""
        return all(
            sizes[d] == self.shape[d] for fold in self.folds for d in fold[1:]
        )

    def around(self, offsets, sizes):
        """The smallest box of the item around that part, as (offsets, sizes)."""
        first, count = list(offsets), list(sizes)
        for fold in self.folds:
            for d in fold[1:]:
                first[d], count[d] = 0, self.shape[d]
        return tuple(first), tuple(count)

    def box(self, offsets, sizes):
        """(first, count) of the item, of a part that is a box of it."""
        first, count = [], []
        for fold in self.folds:
            inner = math.prod(self.shape[d] for d in fold[1:])
            first.append(offsets[fold[0]] * inner)
            count.append(sizes[fold[0]] * inner)
        return self._in_bytes(first, scalar=0), self._in_bytes(count, scalar=1)


def item_of_entry(fqn, dtype, shape, folds=None):
    """The tensor that a head describes. ValueError: that is none.

    Boxes of the item are computed from these numbers, and a read fills as many bytes
    as its box has, so groups must be all dimensions, each once and in order.
    """
    numbers = isinstance(shape, list) and all(type(n) is int for n in shape)
    if not numbers or not all(0 <= n < 1 << 63 for n in shape):
        raise ValueError(f"tensor {fqn!r}: {shape!r} is no shape")
    if folds is not None:
        lists = isinstance(folds, list) and all(
            isinstance(fold, list) and fold for fold in folds
        )
        flat = [d for fold in folds for d in fold] if lists else None
        if flat != list(range(len(shape))) or any(type(d) is not int for d in flat):
            raise ValueError(
                f"tensor {fqn!r}: {folds!r} are no groups of the dimensions of {shape}"
            )
    return Item.of(fqn, dtype, shape, folds)


def item_of_stored(name, kind, number, shape):
    """The tensor that a stored item is, where nothing else says so: of a checkpoint
    that was not saved here. None for a kind of bytes that this torch does not know."""
    dtype = _OF_NATIVE.get(number)
    if not kind.startswith("torch."):
        return Item.of(name, dtype, shape)
    dtype = dtype_of(kind.removeprefix("torch."))
    if dtype is None or number != _library.U8 or not shape:
        return None
    if shape[-1] % dtype.itemsize != 0:
        return None
    return Item.of(name, dtype, [*shape[:-1], shape[-1] // dtype.itemsize])
