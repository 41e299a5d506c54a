// trainer/model/stage_buffers.h: where each array of a stage lies.
//
// One function per block carves typed pointers from a base. With a base of null
// it only counts: plan and allocation cannot differ.

#ifndef HOLDFAST_TRAINER_MODEL_STAGE_BUFFERS_H_
#define HOLDFAST_TRAINER_MODEL_STAGE_BUFFERS_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/attention_split.h"
#include "kernels/rope.h"
#include "trainer/model/stage.h"
#include "trainer/model/tensor_table.h"

namespace holdfast::trainer {

// Sizes on this rank, in elements.
struct StageShape {
  int64_t rows = 0;  // micro_seqs * seq_len
  int64_t hidden = 0;
  int64_t head_dim = 0;
  int64_t heads = 0;  // of this TP rank, as is all below
  int64_t kv_heads = 0;
  int64_t query = 0;  // heads * head_dim
  int64_t key = 0;    // kv_heads * head_dim
  int64_t qkv = 0;    // columns of the fused matrix
  int64_t ffn = 0;
  int64_t vocab_rows = 0;   // pads included
  int64_t vocab_valid = 0;  // without
  int64_t vocab_begin = 0;

  static StageShape Of(const StageOptions& options) {
    const ModelConfig& model = options.model;
    StageShape shape;
    shape.rows = options.micro_seqs * model.seq_len;
    shape.hidden = model.hidden;
    shape.head_dim = model.head_dim();
    shape.heads = model.heads / options.tp;
    shape.kv_heads = model.kv_heads / options.tp;
    shape.query = shape.heads * shape.head_dim;
    shape.key = shape.kv_heads * shape.head_dim;
    shape.qkv = shape.query + 2 * shape.key;
    shape.ffn = model.ffn / options.tp;
    const int64_t multiple = kVocabRowsMultiple * options.tp;
    shape.vocab_rows =
        (model.vocab + multiple - 1) / multiple * kVocabRowsMultiple;
    shape.vocab_begin = options.tp_rank * shape.vocab_rows;
    shape.vocab_valid = std::clamp<int64_t>(model.vocab - shape.vocab_begin, 0,
                                            shape.vocab_rows);
    return shape;
  }
};

inline kernels::AttentionShape AttentionShapeOf(const StageOptions& options,
                                                const StageShape& stage) {
  kernels::AttentionShape shape;
  shape.sequences = options.micro_seqs;
  shape.positions = options.model.seq_len;
  shape.heads = stage.heads;
  shape.kv_heads = stage.kv_heads;
  shape.head_dim = stage.head_dim;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(stage.head_dim));
  return shape;
}

// What a GPU's stream takes for the kernel that wants most and whose want the
// model decides.
template <typename T>
int64_t GpuScratchBytes(const StageOptions& options, const StageShape& shape) {
  return static_cast<int64_t>(sizeof(float)) *
         kernels::AttentionBackwardScratch<T>(AttentionShapeOf(options, shape));
}

class Carver {
 public:
  static constexpr size_t kAlignment = 64;  // a cache line, an AVX-512 register

  explicit Carver(std::byte* base) : base_(reinterpret_cast<uintptr_t>(base)) {}

  template <typename V>
  V* Take(int64_t count) {
    used_ = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    const uintptr_t at = base_ + used_;
    used_ += static_cast<size_t>(count) * sizeof(V);
    return reinterpret_cast<V*>(at);
  }

  size_t used() const { return used_; }

 private:
  uintptr_t base_;
  size_t used_ = 0;
};

// What one layer keeps of one microbatch.
template <typename T>
struct LayerStash {
  T* input = nullptr;            // [rows, hidden]
  float* input_rstd = nullptr;   // [rows]
  T* qkv = nullptr;              // [rows, qkv]; q and k turned
  T* attention = nullptr;        // [rows, query]
  float* lse = nullptr;          // [micro_seqs, heads, seq_len]
  T* middle = nullptr;           // [rows, hidden]; the stream after attention
  float* middle_rstd = nullptr;  // [rows]
  T* gate_up = nullptr;          // [rows, 2 ffn]; the backward overwrites it
};

// What a stage keeps of one microbatch.
template <typename T>
struct SlotStash {
  std::vector<LayerStash<T>> layers;
  T* output = nullptr;             // [rows, hidden]; of the last layer
  int32_t* tokens = nullptr;       // [rows]; first stage
  int32_t* targets = nullptr;      // [rows]; last stage, and the next two
  float* token_weights = nullptr;  // [rows]
  float* final_rstd = nullptr;     // [rows]
};

template <typename T>
SlotStash<T> CarveSlot(const StageOptions& options, const StageShape& shape,
                       Carver& carver) {
  SlotStash<T> slot;
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    LayerStash<T> stash;
    stash.input = carver.Take<T>(shape.rows * shape.hidden);
    stash.input_rstd = carver.Take<float>(shape.rows);
    stash.qkv = carver.Take<T>(shape.rows * shape.qkv);
    stash.attention = carver.Take<T>(shape.rows * shape.query);
    stash.lse = carver.Take<float>(shape.rows * shape.heads);
    stash.middle = carver.Take<T>(shape.rows * shape.hidden);
    stash.middle_rstd = carver.Take<float>(shape.rows);
    stash.gate_up = carver.Take<T>(shape.rows * 2 * shape.ffn);
    slot.layers.push_back(stash);
  }
  slot.output = carver.Take<T>(shape.rows * shape.hidden);
  if (options.first) slot.tokens = carver.Take<int32_t>(shape.rows);
  if (options.last) {
    slot.targets = carver.Take<int32_t>(shape.rows);
    slot.token_weights = carver.Take<float>(shape.rows);
    slot.final_rstd = carver.Take<float>(shape.rows);
  }
  return slot;
}

// Device memory that does not belong to a slot: messages to other stages, and
// scratch that is alive within one call.
template <typename T>
struct StageScratch {
  std::array<std::array<T*, Stage::kMessages>, 4> messages = {};
  float* rope = nullptr;       // [seq_len, head_dim]; filled once
  float* partial = nullptr;    // [rows, hidden]; sums before they are rounded
  T* normed = nullptr;         // [rows, hidden]
  T* branch = nullptr;         // [rows, hidden]; what joins the stream, or its
                               // gradient before the norm
  T* gradient = nullptr;       // [rows, hidden]; of the stream
  T* wide = nullptr;           // [rows, max(ffn, qkv)]
  T* wide_gradient = nullptr;  // [rows, max(ffn, query)]
  T* logits = nullptr;       // [rows, vocab_rows]; last stage, as is all below
  float* row_max = nullptr;  // [rows], as are the next three
  float* sum_exp = nullptr;  // followed by target_logit: joined together
  float* target_logit = nullptr;
  float* losses = nullptr;
};

template <typename T>
StageScratch<T> CarveScratch(const StageOptions& options,
                             const StageShape& shape, Carver& carver) {
  StageScratch<T> scratch;
  const int64_t stream = shape.rows * shape.hidden;
  using Kind = Stage::Message;
  const auto take = [&](Kind kind) {
    for (T*& message : scratch.messages[static_cast<int>(kind)]) {
      message = carver.Take<T>(stream);
    }
  };
  if (!options.first) take(Kind::kInput);
  if (!options.last) take(Kind::kOutput);
  if (!options.last) take(Kind::kOutputGradient);
  if (!options.first) take(Kind::kInputGradient);
  scratch.rope = carver.Take<float>(
      kernels::RopeTableSize(options.model.seq_len, shape.head_dim));
  scratch.partial = carver.Take<float>(stream);
  scratch.normed = carver.Take<T>(stream);
  scratch.branch = carver.Take<T>(stream);
  scratch.gradient = carver.Take<T>(stream);
  scratch.wide = carver.Take<T>(shape.rows * std::max(shape.ffn, shape.qkv));
  scratch.wide_gradient =
      carver.Take<T>(shape.rows * std::max(shape.ffn, shape.query));
  if (options.last) {
    scratch.logits = carver.Take<T>(shape.rows * shape.vocab_rows);
    scratch.row_max = carver.Take<float>(shape.rows);
    scratch.sum_exp = carver.Take<float>(2 * shape.rows);
    scratch.target_logit = scratch.sum_exp + shape.rows;
    scratch.losses = carver.Take<float>(shape.rows);
  }
  return scratch;
}

// Memory that the host may touch: what is copied to and from the device.
struct StageHostMemory {
  int32_t* tokens = nullptr;       // [rows]; first stage
  int32_t* targets = nullptr;      // [rows]; last stage, and the next two
  float* token_weights = nullptr;  // [rows]
  float* losses = nullptr;         // [rows]
};

inline StageHostMemory CarveHostMemory(const StageOptions& options,
                                       const StageShape& shape,
                                       Carver& carver) {
  StageHostMemory memory;
  if (options.first) memory.tokens = carver.Take<int32_t>(shape.rows);
  if (options.last) {
    memory.targets = carver.Take<int32_t>(shape.rows);
    memory.token_weights = carver.Take<float>(shape.rows);
    memory.losses = carver.Take<float>(shape.rows);
  }
  return memory;
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_MODEL_STAGE_BUFFERS_H_
