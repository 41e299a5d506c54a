#!/usr/bin/env python3
"""Makes dcp-megatron/ and dcp_megatron.bin: a checkpoint of megatron-core.

    usage: make_megatron_golden.py OUT_DIR     (needs torch and megatron-core; made
                                                with 2.15 and 0.19.2)

A tiny Llama, trained three steps by tests/peers/megatron_job.py on one rank and
saved in the format torch_dist, fully reshardable. dcp_megatron.bin (the format of
make_model_golden.py) has what is in it, by our names and kinds: weight/NAME (as
FP32), master/NAME, exp_avg/NAME, exp_avg_sq/NAME.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "peers"), str(HERE)]

import megatron_job
import megatron_test
from make_model_golden import write

SHAPE = {"layers": 2, "hidden": 16, "heads": 4, "kv_heads": 2, "ffn": 12, "vocab": 11}


def main(out):
    megatron_job.SHAPE |= SHAPE
    megatron_job.PADDED_VOCAB = 16
    for name, value in ("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_PORT", "29591"):
        os.environ[name] = value
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)  # .metadata remembers the path
        megatron_job.main(0, 1, 1, 1, "bf16", "fully_reshardable", Path("."))
        target = out / "dcp-megatron"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree("checkpoint", target)
    prefixes = {
        "weight": "",
        "master": "optimizer.state.param.",
        "exp_avg": "optimizer.state.exp_avg.",
        "exp_avg_sq": "optimizer.state.exp_avg_sq.",
    }
    entries = {}
    for kind, prefix in prefixes.items():
        found = megatron_test.by_our_names(target, megatron_job.SHAPE, prefix)
        entries |= {f"{kind}/{name}": value for name, value in found.items()}
    write(out / "dcp_megatron.bin", entries)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
