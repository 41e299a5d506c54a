"""_job.py: what this process saves into one run: memory, an open handle, a save.

    all ranks   survey: what is there to save?       -> rank 0
    rank 0      decide: one step, folds, same items as before?  -> all
    all ranks   copy what does not lie in our memory yet; agree that all could
    all ranks   open, when the items have changed
    all ranks   save: the library's own vote and commit

Jobs live as long as the process, whatever becomes of the writers that use them:
DCP's users make a writer for each save.
"""

import atexit
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from . import _library, _meeting, _objects
from ._handle import Handle
from ._items import Item
from ._library import HoldfastError
from ._memory import Arena
from ._staging import Staging
from ._survey import FORMAT, Survey, folds_in, head_of

log = logging.getLogger("holdfast_ckpt")

# Nobody stores into what is being saved, so it needs no room for copies beside it.
OPTIONS = {"keep_last": "all", "arena_bytes": 1}
_jobs = {}
_jobs_lock = threading.Lock()


def job_of(run, ranks):
    """This process's job for that run, made once: a second one would take the run
    from the first."""
    run = os.path.abspath(run)
    # A fork has neither the library's thread nor the right to save for its parent.
    key = (os.getpid(), run, ranks.rank, ranks.key)
    with _jobs_lock:
        if key not in _jobs:
            _jobs[key] = Job(run, ranks)
        return _jobs[key]


def close_all():
    """Waits for what is under way and gives the runs back. Saves may follow: they
    open them again."""
    with _jobs_lock:
        jobs = [job for (pid, *_), job in _jobs.items() if pid == os.getpid()]
        _jobs.clear()
    for job in jobs:
        job.close()


atexit.register(close_all)


class Job:
    def __init__(self, run, ranks):
        self.run = run
        self.options = None  # of the open handle
        self.ranks = ranks
        self.staging = Staging()
        self.report = None  # of the last save
        self._stager = None
        self._lock = threading.Lock()  # one save at a time
        self._arena = Arena()
        self._handle = None
        self._declared = {}  # by Part: its piece
        self._folds = {}
        self._packed = None  # the piece of our objects

    # --- staging, for async_save

    def stage(self, state):
        return self.staging.stage(state)

    def stage_in_thread(self, state):
        """A future of it. In the order of the calls."""
        if self._stager is None:
            self._stager = ThreadPoolExecutor(1, thread_name_prefix="holdfast-stage")
        return self._stager.submit(self.staging.stage, state)

    # --- a save

    def save(self, plan, planner, wanted, options):
        """`wanted`: a step, or None for the next. Returns when it is durable."""
        with self._lock:
            if options != self.options:
                self._close()  # a change of options opens the run anew
                self.options = options
            beside = self.staging.begin_write(planner)
            try:
                self.report = self._save(plan, planner, wanted, beside)
            finally:
                self.staging.end_write()
            return self.report

    def _save(self, plan, planner, wanted, beside):
        if beside:  # a staged state waits: its memory is not for this save
            self._declared = {
                part: piece
                for part, piece in self._declared.items()
                if piece.arena is self._arena
            }
        if self._handle is not None:
            self._handle.settle()
        survey, mine = None, {"host": _meeting.host(), "step": wanted}
        try:
            survey = Survey(plan, planner)
            mine.update(survey.summary())
            packed = _objects.pack(survey.objects, {}) if survey.objects else b""
            mine["same"] = (
                self._handle is not None
                and set(self._declared) == {p for p in survey.parts if not p.empty}
                and len(packed) <= self._room
                and not self._should_move(survey, planner)
            )
        except Exception as error:
            mine["error"] = f"{type(error).__name__}: {error}"
        all_of = self.ranks.gather(mine)
        word = self._word(all_of, survey) if self.ranks.rank == 0 else None
        if self.ranks.rank == 0 and "packed" in word:
            packed = word.pop("packed")
        word = self.ranks.broadcast(word)
        if "error" in word:
            raise HoldfastError("INVALID_ARGUMENT", word["error"])
        if word["open"]:
            self._close()
            word["meeting"] = _meeting.meeting_of(word, self.ranks)
        self._agree(self._fill, word, survey, planner, packed)
        if word["open"]:
            try:
                self._handle.open()
            except BaseException:
                self._forget()
                raise
        step = wanted
        if step is None:
            newest = self._handle.newest
            step = 1 if newest is None else newest + 1
        attributes = {}
        if self.ranks.rank == 0:
            attributes = {
                "dcp.format": str(FORMAT),
                ".torch": torch.__version__,
                ".saved_by": "holdfast_ckpt",
            }
        return self._handle.save(step, attributes)

    def _should_move(self, survey, planner):
        """The run was opened by a save that staged nothing, and this one did: to open
        it anew for the staged memory saves a copy each time."""
        if not self.staging.used or any(
            piece.arena is not self._arena for piece in self._declared.values()
        ):
            return False
        return any(
            self._staged(self._resolve(planner, item, part), part) is not None
            for part, item in survey.parts.items()
            if not part.empty
        )

    def _staged(self, tensor, part):
        """The piece that this tensor is, if it was staged; else None."""
        if not tensor.is_contiguous() or tensor.dtype != part.dtype:
            return None
        return self.staging.piece_at(tensor.data_ptr(), part.bytes)

    @property
    def _room(self):
        return 0 if self._packed is None else self._packed.size

    def _word(self, all_of, survey):
        """What _decide says. Whatever it raises must reach the others, who wait."""
        try:
            return self._decide(all_of, survey)
        except Exception as error:
            return {"error": f"saving into {self.run}: rank 0: "
                             f"{type(error).__name__}: {error}"}

    def _decide(self, all_of, survey):
        """Rank 0's word, from what all ranks have."""
        for rank, summary in enumerate(all_of):
            if "error" in summary:
                return {"error": f"saving into {self.run}: rank {rank}: "
                                 f"{summary['error']}"}
        steps = {summary["step"] for summary in all_of}
        if len(steps) > 1:
            return {"error": f"saving into {self.run}: the ranks want different "
                             f"steps, {sorted(map(str, steps))}"}
        try:
            head = head_of(all_of)
            packed = _objects.pack(survey.objects, {"checkpoint": head})
            os.makedirs(self.run, exist_ok=True)
        except (ValueError, OSError) as error:
            return {"error": f"saving into {self.run}: {error}"}
        step, last = all_of[0]["step"], self._handle and self._handle.step
        again = (
            not all(summary["same"] for summary in all_of)
            or len(packed) > self._room
            or folds_in(head) != self._folds
            # Back to an earlier step: a new owner of the run may do that.
            or (step is not None and last is not None and step < last)
        )
        word = {"open": again, "folds": folds_in(head), "packed": packed}
        if again and self.ranks.size > 1:
            word["tcp"] = _meeting.over_tcp(summary["host"] for summary in all_of)
            if not word["tcp"]:
                word["directory"] = _meeting.make_directory()
        return word

    def _agree(self, function, *arguments):
        """Calls it. Raises on all ranks what one of them has raised."""
        error = None
        try:
            function(*arguments)
        except Exception as raised:
            error = raised
        text = None if error is None else f"{type(error).__name__}: {error}"
        all_of = self.ranks.gather(text)
        failed = None
        if self.ranks.rank == 0:
            failed = next(
                ((r, text) for r, text in enumerate(all_of) if text is not None), None
            )
        failed = self.ranks.broadcast(failed)
        if failed is not None:
            if self._handle is not None and self._handle.step is None:
                self._forget()  # not open, perhaps half declared
            raise HoldfastError(
                "ABORTED",
                f"saving into {self.run}: rank {failed[0]}: {failed[1]}; nothing "
                "was saved",
            ) from error

    def _fill(self, word, survey, planner, packed):
        """Everything that is saved into the memory that the library writes from."""
        if word["open"]:
            self._declare(word, survey, planner, packed)
        for part, piece in self._declared.items():
            tensor = self._resolve(planner, survey.parts[part], part)
            if tensor.is_contiguous() and tensor.data_ptr() == piece.address:
                continue  # staged right there
            piece.tensor(part.dtype, part.sizes).copy_(tensor)
        if self._packed is not None:
            flat = self._packed.flat()
            flat[: len(packed)] = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
            flat[len(packed) :].zero_()

    def _resolve(self, planner, item, part):
        tensor = planner.resolve_data(item).detach()
        if tuple(tensor.shape) != part.sizes:
            raise ValueError(
                f"{part.name}: the planner resolves it to a tensor of the shape "
                f"{list(tensor.shape)}"
            )
        return tensor

    def _declare(self, word, survey, planner, packed):
        self._handle = Handle(
            self.run, {**OPTIONS, **self.options}, self.ranks, word["meeting"]
        )
        before, self._declared = self._declared, {}
        self._folds = word["folds"]
        taken = set()
        for part, item in survey.parts.items():
            if part.empty:
                continue
            stored = Item.of(part.fqn, part.dtype, part.shape, self._folds.get(part.fqn))
            piece = None
            if self.staging.used:
                piece = self._staged(self._resolve(planner, item, part), part)
            if piece is None or piece.address in taken:
                piece = before.get(part)
            if piece is None or piece.address in taken:
                piece = self._arena.take(part.bytes)
            taken.add(piece.address)
            self._declared[part] = piece
            first, count = stored.box(part.offsets, part.sizes)
            self._handle.add(
                part.fqn,
                stored.kind,
                stored.number,
                stored.stored_shape,
                first,
                count,
                piece,
            )
        room = _objects.room_for(len(packed)) if packed else 0
        if room > self._room:
            self._packed = self._arena.take(room)
        if self._packed is not None:
            name = _objects.name_of(self.ranks.rank)
            length = [self._packed.size]
            self._handle.add(
                name, _objects.KIND, _library.U8, length, [0], length, self._packed
            )

    def _forget(self):
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.drop()

    def _close(self):
        handle, self._handle = self._handle, None
        if handle is not None:
            try:
                handle.close()
            except HoldfastError as error:
                log.warning("closing %s: %s", self.run, error)

    def close(self):
        with self._lock:
            self._close()
            self._declared = {}
            self._packed = None
