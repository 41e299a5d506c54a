"""dcp_rank.py: one rank of the jobs of dcp_test.py; each scenario is a function.

    dcp_rank.py SCENARIO RANK WORLD PORT ARGUMENT...

The model is sharded by FSDP2 over all ranks (DTensors, also of lengths that the ranks
do not divide), trained with AdamW, and beside it there is what states have: plain
tensors, scalars, objects that differ from rank to rank and grow.
"""

import logging
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import holdfast_ckpt
from holdfast_ckpt import HoldfastReader, HoldfastWriter

ODD = getattr(torch, "float8_e4m3fn", torch.int8)


class Job:
    def __init__(self, seed):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.mesh = init_device_mesh("cpu", (self.world,))
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(33, 50), torch.nn.ReLU(), torch.nn.Linear(50, 7)
        )
        for layer in (self.model[0], self.model[2]):
            fully_shard(layer, mesh=self.mesh)
        fully_shard(self.model, mesh=self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.steps = 0

    def train(self, steps):
        for _ in range(steps):
            self.steps += 1
            generator = torch.Generator().manual_seed(self.steps)
            data = torch.randn(8, 33, generator=generator)
            self.model(data).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        fill = torch.arange(6 * 10, dtype=torch.float32).reshape(6, 10) + self.steps
        return {
            "model": model,
            "optim": optimizer,
            "columns": distribute_tensor(fill.clone(), self.mesh, [Shard(1)]),
            "copies": distribute_tensor(fill.clone(), self.mesh, [Replicate()]),
            "plain": fill.t(),  # not contiguous
            "scalar": torch.tensor(float(self.steps), dtype=torch.float64),
            "empty": torch.empty(0, 4),
            "mask": fill > 30,
            "odd": fill.to(ODD),
            "deep": distribute_tensor(
                torch.arange(8 * 2 * 3 * 2 * 2).reshape(8, 2, 3, 2, 2) + self.steps,
                self.mesh,
                [Shard(0)],
            ),
            "steps": self.steps,
            "nested": {"list": [1, "two", {"three": 3.0}], "none": None},
        }

    def of_rank(self):
        """Objects that only this rank has; they grow."""
        return {f"loader.{self.rank}": {"at": self.rank, "seen": "x" * 9000 * self.steps}}

    def load_into(self, state):
        self.steps = state["steps"]
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optim"],
        )


def whole(value):
    """The same on every layout."""
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return value.float() if value.dtype == ODD else value.clone()
    if isinstance(value, dict):
        return {key: whole(v) for key, v in value.items()}
    return value


def difference(a, b, path=""):
    """Where two states differ; "" for nowhere. Bits count."""
    if isinstance(a, dict):
        if not isinstance(b, dict) or a.keys() != b.keys():
            return f"{path}: other keys"
        return next(filter(None, (difference(a[k], b[k], f"{path}.{k}") for k in a)), "")
    if isinstance(a, torch.Tensor):
        return "" if a.dtype == b.dtype and torch.equal(a, b) else path
    return "" if a == b else f"{path}: {a!r} is not {b!r}"


def reference(path, state):
    state = whole(state)  # collective
    if dist.get_rank() == 0:
        torch.save(state, path)
    dist.barrier()


def expect(path, state):
    found = difference(torch.load(path, weights_only=True), whole(state))
    assert not found, f"{path}{found}"


def blank(value):
    if isinstance(value, DTensor):
        value = value.to_local()
    if isinstance(value, torch.Tensor):
        value.view(torch.uint8).fill_(1) if value.dtype == ODD else value.fill_(1)
    elif isinstance(value, dict):
        for inner in value.values():
            blank(inner)


# --- scenarios


def save(run, references):
    """Step 1 by save, 2 by async_save beside training, 3 by a second one."""
    job = Job(seed=5)
    job.train(2)
    state = job.state()
    reference(f"{references}/1", state)
    dcp.save(
        {**state, **job.of_rank()},
        storage_writer=HoldfastWriter(run),
        checkpoint_id="step-1",
    )
    for step in (2, 3):
        job.train(step)
        state = job.state()
        reference(f"{references}/{step}", state)
        future = dcp.async_save(
            {**state, **job.of_rank()},
            storage_writer=HoldfastWriter(run),
            checkpoint_id=f"{run}/step-{step}",
        )
        blank(state)  # training goes on
        future.result()
        job.load_into({**torch_state(f"{references}/{step}", job)})
    holdfast_ckpt.close_all()


def torch_state(path, job):
    """The reference as a state of this layout."""
    state = job.state()
    wanted = torch.load(path, weights_only=True)

    def copy(to, source):
        for key, value in to.items():
            if isinstance(value, dict):
                copy(value, source[key])
            elif isinstance(value, DTensor):
                to[key] = distribute_tensor(
                    source[key].to(value.dtype), value.device_mesh, value.placements
                )
            elif isinstance(value, torch.Tensor):
                to[key] = source[key].to(value.dtype)
            else:
                to[key] = source[key]

    copy(state, wanted)
    return state


def load(run, references, *steps):
    """Every step on this layout; then it goes on in the same run."""
    for step in steps:
        job = Job(seed=77)
        job.train(1)
        state = job.state()
        blank(state)
        state["steps"] = -1
        extra = {"loader.1": {"at": None, "seen": None}}
        both = {**state, **extra}
        dcp.load(both, storage_reader=HoldfastReader(f"{run}@{step}"))
        state["steps"] = both["steps"]
        expect(f"{references}/{step}", {k: both[k] for k in state})
        assert both["loader.1"]["at"] == 1, both["loader.1"]
    job.load_into(both)
    job.train(1)
    state = job.state()
    writer = HoldfastWriter(run)
    next_step = int(steps[-1]) + 1
    reference(f"{references}/{next_step}", state)
    dcp.save({**state, **job.of_rank()}, storage_writer=writer)
    assert writer.last_report["step"] == next_step, writer.last_report
    blank(state)
    dcp.load(state, storage_reader=HoldfastReader(run))
    expect(f"{references}/{next_step}", state)


def refuse(run):
    """What is refused is refused on every rank, with words, and the next save goes."""
    job = Job(seed=5)
    state = {"w": torch.ones(5), "n": 3}

    def fails(words, **arguments):
        try:
            dcp.save(arguments.pop("state", state), **arguments)
        except BaseException as error:  # DCP's own errors are no Exception
            assert words in str(error), f"{words!r} is not in: {error}"
        else:
            raise AssertionError(f"saved, but expected: {words}")

    def writer():
        return HoldfastWriter(run)

    fails("names no step", storage_writer=writer(), checkpoint_id="newest")
    fails(
        "is in /elsewhere, and this is run",
        storage_writer=writer(),
        checkpoint_id="/elsewhere/step-3",
    )
    fails(
        "different steps",
        storage_writer=HoldfastWriter(run, step=1 + job.rank),
    )
    sparse = {"s": torch.eye(3).to_sparse()}
    fails("tensor 's': its layout is torch.sparse_coo", state=sparse, storage_writer=writer())
    fails("use_collectives=False", storage_writer=writer(), use_collectives=False)
    fails("give both the same process_group", storage_writer=writer(), no_dist=True)
    dcp.save(state, storage_writer=writer(), checkpoint_id="step-8")
    broken = HoldfastWriter(
        run, options={"fault_spec": "rank=1,op=write,n=1,do=fail,error=ENOSPC"}
    )
    fails("rank 1", storage_writer=broken, checkpoint_id="step-9")
    dcp.save(state, storage_writer=writer(), checkpoint_id="step-10")
    reader = HoldfastReader(run)
    missing = {"w": torch.zeros(5), "other": torch.zeros(5)}
    try:
        dcp.load(missing, storage_reader=reader)
    except BaseException as error:
        assert "Missing key" in str(error), error
    else:
        raise AssertionError("loaded what is not there")
    holdfast_ckpt.close_all()


def damaged(run):
    """A byte of a file was changed: the load says so on every rank."""
    state = {"w": torch.zeros(50_000)}
    try:
        dcp.load(state, storage_reader=HoldfastReader(run))
    except BaseException as error:
        text = str(error)
        assert "DATA_LOSS" in text and "shard-0000" in text, text
    else:
        raise AssertionError("a damaged file was loaded")


def one_tensor(run):
    dcp.save(
        {"w": torch.arange(50_000.0)},
        storage_writer=HoldfastWriter(run),
        checkpoint_id="7",
    )


def both_writers(run, directory, references):
    """The same state by DCP's own writer and by ours."""
    job = Job(seed=5)
    job.train(3)
    state = {**job.state(), **job.of_rank()}
    reference(f"{references}/both", job.state())
    dcp.save(state, storage_writer=HoldfastWriter(run), checkpoint_id="step-3")
    dcp.save(state, checkpoint_id=directory)
    holdfast_ckpt.close_all()


def both_readers(run, directory, references):
    """What was converted, from both sides; on another number of ranks."""
    for reader in (HoldfastReader(run), dcp.FileSystemReader(directory)):
        job = Job(seed=9)
        job.train(1)
        state = job.state()
        blank(state)
        dcp.load(state, storage_reader=reader)
        expect(f"{references}/both", state)


def process(run, references):
    """async_save in DCP's process: the run is opened there."""
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    job = Job(seed=5)
    state = {"w": torch.arange(3000.0) + job.rank * 0, "n": 4}
    reference(f"{references}/process", state)
    for step in (1, 2):
        dcp.async_save(
            state,
            storage_writer=HoldfastWriter(run),
            checkpoint_id=f"step-{step}",
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
        ).result()
    blank(state)
    dcp.load(state, storage_reader=HoldfastReader(run))
    expect(f"{references}/process", state)


SCENARIOS = (
    save,
    load,
    refuse,
    damaged,
    one_tensor,
    both_writers,
    both_readers,
    process,
)


def main():
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    name, rank, world, port, *arguments = sys.argv[1:]
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.update(MASTER_PORT=port, RANK=rank, WORLD_SIZE=world, LOCAL_RANK=rank)
    dist.init_process_group("gloo")
    {s.__name__: s for s in SCENARIOS}[name](*arguments)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
