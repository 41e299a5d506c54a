// tools/convert/megatron_import.cc: a GPT model of Megatron Core, saved in the
// format torch_dist, as a state.
//
// Keys and shapes as megatron-core 0.16 and 0.19 write them:
//
//   embedding.word_embeddings.weight [padded vocab, h]
//   decoder.layers.self_attention.linear_qkv.weight [layers, rows, h]
//       rows by query group: its query heads, its key head, its value head
//   decoder.layers.mlp.linear_fc1.weight [layers, 2 ffn, h]   gate, then up
//   ....linear_qkv.layer_norm_weight (or input_layernorm.weight) [layers, h]
//   ....linear_fc1.layer_norm_weight (or pre_mlp_layernorm.weight)
//   decoder.layers.{self_attention.linear_proj,mlp.linear_fc2}.weight
//   decoder.final_layernorm.weight   output_layer.weight (untied)
//   optimizer.state.{param,exp_avg,exp_avg_sq}.KEY, FP32
//
// Layers are one dimension, or (not homogeneous) a number in the key. TP and PP
// are cuts into chunks and do not show. The optimizer's state has these keys
// when it was saved fully reshardable, or by an optimizer that is not
// distributed (then fp32_param); the other format of the distributed optimizer,
// dp_reshardable, is flat buffers whose order only the job knows, and refused.

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/llama_map.h"
#include "tools/convert/megatron_common.h"
#include "tools/convert/running_jobs.h"
#include "tools/convert/train_target.h"
#include "trainer/model/tensor_table.h"

namespace holdfast::tools {
namespace {

using ckpt::ItemSpec;
using trainer::ModelConfig;

constexpr std::string_view kLayers = "decoder.layers.";
constexpr char kState[] = "optimizer.state.";
constexpr char kBuffers[] = "optimizer.distributed.";

// 2 where the first dimension counts layers.
int RowsOfMegatron(const DcpTensor& tensor) {
  const size_t at = tensor.name.find(kLayers);
  if (at == std::string::npos) return 1;
  const char next = tensor.name.c_str()[at + kLayers.size()];
  return next >= '0' && next <= '9' ? 1 : 2;
}

// A tensor of one layer: its names below decoder.layers, its rows, and which of
// them are ours.
struct LayerPart {
  std::vector<std::string> stems;
  int64_t rows = 0;
  std::vector<RowRun> runs;
};

LayerPart PartOfLayer(const ModelConfig& model, const std::string& part,
                      bool interleaved) {
  const int64_t head = model.head_dim();
  const int64_t queries = model.heads / model.kv_heads;
  const auto heads = [&](int64_t first, int64_t count, bool rotary) {
    return rotary && interleaved ? RotaryPairsApart(0, first, count, head)
                                 : Rows(first, count * head);
  };
  const auto qkv = [&](int what) {
    LayerPart made{{"self_attention.linear_qkv.weight"},
                   (model.heads + 2 * model.kv_heads) * head,
                   {}};
    for (int64_t group = 0; group < model.kv_heads; ++group) {
      const int64_t first = group * (queries + 2) * head;
      const int64_t at = first + (what == 0 ? 0 : queries + what - 1) * head;
      const std::vector<RowRun> runs =
          heads(at, what == 0 ? queries : 1, what != 2);
      made.runs.insert(made.runs.end(), runs.begin(), runs.end());
    }
    return made;
  };
  if (part == "self_attn.q_proj") return qkv(0);
  if (part == "self_attn.k_proj") return qkv(1);
  if (part == "self_attn.v_proj") return qkv(2);
  if (part == "self_attn.o_proj") {
    return {{"self_attention.linear_proj.weight"},
            model.hidden,
            Rows(0, model.hidden)};
  }
  if (part == "mlp.gate_proj") {
    return {{"mlp.linear_fc1.weight"}, 2 * model.ffn, Rows(0, model.ffn)};
  }
  if (part == "mlp.up_proj") {
    return {
        {"mlp.linear_fc1.weight"}, 2 * model.ffn, Rows(model.ffn, model.ffn)};
  }
  if (part == "mlp.down_proj") {
    return {{"mlp.linear_fc2.weight"}, model.hidden, Rows(0, model.hidden)};
  }
  if (part == "input_layernorm") {
    return {{"self_attention.linear_qkv.layer_norm_weight",
             "input_layernorm.weight"},
            model.hidden,
            Rows(0, model.hidden)};
  }
  return {{"mlp.linear_fc1.layer_norm_weight", "pre_mlp_layernorm.weight"},
          model.hidden,
          Rows(0, model.hidden)};  // post_attention_layernorm
}

std::vector<RowsAt> Places(const ModelConfig& model, const std::string& name,
                           const std::string& prefix, bool interleaved) {
  const LlamaPart part = PartOf(name);
  if (part.layer < 0) {
    const bool table = part.part != "norm";
    const char* const key =
        part.part == "embed_tokens" ? "embedding.word_embeddings.weight"
        : part.part == "lm_head"    ? "output_layer.weight"
                                    : "decoder.final_layernorm.weight";
    const int64_t rows = table ? model.vocab : model.hidden;
    return {{prefix + key, Rows(0, rows), rows, /*may_have_more=*/table}};
  }
  const LayerPart made = PartOfLayer(model, part.part, interleaved);
  std::vector<RowsAt> places;
  for (const std::string& stem : made.stems) {
    std::vector<RowRun> stacked = made.runs;
    for (RowRun& run : stacked) run.first += part.layer * made.rows;
    places.push_back({absl::StrFormat("%s%s%s", prefix, kLayers, stem),
                      std::move(stacked), model.layers * made.rows});
    places.push_back(
        {absl::StrFormat("%s%s%d.%s", prefix, kLayers, part.layer, stem),
         made.runs, made.rows});
  }
  return places;
}

// What the checkpoint has of the optimizer, by the beginnings of its keys.
struct OptimizerKeys {
  std::string master;  // "optimizer.state.param.", or empty
  bool moments = false;
};

OptimizerKeys FindOptimizer(const ForeignTensors& tensors,
                            const DcpKeys& keys) {
  OptimizerKeys found;
  for (const ForeignTensor& tensor : tensors.tensors()) {
    if (!keys.Offers(tensor.name)) continue;
    for (const char* master :
         {"optimizer.state.param.", "optimizer.state.fp32_param."}) {
      if (tensor.name.starts_with(master)) found.master = master;
    }
    found.moments |= tensor.name.starts_with("optimizer.state.exp_avg.");
  }
  return found;
}

void LeaveKnown(DcpKeys& keys, ImportedState* state) {
  int64_t extra = 0;
  for (const std::string& key : keys.Open()) {
    if (absl::StrContains(key, "_extra_state")) extra += keys.Leave(key);
  }
  if (extra > 0) {
    state->notes.push_back(absl::StrFormat(
        "%d _extra_state entries (scales of FP8, if any) are left out", extra));
  }
  keys.Leave("common_state/");
  if (keys.Leave("rng_state") > 0) {
    state->notes.push_back("states of random generators are left out");
  }
  keys.Leave("rerun_state_machine_state");
}

}  // namespace

absl::StatusOr<ImportedState> OpenMegatron(const ImportRequest& request) {
  ImportedState state;
  HF_ASSIGN_OR_RETURN(const std::shared_ptr<DcpDirectory> directory,
                      OpenDcpDirectory(request, &state.memory_bytes));
  HF_ASSIGN_OR_RETURN(const MegatronCommon common,
                      ReadMegatronCommon(*directory));
  ModelConfig model;
  if (!request.model_file.empty()) {
    HF_ASSIGN_OR_RETURN(model, ReadModelFile(request.model_file));
  } else if (common.model.has_value()) {
    model = *common.model;
  } else {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s does not have Megatron-LM's arguments, and so does not say what "
        "the model is: give --model FILE, a configuration with [model] or a "
        "config.json",
        request.from));
  }
  HF_RETURN_IF_ERROR(trainer::CheckModel(model, 1));
  const std::shared_ptr<ForeignTensors> tensors =
      MakeDcpTensors(directory, &RowsOfMegatron);
  DcpKeys keys(directory);
  HF_RETURN_IF_ERROR(keys.Ignore(request.ignore));
  int64_t buffers = 0;
  for (const std::string& key : keys.Open()) {
    buffers += key.starts_with(kBuffers);
  }
  if (buffers > 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has the optimizer's state as flat buffers (%s..., the format "
        "dp_reshardable), whose order only the job knows. Save once with "
        "--dist-ckpt-optim-fully-reshardable (distrib_optim_sharding_type "
        "\"fully_reshardable\"), or take the weights alone with --ignore "
        "'%s*'",
        request.from, kBuffers, kBuffers));
  }
  const OptimizerKeys optimizer = FindOptimizer(*tensors, keys);
  // An FP32 run reads its masters as weights.
  const bool masters_for_weights =
      request.compute == trainer::ComputeType::kF32 &&
      !optimizer.master.empty();

  HF_RETURN_IF_ERROR(NoteChecksums(*directory, &state.notes));
  state.model = model;
  const bool interleaved = common.rotary_interleaved;
  HF_ASSIGN_OR_RETURN(
      std::vector<MappedItem> mapped,
      MapItems(*tensors, keys, ItemsOf(model, request.compute),
               [&](const ItemSpec& item) -> std::vector<RowsAt> {
                 if (item.kind == "weight" && !masters_for_weights) {
                   return Places(model, item.name, "", interleaved);
                 }
                 if (item.kind == "weight" || item.kind == "master") {
                   return Places(model, item.name, optimizer.master,
                                 interleaved);
                 }
                 if (!optimizer.moments) return {};
                 return Places(model, item.name, kState + item.kind + ".",
                               interleaved);
               }));
  if (masters_for_weights) {  // the weights are the masters, rounded
    for (const std::string& key : keys.Open()) {
      if (keys.Has(optimizer.master + key)) keys.Leave(key);
    }
  }
  if (optimizer.master.empty()) {
    state.notes.push_back("it has no masters; they are the weights");
  }
  if (!optimizer.moments) {
    state.notes.push_back("it has no moments; they are zero");
  }
  LeaveKnown(keys, &state);
  HF_RETURN_IF_ERROR(keys.CheckAllMapped("Megatron's Llama"));
  state.step = common.optimizer_steps.value_or(common.iteration.value_or(0));
  if (common.iteration.has_value() && *common.iteration != state.step) {
    state.notes.push_back(absl::StrFormat(
        "iteration is %d; the optimizer has stepped %d times, and that is the "
        "step of the result",
        *common.iteration, state.step));
  }
  state.notes.push_back(
      "rates, schedule and data cursor are the configuration's");
  HF_ASSIGN_OR_RETURN(
      state.source,
      MakeMappedSource(
          tensors, std::move(mapped),
          ImportedAttributes(model, {.origin = "megatron " + request.from,
                                     .step = state.step,
                                     .tokens = static_cast<uint64_t>(
                                         common.tokens.value_or(0))}),
          request.readers));
  return state;
}

}  // namespace holdfast::tools
