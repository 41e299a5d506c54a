"""state.py: what every peer saves: the same names, shapes and bytes.

A GPT's matrices, each as a BF16 weight, an FP32 master and two FP32 moments: 14
bytes a parameter. The bytes are a hash of (item, position), so that our own rank
(tests/bench/peers_bench.cc) makes the same ones, and nothing compresses. Matrices
are cut by rows over the ranks, as ZeRO and FSDP cut them.
"""

import numpy
import torch

KINDS = ("exp_avg", "exp_avg_sq", "master", "weight")
GOLDEN = 0x9E3779B97F4A7C15
# Clears the top bit of the exponent of BF16 and FP32: every number is finite.
FINITE = 0xBFFFBFFFBFFFBFFF
PAGE_WORDS = 4096 // 8


def read_table(path):
    """Lines of "name rows columns"; columns 0: a vector."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            name, rows, columns = line.split()
            yield name, int(rows), int(columns)


def fill(words, seed, first):
    """words[i] = hash(seed, first + i), a chunk at a time."""
    chunk = 1 << 17
    for start in range(0, len(words), chunk):
        part = words[start : start + chunk]
        z = numpy.arange(len(part), dtype=numpy.uint64)
        z += numpy.uint64(first + start + 1)
        z *= numpy.uint64(GOLDEN)
        z += numpy.uint64(seed)
        z ^= z >> numpy.uint64(30)
        z *= numpy.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> numpy.uint64(27)
        z *= numpy.uint64(0x94D049BB133111EB)
        z ^= z >> numpy.uint64(31)
        numpy.bitwise_and(z, numpy.uint64(FINITE), out=part)


def words_of(tensor):
    return tensor.view(-1).view(torch.int64)


def sum_of(tensor):
    """Modulo 2^64; any changed bit changes it."""
    return int(words_of(tensor).sum())


class State:
    """This rank's part: `tensors` maps "kind.name" to its rows."""

    def __init__(self, table, rank, world):
        self.tensors = {}
        items = sorted((name, kind) for name, _, _ in table for kind in KINDS)
        number = {item: i for i, item in enumerate(items)}
        for name, rows, columns in table:
            shape = (rows // world, columns) if columns else (rows // world,)
            for kind in KINDS:
                dtype = torch.bfloat16 if kind == "weight" else torch.float32
                tensor = torch.empty(shape, dtype=dtype)
                words = words_of(tensor).numpy().view(numpy.uint64)
                seed = number[(name, kind)] << 40
                fill(words, seed, rank * len(words))
                self.tensors[f"{kind}.{name}"] = tensor
        self.sums = {key: sum_of(t) for key, t in self.tensors.items()}

    def touch(self):
        """What an optimizer does to memory: stores into every page. Twice is
        never."""
        for tensor in self.tensors.values():
            words_of(tensor)[::PAGE_WORDS].bitwise_xor_(1)

    def clear(self):
        for tensor in self.tensors.values():
            tensor.zero_()

    def check(self, loaded):
        """Raises where `loaded` is not what was saved."""
        for key, expected in self.sums.items():
            if sum_of(loaded[key]) != expected:
                raise ValueError(f"{key} is not what was saved")
