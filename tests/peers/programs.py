"""tests/peers/programs.py: our programs, for the tests beside it."""

import json
import os
import pathlib
import subprocess

REPO = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("HOLDFAST_BUILD", REPO / "build/release"))


def run(program, *arguments, code=0, timeout_s=240):
    """Runs build/.../bin/PROGRAM; its stdout. Another exit code is an error."""
    command = [str(BUILD / "bin" / program), *map(str, arguments)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if ended.returncode != code:
        raise AssertionError(
            f"{' '.join(command)}\nended with {ended.returncode}, expected {code}\n"
            f"stdout: {ended.stdout}\nstderr: {ended.stderr}")
    return ended.stdout if code == 0 else ended.stderr


def ckptctl(*arguments):
    """`ckptctl ... --json`, parsed."""
    return json.loads(run("ckptctl", *arguments, "--json"))


def make_data(folder, vocab, tokens=20_000, seed=1):
    """Token files of uint16 below `vocab`, in Megatron's indexed format; their
    PREFIX. One document, tokens that follow each other by a rule, so that there
    is something to learn."""
    import struct

    import numpy

    random = numpy.random.default_rng(seed)
    stream = (numpy.arange(tokens) * 7 + random.integers(0, 3, tokens)) % vocab
    stream = stream.astype("<u2")
    prefix = pathlib.Path(folder) / f"data-{vocab}"
    prefix.with_suffix(".bin").write_bytes(stream.tobytes())
    index = b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, 8)  # 8: uint16
    index += struct.pack("<QQ", 1, 2)  # one sequence; two ends of documents
    index += struct.pack("<i", tokens) + struct.pack("<q", 0)
    index += struct.pack("<qq", 0, 1)
    prefix.with_suffix(".idx").write_bytes(index)
    return prefix
