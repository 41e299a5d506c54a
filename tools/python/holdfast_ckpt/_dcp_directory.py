"""_dcp_directory.py: a checkpoint that DCP's FileSystemWriter has written.

Its .metadata is a pickle. It is read with a list of the names that such a file has
(dataclasses of DCP's own, sizes, dtypes): anything else is refused, nothing else is
ever called. Tensors are read by torch.load with weights_only, objects stay the bytes
that they are.
"""

import dataclasses
import io
import os
import stat
import pickle

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)

_METADATA = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    (_METADATA, name)
    for name in (
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib._local", "PosixPath"),
    ("pathlib._local", "PurePosixPath"),
}


def _apart(named):
    """The same to call, and to make objects of."""
    if dataclasses.is_dataclass(named):
        return type(named.__name__, (named,), {})
    return lambda *arguments: named(*arguments)


class _Unpickler(pickle.Unpickler):
    """What is named more than once is the same; but none of it is torch's own: a
    pickle can give a class or a function attributes as it can an object, and what it
    gives ends with this."""

    def __init__(self, file):
        super().__init__(file)
        self._found = {}

    def find_class(self, module, name):
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        # A dotted name would reach into what is allowed.
        if (module, name) in _ALLOWED and "." not in name:
            if (module, name) not in self._found:
                self._found[module, name] = _apart(super().find_class(module, name))
            return self._found[module, name]
        raise pickle.UnpicklingError(
            f"it asks for {module}.{name}, which no metadata of DCP has; it is not read"
        )


def _open_file(path, flags):
    """A pipe in place of a file must not hold the open."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise ValueError("it is no regular file")


class DcpDirectory:
    """FileNotFoundError: it is no such directory. ValueError: a file in it is not as
    it should be."""

    def __init__(self, path):
        self.path = path
        name = os.path.join(path, ".metadata")
        try:
            with open(name, "rb", opener=_open_file) as file:
                self.metadata = _Unpickler(file).load()
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{path} has no .metadata: it is no checkpoint of DCP's "
                "FileSystemWriter, or one that was not finished"
            ) from None
        except Exception as error:  # a pickle can raise anything
            raise ValueError(f"reading {name}: {error}") from error
        if not isinstance(self.metadata, Metadata):
            raise ValueError(f"{name} holds a {type(self.metadata).__name__}")
        places = self.metadata.storage_data
        try:
            self._places = {
                MetadataIndex(index.fqn, index.offset): place
                for index, place in places.items()
            }
        except (AttributeError, TypeError):
            raise ValueError(f"{name} does not say where its tensors are") from None

    @property
    def planner_data(self):
        return self.metadata.planner_data

    def tensors(self):
        """(name, properties, size, chunks)"""
        for fqn, entry in self.metadata.state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                yield fqn, entry.properties, entry.size, entry.chunks

    def objects(self):
        for fqn, entry in self.metadata.state_dict_metadata.items():
            if isinstance(entry, BytesStorageMetadata):
                yield fqn

    def object_bytes(self, fqn):
        return self._slice(MetadataIndex(fqn)).getvalue()

    def chunk(self, fqn, offsets):
        data = self._slice(MetadataIndex(fqn, offsets))
        try:
            tensor = torch.load(data, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ValueError(
                f"{self.path}: tensor {fqn!r} at {list(offsets)}: {error}"
            ) from error
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(
                f"{self.path}: tensor {fqn!r} at {list(offsets)} is a "
                f"{type(tensor).__name__}"
            )
        expected = self.metadata.state_dict_metadata[fqn].properties.dtype
        if tensor.dtype != expected:  # it would be converted
            raise ValueError(
                f"{self.path}: tensor {fqn!r} at {list(offsets)} is of {tensor.dtype}, "
                f".metadata says {expected}"
            )
        return tensor

    def _slice(self, index):
        place = self._places.get(index)
        if place is None:
            raise ValueError(f"{self.path}: .metadata has no place of {index}")
        name, first, length = place.relative_path, place.offset, place.length
        if place.transform_descriptors:
            raise ValueError(
                f"{self.path}: {index.fqn!r} was transformed by "
                f"{list(place.transform_descriptors)} when it was saved; load it with "
                "DCP and save it again"
            )
        if not isinstance(name, str) or os.path.basename(name) != name or not name:
            raise ValueError(
                f"{self.path}: {index.fqn!r} is said to be in {name!r}; expected is the "
                "name of a file in this directory"
            )
        path = os.path.join(self.path, name)
        if os.path.islink(path) or not os.path.isfile(path):
            raise ValueError(f"{path} is no file; {index.fqn!r} is said to be in it")
        size = os.path.getsize(path)
        numbers = type(first) is int and type(length) is int
        if not numbers or first < 0 or length < 0 or length > size - first:
            raise ValueError(
                f"{path} has {size} bytes; {index.fqn!r} is said to be {length} from "
                f"byte {first} on"
            )
        with open(path, "rb") as file:
            file.seek(first)
            data = file.read(length)
        if len(data) != length:
            raise ValueError(f"{path}: {len(data)} of {length} bytes were read")
        return io.BytesIO(data)
