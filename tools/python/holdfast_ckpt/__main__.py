"""python -m holdfast_ckpt: conversion between DCP's own files and runs."""

import argparse
import sys

from . import convert
from ._library import HoldfastError, library_version

EPILOG = """\
No pickle is executed: DCP's metadata is read by a list of allowed names, tensors by
torch.load(weights_only=True), and objects are copied as the bytes that they are.

Exit: 0 done, 64 bad usage, 65 what was read is damaged or no checkpoint, 69 no
libholdfast_ckpt.so, 74 it could not be written.
"""


def main(arguments=None):
    try:
        version = library_version()
    except HoldfastError as error:
        print(f"holdfast_ckpt: {error.message}", file=sys.stderr)
        return 69
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
    way.add_argument("--step", type=int, help="of the checkpoint (default: the next)")
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
    # DCP's CheckpointException is no Exception.
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        failures = getattr(error, "failures", None)
        cause = next(iter(failures.values()))[0] if failures else error
        print(f"convert: {cause}", file=sys.stderr)
        bad = isinstance(cause, ValueError) or isinstance(
            cause.__cause__, ValueError
        ) or (
            isinstance(cause, HoldfastError) and cause.code in ("DATA_LOSS", "NOT_FOUND")
        )
        return 65 if bad else 74
    return 0


if __name__ == "__main__":
    sys.exit(main())
