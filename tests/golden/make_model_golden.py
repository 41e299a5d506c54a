#!/usr/bin/env python3
"""Makes model_tied.bin and model_untied.bin: a small Llama in PyTorch, FP32.

    usage: make_model_golden.py OUT_DIR      (needs torch; made with 1.13)

The model is written out below in plain torch operations, so that the golden
does not depend on a model library. Two layers, grouped-query attention, a
vocabulary that no TP divides, some targets masked, three AdamW steps with
clipping, each on its own batch. The loss of a step is the sum over counting
tokens divided by their number.

File format, little-endian:

    file  := "HFGOLD01" count:u32 entry*
    entry := name_bytes:u32 name dtype:u8 dimensions:u32 length:i64* values
    dtype := 1 (f32) or 2 (i32); values row-major

Entries:

    config                       i32: layers hidden heads kv_heads ffn vocab
                                 seq_len sequences steps tied
    optim                        f32: lr(step 1..) beta1 beta2 eps decay clip
    step/N/tokens targets mask   i32 [sequences, seq_len], N from 1
    step/N/loss step/N/norm      f32: before the update; norm before clipping
    logits                       f32 [sequences, seq_len, vocab], of step 1
    weight/NAME                  f32: initial
    grad/NAME                    f32: of step 1, unclipped
    after/NAME                   f32: after the last step
"""

import math
import struct
import sys

import torch

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 2, 24, 4, 2, 40, 37
SEQ_LEN, SEQUENCES, STEPS = 11, 2, 3
HEAD_DIM = HIDDEN // HEADS
EPS, THETA = 1e-5, 10000.0
RATES = [0.01, 0.02, 0.015]
BETAS, ADAM_EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 0.5


def make_weights(tied):
    generator = torch.Generator().manual_seed(20260101 + tied)
    weights = {}

    def matrix(name, rows, columns):
        weights[name] = torch.randn(rows, columns, generator=generator) * 0.15

    def norm(name):
        weights[name] = 1 + 0.1 * torch.randn(HIDDEN, generator=generator)

    matrix("model.embed_tokens.weight", VOCAB, HIDDEN)
    for n in range(LAYERS):
        at = f"model.layers.{n}."
        norm(at + "input_layernorm.weight")
        matrix(at + "self_attn.q_proj.weight", HEADS * HEAD_DIM, HIDDEN)
        matrix(at + "self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(at + "self_attn.v_proj.weight", KV_HEADS * HEAD_DIM, HIDDEN)
        matrix(at + "self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM)
        norm(at + "post_attention_layernorm.weight")
        matrix(at + "mlp.gate_proj.weight", FFN, HIDDEN)
        matrix(at + "mlp.up_proj.weight", FFN, HIDDEN)
        matrix(at + "mlp.down_proj.weight", HIDDEN, FFN)
    norm("model.norm.weight")
    if not tied:
        matrix("lm_head.weight", VOCAB, HIDDEN)
    return weights


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def rotate(x):  # [sequences, heads, positions, head_dim]
    half = HEAD_DIM // 2
    inverse = 1.0 / THETA ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    angle = torch.outer(torch.arange(x.shape[2]).float(), inverse)
    cos = torch.cat([angle.cos(), angle.cos()], -1)
    sin = torch.cat([angle.sin(), angle.sin()], -1)
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


def heads_of(x, heads):
    return x.view(SEQUENCES, SEQ_LEN, heads, HEAD_DIM).transpose(1, 2)


def forward(weights, tokens, tied):
    x = weights["model.embed_tokens.weight"][tokens]
    ahead = torch.ones(SEQ_LEN, SEQ_LEN).triu(1).bool()
    for n in range(LAYERS):
        at = f"model.layers.{n}."
        h = rms_norm(x, weights[at + "input_layernorm.weight"])
        q = rotate(heads_of(h @ weights[at + "self_attn.q_proj.weight"].T, HEADS))
        k = rotate(heads_of(h @ weights[at + "self_attn.k_proj.weight"].T, KV_HEADS))
        v = heads_of(h @ weights[at + "self_attn.v_proj.weight"].T, KV_HEADS)
        k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
        v = v.repeat_interleave(HEADS // KV_HEADS, dim=1)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(HEAD_DIM)
        scores = scores.masked_fill(ahead, float("-inf"))
        a = (scores.softmax(-1) @ v).transpose(1, 2).reshape(SEQUENCES, SEQ_LEN, -1)
        x = x + a @ weights[at + "self_attn.o_proj.weight"].T
        h = rms_norm(x, weights[at + "post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(h @ weights[at + "mlp.gate_proj.weight"].T)
        up = h @ weights[at + "mlp.up_proj.weight"].T
        x = x + (gate * up) @ weights[at + "mlp.down_proj.weight"].T
    x = rms_norm(x, weights["model.norm.weight"])
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    return x @ weights[head].T


def write(path, entries):
    with open(path, "wb") as file:
        file.write(b"HFGOLD01" + struct.pack("<I", len(entries)))
        for name, values in entries.items():
            values = values.detach().contiguous()
            dtype = {torch.float32: 1, torch.int32: 2}[values.dtype]
            file.write(struct.pack("<I", len(name)) + name.encode())
            file.write(struct.pack("<BI", dtype, values.dim()))
            file.write(struct.pack(f"<{values.dim()}q", *values.shape))
            flat = values.flatten().tolist()
            file.write(struct.pack(f"<{len(flat)}{'f' if dtype == 1 else 'i'}", *flat))


def make(path, tied):
    weights = make_weights(tied)
    entries = {
        "config": torch.tensor([LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB,
                                SEQ_LEN, SEQUENCES, STEPS, int(tied)],
                               dtype=torch.int32),
        "optim": torch.tensor(RATES + [*BETAS, ADAM_EPS, DECAY, CLIP]),
    }
    for name, value in weights.items():
        entries["weight/" + name] = value.clone()
        value.requires_grad_(True)
    decayed = [w for w in weights.values() if w.dim() > 1]
    plain = [w for w in weights.values() if w.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": DECAY},
         {"params": plain, "weight_decay": 0.0}],
        lr=1.0, betas=BETAS, eps=ADAM_EPS)
    generator = torch.Generator().manual_seed(7)
    for step in range(1, STEPS + 1):
        text = torch.randint(VOCAB, (SEQUENCES, SEQ_LEN + 1), generator=generator)
        mask = (torch.rand(SEQUENCES, SEQ_LEN, generator=generator) > 0.2)
        tokens, targets = text[:, :-1], text[:, 1:]
        logits = forward(weights, tokens, tied)
        losses = torch.nn.functional.cross_entropy(
            logits.reshape(-1, VOCAB), targets.reshape(-1), reduction="none")
        counts = mask.reshape(-1).float()
        loss = (losses * counts).sum() / counts.sum()
        optimizer.zero_grad()
        loss.backward()
        at = f"step/{step}/"
        entries[at + "tokens"] = tokens.int()
        entries[at + "targets"] = targets.int()
        entries[at + "mask"] = mask.int()
        entries[at + "loss"] = loss.reshape(1)
        if step == 1:
            entries["logits"] = logits
            for name, value in weights.items():
                entries["grad/" + name] = value.grad.clone()
        norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP)
        entries[at + "norm"] = norm.reshape(1)
        for group in optimizer.param_groups:
            group["lr"] = RATES[step - 1]
        optimizer.step()
    for name, value in weights.items():
        entries["after/" + name] = value
    write(path, entries)
    print(path, "loss", [float(entries[f"step/{s}/loss"]) for s in range(1, STEPS + 1)],
          "norm", [float(entries[f"step/{s}/norm"]) for s in range(1, STEPS + 1)])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.use_deterministic_algorithms(True)
    make(sys.argv[1] + "/model_untied.bin", tied=False)
    make(sys.argv[1] + "/model_tied.bin", tied=True)
