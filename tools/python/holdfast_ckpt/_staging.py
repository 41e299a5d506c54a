"""_staging.py: async_save's copy of the state, in memory that a save writes from.

torch's own stager walks over the state (nested, DTensors, shared storages) and asks
for a new storage for each that it meets; here that is page-aligned memory, kept for
the next save, so that what was staged needs no second copy.
"""

import logging
import threading
import weakref

from torch.distributed.checkpoint._state_dict_stager import StateDictStager

from ._memory import Arena

log = logging.getLogger("holdfast_ckpt")


class _PageStager(StateDictStager):
    def __init__(self):
        super().__init__(pin_memory=False, share_memory=False)
        self._arena = Arena()
        # By address. A piece lives as long as the staged storage, or as a save
        # needs it.
        self.pieces = weakref.WeakValueDictionary()

    def _stage_untyped_storage(self, storage, non_blocking=False):
        if storage.nbytes() == 0:
            return super()._stage_untyped_storage(storage, non_blocking)
        staged = self._cached_storage_mapping.get(storage)
        if staged is None or staged.nbytes() != storage.nbytes():
            piece = self._arena.take(storage.nbytes())
            staged = piece.storage()
            self._cached_storage_mapping[storage] = staged
            self.pieces[piece.address] = piece
        staged.copy_(storage, non_blocking=non_blocking)
        return staged


class Staging:
    """One state at a time is staged and written. A second one that comes before the
    first is written has memory of its own, and the first stays as it is."""

    def __init__(self):
        self._changed = threading.Condition()
        self._stager = None
        self._waits = False  # staged, and not written yet
        self._writing = False

    def stage(self, state):
        with self._changed:
            while self._writing:
                self._changed.wait(1.0)
            if self._stager is None or self._waits:
                if self._waits:
                    log.warning(
                        "a state was staged before the last one was saved: more "
                        "memory is taken. Wait for async_save's future first"
                    )
                self._stager = _PageStager()
            staged = self._stager.stage(state, non_blocking=False)
            self._waits = len(self._stager.pieces) > 0
            return staged

    def begin_write(self, planner):
        """A save of what `planner` has begins: nothing is staged meanwhile. True: a
        state that was staged waits still, and this is another one; the memory of the
        staged one must stay as it is."""
        with self._changed:
            self._writing = True
            if self._waits and self._is_staged(planner):
                self._waits = False
            return self._waits

    def end_write(self):
        with self._changed:
            self._writing = False
            self._changed.notify_all()

    @property
    def used(self):
        return self._stager is not None

    def piece_at(self, address, size):
        """The piece of staged memory that is exactly these bytes, or None."""
        piece = self._stager and self._stager.pieces.get(address)
        return piece if piece is not None and piece.size == size else None

    def _is_staged(self, planner):
        state = getattr(planner, "state_dict", None)
        if not isinstance(state, dict):
            return False
        for value in state.values():
            local = getattr(value, "_local_tensor", value)
            pointer = getattr(local, "untyped_storage", None)
            if pointer is not None and pointer().data_ptr() in self._stager.pieces:
                return True
        return False
