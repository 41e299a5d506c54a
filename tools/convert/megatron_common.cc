// tools/convert/megatron_common.cc: names of arguments are those of
// Megatron-LM's megatron/training/arguments.py.

#include "tools/convert/megatron_common.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::tools {
namespace {

using Node = Pickle::Node;

std::optional<int64_t> IntegerAt(const TorchValue& value, Node node) {
  const std::optional<double> number = value.Number(node);
  if (!number.has_value() || *number != std::floor(*number) ||
      std::abs(*number) > 1e15) {
    return std::nullopt;
  }
  return static_cast<int64_t>(*number);
}
std::optional<int64_t> CountAt(const TorchValue& value, Node node) {
  const std::optional<int64_t> count = IntegerAt(value, node);
  return count.has_value() && *count >= 0 ? count : std::nullopt;
}

// The step counts below `node`, of one optimizer or of several in a chain:
// "step" of each group of parameters, or "common_step" of all. Each value is
// looked at once: a list may hold itself, a thousand times.
absl::StatusOr<std::optional<int64_t>> FindSteps(const TorchValue& value,
                                                 Node node) {
  constexpr int kLevels = 6;
  const Pickle& pickle = value.pickle;
  std::optional<int64_t> steps;
  std::vector<Node> level = {node};
  absl::flat_hash_set<Node> seen = {node};
  for (int depth = 0; depth < kLevels && !level.empty(); ++depth) {
    std::vector<Node> next;
    for (const Node at : level) {
      for (const char* const key : {"step", "common_step"}) {
        const std::optional<Node> found = pickle.Find(at, key);
        if (!found.has_value()) continue;
        const std::optional<int64_t> count = CountAt(value, *found);
        if (!count.has_value()) continue;
        if (steps.has_value() && *steps != *count) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "the optimizer has stepped one group of parameters %d times and "
              "another %d times, which one step count cannot say",
              *steps, *count));
        }
        steps = count;
      }
      for (const Node child : pickle.children(at)) {
        if ((pickle.kind(child) == PickleKind::kDict ||
             pickle.kind(child) == PickleKind::kList) &&
            seen.insert(child).second) {
          next.push_back(child);
        }
      }
    }
    level = std::move(next);
  }
  return steps;
}

class Arguments {
 public:
  Arguments(const TorchValue& value, Node values)
      : value_(value), pickle_(value.pickle), values_(values) {}

  std::optional<int64_t> Integer(std::string_view name) const {
    const auto node = pickle_.Find(values_, name);
    return node.has_value() ? IntegerAt(value_, *node) : std::nullopt;
  }
  std::optional<double> Number(std::string_view name) const {
    const auto node = pickle_.Find(values_, name);
    return node.has_value() ? value_.Number(*node) : std::nullopt;
  }
  bool True(std::string_view name) const {
    const auto node = pickle_.Find(values_, name);
    return node.has_value() && pickle_.kind(*node) == PickleKind::kBool &&
           pickle_.boolean(*node);
  }
  std::string Text(std::string_view name) const {
    const auto node = pickle_.Find(values_, name);
    return node.has_value() ? std::string(pickle_.text(*node)) : "";
  }
  bool Has(std::string_view name) const {
    const auto node = pickle_.Find(values_, name);
    return node.has_value() && pickle_.kind(*node) != PickleKind::kNone;
  }

 private:
  const TorchValue& value_;
  const Pickle& pickle_;
  Node values_;
};

absl::StatusOr<trainer::ModelConfig> ModelOf(const Arguments& arguments) {
  const auto refuse = [](std::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the arguments in the Megatron checkpoint: %s", what));
  };
  trainer::ModelConfig model;
  const struct {
    const char* name;
    int64_t* value;
  } wanted[] = {
      {"num_layers", &model.layers},         {"hidden_size", &model.hidden},
      {"num_attention_heads", &model.heads}, {"ffn_hidden_size", &model.ffn},
      {"padded_vocab_size", &model.vocab},   {"seq_length", &model.seq_len},
  };
  for (const auto& [name, value] : wanted) {
    const std::optional<int64_t> found = arguments.Integer(name);
    if (!found.has_value()) {
      return refuse(absl::StrFormat(
          "%s is missing; give the model by --model FILE", name));
    }
    *value = *found;
  }
  // The tokenizer's rows, where they were told apart from the padded ones.
  if (const auto vocab = arguments.Integer("vocab_size"); vocab.has_value()) {
    model.vocab = *vocab;
  }
  model.kv_heads = arguments.True("group_query_attention")
                       ? arguments.Integer("num_query_groups").value_or(0)
                       : model.heads;
  model.tied = !arguments.True("untie_embeddings_and_output_weights");
  model.rope_theta = arguments.Number("rotary_base").value_or(10000);
  model.norm_eps = arguments.Number("norm_epsilon").value_or(1e-5);
  if (arguments.Text("normalization") != "RMSNorm") {
    return refuse("normalization is not RMSNorm");
  }
  if (!arguments.True("swiglu")) return refuse("swiglu is not set");
  if (arguments.Text("position_embedding_type") != "rope") {
    return refuse("position_embedding_type is not rope");
  }
  if (arguments.Number("rotary_percent").value_or(1) != 1) {
    return refuse("rotary_percent is not 1");
  }
  for (const char* name :
       {"add_bias_linear", "add_qkv_bias", "use_rope_scaling", "qk_layernorm",
        "multi_latent_attention",
        // Norms whose stored weights are one less than what they scale by.
        "apply_layernorm_1p", "apply_residual_connection_post_layernorm",
        "attention_output_gate"}) {
    if (arguments.True(name)) {
      return refuse(
          absl::StrFormat("%s is set, which our model has not", name));
    }
  }
  for (const char* name : {"num_experts", "no_rope_freq", "window_size",
                           "rotary_seq_len_interpolation_factor"}) {
    if (arguments.Has(name)) {
      return refuse(
          absl::StrFormat("%s is set, which our model has not", name));
    }
  }
  const int64_t channels = arguments.Integer("kv_channels").value_or(0);
  if (channels != 0 && channels * model.heads != model.hidden) {
    return refuse(
        absl::StrFormat("kv_channels is %d, not hidden_size %d by "
                        "num_attention_heads %d",
                        channels, model.hidden, model.heads));
  }
  return model;
}

}  // namespace

absl::StatusOr<MegatronCommon> ReadMegatronCommon(DcpDirectory& directory) {
  MegatronCommon common;
  const DcpBlob* const blob = directory.FindBlob("common_state/shard_0_1");
  absl::StatusOr<TorchValue> value = blob != nullptr
                                         ? directory.ReadBlob(*blob)
                                         : directory.ReadFile("common.pt");
  if (absl::IsNotFound(value.status())) return common;
  HF_RETURN_IF_ERROR(value.status());
  const Pickle& pickle = value->pickle;
  Node root = pickle.root();
  if (pickle.kind(root) == PickleKind::kList &&
      pickle.children(root).size() == 1) {
    root = pickle.children(root)[0];
  }
  if (pickle.kind(root) != PickleKind::kDict) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: its common state is %s, not a dictionary",
                        directory.path(), NameOf(pickle.kind(root))));
  }
  if (const auto node = pickle.Find(root, "iteration"); node.has_value()) {
    common.iteration = CountAt(*value, *node);
  }
  if (const auto node = pickle.Find(root, "optimizer"); node.has_value()) {
    HF_ASSIGN_OR_RETURN(common.optimizer_steps, FindSteps(*value, *node));
  }
  const auto arguments = pickle.Find(root, "args");
  if (!arguments.has_value() ||
      !pickle.IsCallOf(*arguments, "argparse.Namespace") ||
      !pickle.state(*arguments).has_value()) {
    return common;
  }
  const Arguments given(*value, *pickle.state(*arguments));
  HF_ASSIGN_OR_RETURN(common.model, ModelOf(given));
  common.rotary_interleaved = given.True("rotary_interleaved");
  const auto samples = given.Integer("consumed_train_samples");
  if (samples.has_value() && *samples >= 0 && common.model->seq_len > 0 &&
      *samples < INT64_MAX / common.model->seq_len) {
    common.tokens = *samples * common.model->seq_len;
  }
  return common;
}

}  // namespace holdfast::tools
