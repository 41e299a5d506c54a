// tools/convert/hf_config.cc: config.json to a model and back.

#include <cmath>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/hf_llama.h"
#include "trainer/config.h"
#include "trainer/config_keys.h"
#include "trainer/model/tensor_table.h"

namespace holdfast::tools {
namespace {

using nlohmann::json;

// One object of keys; each reading names key and file.
class Keys {
 public:
  Keys(const json& object, std::string name)
      : object_(object), name_(std::move(name)) {}

  absl::Status Refuse(const char* key, const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s is %s; %s", name_, key,
        object_.contains(key) ? Shown(object_.at(key)) : "absent", what));
  }

  bool HasNot(const char* key) const {
    return !object_.contains(key) || object_.at(key).is_null();
  }
  const json& At(const char* key) const { return object_.at(key); }

  // At least 1 and of at most 31 bits; `otherwise` 0: it must be there.
  absl::StatusOr<int64_t> Count(const char* key, int64_t otherwise = 0) const {
    if (HasNot(key) && otherwise > 0) return otherwise;
    // A negative one is huge as an unsigned.
    if (!HasNot(key) && At(key).is_number_integer()) {
      const uint64_t value = At(key).get<uint64_t>();
      if (value >= 1 && value <= INT32_MAX) return static_cast<int64_t>(value);
    }
    return Refuse(key, "a whole number from 1 on is expected");
  }
  absl::StatusOr<double> Positive(const char* key, double otherwise) const {
    if (HasNot(key)) return otherwise;
    if (At(key).is_number()) {
      const double value = At(key).get<double>();
      if (std::isfinite(value) && value > 0) return value;
    }
    return Refuse(key, "a number above 0 is expected");
  }
  absl::StatusOr<bool> Flag(const char* key) const {
    if (HasNot(key)) return false;
    if (At(key).is_boolean()) return At(key).get<bool>();
    return Refuse(key, "true or false is expected");
  }
  absl::Status MustBe(const char* key, const json& value, const char* why,
                      bool or_absent = true) const {
    if (or_absent && HasNot(key)) return absl::OkStatus();
    if (object_.contains(key) && At(key) == value) return absl::OkStatus();
    return Refuse(key, why);
  }

 private:
  static std::string Shown(const json& value) {
    const std::string text =
        value.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() <= 100 ? text : text.substr(0, 100) + "...";
  }

  const json& object_;
  const std::string name_;
};

// The base of the rotary positions, which must not be scaled.
absl::StatusOr<double> RopeTheta(const Keys& keys, const std::string& name) {
  constexpr char kWhy[] =
      "scaled rotary positions are not built: only the default type is read";
  HF_ASSIGN_OR_RETURN(double theta, keys.Positive("rope_theta", 10000.0));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (keys.HasNot(key)) continue;
    if (!keys.At(key).is_object()) return keys.Refuse(key, kWhy);
    const Keys inner(keys.At(key), name + ": " + key);
    HF_RETURN_IF_ERROR(inner.MustBe("rope_type", "default", kWhy));
    HF_RETURN_IF_ERROR(inner.MustBe("type", "default", kWhy));
    HF_RETURN_IF_ERROR(
        inner.MustBe("partial_rotary_factor", 1.0, "all of a head is turned"));
    HF_ASSIGN_OR_RETURN(theta, inner.Positive("rope_theta", theta));
  }
  HF_RETURN_IF_ERROR(
      keys.MustBe("partial_rotary_factor", 1.0, "all of a head is turned"));
  return theta;
}

}  // namespace

absl::StatusOr<trainer::ModelConfig> ModelOfHfConfig(const json& config,
                                                     std::string_view file) {
  const std::string name(file);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is no object of keys", name));
  }
  const Keys keys(config, name);
  HF_RETURN_IF_ERROR(keys.MustBe("model_type", "llama",
                                 "only \"llama\" is read",
                                 /*or_absent=*/false));
  HF_RETURN_IF_ERROR(keys.MustBe("hidden_act", "silu", "only silu is built"));
  HF_RETURN_IF_ERROR(
      keys.MustBe("attention_bias", false, "biases are not built"));
  HF_RETURN_IF_ERROR(keys.MustBe("mlp_bias", false, "biases are not built"));
  if (!keys.HasNot("quantization_config")) {
    return keys.Refuse("quantization_config", "quantized weights are not read");
  }
  trainer::ModelConfig model;
  HF_ASSIGN_OR_RETURN(model.layers, keys.Count("num_hidden_layers"));
  HF_ASSIGN_OR_RETURN(model.hidden, keys.Count("hidden_size"));
  HF_ASSIGN_OR_RETURN(model.heads, keys.Count("num_attention_heads"));
  HF_ASSIGN_OR_RETURN(model.kv_heads,
                      keys.Count("num_key_value_heads", model.heads));
  HF_ASSIGN_OR_RETURN(model.ffn, keys.Count("intermediate_size"));
  HF_ASSIGN_OR_RETURN(model.vocab, keys.Count("vocab_size"));
  HF_ASSIGN_OR_RETURN(model.seq_len,
                      keys.Count("max_position_embeddings", 2048));
  HF_ASSIGN_OR_RETURN(model.norm_eps, keys.Positive("rms_norm_eps", 1e-6));
  HF_ASSIGN_OR_RETURN(model.init_std, keys.Positive("initializer_range", 0.02));
  HF_ASSIGN_OR_RETURN(model.tied, keys.Flag("tie_word_embeddings"));
  HF_ASSIGN_OR_RETURN(model.rope_theta, RopeTheta(keys, name));
  HF_RETURN_IF_ERROR(CheckModel(model, 1));
  HF_ASSIGN_OR_RETURN(const int64_t head_dim,
                      keys.Count("head_dim", model.head_dim()));
  if (head_dim != model.head_dim()) {
    return keys.Refuse("head_dim",
                       absl::StrFormat("our heads have hidden / heads = %d",
                                       model.head_dim()));
  }
  // The bounds that a configuration of the trainer has, or no run could ever
  // take the result; with them no product of sizes is beyond 63 bits.
  const struct {
    const char* ours;
    const char* theirs;
    int64_t value;
  } bounded[] = {{"model.layers", "num_hidden_layers", model.layers},
                 {"model.hidden", "hidden_size", model.hidden},
                 {"model.heads", "num_attention_heads", model.heads},
                 {"model.ffn", "intermediate_size", model.ffn},
                 {"model.vocab", "vocab_size", model.vocab},
                 {"model.seq_len", "max_position_embeddings", model.seq_len}};
  for (const auto& bound : bounded) {
    const trainer::Range& range = trainer::FindKey(bound.ours)->range;
    const auto value = static_cast<double>(bound.value);
    if (value < range.low || value > range.high) {
      return keys.Refuse(bound.theirs,
                         absl::StrFormat("%s is %.0f to %.0f here", bound.ours,
                                         range.low, range.high));
    }
  }
  return model;
}

std::string HfConfigText(const trainer::ModelConfig& model,
                         std::string_view dtype) {
  nlohmann::ordered_json config;
  config["architectures"] = {"LlamaForCausalLM"};
  config["model_type"] = "llama";
  config["hidden_size"] = model.hidden;
  config["intermediate_size"] = model.ffn;
  config["num_hidden_layers"] = model.layers;
  config["num_attention_heads"] = model.heads;
  config["num_key_value_heads"] = model.kv_heads;
  config["head_dim"] = model.head_dim();
  config["vocab_size"] = model.vocab;
  config["max_position_embeddings"] = model.seq_len;
  config["rms_norm_eps"] = model.norm_eps;
  // Version 4 reads the first, version 5 the second.
  config["rope_theta"] = model.rope_theta;
  config["rope_parameters"] = {{"rope_type", "default"},
                               {"rope_theta", model.rope_theta}};
  config["tie_word_embeddings"] = model.tied;
  config["hidden_act"] = "silu";
  config["attention_bias"] = false;
  config["mlp_bias"] = false;
  config["attention_dropout"] = 0.0;
  config["initializer_range"] = model.init_std;
  config["bos_token_id"] =
      nullptr;  // the tokenizer's, of which we know nothing
  config["eos_token_id"] = nullptr;
  config["pad_token_id"] = nullptr;
  config["use_cache"] = true;
  config["torch_dtype"] = std::string(dtype);
  return config.dump(2) + "\n";
}

}  // namespace holdfast::tools
