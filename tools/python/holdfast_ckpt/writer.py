"""writer.py: a StorageWriter of torch.distributed.checkpoint over a Holdfast run."""

import os
import uuid

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from . import _ids, _job
from ._ranks import ranks_of

close_all = _job.close_all


class HoldfastWriter(StorageWriter, AsyncStager):
    """Saves into the run directory `run`, which need not exist.

    The step is `step`, or what checkpoint_id says ("step-120"), or the run's newest
    and one. `keep_last`: how many checkpoints stay; "all" (the default) leaves removing
    to the caller, as DCP does. `process_group` and `no_dist` are those of dcp.save.
    `options`: more of hf_ckpt_options_set (codec, files, io_timeout_ms, ...).

    Writers of one run share an open run, so one can be made for each save. A save is
    durable when dcp.save returns, or async_save's future has a result; `last_report`
    then says id, step, bytes and seconds. Not for use_collectives=False.

    Given to async_save it also stages: the state is copied once, into memory that is
    written from. With `stage_in_thread` async_save returns before the copy is made, an
    AsyncSaveResponse, as it does with torch's DefaultStager: wait for its
    staging_completion before the state is changed.
    """

    # Nothing is left to synchronize when stage returns, or it returns a future.
    _synchronize_after_execute = False

    def __init__(
        self,
        run: str | os.PathLike,
        *,
        step: int | None = None,
        keep_last: int | str = "all",
        process_group=None,
        no_dist: bool = False,
        stage_in_thread: bool = False,
        options: dict | None = None,
    ) -> None:
        super().__init__()
        self.run = os.fspath(run)
        self.last_report = None
        self._step = step
        self._group = process_group
        self._no_dist = no_dist
        self._stage_in_thread = stage_in_thread
        self._options = {"keep_last": str(keep_last), **(options or {})}
        self._save_id = str(uuid.uuid4())

    def __getstate__(self):
        """For async_save's process, which has process groups of its own."""
        if self._group is not None:
            raise TypeError(
                "a HoldfastWriter with a process_group cannot go to another process; "
                "use AsyncCheckpointerType.THREAD, or the default group"
            )
        return self.__dict__

    def close(self) -> None:
        """Nothing: the run stays open for the next writer, until close_all() or the
        end of the process."""

    # --- StorageWriter

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        self._save_id = str(uuid.uuid4())
        if checkpoint_id is not None:
            self._step = _ids.step_in(checkpoint_id, self.run)

    def set_up_storage_writer(self, is_coordinator: bool, *args, **kwargs) -> None:
        ranks = self._ranks()
        if not kwargs.get("use_collectives", True) and ranks.size > 1:
            raise ValueError(
                "use_collectives=False makes a checkpoint for each rank alone; a "
                "Holdfast checkpoint is of all ranks: leave it out"
            )
        rank = kwargs.get("rank", ranks.rank)
        if rank != ranks.rank or is_coordinator != (ranks.rank == 0):
            raise ValueError(
                f"dcp saves as rank {rank} of its group, HoldfastWriter as rank "
                f"{ranks.rank} of {ranks.size}: give both the same process_group and "
                "no_dist"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        ranks = self._ranks()
        if len(plans) != ranks.size:
            raise ValueError(
                f"dcp saves on {len(plans)} ranks, HoldfastWriter on {ranks.size}: give "
                "both the same process_group and no_dist"
            )
        return plans

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> Future[list[WriteResult]]:
        self.last_report = self._job().save(
            plan, planner, self._step, self._options
        )
        # The next save of this writer has to name a step of its own.
        self._step = None
        results = [
            WriteResult(index=item.index, size_in_bytes=_size_of(item), storage_data=None)
            for item in plan.items
        ]
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Nothing: the manifest is the commit, and it is there."""
        metadata.storage_meta = self.storage_meta()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return _ids.is_id(checkpoint_id)

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=self.run, save_id=self._save_id)

    # --- AsyncStager

    @property
    def should_synchronize_after_execute(self) -> bool:
        return False

    def stage(self, state_dict):
        """A copy of it, or a future of one. The copy waits for a save that is still
        being written."""
        job = self._job()
        if self._stage_in_thread:
            return job.stage_in_thread(state_dict)
        return job.stage(state_dict)

    def synchronize_staging(self) -> None:
        pass

    def _ranks(self):
        return ranks_of(self._group, self._no_dist)

    def _job(self):
        return _job.job_of(self.run, self._ranks())


def _size_of(item):
    if item.tensor_data is None:
        return 0
    data = item.tensor_data
    size = data.properties.dtype.itemsize
    for length in data.chunk.sizes:
        size *= length
    return size
