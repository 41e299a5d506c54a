"""durable.py: files that survive a power cut, and files that are not in memory."""

import errno
import os
import time

RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def files_of(path):
    for folder, _, names in os.walk(path):
        for name in names:
            yield os.path.join(folder, name)


def sync_file(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(path):
    """Syncs every file under `path`, its folders and the one that names it. The
    time when that was done. Cheap for what a peer has synced already."""
    for name in files_of(path):
        sync_file(name)
    for folder, _, _ in os.walk(path):
        sync_file(folder)
    sync_file(os.path.dirname(path))
    return time.monotonic()


def evict(path):
    """Drops the pages of all files under `path`. The share of sampled pages
    that is in memory all the same."""
    cached = sampled = 0
    for name in files_of(path):
        fd = os.open(name, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(fd).st_size
            for i in range(64 if size >= 1 << 20 else 0):
                offset = size * i // 64 // 4096 * 4096
                sampled += 1
                try:
                    os.preadv(fd, [bytearray(1)], offset, RWF_NOWAIT)
                    cached += 1
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                        raise
        finally:
            os.close(fd)
    return cached / sampled if sampled else 0.0
