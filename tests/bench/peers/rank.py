"""rank.py: one rank of the Python peers, which does what the harness says.

Reads commands from a named pipe and answers each with a line of JSON; times are
of CLOCK_MONOTONIC, so that those of several ranks can be compared. Started by
world.py; commands are tuples separated by tabs:

  save  PEER OPTIONS DIR STEP_MS     load  PEER OPTIONS DIR     peers     quit
"""

import argparse
import json
import os
import statistics
import sys
import time
import traceback
import warnings

import torch
import torch.distributed

import peers_dcp
import peers_holdfast
import peers_local
import peers_megatron
import state
from durable import sync_tree

POLL_S = 0.01


class Rank:
    def __init__(self, args):
        self.rank = args.rank
        table = list(state.read_table(args.table))
        self.state = state.State(table, args.rank, args.world)
        self.peers = {}
        for module in (peers_local, peers_dcp, peers_holdfast, peers_megatron):
            for peer in module.make_peers(self.state.tensors, args.rank, args.world):
                self.peers[peer.name] = peer
        passes = []
        for _ in range(4):
            begin = time.monotonic()
            self.state.touch()
            passes.append(time.monotonic() - begin)
        self.pass_s = statistics.median(passes)

    def describe(self):
        return {
            "peers": [
                {
                    "peer": p.name,
                    "save_options": p.save_options,
                    "load_options": p.load_options,
                    "integrity": p.integrity,
                    "asynchronous": p.asynchronous,
                    "one_run": p.one_run,
                    "skip": p.skip,
                }
                for p in self.peers.values()
            ],
            "versions": {
                "python": sys.version.split()[0],
                "torch": torch.__version__,
                **peers_local.versions(),
                **peers_megatron.versions(),
            },
        }

    def save(self, name, options, path, step_ms):
        peer = self.peers[name]
        prepared = peer.prepare(path, json.loads(options))
        torch.distributed.barrier()
        begin = time.monotonic()
        handle = peer.save(prepared)
        called = time.monotonic()
        if handle is None:  # synchronous: training waits for all of it
            is_left = self.rank == 0 and not peer.one_run
            durable = sync_tree(path) if is_left else called
            return {
                "begin": begin,
                "returned": called,
                "durable": durable,
                "stall_s": called - begin,
            }
        # The step: forward and backward take step_ms, then the optimizer stores
        # into the whole state, once it may.
        for _ in range(int(float(step_ms) / 1e3 / POLL_S)):
            time.sleep(POLL_S)
            handle.poll()
        asked = time.monotonic()
        handle.wait_staged()
        staged = time.monotonic()
        self.state.touch()
        stored = time.monotonic()
        handle.wait()
        self.state.touch()
        held = (called - begin) + (staged - asked)
        return {
            "begin": begin,
            "returned": handle.returned,
            "durable": handle.durable,
            "stall_s": held + max(0.0, stored - staged - self.pass_s),
        }

    def load(self, name, options, path):
        peer = self.peers[name]
        self.state.clear()
        torch.distributed.barrier()
        begin = time.monotonic()
        loaded = peer.load(path, json.loads(options))
        end = time.monotonic()
        self.state.check(loaded)
        if loaded is not self.state.tensors:
            for key, tensor in loaded.items():
                self.state.tensors[key].copy_(tensor)
        return {"begin": begin, "end": end}


def short(error):
    """A peer's failure is a result: its last line says what, the log where."""
    lines = [line for line in str(error).split("\n") if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--commands", required=True)
    parser.add_argument("--answers", required=True)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{args.port}",
        rank=args.rank,
        world_size=args.world,
    )
    with (
        open(args.commands, encoding="utf-8") as commands,
        open(args.answers, "w", encoding="utf-8") as answers,
    ):
        rank = Rank(args)
        print(json.dumps(rank.describe()), file=answers, flush=True)
        for line in iter(commands.readline, ""):
            verb, *arguments = line.rstrip("\n").split("\t")
            if verb == "quit":
                break
            try:
                answer = {"save": rank.save, "load": rank.load}[verb](*arguments)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # DCP's own errors are no Exception
                traceback.print_exc()
                answer = {"error": short(error)}
            print(json.dumps(answer), file=answers, flush=True)
    for peer in rank.peers.values():
        peer.close()
    print(json.dumps({"closed": True}))
    # Leftover threads and daemons of the peers are not waited for.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
