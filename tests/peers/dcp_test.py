"""dcp_test.py: torch.distributed.checkpoint with HoldfastWriter and HoldfastReader.

The real torch, in as many processes as ranks, over gloo. Run by tools/test --peers, or
by itself with a Python that has torch: dcp_test.py [CASE]. HOLDFAST_BUILD is the build
directory (default: build/release).
"""

import os
import socket
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PACKAGE = os.path.join(ROOT, "tools/python")
BUILD = os.environ.get("HOLDFAST_BUILD", os.path.join(ROOT, "build/release"))
LIBRARY = os.path.join(BUILD, "libholdfast_ckpt.so")
CKPTCTL = os.path.join(BUILD, "bin/ckptctl")
TIMEOUT_S = 300

ENVIRONMENT = {
    **os.environ,
    "HOLDFAST_CKPT_LIBRARY": LIBRARY,
    "PYTHONPATH": PACKAGE,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class DcpTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="dcp-")
        self.addCleanup(directory.cleanup)
        self.root = directory.name
        self.run_dir = os.path.join(self.root, "run")
        self.references = os.path.join(self.root, "references")
        os.mkdir(self.references)

    def ranks(self, world, scenario, *arguments, **variables):
        port = str(free_port())
        processes = [
            subprocess.Popen(
                [sys.executable, os.path.join(HERE, "dcp_rank.py"), scenario]
                + [str(rank), str(world), port, *arguments],
                env={**ENVIRONMENT, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            outputs = [p.communicate(timeout=TIMEOUT_S)[0] for p in processes]
        finally:
            for process in processes:
                process.kill()
        for rank, process in enumerate(processes):
            self.assertEqual(
                process.returncode, 0, f"rank {rank} of {world}:\n{outputs[rank]}"
            )

    def tool(self, *command):
        done = subprocess.run(
            command, env=ENVIRONMENT, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        return done.returncode, done.stdout + done.stderr

    def convert(self, *arguments):
        code, output = self.tool(
            sys.executable, "-m", "holdfast_ckpt", "convert", *arguments
        )
        self.assertEqual(code, 0, output)
        return output

    def test_four_ranks_save_and_two_and_eight_load(self):
        self.ranks(4, "save", self.run_dir, self.references)
        self.ranks(2, "load", self.run_dir, self.references, "1", "2", "3")
        self.ranks(8, "load", self.run_dir, self.references, "1", "4")
        code, output = self.tool(CKPTCTL, "verify", self.run_dir, "--hash")
        self.assertEqual(code, 0, output)

    def test_what_is_refused_is_refused_on_all_ranks_and_the_next_save_goes(self):
        self.ranks(2, "refuse", self.run_dir)

    def test_a_changed_byte_is_never_loaded(self):
        # Over TCP, as on several hosts.
        self.ranks(2, "one_tensor", self.run_dir, HOLDFAST_CKPT_MEET="tcp")
        files = [
            os.path.join(folder, name)
            for folder, _, names in os.walk(self.run_dir)
            for name in names
            if name.startswith("shard-")
        ]
        largest = max(files, key=os.path.getsize)
        with open(largest, "r+b") as file:
            file.seek(4096 + 100_000)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        self.ranks(2, "damaged", self.run_dir)

    def test_what_dcp_wrote_and_what_we_wrote_become_each_other(self):
        theirs, ours = os.path.join(self.root, "dcp"), self.run_dir
        self.ranks(2, "both_writers", ours, theirs, self.references)
        run, back = os.path.join(self.root, "run-2"), os.path.join(self.root, "dcp-2")
        self.convert("dcp-to-holdfast", theirs, run, "--step", "3")
        self.convert("holdfast-to-dcp", f"{ours}@3", back)
        self.ranks(4, "both_readers", run, back, self.references)
        # There and back again: the same digest.
        again = os.path.join(self.root, "run-3")
        self.convert("dcp-to-holdfast", back, again, "--step", "3")
        code, output = self.tool(CKPTCTL, "diff", run, again)
        self.assertEqual(code, 0, output)

    def test_dcps_checkpoint_process_saves_too(self):
        self.ranks(2, "process", self.run_dir, self.references)


if __name__ == "__main__":
    unittest.main()
