"""_memory.py: page-aligned memory that a save writes from where it is.

Small pieces share blocks, so that the library sees few regions and writes
neighbours with one call. A block is given back when the last tensor and the last
piece of it are gone.
"""

import ctypes
import weakref

import torch

from . import _library
from ._library import PAGE

BLOCK = 64 << 20  # bytes; pieces of a quarter and more have a block of their own


def padded(size):
    return (size + PAGE - 1) // PAGE * PAGE


class Block:
    """One hf_ckpt_alloc."""

    def __init__(self, size):
        self.size = size
        self.address = _library.new("alloc", size).value
        self.used = 0
        array = (ctypes.c_uint8 * size).from_address(self.address)
        self._finalizer = weakref.finalize(
            array, _library.free, "dealloc", self.address
        )
        # The process is about to end; other threads may still write from it.
        self._finalizer.atexit = False
        # The storage holds the array, and with it the memory.
        self.bytes = torch.frombuffer(array, dtype=torch.uint8)


class Piece:
    """Whole pages of a block, for `size` bytes."""

    def __init__(self, arena, block, offset, size):
        self.arena = arena
        self.block = block
        self.offset = offset
        self.size = size
        self.room = padded(size)
        self.address = block.address + offset

    def flat(self):
        """Its bytes, as a tensor whose storage is the block's."""
        return self.block.bytes[self.offset : self.offset + self.size]

    def tensor(self, dtype, shape):
        return self.flat().view(dtype).reshape(shape)

    def storage(self):
        """An untyped storage of exactly these bytes, which keeps this piece."""
        array = (ctypes.c_uint8 * self.size).from_address(self.address)
        array.keeps = self
        return torch.frombuffer(array, dtype=torch.uint8).untyped_storage()


class Arena:
    """Where pieces come from. One thread at a time."""

    def __init__(self):
        self._open = None

    def take(self, size):
        room = padded(max(1, size))
        if room >= BLOCK // 4:
            return Piece(self, Block(room), 0, size)
        if self._open is None or self._open.size - self._open.used < room:
            self._open = Block(BLOCK)
        piece = Piece(self, self._open, self._open.used, size)
        self._open.used += room
        return piece
