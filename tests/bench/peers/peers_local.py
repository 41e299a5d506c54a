"""peers_local.py: torch.save and safetensors, which know of one process.

A peer has: prepare, outside the time; save, which returns None or the handle of
an asynchronous save; load, which returns the tensors by key (the state's own
where it fills them in place). All of `save_options` and `load_options` are tried,
and the fastest are measured. `integrity` says what of a damaged file a load would
find.
"""

import os

import safetensors
import safetensors.torch
import torch


class Peer:
    asynchronous = False
    one_run = False  # saves into one directory, and removes old ones by itself
    skip = ""
    integrity = "none"
    save_options = ({},)
    load_options = ({},)

    def __init__(self, tensors):
        self.tensors = tensors

    def prepare(self, path, options):
        return path, options

    def close(self):
        pass

    def copy_into_place(self, loaded):
        """As module.load_state_dict does."""
        for key, tensor in self.tensors.items():
            tensor.copy_(loaded[key])
        return self.tensors


class TorchSave(Peer):
    name = "torch.save"
    integrity = "none (torch.load compares no CRC32)"
    save_options = ({"crc32": True}, {"crc32": False})
    load_options = ({"mmap": False}, {"mmap": True})

    def save(self, prepared):
        path, options = prepared
        torch.serialization.set_crc32_options(options["crc32"])
        torch.save(self.tensors, os.path.join(path, "state.pt"))

    def load(self, path, options):
        file = os.path.join(path, "state.pt")
        loaded = torch.load(file, mmap=options["mmap"], weights_only=True)
        # Without mmap the tensors are in memory of their own and can be taken
        # as they are (load_state_dict(assign=True)).
        return self.copy_into_place(loaded) if options["mmap"] else loaded


class Safetensors(Peer):
    name = "safetensors"
    load_options = ({"backend": "mmap"}, {"backend": "pread"})

    def save(self, prepared):
        path, _ = prepared
        file = os.path.join(path, "state.safetensors")
        safetensors.torch.save_file(self.tensors, file)

    def load(self, path, options):
        file = os.path.join(path, "state.safetensors")
        backend = options["backend"]
        loaded = safetensors.torch.load_file(file, backend=backend)
        return self.copy_into_place(loaded) if backend == "mmap" else loaded


def versions():
    return {"safetensors": safetensors.__version__}


def make_peers(tensors, _rank, world):
    return [TorchSave(tensors), Safetensors(tensors)] if world == 1 else []
