"""world.py: the processes of one side, its ranks, and talking to them."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MPIRUN = os.path.join(HERE, "../../e2e/mpirun.sh")
ANSWER_S = 300


class PeerError(Exception):
    """A rank could not do what it was told; the text says why."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class World:
    """`ranks` processes, each with a named pipe for commands and one for answers.
    The pipes are opened for reading and writing, which never blocks."""

    def __init__(self, folder, ranks):
        os.mkdir(folder)
        self.folder = folder
        self.ranks = ranks
        self.log = os.path.join(folder, "log")
        self.processes = []
        self.commands = []
        self.answers = []
        for rank in range(ranks):
            for name, fds in (("commands", self.commands), ("answers", self.answers)):
                os.mkfifo(self.pipe(name, rank))
                fds.append(os.open(self.pipe(name, rank), os.O_RDWR))
        self.rest = [b""] * ranks
        self.broken = ""  # why no rank can be asked any more

    def pipe(self, name, rank):
        return os.path.join(self.folder, f"{name}.{rank}")

    def start(self, command, environment):
        with open(self.log, "ab") as log:
            self.processes.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def start_python(self, table):
        port = free_port()
        threads = max(1, (os.cpu_count() or 1) // self.ranks)
        for rank in range(self.ranks):
            command = [sys.executable, os.path.join(HERE, "rank.py")]
            command += ["--rank", str(rank), "--world", str(self.ranks)]
            command += ["--port", str(port), "--table", table]
            command += ["--commands", self.pipe("commands", rank)]
            command += ["--answers", self.pipe("answers", rank)]
            environment = {
                "OMP_NUM_THREADS": str(threads),
                "GLOO_SOCKET_IFNAME": "lo",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
            }
            self.start(command, environment)
        return self.receive()

    def start_holdfast(self, program, table):
        command = [program, "--table", table, "--pipes", self.folder]
        if self.ranks > 1:
            command = [MPIRUN, str(self.ranks), *command]
        self.start(command, {"OMP_NUM_THREADS": "1"})
        return self.receive()

    def call(self, *command):
        """All ranks carry it out. Their answers, times joined: from the first that
        began to the last that ended."""
        if self.broken:
            raise PeerError(f"not tried; before it, {self.broken}")
        line = ("\t".join(str(word) for word in command) + "\n").encode()
        for fd in self.commands:
            os.write(fd, line)
        return self.receive()

    def receive(self):
        answers = [self.answer_of(rank) for rank in range(self.ranks)]
        joined = dict(answers[0])
        for answer in answers:
            if "error" in answer:
                raise PeerError(answer["error"])
            for key, value in answer.items():
                if isinstance(value, (int, float)):
                    best = min if key == "begin" else max
                    joined[key] = best(joined[key], value)
        return joined

    def answer_of(self, rank):
        deadline = time.monotonic() + ANSWER_S
        while b"\n" not in self.rest[rank]:
            ready, _, _ = select.select([self.answers[rank]], [], [], 0.2)
            if ready:
                self.rest[rank] += os.read(self.answers[rank], 1 << 16)
            elif any(process.poll() is not None for process in self.processes):
                self.broken = f"a rank has ended: {self.last_words()}"
            elif time.monotonic() > deadline:
                self.broken = f"rank {rank} has said nothing for {ANSWER_S} s"
            if self.broken:
                raise PeerError(self.broken)
        line, self.rest[rank] = self.rest[rank].split(b"\n", 1)
        return json.loads(line)

    def last_words(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return ([line for line in log.read().split("\n") if line] or [""])[-1]

    def close(self):
        for fd in self.commands:
            os.write(fd, b"quit\n")
        deadline = time.monotonic() + 10
        for process in self.processes:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.terminate()  # mpirun ends its ranks
        self.kill()

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    pass
            # Whatever it has started is in its session: forks, daemons.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        for fd in self.commands + self.answers:
            os.close(fd)
        self.commands, self.answers = [], []
