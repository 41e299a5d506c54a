"""compare.py: times every peer and ours on the same bytes, disk and minutes.

A table for one rank, then one for several. Warm-up: each peer saves and loads
with each of its options, and goes on with the fastest. Then rounds in which every
peer saves once into fresh files, in alternating order, beside a raw io_uring loop;
then rounds of loads with nothing of the files in memory. Deletions are outside of
the times. JSON lines and tables go to stdout, progress to stderr.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time

import report
from durable import evict
from world import PeerError, World

BYTES_PER_PARAMETER = 14
STEP_MS = 1000
AT_ONCE_ROUNDS = 3
TRIES = 2
SPACE_FACTOR = 13
MEMORY_FACTOR = 6
SETTLE_S = 0.3


def tensors(quick):
    """GPT-2's matrices; 16 layers: 153 M parameters, 2.1 GB."""
    hidden, vocabulary, layers = (256, 8192, 4) if quick else (768, 50304, 16)
    yield "embedding", vocabulary, hidden
    yield "positions", 1024, hidden
    yield "final_norm", hidden, 0
    for i in range(layers):
        for name in "qkvo":
            yield f"layer{i:02}.{name}", hidden, hidden
        yield f"layer{i:02}.up", 4 * hidden, hidden
        yield f"layer{i:02}.down", hidden, 4 * hidden
        yield f"layer{i:02}.norm1", hidden, 0
        yield f"layer{i:02}.norm2", hidden, 0


def fastest(choices, seconds):
    """By the better of TRIES tries each, of which the first are warm-ups."""
    times = [[seconds(choice) for choice in choices] for _ in range(TRIES)]
    best = [min(of_choice) for of_choice in zip(*times)]
    return choices[best.index(min(best))]


def check_room(path, state_bytes):
    """Every peer's files lie there at the end, and its copies in memory."""
    free = shutil.disk_usage(path).free
    if free < SPACE_FACTOR * state_bytes:
        raise PeerError(
            f"{path} has {free / 1e9:.0f} GB of space; "
            f"{SPACE_FACTOR * state_bytes / 1e9:.0f} GB are needed (--quick: 1 GB)"
        )
    available = 0
    with open("/proc/meminfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    if available < MEMORY_FACTOR * state_bytes:
        raise PeerError(
            f"{available / 1e9:.0f} GB of memory are available; "
            f"{MEMORY_FACTOR * state_bytes / 1e9:.0f} GB are needed (--quick: 2 GB)"
        )


class Subject:
    """One line of the table: a peer, in a world that it may share."""

    def __init__(self, name, world, facts):
        self.name = name
        self.world = world
        self.facts = facts
        self.asynchronous = facts["asynchronous"]
        self.one_run = name == "holdfast" or facts["one_run"]
        self.save_options = {}
        self.load_options = {}
        self.path = None
        self.saves = []
        self.at_once = []
        self.loads = []


class Table:
    """Everything that is measured on `ranks` ranks."""

    def __init__(self, args, scratch, ranks):
        self.args = args
        self.ranks = ranks
        self.scratch = scratch
        self.raw_writes = []
        self.raw_reads = []
        self.skips = []
        self.subjects = []
        self.versions = {}
        self.worlds = []
        self.count = 0
        self.table = os.path.join(scratch, "tensors")

    def say(self, text):
        print(f"peers: {self.ranks} ranks: {text}", file=sys.stderr, flush=True)

    def start(self):
        self.say("starting")
        self.ours = self.world("holdfast")
        facts = self.ours.start_holdfast(self.args.program, self.table)
        self.bytes = facts["bytes"]
        self.subjects.append(Subject("holdfast", self.ours, facts))
        python = self.world("python")
        described = python.start_python(self.table)
        self.versions = described["versions"]
        for facts in described["peers"]:
            if self.args.peers and facts["peer"] not in self.args.peers:
                continue
            if facts["skip"]:
                self.skip(facts["peer"], facts["skip"])
            else:
                self.subjects.append(Subject(facts["peer"], python, facts))

    def world(self, name):
        world = World(os.path.join(self.scratch, f"{name}-{self.ranks}"), self.ranks)
        self.worlds.append(world)
        return world

    def skip(self, name, why):
        self.say(f"skipped {name}: {why}")
        self.skips.append((name, why))
        self.subjects = [s for s in self.subjects if s.name != name]

    def end(self, kill=False):
        for world in self.worlds:
            world.kill() if kill else world.close()
        self.worlds = []

    def fresh(self, subject):
        """A new folder; the one before is deleted and the disk let come to rest."""
        if subject.path is not None and not subject.one_run:
            shutil.rmtree(subject.path)
        if subject.one_run:
            # A run directory: old checkpoints in it are retired by ourselves.
            # bench_peers answers when that is over.
            name = subject.name.replace(" ", "-")
            subject.path = os.path.join(self.scratch, f"{name}-run-{self.ranks}")
        else:
            self.count += 1
            subject.path = os.path.join(self.scratch, f"save-{self.count:04}")
        os.makedirs(subject.path, exist_ok=True)
        os.sync()
        time.sleep(SETTLE_S)

    def save(self, subject, options, step_ms=STEP_MS):
        self.fresh(subject)
        answer = subject.world.call(
            "save", subject.name, json.dumps(options), subject.path, step_ms
        )
        return {
            "durable_s": answer["durable"] - answer["begin"],
            "returned_s": answer["returned"] - answer["begin"],
            "stall_s": answer["stall_s"],
        }

    def load(self, subject, options):
        os.sync()
        cached = evict(subject.path)
        if cached > 0.01:
            raise PeerError(f"{cached:.0%} of the files stay in memory: not cold")
        time.sleep(SETTLE_S)
        answer = subject.world.call(
            "load", subject.name, json.dumps(options), subject.path
        )
        return answer["end"] - answer["begin"]

    def raw(self, verb, path):
        time.sleep(SETTLE_S)
        answer = self.ours.call(verb, path)
        return answer["end"] - answer["begin"]

    def each(self, subjects, action):
        for subject in subjects:
            try:
                action(subject)
            except PeerError as error:
                self.skip(subject.name, str(error))
                if subject.name == "holdfast":
                    raise

    def warm_up(self):
        self.each(list(self.subjects), self.choose_options)

    def choose_options(self, subject):
        self.say(f"warm-up of {subject.name}")

        def seconds_of_save(options):
            return self.save(subject, options)["durable_s"]

        def seconds_of_load(options):
            return self.load(subject, options)

        subject.save_options = fastest(subject.facts["save_options"], seconds_of_save)
        subject.load_options = fastest(subject.facts["load_options"], seconds_of_load)

    def order(self, turn, subjects):
        """Another first one every round, and every other round backwards."""
        shift = turn % len(subjects)
        turned = subjects[shift:] + subjects[:shift]
        return turned[::-1] if turn % 2 else turned

    def measure_saves(self):
        for turn in range(self.args.rounds):
            self.say(f"saves, round {turn + 1} of {self.args.rounds}")
            raw = os.path.join(self.scratch, "raw")
            os.sync()
            self.raw_writes.append(self.raw("raw_write", raw))
            os.unlink(raw)
            self.each(
                self.order(turn, self.subjects),
                lambda s: s.saves.append(self.save(s, s.save_options)),
            )
        asynchronous = [s for s in self.subjects if s.asynchronous]
        for turn in range(AT_ONCE_ROUNDS):
            self.say(f"stall at once, round {turn + 1} of {AT_ONCE_ROUNDS}")
            self.each(
                self.order(turn, asynchronous),
                lambda s: s.at_once.append(self.save(s, s.save_options, 0)),
            )

    def measure_loads(self):
        raw = os.path.join(self.scratch, "raw")
        self.raw("raw_write", raw)
        for turn in range(self.args.rounds):
            self.say(f"loads, round {turn + 1} of {self.args.rounds}")
            self.raw_reads.append(self.raw("raw_read", raw))
            self.each(
                self.order(turn, self.subjects),
                lambda s: s.loads.append(self.load(s, s.load_options)),
            )
        os.unlink(raw)

    def delete(self):
        for subject in self.subjects:
            if subject.path is not None:
                shutil.rmtree(subject.path, ignore_errors=True)


def run(args, scratch):
    with open(os.path.join(scratch, "tensors"), "w", encoding="utf-8") as lines:
        for name, rows, columns in tensors(args.quick):
            print(name, rows, columns, file=lines)
    finished = []
    for ranks in args.ranks:
        table = Table(args, scratch, ranks)
        try:
            table.start()
            table.warm_up()
            table.measure_saves()
            table.measure_loads()
            table.end()
        finally:
            table.end(kill=True)
        if not args.keep:
            table.delete()
        finished.append(table)
    return finished


def parse():
    parser = argparse.ArgumentParser(prog="tests/bench/peers/peers")
    parser.add_argument("--dir", required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--peers", nargs="+", default=[])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 4])
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 5)
    return args


def main():
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    scratch = os.path.join(os.path.abspath(args.dir), f"peers-{os.getpid()}")
    os.makedirs(scratch)
    begin = time.monotonic()
    try:
        parameters = sum(r * max(1, c) for _, r, c in tensors(args.quick))
        check_room(scratch, parameters * BYTES_PER_PARAMETER)
        machine = report.machine(args, scratch)
        tables = run(args, scratch)
        machine["seconds"] = round(time.monotonic() - begin)
        report.show(machine, tables)
    except KeyboardInterrupt:
        print("peers: interrupted; nothing is left but the venv", file=sys.stderr)
        return 130
    except PeerError as error:
        print(f"peers: {error}", file=sys.stderr)
        return 74
    finally:
        if args.keep:
            print(f"peers: kept {scratch}", file=sys.stderr)
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
