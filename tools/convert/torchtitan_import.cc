// tools/convert/torchtitan_import.cc: a training checkpoint of torchtitan's
// Llama 3 as a state.
//
// Keys and shapes are those of torchtitan's models/llama3/state_dict_adapter.py
// and components/checkpointer/dcp.py (2026), and of its releases before 2026:
//
//   tok_embeddings.weight norm.weight lm_head.weight (before: output.weight)
//   layers.N.attention.[qkv_linear.]{wq,wk,wv}.weight  attention.wo.weight
//   layers.N.feed_forward.{w1,w3,w2}.weight            gate, up, down
//   layers.N.{attention_norm,ffn_norm}.weight
//   optimizer.state.KEY.{exp_avg,exp_avg_sq,step}
//   optimizer.param_groups.KEY.{lr,betas,...}  lr_scheduler.*  dataloader.*
//   train_state.{step,ntokens_seen,...}
//
// Rotary pairs lie side by side there and half a head apart here, so the rows
// of wq and wk move, in weights and moments alike. Where q, k and v are fused
// the optimizer knows one tensor wqkv, rows by query group: its query heads,
// its key head, its value head.
//
// torchtitan stores no configuration: --model says what the model is.

#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/llama_map.h"
#include "tools/convert/running_jobs.h"
#include "tools/convert/train_target.h"
#include "trainer/model/tensor_table.h"

namespace holdfast::tools {
namespace {

using ckpt::ItemSpec;
using trainer::ModelConfig;

constexpr std::string_view kOptimizer = "optimizer.";

// Rows of the query (what = 0), key (1) or value (2) heads in a fused wqkv.
std::vector<RowRun> FusedRows(const ModelConfig& model, int what) {
  const int64_t head = model.head_dim();
  const int64_t queries = model.heads / model.kv_heads;
  std::vector<RowRun> runs;
  for (int64_t group = 0; group < model.kv_heads; ++group) {
    const int64_t first = group * (queries + 2) * head;
    const int64_t at = first + (what == 0 ? 0 : queries + what - 1) * head;
    const std::vector<RowRun> part =
        what == 2 ? Rows(at, head)
                  : RotaryPairsApart(0, at, what == 0 ? queries : 1, head);
    runs.insert(runs.end(), part.begin(), part.end());
  }
  return runs;
}

// Where the weight of one of our tensors may be, under `prefix` and before
// `suffix`: keys of the optimizer's state are a parameter's with both.
std::vector<RowsAt> Places(const ModelConfig& model, const std::string& name,
                           const std::string& prefix,
                           const std::string& suffix) {
  const LlamaPart part = PartOf(name);
  const auto key = [&](std::string_view stem) {
    std::string full = prefix;
    if (part.layer >= 0) {
      absl::StrAppendFormat(&full, "layers.%d.", part.layer);
    }
    absl::StrAppendFormat(&full, "%s.weight%s", stem, suffix);
    return full;
  };
  const auto whole = [&](std::string_view stem, int64_t rows) {
    return RowsAt{key(stem), Rows(0, rows), rows};
  };
  const int64_t head = model.head_dim();
  const int64_t fused_rows = (model.heads + 2 * model.kv_heads) * head;
  const auto attention = [&](std::string_view w, int what, int64_t heads) {
    const std::vector<RowRun> runs =
        what == 2 ? Rows(0, heads * head) : RotaryPairsApart(0, 0, heads, head);
    const std::string stem(w);
    return std::vector<RowsAt>{
        {key("attention." + stem), runs, heads * head},
        {key("attention.qkv_linear." + stem), runs, heads * head},
        {key("attention.qkv_linear.wqkv"), FusedRows(model, what), fused_rows},
    };
  };
  if (part.part == "embed_tokens") {
    return {whole("tok_embeddings", model.vocab),
            whole(model.tied ? "lm_head" : "tok_embeddings", model.vocab)};
  }
  if (part.part == "lm_head") {
    return {whole("output", model.vocab), whole("lm_head", model.vocab)};
  }
  if (part.part == "norm") return {whole("norm", model.hidden)};
  if (part.part == "input_layernorm") {
    return {whole("attention_norm", model.hidden)};
  }
  if (part.part == "post_attention_layernorm") {
    return {whole("ffn_norm", model.hidden)};
  }
  if (part.part == "self_attn.q_proj") return attention("wq", 0, model.heads);
  if (part.part == "self_attn.k_proj") {
    return attention("wk", 1, model.kv_heads);
  }
  if (part.part == "self_attn.v_proj") {
    return attention("wv", 2, model.kv_heads);
  }
  if (part.part == "self_attn.o_proj") {
    return {whole("attention.wo", model.hidden)};
  }
  if (part.part == "mlp.gate_proj") {
    return {whole("feed_forward.w1", model.ffn)};
  }
  if (part.part == "mlp.up_proj") return {whole("feed_forward.w3", model.ffn)};
  return {whole("feed_forward.w2", model.hidden)};  // mlp.down_proj
}

// A number of steps or tokens; nothing when there is none of that name.
absl::StatusOr<std::optional<int64_t>> ReadCount(DcpDirectory& directory,
                                                 const std::string& key) {
  HF_ASSIGN_OR_RETURN(const std::optional<double> value,
                      ReadDcpNumber(directory, key));
  if (!value.has_value()) return std::optional<int64_t>();
  if (*value == std::floor(*value) && *value >= 0 && *value <= 1e18) {
    return static_cast<int64_t>(*value);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: '%s' is %g; a whole number from 0 on is expected",
                      directory.path(), key, *value));
}

// The number of steps that the optimizer has taken: the same for every
// parameter, or Adam's correction would differ between them.
absl::StatusOr<std::optional<int64_t>> OptimizerSteps(DcpDirectory& directory,
                                                      DcpKeys& keys) {
  std::optional<int64_t> steps;
  for (const std::string& key : keys.Open()) {
    if (!key.starts_with("optimizer.state.") || !key.ends_with(".step")) {
      continue;
    }
    HF_ASSIGN_OR_RETURN(const std::optional<int64_t> count,
                        ReadCount(directory, key));
    keys.Use(key);
    if (steps.has_value() && *steps != *count) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "'%s' is %d, others are %d: the optimizer has stepped parameters "
          "different numbers of times, which one step count cannot say",
          key, *count, *steps));
    }
    steps = count;
  }
  return steps;
}

}  // namespace

absl::StatusOr<ImportedState> OpenTorchtitan(const ImportRequest& request) {
  ImportedState state;
  HF_ASSIGN_OR_RETURN(const std::shared_ptr<DcpDirectory> directory,
                      OpenDcpDirectory(request, &state.memory_bytes));
  if (request.model_file.empty()) {
    return absl::InvalidArgumentError(
        "torchtitan's checkpoints do not say what the model is: give --model "
        "FILE, a configuration with [model] or a config.json");
  }
  HF_ASSIGN_OR_RETURN(const ModelConfig model,
                      ReadModelFile(request.model_file));
  HF_RETURN_IF_ERROR(trainer::CheckModel(model, 1));
  const std::shared_ptr<ForeignTensors> tensors =
      MakeDcpTensors(directory, [](const DcpTensor&) { return 1; });
  if (static_cast<uint64_t>(model.layers) > tensors->tensors().size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d layers in %d tensors", request.from,
                        model.layers, tensors->tensors().size()));
  }
  DcpKeys keys(directory);
  HF_RETURN_IF_ERROR(keys.Ignore(request.ignore));
  HF_ASSIGN_OR_RETURN(const std::optional<int64_t> steps,
                      OptimizerSteps(*directory, keys));
  bool has_moments = false;
  for (const ForeignTensor& tensor : tensors->tensors()) {
    has_moments |=
        tensor.name.starts_with("optimizer.state.") && keys.Offers(tensor.name);
  }

  // Until 2025 the model was not at the top.
  const std::string weights =
      keys.Has("model.tok_embeddings.weight") ? "model." : "";
  HF_RETURN_IF_ERROR(NoteChecksums(*directory, &state.notes));
  state.model = model;
  HF_ASSIGN_OR_RETURN(
      std::vector<MappedItem> mapped,
      MapItems(*tensors, keys, ItemsOf(model, request.compute),
               [&](const ItemSpec& item) -> std::vector<RowsAt> {
                 if (item.kind == "weight" || item.kind == "master") {
                   return Places(model, item.name, weights, "");
                 }
                 if (!has_moments) return {};
                 return Places(model, item.name,
                               std::string(kOptimizer) + "state.",
                               "." + item.kind);
               }));
  if (model.tied) {  // the same parameter under its other names
    for (const char* name : {"lm_head.weight", "output.weight"}) {
      const std::string key = weights + name;
      const int head = FindTensor(tensors->tensors(), key);
      const int table =
          FindTensor(tensors->tensors(), weights + "tok_embeddings.weight");
      if (head < 0 || table < 0 || !keys.Offers(key)) continue;
      HF_ASSIGN_OR_RETURN(const bool same, SameBytes(*tensors, head, table));
      if (!same) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s: --model ties the head to the embedding, and '%s' is another "
            "matrix than 'tok_embeddings.weight'",
            request.from, key));
      }
      keys.Leave(key);
      state.notes.push_back(absl::StrFormat(
          "%s is the tied tok_embeddings.weight; left out", key));
    }
  }
  HF_ASSIGN_OR_RETURN(const std::optional<int64_t> step,
                      ReadCount(*directory, "train_state.step"));
  HF_ASSIGN_OR_RETURN(const std::optional<int64_t> tokens,
                      ReadCount(*directory, "train_state.ntokens_seen"));
  state.step = steps.value_or(step.value_or(0));
  if (step.has_value() && *step != state.step) {
    state.notes.push_back(absl::StrFormat(
        "train_state.step is %d; the optimizer has stepped %d times, and that "
        "is the step of the result",
        *step, state.step));
  }
  if (!has_moments) {
    state.notes.push_back("it has no optimizer state; the moments are zero");
  }
  if (keys.Leave("optimizer.param_groups.") > 0) {
    state.notes.push_back(
        "rates and betas (optimizer.param_groups) are the configuration's");
  }
  if (keys.Leave("lr_scheduler") > 0) {
    state.notes.push_back("the schedule follows from step and configuration");
  }
  if (keys.Leave("dataloader") > 0) {
    state.notes.push_back(
        "the data cursor (dataloader) is another data set's; it starts anew");
  }
  keys.Leave("train_state");
  if (keys.Leave("freqs_cis") > 0) {
    state.notes.push_back("freqs_cis follows from rope_theta; left out");
  }
  HF_RETURN_IF_ERROR(keys.CheckAllMapped("torchtitan's Llama"));
  HF_ASSIGN_OR_RETURN(
      state.source,
      MakeMappedSource(
          tensors, std::move(mapped),
          ImportedAttributes(
              model, {.origin = "torchtitan " + request.from,
                      .step = state.step,
                      .tokens = static_cast<uint64_t>(tokens.value_or(0))}),
          request.readers));
  return state;
}

}  // namespace holdfast::tools
