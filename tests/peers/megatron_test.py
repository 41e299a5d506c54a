"""megatron_test.py: checkpoints of the real megatron-core, imported.

megatron_job.py trains a small Llama with it on four ranks of a CPU and saves in the
format torch_dist. What we import must be its masters to the bit, and the step after
the import its step. In FP32 updates agree to a thousandth of the learning rate. In
BF16 both round activations and gradients, at other places, so updates agree to a
hundredth on the average; a moment or a row in a wrong place moves them by the whole.
"""

import os
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import running_jobs
import torch
import torch.distributed.checkpoint as dcp

try:
    import importlib.metadata

    import megatron.core  # noqa: F401

    VERSION = importlib.metadata.version("megatron-core")
except ImportError as error:
    VERSION = None
    MISSING = f"megatron-core cannot be imported: {error}"

HERE = Path(__file__).parent
# Of the loss, relative; of updates, at most and on the average, in learning rates.
FP32 = (1e-5, 1e-3, 1e-5)
BF16 = (1e-3, 0.3, 1e-2)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def train(folder, tp, pp, dtype, sharding):
    """Runs the four ranks of the job."""
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    words = [str(tp), str(pp), dtype, sharding, str(folder)]
    ranks = []
    for rank in range(4):
        log = open(folder / f"rank{rank}.log", "w")
        command = [sys.executable, HERE / "megatron_job.py", str(rank), "4", *words]
        ranks.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    codes = [rank.wait(timeout=300) for rank in ranks]
    if any(codes):
        logs = "".join((folder / f"rank{r}.log").read_text() for r in range(4))
        raise AssertionError(f"megatron-core's ranks ended with {codes}\n{logs}")


def read_all(path):
    """Every tensor of a DCP directory, whole, by torch itself."""
    metadata = dcp.FileSystemReader(path).read_metadata()
    state = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in metadata.state_dict_metadata.items()
        if hasattr(entry, "size")
    }
    dcp.load(state, checkpoint_id=path, no_dist=True)
    return state


def masters(path, shape):
    """The masters of a checkpoint by our names."""
    keys = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    for prefix in ("optimizer.state.param.", "optimizer.state.fp32_param.", ""):
        if f"{prefix}embedding.word_embeddings.weight" in keys:
            return by_our_names(path, shape, prefix)
    raise KeyError("embedding.word_embeddings.weight")


def by_our_names(path, shape, prefix):
    """The tensors whose keys begin with `prefix`, as ours, in FP32."""
    state = read_all(path)
    found = {
        key.removeprefix(prefix): value.float()
        for key, value in state.items()
        if key.startswith(prefix)
    }
    vocab, head = shape["vocab"], shape["hidden"] // shape["heads"]
    queries = shape["heads"] // shape["kv_heads"]
    weights = {
        "model.embed_tokens.weight": found["embedding.word_embeddings.weight"][:vocab],
        "lm_head.weight": found["output_layer.weight"][:vocab],
        "model.norm.weight": found["decoder.final_layernorm.weight"],
    }
    for layer in range(shape["layers"]):

        def get(*names):
            for name in names:
                if f"decoder.layers.{name}" in found:
                    return found[f"decoder.layers.{name}"][layer]
            raise KeyError(names)

        qkv = get("self_attention.linear_qkv.weight")
        groups = qkv.reshape(shape["kv_heads"], queries + 2, head, -1)
        gate, up = get("mlp.linear_fc1.weight").chunk(2)
        parts = {
            "self_attn.q_proj": groups[:, :queries].reshape(-1, shape["hidden"]),
            "self_attn.k_proj": groups[:, queries].reshape(-1, shape["hidden"]),
            "self_attn.v_proj": groups[:, queries + 1].reshape(-1, shape["hidden"]),
            "self_attn.o_proj": get("self_attention.linear_proj.weight"),
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": get("mlp.linear_fc2.weight"),
            "input_layernorm": get(
                "self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight"
            ),
            "post_attention_layernorm": get(
                "mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"
            ),
        }
        for name, value in parts.items():
            weights[f"model.layers.{layer}.{name}.weight"] = value
    return weights


@unittest.skipIf(VERSION is None, "" if VERSION else MISSING)
class MegatronTest(unittest.TestCase):
    def check(self, tp, pp, dtype, sharding, bounds, more=()):
        from megatron_job import OPTIM, SHAPE, STEPS

        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            train(folder, tp, pp, dtype, sharding)
            loss, before, after = running_jobs.import_and_step(
                folder, "megatron", folder / "checkpoint", SHAPE, OPTIM, STEPS,
                dtype, more,
            )  # fmt: skip
            source_loss = running_jobs.read_json(folder / "result.json")["loss"]
            source_before = masters(folder / "before", SHAPE)
            source_after = masters(folder / "after", SHAPE)
        for name, value in source_before.items():
            self.assertTrue(torch.equal(before[name], value), name)
        (worst, name), mean = running_jobs.compare_updates(
            before, after, source_before, source_after, OPTIM["lr"]
        )
        print(
            f"megatron-core {VERSION}, TP{tp} PP{pp} {dtype} {sharding}: loss "
            f"{loss:.6f}, megatron's {source_loss:.6f}; updates differ by "
            f"{worst:.1e} of the learning rate at most, in {name}, by {mean:.1e} on "
            "the average"
        )
        loss_bound, worst_bound, mean_bound = bounds
        self.assertLess(abs(loss - source_loss), loss_bound * source_loss)
        self.assertLess(worst, worst_bound)
        self.assertLess(mean, mean_bound)

    def test_fp32_tp2_pp2(self):
        self.check(2, 2, "f32", "fully_reshardable", FP32)

    def test_bf16_tp2_dp2(self):
        self.check(2, 1, "bf16", "fully_reshardable", BF16)

    def test_bf16_without_the_distributed_optimizer(self):
        self.check(2, 2, "bf16", "none", BF16)

    def test_flat_buffers_are_refused_with_what_to_do(self):
        import programs
        from megatron_job import SHAPE

        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            train(folder, 2, 1, "bf16", "dp_reshardable")
            source = ("--from", "megatron", folder / "checkpoint")
            words = programs.run(
                "ckptctl", "import", *source, "--out", folder / "no", code=78
            )
            self.assertIn("--dist-ckpt-optim-fully-reshardable", words)
            programs.run(
                "ckptctl", "import", *source, "--out", folder / "weights",
                "--ignore", "optimizer.distributed.*",
            )  # fmt: skip
            found = programs.ckptctl("show", folder / "weights")
        self.assertEqual(SHAPE["layers"], 2)
        self.assertTrue(found)


if __name__ == "__main__":
    unittest.main()
