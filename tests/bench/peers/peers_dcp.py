"""peers_dcp.py: torch.distributed.checkpoint, synchronous and asynchronous.

On several ranks the tensors are DTensors cut by rows, as FSDP2 has them. Files
are synced by DCP itself (sync_files, its default). Plans are cached from one save
to the next. The asynchronous ones stage in a thread of their own, so that forward
and backward can run meanwhile, and keep the staged memory for the next save;
pinned memory needs CUDA and is off.
"""

import threading
import time

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from durable import sync_tree
from peers_local import Peer

THREADS = ({"thread_count": 1}, {"thread_count": 2}, {"thread_count": 4})


class Dcp(Peer):
    name = "DCP"
    save_options = THREADS

    def __init__(self, tensors, rank, state_dict):
        super().__init__(tensors)
        self.rank = rank
        self.state_dict = state_dict

    def prepare(self, path, options):
        writer = dcp.FileSystemWriter(
            path, sync_files=True, thread_count=options["thread_count"]
        )
        return path, writer, dcp.DefaultSavePlanner(enable_plan_caching=True)

    def save(self, prepared):
        _, writer, planner = prepared
        dcp.save(self.state_dict, storage_writer=writer, planner=planner)

    def load(self, path, _options):
        dcp.load(self.state_dict, storage_reader=dcp.FileSystemReader(path))
        return self.tensors


class Handle:
    """An upload under way. Rank 0 syncs what DCP leaves (folders) as soon as DCP
    has ended, in the thread that ended it."""

    def __init__(self, response, path, rank):
        self.response = response
        self.path = path
        self.rank = rank
        self.ended = threading.Event()
        response.upload_completion.add_done_callback(self.on_end)

    def on_end(self, _future):
        self.returned = self.durable = time.monotonic()
        if self.rank == 0:
            self.durable = sync_tree(self.path)
        self.ended.set()

    def poll(self):
        pass

    def wait_staged(self):
        self.response.staging_completion.result()

    def wait(self):
        self.response.upload_completion.result()  # raises what it raised
        self.ended.wait()


class DcpAsync(Dcp):
    asynchronous = True

    def __init__(self, tensors, rank, state_dict, name, kind, shared):
        super().__init__(tensors, rank, state_dict)
        self.name = name
        self.kind = kind
        self.stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=shared,
                use_async_staging=True,
                use_non_blocking_copy=False,
            )
        )

    def save(self, prepared):
        path, writer, planner = prepared
        response = dcp.async_save(
            self.state_dict,
            storage_writer=writer,
            planner=planner,
            async_checkpointer_type=self.kind,
            async_stager=self.stager,
        )
        return Handle(response, path, self.rank)

    def close(self):
        self.stager.close()


def state_dict_of(tensors, world):
    if world == 1:
        return dict(tensors)
    mesh = init_device_mesh("cpu", (world,))
    return {
        key: DTensor.from_local(tensor, mesh, [Shard(0)], run_check=False)
        for key, tensor in tensors.items()
    }


def make_peers(tensors, rank, world):
    state_dict = state_dict_of(tensors, world)
    kinds = AsyncCheckpointerType
    make = DcpAsync
    return [
        Dcp(tensors, rank, state_dict),
        make(tensors, rank, state_dict, "DCP async thread", kinds.THREAD, False),
        make(tensors, rank, state_dict, "DCP async process", kinds.PROCESS, True),
    ]
