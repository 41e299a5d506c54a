#!/usr/bin/env python3
"""One training step in PyTorch with torch.compile, to stand beside bench_step.

The same shape (configs/NAME.toml), the same tokens per step, the usual recipe of
mixed precision: FP32 parameters, BF16 autocast, fused AdamW. Prints one line of
JSON; exits with 77 and a reason where torch or a GPU is missing.

    torch_step.py --model llama-1b --seqs 4
"""

import argparse
import json
import pathlib
import shutil
import statistics
import sys
import time


def skip(why):
    print(why, file=sys.stderr)
    sys.exit(77)


try:
    import tomllib

    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError as error:
    skip(f"not installed for {sys.executable}: {error.name}")


class Norm(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), 1e-5)


def rotate(x, cos, sin):
    first, second = x.float().chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat(turned, dim=-1).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads = shape["heads"]
        self.kv_heads = shape.get("kv_heads") or shape["heads"]
        hidden, ffn = shape["hidden"], shape["ffn"]
        self.dim = hidden // self.heads
        linear = lambda i, o: nn.Linear(i, o, bias=False)
        self.norm1, self.norm2 = Norm(hidden), Norm(hidden)
        self.q = linear(hidden, hidden)
        self.k = linear(hidden, self.kv_heads * self.dim)
        self.v = linear(hidden, self.kv_heads * self.dim)
        self.o = linear(hidden, hidden)
        self.gate, self.up = linear(hidden, ffn), linear(hidden, ffn)
        self.down = linear(ffn, hidden)

    def forward(self, x, cos, sin):
        batch, length, hidden = x.shape
        y = self.norm1(x)
        split = lambda t, heads: t.view(batch, length, heads, self.dim).transpose(1, 2)
        q = rotate(split(self.q(y), self.heads), cos, sin)
        k = rotate(split(self.k(y), self.kv_heads), cos, sin)
        v = split(self.v(y), self.kv_heads)
        attention = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(attention.transpose(1, 2).reshape(batch, length, hidden))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.embedding = nn.Embedding(shape["vocab"], shape["hidden"])
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape["layers"]))
        self.norm = Norm(shape["hidden"])
        self.head = nn.Linear(shape["hidden"], shape["vocab"], bias=False)
        if shape.get("tied"):
            self.head.weight = self.embedding.weight
        dim = shape["hidden"] // shape["heads"]
        theta = shape.get("rope_theta", 10000.0)
        frequency = theta ** (-torch.arange(0, dim, 2).float() / dim)
        angle = torch.arange(shape["seq_len"]).float()[:, None] * frequency[None]
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        self.apply(self.initialise)

    @staticmethod
    def initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def flops_per_token(shape):
    """As FlopsPerToken of trainer/model/tensor_table.h."""
    hidden, layers = shape["hidden"], shape["layers"]
    kv = (shape.get("kv_heads") or shape["heads"]) * hidden // shape["heads"]
    attention = 2.0 * hidden * hidden + 2.0 * hidden * kv
    multiplied = layers * (attention + 3.0 * hidden * shape["ffn"]) + shape["vocab"] * hidden
    return 6.0 * multiplied + 12.0 * layers * hidden * shape["seq_len"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a configuration of configs/")
    parser.add_argument("--seqs", type=int, default=4, help="sequences a step")
    parser.add_argument("--steps", type=int, default=10, help="timed ones")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        skip("torch sees no GPU")
    here = pathlib.Path(__file__).resolve().parent
    for folder in (here.parent / "configs", here.parent.parent / "trainer" / "configs"):
        if (folder / f"{args.model}.toml").exists():
            shape = tomllib.loads((folder / f"{args.model}.toml").read_text())["model"]
            break
    else:
        sys.exit(f"no configuration {args.model}.toml beside {here}")
    # torch.compile builds what launches its kernels with a C compiler.
    compiled = not args.no_compile and any(map(shutil.which, ("cc", "gcc", "clang")))
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    device = torch.device(args.device)
    model = Model(shape).to(device)
    fused = args.device == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=fused)
    step_model = torch.compile(model) if compiled else model
    tokens = torch.randint(shape["vocab"], (args.seqs, shape["seq_len"]), device=device)

    def wait():
        if fused:
            torch.cuda.synchronize()

    def step():
        with torch.autocast(args.device, dtype=torch.bfloat16):
            loss = step_model(tokens, tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    start = time.perf_counter()
    for _ in range(3):
        step()
    wait()
    warm_up = time.perf_counter() - start
    seconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        loss = step()
        wait()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    count = args.seqs * shape["seq_len"]
    rate = count / median
    tflops = flops_per_token(shape) * rate / 1e12
    print(json.dumps({
        "bench": "torch_step", "model": args.model, "torch": torch.__version__,
        "compiled": compiled, "tokens": count, "tokens_per_s": rate, "tflops": tflops,
        "step_ms": 1e3 * median, "warm_up_s": warm_up, "loss": loss.item(),
        "summary": f"torch {torch.__version__}{'' if compiled else ', not compiled'}: {rate:.0f} tokens/s, {tflops:.0f} TFLOP/s",
    }))


if __name__ == "__main__":
    main()
