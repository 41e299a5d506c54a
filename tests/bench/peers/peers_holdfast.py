"""peers_holdfast.py: our own library under torch.distributed.checkpoint.

HoldfastWriter and HoldfastReader (tools/python) on the same state dict as DCP's own
writer: what a torch user gets who changes that one argument. It saves into one run, as
a job does, in which the last checkpoint stays; a save is durable when it returns. The
asynchronous one stages by itself, in a thread, as the others do.
"""

import threading
import time

import torch.distributed.checkpoint as dcp

from holdfast_ckpt import HoldfastReader, HoldfastWriter
from peers_dcp import Dcp, state_dict_of


class HoldfastDcp(Dcp):
    name = "Holdfast in DCP"
    integrity = "CRC32C of every unit, always checked"
    one_run = True
    save_options = ({},)

    def prepare(self, path, options):
        writer = HoldfastWriter(path, keep_last=1)
        return path, writer, dcp.DefaultSavePlanner(enable_plan_caching=True)

    def load(self, path, _options):
        dcp.load(self.state_dict, storage_reader=HoldfastReader(path))
        return self.tensors


class Upload:
    def __init__(self, response):
        self.response = response
        self.ended = threading.Event()
        response.upload_completion.add_done_callback(self.on_end)

    def on_end(self, _future):
        self.returned = self.durable = time.monotonic()
        self.ended.set()

    def poll(self):
        pass

    def wait_staged(self):
        self.response.staging_completion.result()

    def wait(self):
        self.response.upload_completion.result()  # raises what it raised
        self.ended.wait()


class HoldfastDcpAsync(HoldfastDcp):
    name = "Holdfast in DCP async"
    asynchronous = True

    def prepare(self, path, options):
        writer = HoldfastWriter(path, keep_last=1, stage_in_thread=True)
        return path, writer, dcp.DefaultSavePlanner(enable_plan_caching=True)

    def save(self, prepared):
        _, writer, planner = prepared
        return Upload(
            dcp.async_save(self.state_dict, storage_writer=writer, planner=planner)
        )


def make_peers(tensors, rank, world):
    state_dict = state_dict_of(tensors, world)
    return [
        HoldfastDcp(tensors, rank, state_dict),
        HoldfastDcpAsync(tensors, rank, state_dict),
    ]
