"""python -m holdfast_ckpt: conversion between DCP's own files and runs."""

import argparse
import signal
import sys

from . import convert
from ._library import HoldfastError, library_version

EPILOG = """\
No pickle is executed: DCP's metadata is read by a list of allowed names, tensors by
torch.load(weights_only=True), and objects are copied as the bytes that they are.

Exit, as of ckptctl: 0 done, 64 bad usage, 65 damaged data, 66 no checkpoint of that
name, 74 I/O error or no space, 78 the output is something else, what was read is of
another format, or there is no libholdfast_ckpt.so, 128 + n by signal n.
"""

_EXITS = {
    "NOT_FOUND": 66,
    "DATA_LOSS": 65,
    "FAILED_PRECONDITION": 78,
    "INVALID_ARGUMENT": 78,
    "UNIMPLEMENTED": 78,
}


def exit_code(cause):
    """Of the program that ends because of `cause`."""
    if isinstance(cause, convert.BadName):
        return 64
    if isinstance(cause, HoldfastError) and cause.code in _EXITS:
        return _EXITS[cause.code]
    # A save that has failed says so, from what made it fail.
    for error in (cause, cause.__cause__):
        if isinstance(error, FileNotFoundError):
            return 66
        if isinstance(error, ValueError):
            return 78
    return 74


def _step(text):
    step = int(text)
    if step < 0:
        raise ValueError(text)
    return step


def main(arguments=None):
    try:
        version = library_version()
    except HoldfastError as error:
        print(f"holdfast_ckpt: {error.message}", file=sys.stderr)
        return 78
    parser = argparse.ArgumentParser(prog="python -m holdfast_ckpt", epilog=EPILOG,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--version", action="version", version=version)
    verbs = parser.add_subparsers(dest="verb", required=True)
    ways = verbs.add_parser(
        "convert", help="one checkpoint into the other format"
    ).add_subparsers(dest="way", required=True)
    way = ways.add_parser("dcp-to-holdfast", help="a directory of DCP into a run")
    way.add_argument("directory", help="has a .metadata")
    way.add_argument("run", help="a run; made if it is not there")
    way.add_argument("--step", type=_step, help="of the checkpoint (default: the next)")
    way = ways.add_parser("holdfast-to-dcp", help="a checkpoint into DCP's files")
    way.add_argument("name", help="RUN, RUN@STEP, RUN@ID or a checkpoint's directory")
    way.add_argument("directory", help="new, or empty")
    try:
        args = parser.parse_args(arguments)
    except SystemExit as end:
        return 64 if end.code else 0
    try:
        if args.way == "dcp-to-holdfast":
            report = convert.dcp_to_holdfast(args.directory, args.run, args.step)
            print(f"{args.directory} -> {args.run}@{report['step']} ({report['id']}), "
                  f"{report['bytes_total']} bytes")
        else:
            source = convert.holdfast_to_dcp(args.name, args.directory)
            print(f"{source.path} -> {args.directory}")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    # DCP's CheckpointException is no Exception.
    except SystemExit:
        raise
    except BaseException as error:
        failures = getattr(error, "failures", None)
        cause = next(iter(failures.values()))[0] if failures else error
        print(f"convert: {cause}", file=sys.stderr)
        return exit_code(cause)
    return 0


if __name__ == "__main__":
    sys.exit(main())
