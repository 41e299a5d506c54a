"""_meeting.py: how the ranks of one opening of a run find each other.

On one host by sockets in a directory, which rank 0 makes. On several by TCP: each
listens, and torch.distributed brings the addresses and a secret to all.
"""

import fcntl
import os
import secrets
import shutil
import socket
import struct
import tempfile
from ctypes import c_char_p

from . import _library
from ._library import HoldfastError

_SIOCGIFADDR = 0x8915  # <linux/sockios.h>


def host():
    """What the ranks of one machine have in common."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
            return socket.gethostname(), boot.read().strip()
    except OSError:
        return socket.gethostname(), ""


def over_tcp(hosts):
    """Rank 0: do ranks of these hosts need it? HOLDFAST_CKPT_MEET=tcp: always."""
    return len(set(hosts)) > 1 or os.environ.get("HOLDFAST_CKPT_MEET") == "tcp"


def address_of_interface(name):
    """The IPv4 address of "eth0"; OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("256s", name.encode()[:15])
        answer = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
    return socket.inet_ntoa(answer[20:24])


def own_address():
    """Where other hosts reach this one: as told (HOLDFAST_CKPT_HOST), of the interface
    that gloo or NCCL were told to use, else towards MASTER_ADDR."""
    told = os.environ.get("HOLDFAST_CKPT_HOST")
    if told:
        return socket.getaddrinfo(told, None)[0][4][0]
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        name = os.environ.get(variable, "").split(",")[0]
        if name and name[0] not in "^=":
            return address_of_interface(name)
    target = os.environ.get("MASTER_ADDR", socket.gethostname())
    family, _, _, _, place = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as towards:
        towards.connect(place)  # sends nothing
        return towards.getsockname()[0]


class Single:
    def group(self, _ranks):
        return _library.new("group_single")

    def end(self):
        pass


class Directory:
    def __init__(self, path, ranks):
        self._path = path
        self._is_mine = ranks.rank == 0

    def group(self, ranks):
        return _library.new(
            "group_local", os.fsencode(self._path), ranks.rank, ranks.size
        )

    def end(self):
        if self._is_mine:
            shutil.rmtree(self._path, ignore_errors=True)


class Tcp:
    """Collective. HoldfastError: a rank cannot listen, or not where others reach it."""

    def __init__(self, ranks):
        self._listener, mine, error = None, None, None
        try:
            self._listener = _library.new("listen", own_address().encode())
            mine = _library.listener_address(self._listener)
        except (HoldfastError, OSError) as raised:
            error = f"{type(raised).__name__}: {raised}"
        all_of = ranks.gather((host(), mine, error))
        word = _judge(all_of) if ranks.rank == 0 else None
        self._addresses, self._secret, error = ranks.broadcast(word)
        if error is not None:
            self.end()
            raise HoldfastError("UNAVAILABLE", error)

    def group(self, ranks):
        addresses = [address.encode() for address in self._addresses]
        array = (c_char_p * len(addresses))(*addresses)
        return _library.new(
            "group_tcp",
            self._listener,
            ranks.rank,
            ranks.size,
            array,
            self._secret.encode(),
        )

    def end(self):
        listener, self._listener = self._listener, None
        _library.free("listener_free", listener)


def _judge(all_of):
    """(addresses, secret, None), or why not."""
    several = len({where for where, _, _ in all_of}) > 1
    for rank, ((name, _), address, error) in enumerate(all_of):
        if error is None and several and address.startswith(("127.", "[::1]")):
            error = f"{address} is not to be reached from other hosts"
        if error is not None:
            return None, None, (
                f"meeting the other ranks: rank {rank} on {name}: {error}; set "
                "HOLDFAST_CKPT_HOST there to an address that the others reach, or "
                "GLOO_SOCKET_IFNAME to an interface"
            )
    return [address for _, address, _ in all_of], secrets.token_hex(32), None


def make_directory():
    return tempfile.mkdtemp(prefix="hf-")


def meeting_of(word, ranks):
    """Collective. `word`: rank 0's; {"tcp": ...} or {"directory": ...}."""
    if ranks.size == 1:
        return Single()
    if word.get("tcp"):
        return Tcp(ranks)
    return Directory(word["directory"], ranks)
