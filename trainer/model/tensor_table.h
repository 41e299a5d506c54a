// trainer/model/tensor_table.h: the logical tensors of a Llama decoder, as the
// layout wants them, and what one token costs. Pure.
//
//   name (Hugging Face's)                          shape            cut by TP
//   model.embed_tokens.weight                      [vocab, hidden]  rows
//   model.layers.N.input_layernorm.weight          [hidden]         no
//   model.layers.N.self_attn.{q,k,v}_proj.weight   [out, hidden]    rows
//   model.layers.N.self_attn.o_proj.weight         [hidden, in]     columns
//   model.layers.N.post_attention_layernorm.weight [hidden]         no
//   model.layers.N.mlp.{gate,up}_proj.weight       [ffn, hidden]    rows
//   model.layers.N.mlp.down_proj.weight            [hidden, ffn]    columns
//   model.norm.weight                              [hidden]         no
//   lm_head.weight (untied)                        [vocab, hidden]  rows
//
// The table's order is the order in memory: the order of use in a forward.

#ifndef HOLDFAST_TRAINER_MODEL_TENSOR_TABLE_H_
#define HOLDFAST_TRAINER_MODEL_TENSOR_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/layout/tensor.h"
#include "trainer/model/model_config.h"

namespace holdfast::trainer {

// A TP rank's part of the vocabulary is a multiple of this many rows: one row
// of tiles of a matrix unit.
inline constexpr int64_t kVocabRowsMultiple = 16;

// Indices into ModelTensors::specs.
struct LayerTensors {
  int input_norm, q, k, v, o, post_norm, gate, up, down;
};

struct ModelTensors {
  std::vector<ckpt::TensorSpec> specs;
  int embedding = 0;
  std::vector<LayerTensors> layers;
  int final_norm = 0;
  int head = 0;  // == embedding when tied.
};

ModelTensors BuildTensorTable(const ModelConfig& model, int tp);

// kInvalidArgument names the numbers: heads that do not divide hidden, an odd
// head size, kv_heads that do not divide heads, heads, kv_heads or ffn that tp
// does not divide.
absl::Status CheckModel(const ModelConfig& model, int tp);

// True for what weight decay shrinks: matrices, never norms.
bool IsDecayed(const ckpt::TensorSpec& spec);

// Floating-point operations that training on one token takes, forward and
// backward: 6 N + 12 L d S (Chowdhery et al., "PaLM", 2022, appendix B), where
// N counts the parameters that take part in matrix products (the head, tied or
// not, but no lookup table and no norm), d = hidden, S = seq_len. The second
// term counts attention over all S positions; with the causal mask half of them
// are skipped, so the figure flatters as the field's do. Recomputation is not
// counted.
double FlopsPerToken(const ModelConfig& model);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_MODEL_TENSOR_TABLE_H_
