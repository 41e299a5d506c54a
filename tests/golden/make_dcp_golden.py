#!/usr/bin/env python3
"""Makes dcp-mixed/ and dcp-titan/: small checkpoints of torch's DCP.

    usage: make_dcp_golden.py OUT_DIR      (needs torch 2.15, gloo; made with it)

dcp-mixed/ is saved by four ranks: tensors of several types, cut along one, two
and no dimensions, and values that are no tensors. Element i of the row-major
order of a tensor is i, so a reader's test needs no further file.

dcp-titan/, by two, is what torchtitan writes of a tiny Llama, as its checkpointer does
(torchtitan/components/checkpointer, components/optimizer): the model's tensors at
the top, "optimizer" flat by parameter names, with fused wqkv whose moments stay
fused while the weight is stored as wq, wk and wv. dcp_titan_step.bin (the format
of make_model_golden.py) has gradients and what one step of torch.optim.AdamW,
from that state, makes of it:

    config            i32: layers hidden heads kv_heads ffn vocab step
    optim             f32: lr beta1 beta2 eps weight_decay
    grad/KEY          f32, by the optimizer's parameter names
    weight/KEY        f32, as torchtitan stores them (wq, wk, wv)
    exp_avg/KEY exp_avg_sq/KEY   by the optimizer's parameter names
"""

import os
import shutil
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from make_model_golden import write

LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB = 1, 16, 4, 2, 12, 11
HEAD_DIM, GROUP = HIDDEN // HEADS, HEADS // KV_HEADS
STEPS = 3
OPTIM = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


def counted(*shape, dtype=torch.float32):
    count = torch.Size(shape).numel()
    return torch.arange(count).reshape(shape).to(dtype)


def save_mixed(rank, out):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

    def cut(tensor, *places):
        return distribute_tensor(tensor, mesh, list(places))

    state = {
        "grid": cut(counted(10, 6), Shard(0), Shard(1)),
        "rows": {
            "uneven": cut(counted(7), Replicate(), Shard(0)),
            "twice": cut(counted(10, 3, dtype=torch.bfloat16), Shard(0), Shard(0)),
        },
        "deep": cut(counted(2, 3, 4, dtype=torch.float64), Replicate(), Shard(1)),
        "scalar": torch.tensor(7.0),
        "turned": counted(4, 3).t().contiguous().t(),
        "halves": counted(5, dtype=torch.float16),
        "ints": counted(6, dtype=torch.int64),
        "small": counted(6, dtype=torch.int32),
        "bytes": counted(200, dtype=torch.uint8),
        "flags": torch.tensor([True, False]),
        "step": 7,
        "words": "hello",
        "pair": (0.5, -3),
    }
    dcp.save(state, checkpoint_id=out)


def titan_model():
    """Names and shapes of torchtitan's Llama3 with fused qkv."""
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape):
        return torch.nn.Parameter(torch.randn(shape, generator=generator))

    prefix = "layers.0."
    kv = KV_HEADS * HEAD_DIM
    return {
        "tok_embeddings.weight": drawn(VOCAB, HIDDEN),
        prefix + "attention.qkv_linear.wqkv.weight": drawn(HIDDEN + 2 * kv, HIDDEN),
        prefix + "attention.wo.weight": drawn(HIDDEN, HIDDEN),
        prefix + "feed_forward.w1.weight": drawn(FFN, HIDDEN),
        prefix + "feed_forward.w2.weight": drawn(HIDDEN, FFN),
        prefix + "feed_forward.w3.weight": drawn(FFN, HIDDEN),
        prefix + "attention_norm.weight": drawn(HIDDEN),
        prefix + "ffn_norm.weight": drawn(HIDDEN),
        "norm.weight": drawn(HIDDEN),
        "lm_head.weight": drawn(VOCAB, HIDDEN),
    }


def split_qkv(name, tensor):
    """FusedQKVLinear's hook on saving: rows by query group, q heads, k, v."""
    rows = tensor.reshape(KV_HEADS, GROUP + 2, HEAD_DIM, HIDDEN)
    parts = {"wq": rows[:, :GROUP], "wk": rows[:, GROUP], "wv": rows[:, GROUP + 1]}
    return {
        name.replace("wqkv", part): value.reshape(-1, HIDDEN).contiguous()
        for part, value in parts.items()
    }


def stored_weights(model):
    weights = {}
    for name, tensor in model.items():
        if "wqkv" in name:
            weights |= split_qkv(name, tensor.detach())
        else:
            weights[name] = tensor.detach()
    return weights


def save_titan(rank, out):
    mesh = init_device_mesh("cpu", (2,))

    def sharded(tensor):
        return distribute_tensor(tensor, mesh, [Shard(0)])

    model = titan_model()
    optimizer = torch.optim.AdamW(list(model.items()), **OPTIM)
    generator = torch.Generator().manual_seed(4)

    def gradients():
        grads = {}
        for name, tensor in model.items():
            grads[name] = torch.randn(tensor.shape, generator=generator)
            tensor.grad = grads[name]
        return grads

    for _ in range(STEPS):
        gradients()
        optimizer.step()
    flat = {}
    for name, tensor in model.items():
        for key, value in optimizer.state[tensor].items():
            moment = key != "step"
            flat[f"state.{name}.{key}"] = sharded(value) if moment else value
        for key in ("lr", "betas"):
            flat[f"param_groups.{name}.{key}"] = optimizer.param_groups[0][key]
    state = {name: sharded(tensor) for name, tensor in stored_weights(model).items()}
    state |= {
        "optimizer": flat,
        "lr_scheduler": {"last_epoch": STEPS},
        "train_state": {"step": STEPS, "ntokens_seen": STEPS * 64},
    }
    dcp.save(state, checkpoint_id=out)
    if rank != 0:
        return
    grads = gradients()
    optimizer.step()
    shape = [LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCAB, STEPS]
    optim = [OPTIM["lr"], *OPTIM["betas"], OPTIM["eps"], OPTIM["weight_decay"]]
    entries = {
        "config": torch.tensor(shape, dtype=torch.int32),
        "optim": torch.tensor(optim),
    }
    entries |= {f"grad/{name}": grad for name, grad in grads.items()}
    entries |= {f"weight/{n}": tensor for n, tensor in stored_weights(model).items()}
    for name, tensor in model.items():
        for key in ("exp_avg", "exp_avg_sq"):
            entries[f"{key}/{name}"] = optimizer.state[tensor][key]
    write("dcp_titan_step.bin", entries)


def work(rank, world, save, out):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29571 + world)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    os.chdir(os.path.dirname(out))  # .metadata remembers the path
    save(rank, os.path.basename(out))
    dist.destroy_process_group()


if __name__ == "__main__":
    out_dir = os.path.abspath(sys.argv[1])
    for name, world, save in (
        ("dcp-mixed", 4, save_mixed),
        ("dcp-titan", 2, save_titan),
    ):
        path = os.path.join(out_dir, name)
        shutil.rmtree(path, ignore_errors=True)
        mp.spawn(work, args=(world, save, path), nprocs=world)
