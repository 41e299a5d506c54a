"""_objects.py: what is no tensor, as bytes of one item per rank. Pure.

DCP saves numbers, lists and other objects as bytes of any length (BYTE_IO), and a
checkpoint's items have a shape. So each rank packs its own into one item of u8,
"dcp.objects/00003" of the kind "bytes", with room to grow:

    magic[8]  used:u64  head_bytes:u64  head  bytes of the objects  zeros

`used` counts from the start of `head`. The head is JSON: where each object is, and on
rank 0, which is always there, what the checkpoint holds. Little-endian; the
checksums are the file's.
"""

import json
import struct

KIND = "bytes"
MAGIC = b"HFDCPOB1"
_START = struct.Struct("<8sQQ")
ROOM_MIN = 16 << 10


def name_of(rank):
    return f"dcp.objects/{rank:05}"


def room_for(size):
    """The length of an item that holds `size` bytes, and some growth."""
    room = ROOM_MIN
    while room < size:
        room *= 2
    return room


def pack(objects, head):
    """`objects`: bytes by name. `head`: more for the head."""
    places, at = {}, 0
    for name, data in objects.items():
        places[name] = [at, len(data)]
        at += len(data)
    text = json.dumps({**head, "objects": places}, ensure_ascii=False).encode()
    used = len(text) + at
    return b"".join([_START.pack(MAGIC, used, len(text)), text, *objects.values()])


class Packed:
    """What was packed, read back. ValueError: these are no such bytes."""

    def __init__(self, data):
        data = memoryview(data)
        if len(data) < _START.size:
            raise ValueError(f"{len(data)} bytes are too few")
        magic, used, head = _START.unpack_from(data)
        if magic != MAGIC:
            raise ValueError(f"they begin with {magic!r}, not with {MAGIC!r}")
        if used > len(data) - _START.size or head > used:
            raise ValueError(
                f"{head} of {used} bytes are said to be in {len(data) - _START.size}"
            )
        text = bytes(data[_START.size : _START.size + head])
        try:
            self.head = json.loads(text)
        except RecursionError:
            raise ValueError("the head is nested too deeply") from None
        self._data = data[_START.size + head : _START.size + used]
        places = self.head.get("objects") if isinstance(self.head, dict) else None
        if not isinstance(places, dict):
            raise ValueError("the head has no list of objects")
        for name, place in places.items():
            whole = isinstance(place, list) and len(place) == 2
            if not whole or not all(type(n) is int and n >= 0 for n in place):
                raise ValueError(f"object {name!r} has no place: {place!r}")
            if place[0] + place[1] > len(self._data):
                raise ValueError(f"object {name!r} ends behind all bytes")
        self._places = places

    def names(self):
        return list(self._places)

    def get(self, name):
        """KeyError: there is none of that name."""
        first, count = self._places[name]
        return bytes(self._data[first : first + count])


def path_to_json(path):
    """A path into nested dictionaries and lists. TypeError: a step is no text,
    number, bool or None."""
    for step in path:
        if not (step is None or isinstance(step, (str, int, float, bool))):
            raise TypeError(f"a key of the type {type(step).__name__}: {step!r}")
    return list(path)
