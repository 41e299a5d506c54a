"""titan_test.py: a Llama in torchtitan's form, saved by torch's DCP on four ranks.

torchtitan itself wants a GPU and packages of its own. Here stand its keys and its
arithmetic: the state of components/checkpointer (flat optimizer state by parameter
names, train_state, lr_scheduler, dataloader), rotary pairs side by side
(models/common/rope.py, ComplexRoPE), torch.optim.AdamW, DTensor on a mesh of FSDP
and TP. With and without fused qkv, whose weight is stored in three parts and whose
moments are one; the names of 2025 (wq, output) and of 2026 (qkv_linear, lm_head).
"""

import os
import tempfile
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn import functional

import running_jobs
from running_jobs import SEQ_LEN

SHAPE = {
    "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 61,
    "tied": False, "theta": 10000.0, "eps": 1e-5,
}  # fmt: skip
OPTIM = {"lr": 2e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
STEPS = 3
HEAD = SHAPE["hidden"] // SHAPE["heads"]
QUERIES = SHAPE["heads"] // SHAPE["kv_heads"]


def turn(x):  # [positions, heads, HEAD], pairs side by side
    angles = torch.outer(
        torch.arange(SEQ_LEN).float(),
        1.0 / SHAPE["theta"] ** (torch.arange(0, HEAD, 2).float() / HEAD),
    )
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2)


class Attention(nn.Module):
    def __init__(self, fused):
        super().__init__()
        hidden, kv = SHAPE["hidden"], SHAPE["kv_heads"] * HEAD
        linear = nn.Module()
        if fused:
            linear.wqkv = nn.Linear(hidden, hidden + 2 * kv, bias=False)
        else:
            linear.wq = nn.Linear(hidden, hidden, bias=False)
            linear.wk = nn.Linear(hidden, kv, bias=False)
            linear.wv = nn.Linear(hidden, kv, bias=False)
        self.qkv_linear = linear
        self.wo = nn.Linear(hidden, hidden, bias=False)
        self.fused = fused

    def forward(self, x):
        linear = self.qkv_linear
        if self.fused:
            groups = linear.wqkv(x).view(SEQ_LEN, -1, QUERIES + 2, HEAD)
            q, k, v = groups.split([QUERIES, 1, 1], dim=2)
        else:
            q, k, v = linear.wq(x), linear.wk(x), linear.wv(x)
        q, k, v = (t.reshape(SEQ_LEN, -1, HEAD) for t in (q, k, v))
        q, k = turn(q), turn(k)
        k, v = (t.repeat_interleave(QUERIES, dim=1) for t in (k, v))
        mixed = functional.scaled_dot_product_attention(
            *(t.transpose(0, 1)[None] for t in (q, k, v)), is_causal=True
        )
        return self.wo(mixed[0].transpose(0, 1).reshape(SEQ_LEN, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(SHAPE["hidden"], SHAPE["ffn"], bias=False)
        self.w2 = nn.Linear(SHAPE["ffn"], SHAPE["hidden"], bias=False)
        self.w3 = nn.Linear(SHAPE["hidden"], SHAPE["ffn"], bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


def norm():
    return nn.RMSNorm(SHAPE["hidden"], eps=SHAPE["eps"])


class Block(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.attention = Attention(fused)
        self.feed_forward = FeedForward()
        self.attention_norm, self.ffn_norm = norm(), norm()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Titan(nn.Module):
    def __init__(self, fused):
        super().__init__()
        torch.manual_seed(11)
        vocab, hidden = SHAPE["vocab"], SHAPE["hidden"]
        self.tok_embeddings = nn.Embedding(vocab, hidden)
        blocks = {str(i): Block(fused) for i in range(SHAPE["layers"])}
        self.layers = nn.ModuleDict(blocks)
        self.norm = norm()
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() == 1:  # norms that are not all one
                    parameter.add_(0.1 * torch.randn_like(parameter))

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for block in self.layers.values():
            x = block(x)
        return self.lm_head(self.norm(x))


def train(fused, steps):
    """The model and its optimizer after so many steps, and the last loss."""
    model = Titan(fused)
    matrices = [(n, p) for n, p in model.named_parameters() if p.dim() > 1]
    norms = [(n, p) for n, p in model.named_parameters() if p.dim() == 1]
    # Two groups, as ParamGroupConfig makes them: we never decay norms.
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": norms, "weight_decay": 0.0}], **OPTIM
    )
    tokens = running_jobs.sequence(SHAPE["vocab"])
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens[:-1]), tokens[1:])
        loss.backward()
        optimizer.step()
    return model, optimizer, loss.item()


def stored_weights(model):
    """What state_dict() gives with the hook of FusedQKVLinear."""
    weights = {}
    for name, tensor in model.state_dict().items():
        if "wqkv" not in name:
            weights[name] = tensor
            continue
        rows = tensor.reshape(SHAPE["kv_heads"], QUERIES + 2, HEAD, -1)
        parts = {
            "wq": rows[:, :QUERIES], "wk": rows[:, QUERIES], "wv": rows[:, QUERIES + 1]
        }  # fmt: skip
        for part, value in parts.items():
            flat = value.reshape(-1, SHAPE["hidden"]).contiguous()
            weights[name.replace("wqkv", part)] = flat
    return weights


def names_of_2025(key):
    return key.replace("qkv_linear.", "").replace("lm_head.", "output.")


def titan_state(fused, rename):
    model, optimizer, _ = train(fused, STEPS)
    state = dict(stored_weights(model))
    flat = {}
    for group in optimizer.param_groups:
        for name, parameter in zip(group["param_names"], group["params"]):
            for key, value in optimizer.state[parameter].items():
                flat[f"state.{name}.{key}"] = value
            for key, value in group.items():
                if key not in ("params", "param_names"):
                    flat[f"param_groups.{name}.{key}"] = value
    if rename:
        state = {names_of_2025(key): value for key, value in state.items()}
        flat = {names_of_2025(key): value for key, value in flat.items()}
    state["optimizer"] = flat
    state["lr_scheduler"] = {"last_epoch": STEPS}
    state["dataloader"] = {"dp_rank_0": b"cursor", "world_size": 1}
    state["train_state"] = {"step": STEPS, "ntokens_seen": STEPS * SEQ_LEN}
    return state


def save(rank, world, path, fused, rename):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29585"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp"))

    def cut(key, tensor):
        if tensor.dim() == 0:
            return tensor
        if tensor.dim() == 1:
            places = [Shard(0), Replicate()]
        else:  # row-parallel matrices are cut by columns over TP
            by_columns = "wo" in key or "w2" in key
            places = [Shard(0), Shard(1 if by_columns else 0)]
        return distribute_tensor(tensor.detach(), mesh, places)

    def cut_all(values):
        return {
            key: cut(key, value) if isinstance(value, torch.Tensor) else value
            for key, value in values.items()
        }

    state = cut_all(titan_state(fused, rename))
    state["optimizer"] = cut_all(state["optimizer"])
    dcp.save(state, checkpoint_id=path)
    dist.destroy_process_group()


def to_hf(model):
    """The weights by our names and in our order: pairs of rows apart."""

    def apart(rows, heads):
        return rows.reshape(heads, HEAD // 2, 2, -1).transpose(1, 2).reshape(rows.shape)

    names = {
        "tok_embeddings": "model.embed_tokens", "norm": "model.norm",
        "lm_head": "lm_head", "attention.qkv_linear.wq": "self_attn.q_proj",
        "attention.qkv_linear.wk": "self_attn.k_proj",
        "attention.qkv_linear.wv": "self_attn.v_proj",
        "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj", "feed_forward.w2": "mlp.down_proj",
        "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    weights = {}
    for key, value in stored_weights(model).items():
        stem = key.removesuffix(".weight")
        prefix = ""
        if stem.startswith("layers."):
            _, layer, stem = stem.split(".", 2)
            prefix = f"model.layers.{layer}."
        if stem.endswith("wq"):
            value = apart(value, SHAPE["heads"])
        if stem.endswith("wk"):
            value = apart(value, SHAPE["kv_heads"])
        weights[f"{prefix}{names[stem]}.weight"] = value.detach().clone()
    return weights


class TitanTest(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)  # as the ranks: one order of sums

    def check(self, fused, rename):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            saved = folder / "titan" / f"step-{STEPS}"
            args = (4, str(saved), fused, rename)
            mp.spawn(save, args=args, nprocs=4)
            model = folder / "model.toml"
            model.write_text(running_jobs.model_toml(SHAPE))
            loss, before, after = running_jobs.import_and_step(
                folder, "torchtitan", saved, SHAPE, OPTIM, STEPS, "f32",
                ("--model", model),
            )  # fmt: skip
        source_before = to_hf(train(fused, STEPS)[0])
        after_model, _, source_loss = train(fused, STEPS + 1)
        for name, value in source_before.items():
            self.assertTrue(torch.equal(before[name], value), name)
        (worst, name), mean = running_jobs.compare_updates(
            before, after, source_before, to_hf(after_model), OPTIM["lr"]
        )
        print(
            f"fused {fused}, names of {2025 if rename else 2026}: loss {loss:.7f}, "
            f"torch's {source_loss:.7f}; updates differ by {worst:.1e} of the "
            f"learning rate at most, in {name}, by {mean:.1e} on the average"
        )
        self.assertLess(abs(loss - source_loss), 1e-5 * source_loss)
        self.assertLess(worst, 1e-3)

    def test_one_step_after_the_import_is_torchs(self):
        self.check(fused=True, rename=False)

    def test_unfused_with_the_names_of_2025(self):
        self.check(fused=False, rename=True)


if __name__ == "__main__":
    unittest.main()
