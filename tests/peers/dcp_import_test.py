"""dcp_import_test.py: DCP's own files, imported by ckptctl and loaded by torch again.

`ckptctl import --from dcp` reads the files without torch; what HoldfastReader then
loads must be what DCP itself loads, of every type and cut.
"""

import os
import sys
import tempfile
import unittest
from pathlib import Path

import programs
import torch
import torch.distributed.checkpoint as dcp

GOLDEN = programs.REPO / "tests/golden/dcp-mixed"
LIBRARY = programs.BUILD / "libholdfast_ckpt.so"
os.environ.setdefault("HOLDFAST_CKPT_LIBRARY", str(LIBRARY))
sys.path.insert(0, str(programs.REPO / "tools/python"))


class DcpImportTest(unittest.TestCase):
    def test_every_tensor_comes_back_as_it_was(self):
        from holdfast_ckpt import HoldfastReader

        metadata = dcp.FileSystemReader(GOLDEN).read_metadata()
        wanted, found = (
            {
                key: torch.empty(entry.size, dtype=entry.properties.dtype)
                for key, entry in metadata.state_dict_metadata.items()
                if hasattr(entry, "size")
            }
            for _ in range(2)
        )
        dcp.load(wanted, checkpoint_id=GOLDEN, no_dist=True)
        with tempfile.TemporaryDirectory() as temporary:
            run = Path(temporary) / "run"
            programs.run("ckptctl", "import", GOLDEN, "--from", "dcp", "--out", run)
            dcp.load(found, storage_reader=HoldfastReader(run), no_dist=True)
        self.assertEqual(len(found), 11)
        for key, value in wanted.items():
            self.assertTrue(torch.equal(found[key], value), key)


if __name__ == "__main__":
    unittest.main()
