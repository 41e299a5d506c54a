// trainer/model/model_config.h: the shape of a Llama-family decoder.
//
// A plain struct that trainer/config.h fills from the keys `model.*`. Fields
// without a default must be given by whoever makes one by hand.

#ifndef HOLDFAST_TRAINER_MODEL_MODEL_CONFIG_H_
#define HOLDFAST_TRAINER_MODEL_MODEL_CONFIG_H_

#include <cstdint>

namespace holdfast::trainer {

// What matrix products and the residual stream are computed in. Accumulation,
// gradients and masters are FP32 either way.
enum class ComputeType { kBf16, kF32 };

// Sizes are 64 bits wide because their products are: 16,384 x 131,072 does not
// fit in 32.
struct ModelConfig {
  int64_t layers = 0;
  int64_t hidden = 0;    // Width of the residual stream.
  int64_t heads = 0;     // Query heads; hidden / heads is the head size.
  int64_t kv_heads = 0;  // Key and value heads; divides heads. Never 0 here.
  int64_t ffn = 0;       // Width between gate/up and down.
  int64_t vocab = 0;     // Logical rows, unpadded.
  int64_t seq_len = 0;   // Tokens predicted per sequence.
  bool tied = false;     // One matrix for embedding and head.
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  double init_std = 0.02;  // Standard deviation of initial weights.

  int64_t head_dim() const { return hidden / heads; }

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// Parameters of the whole model, replicas counted once: a Llama decoder's
// seven matrices and two norms a layer, the final norm, embedding and head.
constexpr int64_t ParameterCount(const ModelConfig& model) {
  const int64_t head_dim = model.hidden / model.heads;
  const int64_t attention = 2 * model.hidden * model.hidden +
                            2 * model.hidden * model.kv_heads * head_dim;
  const int64_t mlp = 3 * model.hidden * model.ffn;
  const int64_t norms = 2 * model.hidden;
  const int64_t tables = (model.tied ? 1 : 2) * model.vocab * model.hidden;
  return model.layers * (attention + mlp + norms) + model.hidden + tables;
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_MODEL_MODEL_CONFIG_H_
