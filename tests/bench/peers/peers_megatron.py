"""peers_megatron.py: megatron-core's dist_checkpointing, "torch_dist" format.

It is written for GPUs: saving calls torch.cuda.synchronize and asks for
torch.cuda.current_device, which raise where there is no driver. While one of its
calls runs these two stand for the CPU; nothing else of it is changed. For the same
reason cached_metadata (an all-reduce on "cuda") stays off. Asynchronous saves use
the strategy that is built in, a forked process ("mcore"); "nvrx" is another
package. 0.19 and 0.16, the last one for Python before 3.12, differ in a few
arguments. Every file is synced by megatron-core itself.
"""

import contextlib
import importlib.metadata
import inspect
import os
import time
import unittest.mock

import torch

from durable import sync_tree
from peers_dcp import THREADS
from peers_local import Peer

try:
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue
    from megatron.core.dist_checkpointing.strategies.torch import (
        TorchDistLoadShardedStrategy,
        TorchDistSaveShardedStrategy,
    )

    # Its own __version__ ends in the commit of the folder that it is run in.
    VERSION = importlib.metadata.version("megatron-core")
    MISSING = ""
except ImportError as error:
    MISSING = f"megatron-core cannot be imported: {error}"


@contextlib.contextmanager
def cpu_for_cuda():
    with (
        unittest.mock.patch.object(torch.cuda, "synchronize", lambda *_: None),
        unittest.mock.patch.object(torch.cuda, "current_device", lambda: "cpu"),
    ):
        yield


def taken(function, **more):
    """Without the arguments that this version does not know."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in more.items() if name in known}


class Megatron(Peer):
    save_options = THREADS
    skip = MISSING

    def __init__(self, tensors, rank, world, name="megatron-core", verify=False):
        super().__init__(tensors)
        self.name = name
        self.rank = rank
        self.world = world
        self.verify = verify
        if verify:
            self.integrity = "SHA-256 a file, at every load"
            if not MISSING and not taken(
                dist_checkpointing.load, verify_integrity=True
            ):
                self.skip = f"megatron-core {VERSION} has no verify_integrity"
        # What each rank holds is compared over the ranks once, as Megatron-LM
        # does where the structure is constant.
        self.validate = True

    def sharded(self):
        return {
            key: dist_checkpointing.ShardedTensor.from_rank_offsets(
                key, tensor, (0, self.rank, self.world)
            )
            for key, tensor in self.tensors.items()
        }

    def prepare(self, path, options):
        threads = options["thread_count"]
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=threads)
        return path, strategy, self.sharded()

    def begin(self, prepared, **more):
        path, strategy, sharded = prepared
        request = dist_checkpointing.save(
            sharded,
            path,
            strategy,
            validate_access_integrity=self.validate,
            **taken(dist_checkpointing.save, verify_integrity=self.verify, **more),
        )
        self.validate = False
        return request

    def save(self, prepared):
        with cpu_for_cuda():
            self.begin(prepared)

    def load(self, path, _options):
        with cpu_for_cuda():
            loaded = dist_checkpointing.load(
                self.sharded(),
                path,
                TorchDistLoadShardedStrategy(),
                validate_access_integrity=False,
                **taken(dist_checkpointing.load, verify_integrity=self.verify),
            )
        return {key: loaded[key] for key in self.tensors}


class Handle:
    """A forked process that writes. The training loop has to ask, on all ranks
    alike, and the one that is told writes the metadata."""

    def __init__(self, queue, path, rank):
        self.queue = queue
        self.path = path
        self.rank = rank
        self.done = False

    def poll(self):
        if self.done:
            return
        with cpu_for_cuda():
            self.done = bool(self.queue.maybe_finalize_async_calls(blocking=False))
        if self.done:
            self.returned = self.durable = time.monotonic()
            if self.rank == 0:
                self.durable = sync_tree(self.path)

    def wait_staged(self):
        pass  # the fork is the snapshot; its price is in the optimizer's stores

    def wait(self):
        while not self.done:
            time.sleep(0.002)
            self.poll()


class MegatronAsync(Megatron):
    asynchronous = True

    def __init__(self, tensors, rank, world):
        super().__init__(tensors, rank, world, "megatron-core async")
        self.queue = None

    def save(self, prepared):
        with cpu_for_cuda():
            if self.queue is None:
                self.queue = AsyncCallsQueue()
            more = {"async_sharded_save": True, "async_strategy": "mcore"}
            self.queue.schedule_async_request(self.begin(prepared, **more))
        return Handle(self.queue, os.fspath(prepared[0]), self.rank)


def versions():
    return {"megatron-core": "none" if MISSING else VERSION}


def make_peers(tensors, rank, world):
    return [
        Megatron(tensors, rank, world),
        MegatronAsync(tensors, rank, world),
        Megatron(tensors, rank, world, "megatron-core SHA-256", verify=True),
    ]
