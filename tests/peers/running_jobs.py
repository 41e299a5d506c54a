"""running_jobs.py: what the tests of imports from running jobs share.

A source trains a few steps on one sequence, saves, and takes one step more. We
import what it saved, `holdfast train --init-from` takes that step on the same
sequence, and both are compared: the loss, and what the step made of the weights
(`ckptctl export --to hf`). A moment in a wrong row, or a step count that is off by
one, changes updates by as much as they are large.
"""

import json
import struct
from pathlib import Path

import programs
import torch
from safetensors.torch import load_file

SEQ_LEN = 32


def sequence(vocab):
    """The one window of the data set: seq_len + 1 tokens."""
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, vocab, (SEQ_LEN + 1,), generator=generator)


def write_tokens(prefix, tokens):
    """Megatron's indexed format, one document, 32-bit tokens (code 4)."""
    Path(f"{prefix}.bin").write_bytes(tokens.to(torch.int32).numpy().tobytes())
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 1, 2)
    body = struct.pack("<iqqq", len(tokens), 0, 0, 1)
    Path(f"{prefix}.idx").write_bytes(head + body)


def model_toml(shape):
    keys = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
    lines = [f"{key} = {shape[key]}" for key in keys]
    lines += [f"seq_len = {SEQ_LEN}", f"tied = {str(shape['tied']).lower()}"]
    lines += [f"rope_theta = {shape['theta']}", f"norm_eps = {shape['eps']}"]
    return "[model]\n" + "\n".join(lines) + "\n"


def config(folder, shape, optim, steps, compute):
    """A configuration that repeats the source's step; its path."""
    prefix = folder / "tokens"
    write_tokens(prefix, sequence(shape["vocab"]))
    beta1, beta2 = optim["betas"]
    text = model_toml(shape) + f"""
[batch]
global_seqs = 1
micro_seqs = 1
[train]
steps = {steps}
[optim]
lr = {optim["lr"]}
min_lr = {optim["lr"]}
beta1 = {beta1}
beta2 = {beta2}
eps = {optim["eps"]}
weight_decay = {optim["weight_decay"]}
clip_norm = 0.0
[data]
paths = ["{prefix}"]
[checkpoint]
interval = 1
[numerics]
compute = "{compute}"
virtual_dp = 1
"""
    path = folder / "config.toml"
    path.write_text(text)
    return path


def import_and_step(folder, source, checkpoint, shape, optim, steps, compute, more=()):
    """Imports `checkpoint`, takes one step. (loss, weights by Hugging Face names
    before, and after)."""
    path = config(folder, shape, optim, steps + 1, compute)
    imported, result = folder / "imported", folder / "run"
    programs.run(
        "ckptctl", "import", "--from", source, checkpoint, "--out", imported,
        "--compute", compute, *more)
    programs.run(
        "holdfast", "train", "--config", path, "--run", result,
        "--init-from", imported)
    weights = []
    for name, where in (("before", imported), ("after", result)):
        out = folder / f"hf-{name}"
        programs.run("ckptctl", "export", "--to", "hf", where, "--out", out)
        found = {}
        for file in sorted(out.glob("*.safetensors")):
            found |= load_file(file)
        weights.append(found)
    return loss_of(result, steps + 1), *weights


def read_json(path):
    return json.loads(path.read_text())


def loss_of(result, step):
    for line in (result / "metrics.jsonl").read_text().splitlines():
        entry = json.loads(line)
        if entry.get("step") == step and "loss" in entry:
            return entry["loss"]
    raise AssertionError(f"{result} has no loss of step {step}")


def compare_updates(before, after, source_before, source_after, lr):
    """Differences of updates in units of the learning rate, which is about the size
    of one: the largest with its tensor, and the mean over all elements."""
    assert set(after) == set(source_after), set(after) ^ set(source_after)
    worst, total, elements = (0.0, ""), 0.0, 0
    for name, ours in after.items():
        update = ours.double() - before[name].double()
        wanted = source_after[name].double() - source_before[name].double()
        off = (update - wanted).abs() / lr
        worst = max(worst, (off.max().item(), name))
        total += off.sum().item()
        elements += off.numel()
    return worst, total / elements
