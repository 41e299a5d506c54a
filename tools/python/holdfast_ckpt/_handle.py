"""_handle.py: one opened checkpointer, for items that stay the same.

It holds memory of its own for what this rank stores. Opening is collective over
the ranks and takes the run (hf_ckpt_open, HF_CKPT_RESUME_CLAIM); a save is too.
"""

import os
from ctypes import byref, c_int32, c_uint32, c_void_p

from . import _library
from ._library import HoldfastError

WAIT_MS = 500  # so that signals are seen


class Handle:
    def __init__(self, run, options, ranks, meeting):
        self._meeting = meeting
        self._regions = set()
        self._pieces = []  # keeps the memory
        self._handle = c_void_p()
        self._in_flight = False
        self.newest = None  # step of the run's newest checkpoint; None: none
        self.step = None  # of the last save
        made = _library.new("options_new")
        group = None
        try:
            for name, value in options.items():
                _library.call("options_set", made, name.encode(), str(value).encode())
            group = meeting.group(ranks)
            self._handle = _library.new("new", os.fsencode(run), group, made)
            group = None  # the checkpointer's now
        except BaseException:
            meeting.end()  # nobody else will
            raise
        finally:
            _library.free("group_free", group)
            _library.free("options_free", made)

    def add(self, name, kind, number, shape, first, count, piece):
        """That `piece` is that box of the item."""
        if piece.block.address not in self._regions:
            self._regions.add(piece.block.address)
            _library.call(
                "add_region", self._handle, piece.block.address, piece.block.size
            )
        item = c_uint32()
        shape = list(shape)
        _library.call(
            "add_item",
            self._handle,
            name.encode(),
            kind.encode(),
            number,
            len(shape),
            _library.integers(shape),
            byref(item),
        )
        _library.call(
            "add_buffer",
            self._handle,
            item,
            _library.integers(first),
            _library.integers(count),
            piece.address,
            piece.room,
            _library.IN_PLACE,
            None,
        )
        self._pieces.append(piece)

    def open(self):
        _library.call("open", self._handle)
        request = _library.LoadRequest(resume=_library.RESUME_CLAIM)
        report = _library.LoadReport()
        _library.call("load", self._handle, byref(request), byref(report))
        if report.id:
            self.newest = report.step

    def save(self, step, attributes):
        """Returns when the checkpoint is durable, on all ranks. A dictionary of what
        is worth to know. HoldfastError: it does not exist, or perhaps (UNKNOWN)."""
        pairs = [(n.encode(), v.encode()) for n, v in sorted(attributes.items())]
        array = (_library.Attribute * max(1, len(pairs)))(*pairs)
        _library.call("begin_save", self._handle, step, array, len(pairs))
        self._in_flight = True
        report = self.settle()
        self.step = step
        if report.outcome != _library.COMMITTED:
            raise HoldfastError(
                _library.code_name(report.code), report.message.decode(errors="replace")
            )
        self.newest = step
        return {
            "step": report.step,
            "id": report.id.decode(),
            "bytes": report.bytes,
            "bytes_total": report.bytes_total,
            "seconds": report.seconds,
            "write_seconds": report.write_seconds,
        }

    def settle(self):
        """Waits for the save in flight: its report, None when there is none. There is
        one at the start of a save if the last wait was interrupted; its memory is in use
        until then."""
        if not self._in_flight:
            return None
        report, ready = _library.SaveReport(), c_int32()
        while not ready:
            _library.call(
                "wait_save", self._handle, WAIT_MS, byref(report), byref(ready)
            )
        self._in_flight = False
        return report

    def close(self):
        """Waits for retention. The memory may be given back after it."""
        handle, self._handle = self._handle, c_void_p()
        if not handle:
            return
        try:
            _library.call("close", handle)
        finally:
            _library.free("free", handle)
            self._meeting.end()

    def drop(self):
        """As close, for one whose opening or declaring has failed."""
        handle, self._handle = self._handle, c_void_p()
        _library.free("free", handle)
        self._meeting.end()
