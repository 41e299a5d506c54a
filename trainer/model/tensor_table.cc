// trainer/model/tensor_table.cc: the table, tensor by tensor.

#include "trainer/model/tensor_table.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

class Table {
 public:
  explicit Table(ModelTensors* tensors) : specs_(tensors->specs) {}

  // Adds a tensor and returns its index. `tp_dimension` -1: not cut.
  int Add(std::string name, std::vector<int64_t> shape, int tp_dimension,
          int layer) {
    ckpt::TensorSpec spec;
    spec.name = std::move(name);
    spec.shape = std::move(shape);
    spec.tp_dimension = tp_dimension;
    spec.layer = layer;
    specs_.push_back(std::move(spec));
    return static_cast<int>(specs_.size()) - 1;
  }

 private:
  std::vector<ckpt::TensorSpec>& specs_;
};

absl::Status Positive(const char* name, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("model.%s is %d; it must be at least 1", name, value));
}

absl::Status Divides(const char* name, int64_t value, int tp) {
  if (value % tp == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "model.%s = %d is not a multiple of parallel.tp = %d", name, value, tp));
}

}  // namespace

ModelTensors BuildTensorTable(const ModelConfig& model, int tp) {
  ModelTensors tensors;
  Table table(&tensors);
  const int64_t vocab_multiple = kVocabRowsMultiple * tp;
  const int64_t query_rows = model.heads * model.head_dim();
  const int64_t key_rows = model.kv_heads * model.head_dim();

  tensors.embedding =
      table.Add("model.embed_tokens.weight", {model.vocab, model.hidden}, 0,
                ckpt::kOnFirstStage);
  tensors.specs[tensors.embedding].tp_pad_multiple = vocab_multiple;
  tensors.specs[tensors.embedding].tied_to_last_stage = model.tied;

  for (int layer = 0; layer < model.layers; ++layer) {
    const std::string prefix = absl::StrFormat("model.layers.%d.", layer);
    const auto add = [&](const char* name, std::vector<int64_t> shape,
                         int tp_dimension) {
      return table.Add(prefix + name, std::move(shape), tp_dimension, layer);
    };
    LayerTensors of;
    of.input_norm = add("input_layernorm.weight", {model.hidden}, -1);
    of.q = add("self_attn.q_proj.weight", {query_rows, model.hidden}, 0);
    of.k = add("self_attn.k_proj.weight", {key_rows, model.hidden}, 0);
    of.v = add("self_attn.v_proj.weight", {key_rows, model.hidden}, 0);
    of.o = add("self_attn.o_proj.weight", {model.hidden, query_rows}, 1);
    of.post_norm = add("post_attention_layernorm.weight", {model.hidden}, -1);
    of.gate = add("mlp.gate_proj.weight", {model.ffn, model.hidden}, 0);
    of.up = add("mlp.up_proj.weight", {model.ffn, model.hidden}, 0);
    of.down = add("mlp.down_proj.weight", {model.hidden, model.ffn}, 1);
    tensors.layers.push_back(of);
  }

  tensors.final_norm =
      table.Add("model.norm.weight", {model.hidden}, -1, ckpt::kOnLastStage);
  if (model.tied) {
    tensors.head = tensors.embedding;
  } else {
    tensors.head = table.Add("lm_head.weight", {model.vocab, model.hidden}, 0,
                             ckpt::kOnLastStage);
    tensors.specs[tensors.head].tp_pad_multiple = vocab_multiple;
  }
  return tensors;
}

absl::Status CheckModel(const ModelConfig& model, int tp) {
  HF_RETURN_IF_ERROR(Positive("layers", model.layers));
  HF_RETURN_IF_ERROR(Positive("hidden", model.hidden));
  HF_RETURN_IF_ERROR(Positive("heads", model.heads));
  HF_RETURN_IF_ERROR(Positive("kv_heads", model.kv_heads));
  HF_RETURN_IF_ERROR(Positive("ffn", model.ffn));
  HF_RETURN_IF_ERROR(Positive("vocab", model.vocab));
  HF_RETURN_IF_ERROR(Positive("seq_len", model.seq_len));
  if (model.hidden % model.heads != 0 || model.head_dim() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "model.hidden = %d over model.heads = %d is not an even head size "
        "(rotary embedding turns pairs)",
        model.hidden, model.heads));
  }
  if (model.heads % model.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "model.heads = %d is not a multiple of model.kv_heads = %d",
        model.heads, model.kv_heads));
  }
  HF_RETURN_IF_ERROR(Divides("heads", model.heads, tp));
  HF_RETURN_IF_ERROR(Divides("kv_heads", model.kv_heads, tp));
  return Divides("ffn", model.ffn, tp);
}

bool IsDecayed(const ckpt::TensorSpec& spec) { return spec.shape.size() > 1; }

double FlopsPerToken(const ModelConfig& model) {
  const double hidden = static_cast<double>(model.hidden);
  const double attention =
      2.0 * hidden * hidden +
      2.0 * hidden * static_cast<double>(model.kv_heads * model.head_dim());
  const double mlp = 3.0 * hidden * static_cast<double>(model.ffn);
  const double layers = static_cast<double>(model.layers);
  const double multiplied =
      layers * (attention + mlp) + static_cast<double>(model.vocab) * hidden;
  return 6.0 * multiplied +
         12.0 * layers * hidden * static_cast<double>(model.seq_len);
}

}  // namespace holdfast::trainer
