// trainer/model/stage_layer.cc: a layer as a list of kernel calls, in order.

#include "trainer/model/stage_layer.h"

#include <cmath>

#include "ckpt/base/status_macros.h"
#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace holdfast::trainer {
namespace {

// The seven products of a layer on this rank.
struct LayerLinears {
  LayerLinears(const LayerOffsets& at, const StageShape& shape)
      : q{at.q, shape.hidden, shape.query},
        k{at.k, shape.hidden, shape.key},
        v{at.v, shape.hidden, shape.key},
        o{at.o, shape.query, shape.hidden},
        gate{at.gate, shape.hidden, shape.ffn},
        up{at.up, shape.hidden, shape.ffn},
        down{at.down, shape.ffn, shape.hidden} {}

  Linear q, k, v, o, gate, up, down;
};

// q and k are the leading columns of the fused matrix, and neighbours: they
// turn as one run of heads.
template <typename T>
kernels::RopeArgs<T> RopeOf(const StageCore<T>& core, T* qkv) {
  kernels::RopeArgs<T> args;
  args.x = qkv;
  args.stride = core.shape.qkv;
  args.sequences = core.options.micro_seqs;
  args.positions = core.options.model.seq_len;
  args.heads = core.shape.heads + core.shape.kv_heads;
  args.head_dim = core.shape.head_dim;
  args.table = core.scratch.rope;
  return args;
}

template <typename T>
void SwigluOf(StageCore<T>& core, const T* gate_up, T* out) {
  kernels::SwigluArgs<T> args;
  args.gate = gate_up;
  args.up = gate_up + core.shape.ffn;
  args.in_stride = 2 * core.shape.ffn;
  args.out = out;
  args.rows = core.shape.rows;
  args.columns = core.shape.ffn;
  kernels::SwigluForward(*core.stream, args);
}

// scratch.gradient: of the layer's output, becomes that of stash.middle.
template <typename T>
absl::Status MlpBackward(StageCore<T>& core, const LayerOffsets& at,
                         const LayerStash<T>& stash) {
  const StageShape& shape = core.shape;
  StageScratch<T>& scratch = core.scratch;
  const LayerLinears linears(at, shape);

  SwigluOf(core, stash.gate_up, scratch.wide);
  core.BackwardWeight(linears.down, scratch.gradient, shape.hidden,
                      scratch.wide);
  core.RowBackwardInput(linears.down, scratch.gradient, scratch.wide_gradient);

  kernels::SwigluBackwardArgs<T> swiglu;
  swiglu.gate = stash.gate_up;
  swiglu.up = stash.gate_up + shape.ffn;
  swiglu.in_stride = 2 * shape.ffn;
  swiglu.dout = scratch.wide_gradient;
  swiglu.dgate = stash.gate_up;
  swiglu.dup = stash.gate_up + shape.ffn;
  swiglu.dstride = 2 * shape.ffn;
  swiglu.rows = shape.rows;
  swiglu.columns = shape.ffn;
  kernels::SwigluBackward(*core.stream, swiglu);

  const T* dgate = stash.gate_up;
  const T* dup = stash.gate_up + shape.ffn;
  core.NormForward(at.post_norm, stash.middle, scratch.normed,
                   stash.middle_rstd);
  core.BackwardWeight(linears.gate, dgate, 2 * shape.ffn, scratch.normed);
  core.BackwardWeight(linears.up, dup, 2 * shape.ffn, scratch.normed);
  core.ColumnBackwardInput(linears.gate, dgate, 2 * shape.ffn, false);
  core.ColumnBackwardInput(linears.up, dup, 2 * shape.ffn, true);
  HF_RETURN_IF_ERROR(core.JoinPartial(scratch.branch));
  core.NormBackward(at.post_norm, stash.middle, stash.middle_rstd,
                    scratch.branch, scratch.gradient, scratch.gradient);
  return absl::OkStatus();
}

// scratch.gradient: of stash.middle, becomes that of stash.input.
template <typename T>
absl::Status AttentionBackward(StageCore<T>& core, const LayerOffsets& at,
                               const LayerStash<T>& stash) {
  const StageShape& shape = core.shape;
  StageScratch<T>& scratch = core.scratch;
  const LayerLinears linears(at, shape);

  core.BackwardWeight(linears.o, scratch.gradient, shape.hidden,
                      stash.attention);
  core.RowBackwardInput(linears.o, scratch.gradient, scratch.wide_gradient);

  T* const dqkv = scratch.wide;
  kernels::AttentionBackwardArgs<T> attention;
  attention.shape = AttentionShapeOf(core.options, core.shape);
  attention.q = stash.qkv;
  attention.q_stride = shape.qkv;
  attention.k = stash.qkv + shape.query;
  attention.k_stride = shape.qkv;
  attention.v = stash.qkv + shape.query + shape.key;
  attention.v_stride = shape.qkv;
  attention.out = stash.attention;
  attention.out_stride = shape.query;
  attention.lse = stash.lse;
  attention.dout = scratch.wide_gradient;
  attention.dout_stride = shape.query;
  attention.dq = dqkv;
  attention.dq_stride = shape.qkv;
  attention.dk = dqkv + shape.query;
  attention.dk_stride = shape.qkv;
  attention.dv = dqkv + shape.query + shape.key;
  attention.dv_stride = shape.qkv;
  kernels::AttentionBackward(*core.stream, attention);
  kernels::RopeBackward(*core.stream, RopeOf(core, dqkv));

  const T* dq = dqkv;
  const T* dk = dqkv + shape.query;
  const T* dv = dqkv + shape.query + shape.key;
  core.NormForward(at.input_norm, stash.input, scratch.normed,
                   stash.input_rstd);
  core.BackwardWeight(linears.q, dq, shape.qkv, scratch.normed);
  core.BackwardWeight(linears.k, dk, shape.qkv, scratch.normed);
  core.BackwardWeight(linears.v, dv, shape.qkv, scratch.normed);
  core.ColumnBackwardInput(linears.q, dq, shape.qkv, false);
  core.ColumnBackwardInput(linears.k, dk, shape.qkv, true);
  core.ColumnBackwardInput(linears.v, dv, shape.qkv, true);
  HF_RETURN_IF_ERROR(core.JoinPartial(scratch.branch));
  core.NormBackward(at.input_norm, stash.input, stash.input_rstd,
                    scratch.branch, scratch.gradient, scratch.gradient);
  return absl::OkStatus();
}

}  // namespace

template <typename T>
absl::Status LayerForward(StageCore<T>& core, const LayerOffsets& at,
                          const LayerStash<T>& stash, T* output) {
  const StageShape& shape = core.shape;
  StageScratch<T>& scratch = core.scratch;
  const LayerLinears linears(at, shape);
  const int64_t stream_count = shape.rows * shape.hidden;

  core.NormForward(at.input_norm, stash.input, scratch.normed,
                   stash.input_rstd);
  core.ColumnForward(linears.q, scratch.normed, stash.qkv, shape.qkv);
  core.ColumnForward(linears.k, scratch.normed, stash.qkv + shape.query,
                     shape.qkv);
  core.ColumnForward(linears.v, scratch.normed,
                     stash.qkv + shape.query + shape.key, shape.qkv);
  kernels::RopeForward(*core.stream, RopeOf(core, stash.qkv));

  kernels::AttentionArgs<T> attention;
  attention.shape = AttentionShapeOf(core.options, core.shape);
  attention.q = stash.qkv;
  attention.q_stride = shape.qkv;
  attention.k = stash.qkv + shape.query;
  attention.k_stride = shape.qkv;
  attention.v = stash.qkv + shape.query + shape.key;
  attention.v_stride = shape.qkv;
  attention.out = stash.attention;
  attention.out_stride = shape.query;
  attention.lse = stash.lse;
  kernels::AttentionForward(*core.stream, attention);

  HF_RETURN_IF_ERROR(
      core.RowForward(linears.o, stash.attention, scratch.branch));
  kernels::Add(*core.stream, stash.input, scratch.branch, stash.middle,
               stream_count);

  core.NormForward(at.post_norm, stash.middle, scratch.normed,
                   stash.middle_rstd);
  core.ColumnForward(linears.gate, scratch.normed, stash.gate_up,
                     2 * shape.ffn);
  core.ColumnForward(linears.up, scratch.normed, stash.gate_up + shape.ffn,
                     2 * shape.ffn);
  SwigluOf(core, stash.gate_up, scratch.wide);
  HF_RETURN_IF_ERROR(
      core.RowForward(linears.down, scratch.wide, scratch.branch));
  kernels::Add(*core.stream, stash.middle, scratch.branch, output,
               stream_count);
  return absl::OkStatus();
}

template <typename T>
absl::Status LayerBackward(StageCore<T>& core, const LayerOffsets& at,
                           const LayerStash<T>& stash) {
  HF_RETURN_IF_ERROR(MlpBackward(core, at, stash));
  return AttentionBackward(core, at, stash);
}

template absl::Status LayerForward(StageCore<float>&, const LayerOffsets&,
                                   const LayerStash<float>&, float*);
template absl::Status LayerForward(StageCore<kernels::Bf16>&,
                                   const LayerOffsets&,
                                   const LayerStash<kernels::Bf16>&,
                                   kernels::Bf16*);
template absl::Status LayerBackward(StageCore<float>&, const LayerOffsets&,
                                    const LayerStash<float>&);
template absl::Status LayerBackward(StageCore<kernels::Bf16>&,
                                    const LayerOffsets&,
                                    const LayerStash<kernels::Bf16>&);

}  // namespace holdfast::trainer
