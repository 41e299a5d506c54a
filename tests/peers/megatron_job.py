"""megatron_job.py: one rank of a training job of the real megatron-core, on a CPU.

    usage: megatron_job.py RANK WORLD TP PP DTYPE SHARDING OUT

megatron-core is written for GPUs. Its model, gradient buffers, distributed
optimizer and dist_checkpointing run here unchanged but for this: tensors asked for
on "cuda" are made on the CPU, calls that synchronize a device do nothing, a device's
generators are not switched (nothing is dropped out), and a tensor says that its type
is torch.cuda.*, which the optimizer insists on. Kernels of
TransformerEngine and Apex are not there, so the local layers and torch's AdamW are
used. SHARDING "none" is the optimizer that is not distributed.

Trains STEPS steps on one sequence, saves OUT/checkpoint (torch_dist), takes one step
more. Rank 0 writes OUT/result.json: the loss of that step. All ranks write their
parts of the masters before and after it, by megatron's own save, into OUT/before and
OUT/after (fully reshardable), where a plain reader of DCP finds them.
"""

import argparse
import contextlib
import json
import os
import sys
import unittest.mock
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from running_jobs import SEQ_LEN, sequence

SHAPE = {
    "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 61,
    "tied": False, "theta": 10000.0, "eps": 1e-5,
}  # fmt: skip
PADDED_VOCAB = 64
OPTIM = {"lr": 2e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
STEPS = 3


class CudaIsCpu(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        args = tuple(
            "cpu" if isinstance(a, str) and a.startswith("cuda") else a for a in args
        )
        return func(*args, **kwargs)


@contextlib.contextmanager
def cpu_for_cuda():
    real_type = torch.Tensor.type

    def type_on_cuda(self, *args, **kwargs):
        found = real_type(self, *args, **kwargs)
        plain = isinstance(found, str) and not args and "cuda" not in found
        return found.replace("torch.", "torch.cuda.") if plain else found

    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    patch = unittest.mock.patch.object
    with (
        patch(torch.cuda, "synchronize", lambda *_: None),
        patch(torch.cuda, "current_device", lambda: "cpu"),
        patch(torch.cuda, "current_stream", lambda *_: unittest.mock.MagicMock()),
        patch(torch.Tensor, "cuda", lambda self, *_, **__: self),
        patch(torch.Tensor, "type", type_on_cuda),
        patch(CudaRNGStatesTracker, "fork", lambda *_: contextlib.nullcontext()),
        CudaIsCpu(),
    ):
        yield


def arguments():
    """What Megatron-LM's checkpointing puts beside the tensors, of its names."""
    return argparse.Namespace(
        num_layers=SHAPE["layers"],
        hidden_size=SHAPE["hidden"],
        num_attention_heads=SHAPE["heads"],
        group_query_attention=True,
        num_query_groups=SHAPE["kv_heads"],
        ffn_hidden_size=SHAPE["ffn"],
        padded_vocab_size=PADDED_VOCAB,
        vocab_size=SHAPE["vocab"],
        seq_length=SEQ_LEN,
        untie_embeddings_and_output_weights=True,
        rotary_base=SHAPE["theta"],
        rotary_percent=1.0,
        rotary_interleaved=False,
        norm_epsilon=SHAPE["eps"],
        normalization="RMSNorm",
        swiglu=True,
        position_embedding_type="rope",
        add_bias_linear=False,
        kv_channels=SHAPE["hidden"] // SHAPE["heads"],
        num_experts=None,
        consumed_train_samples=STEPS,
        params_dtype=torch.bfloat16,
        some_path=Path("runs/one"),
    )


def main(rank, world, tp, pp, dtype, sharding, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.transformer_config import TransformerConfig

    bf16 = dtype == "bf16"
    params_dtype = torch.bfloat16 if bf16 else torch.float32
    parallel_state.initialize_model_parallel(tp, pp)
    config = TransformerConfig(
        num_layers=SHAPE["layers"],
        hidden_size=SHAPE["hidden"],
        num_attention_heads=SHAPE["heads"],
        num_query_groups=SHAPE["kv_heads"],
        ffn_hidden_size=SHAPE["ffn"],
        normalization="RMSNorm",
        layernorm_epsilon=SHAPE["eps"],
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        bf16=bf16,
        params_dtype=params_dtype,
        pipeline_dtype=params_dtype,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        use_cpu_initialization=True,
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        finalize_model_grads_func=finalize_model_grads,
    )
    torch.manual_seed(5)
    distributed = sharding != "none"
    with cpu_for_cuda():
        model = GPTModel(
            config,
            get_gpt_layer_local_spec(normalization="RMSNorm"),
            vocab_size=PADDED_VOCAB,
            max_sequence_length=SEQ_LEN,
            position_embedding_type="rope",
            rotary_base=SHAPE["theta"],
            share_embeddings_and_output_weights=False,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
        )
        if bf16:
            model = model.bfloat16()
        ddp = DistributedDataParallel(
            config,
            DistributedDataParallelConfig(
                use_distributed_optimizer=distributed, grad_reduce_in_fp32=True
            ),
            model,
        )
        optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=OPTIM["lr"],
                adam_beta1=OPTIM["betas"][0],
                adam_beta2=OPTIM["betas"][1],
                adam_eps=OPTIM["eps"],
                weight_decay=OPTIM["weight_decay"],
                clip_grad=0.0,
                bf16=bf16,
                params_dtype=params_dtype,
                use_distributed_optimizer=distributed,
            ),
            [ddp],
        )
        for group in optimizer.param_groups:  # as OptimizerParamScheduler does
            group["weight_decay"] = OPTIM["weight_decay"] * group["wd_mult"]
        schedule = get_forward_backward_func()
        tokens = sequence(SHAPE["vocab"])[None]
        positions = torch.arange(SEQ_LEN)[None]
        # The rows of the padding have logits too; ours have none. A loss over
        # the real rows alone is what a tokenizer's targets give but for their
        # share of the sum, so the padded rows are pushed out of it.
        if hasattr(model, "output_layer"):
            hide_padding(model, tp)

        def forward(_, module):
            loss = module(tokens[:, :-1], positions, None, labels=tokens[:, 1:])
            return loss, lambda value: (value.mean(), {"loss": value.mean().detach()})

        def step():
            ddp.zero_grad_buffer()
            optimizer.zero_grad()
            losses = schedule(
                forward_step_func=forward,
                data_iterator=None,
                model=[ddp],
                num_microbatches=1,
                seq_length=SEQ_LEN,
                micro_batch_size=1,
                forward_only=False,
            )
            optimizer.step()
            return losses[0]["loss"].item() if losses else None

        for _ in range(STEPS):
            step()
        save(model, optimizer, out / "checkpoint", sharding, args=arguments())
        save(model, optimizer, out / "before", "fully_reshardable" if distributed else "none")
        loss = step()
        save(model, optimizer, out / "after", "fully_reshardable" if distributed else "none")
    if loss is not None and parallel_state.get_tensor_model_parallel_rank() == 0:
        if parallel_state.get_data_parallel_rank() == 0:
            (out / "result.json").write_text(json.dumps({"loss": loss}))
    dist.barrier()
    dist.destroy_process_group()


def hide_padding(model, tp):
    from megatron.core import parallel_state

    rows = PADDED_VOCAB // tp
    first = parallel_state.get_tensor_model_parallel_rank() * rows
    hidden = torch.arange(first, first + rows) >= SHAPE["vocab"]

    def mask(_, __, result):
        logits, bias = result
        return logits.masked_fill(hidden, -1e30), bias

    model.output_layer.register_forward_hook(mask)


def save(model, optimizer, path, sharding, **more):
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.torch import (
        TorchDistSaveShardedStrategy,
    )

    metadata = {} if sharding == "none" else {"distrib_optim_sharding_type": sharding}
    state = {"model": model.sharded_state_dict(metadata=metadata), "iteration": STEPS}
    state["optimizer"] = optimizer.sharded_state_dict(state["model"], metadata=metadata)
    state |= more
    path.mkdir(exist_ok=True)
    dist.barrier()
    strategy = TorchDistSaveShardedStrategy("torch_dist", 1, thread_count=1)
    dist_checkpointing.save(state, path, strategy, content_metadata=metadata)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:5]]
    os.environ |= {"RANK": sys.argv[1], "WORLD_SIZE": sys.argv[2]}
    os.environ |= {"LOCAL_RANK": sys.argv[1], "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    main(*numbers, *sys.argv[5:7], Path(sys.argv[7]))
