// trainer/config_check.cc: numbers that do not fit, and systems that are not
// built, refused before a run starts.

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/layout/train_layout.h"
#include "trainer/config.h"

namespace holdfast::trainer {
namespace {

template <typename... Args>
absl::Status Bad(const absl::FormatSpec<Args...>& format, const Args&... args) {
  return absl::InvalidArgumentError(absl::StrFormat(format, args...));
}

absl::Status CheckModel(const ModelConfig& model, int64_t tp) {
  if (model.layers < 1 || model.hidden < 1 || model.heads < 1 ||
      model.kv_heads < 1 || model.ffn < 1 || model.vocab < 2 ||
      model.seq_len < 1) {
    return Bad(
        "the model has a size below 1: layers %d, hidden %d, heads %d, "
        "kv_heads %d, ffn %d, vocab %d, seq_len %d",
        model.layers, model.hidden, model.heads, model.kv_heads, model.ffn,
        model.vocab, model.seq_len);
  }
  if (model.hidden % model.heads != 0) {
    return Bad("model.hidden = %d does not divide by model.heads = %d",
               model.hidden, model.heads);
  }
  if (model.head_dim() % 2 != 0) {
    return Bad(
        "model.hidden / model.heads = %d / %d = %d is odd; rotary "
        "positions turn pairs",
        model.hidden, model.heads, model.head_dim());
  }
  if (model.heads % model.kv_heads != 0) {
    return Bad("model.heads = %d does not divide by model.kv_heads = %d",
               model.heads, model.kv_heads);
  }
  const struct {
    const char* name;
    int64_t size;
  } cut[] = {{"heads", model.heads},
             {"kv_heads", model.kv_heads},
             {"ffn", model.ffn},
             {"hidden", model.hidden}};
  for (const auto& [name, size] : cut) {
    if (size % tp != 0) {
      return Bad("model.%s = %d does not divide by parallel.tp = %d", name,
                 size, tp);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMesh(const ParallelConfig& parallel, int64_t world) {
  const int64_t model_ranks = parallel.tp * parallel.pp * parallel.cp;
  if (world < 1 || world % model_ranks != 0) {
    return Bad(
        "%d ranks do not divide by parallel.tp x pp x cp = %d x %d x %d "
        "= %d",
        world, parallel.tp, parallel.pp, parallel.cp, model_ranks);
  }
  const int64_t dp = world / model_ranks;
  if (parallel.dp != 0 && parallel.dp != dp) {
    return Bad(
        "parallel.dp = %d, but %d ranks / (tp %d x pp %d x cp %d) = %d; "
        "start %d ranks or leave parallel.dp out",
        parallel.dp, world, parallel.tp, parallel.pp, parallel.cp, dp,
        parallel.dp * model_ranks);
  }
  return absl::OkStatus();
}

absl::Status CheckBatch(const Config& config, int64_t dp) {
  const int64_t global = config.batch.global_seqs;
  const int64_t micro = config.batch.micro_seqs;
  if (global < 1 || micro < 1) {
    return Bad(
        "batch.global_seqs = %d, batch.micro_seqs = %d; both must be at "
        "least 1",
        global, micro);
  }
  if (!config.numerics.invariant) {
    if (global % (micro * dp) != 0) {
      return Bad(
          "batch.global_seqs = %d does not divide by batch.micro_seqs x "
          "dp = %d x %d = %d; nothing is rounded",
          global, micro, dp, micro * dp);
    }
    return absl::OkStatus();
  }
  const int64_t leaves = config.numerics.virtual_dp;
  if (global % micro != 0) {
    return Bad(
        "batch.global_seqs = %d does not divide by batch.micro_seqs = "
        "%d",
        global, micro);
  }
  if (leaves == 0) return absl::OkStatus();  // Not resolved yet.
  if (global % (micro * leaves) != 0) {
    return Bad(
        "batch.global_seqs = %d does not divide by numerics.virtual_dp "
        "x batch.micro_seqs = %d x %d = %d; each leaf gets whole "
        "microbatches",
        global, leaves, micro, leaves * micro);
  }
  if (dp > leaves) {
    return Bad(
        "dp = %d replicas, but the sum has numerics.virtual_dp = %d "
        "leaves; start fewer ranks, or set numerics.virtual_dp to at "
        "least %d for a new run (a run's leaves never change)",
        dp, leaves, dp);
  }
  return absl::OkStatus();
}

absl::Status CheckOptim(const OptimConfig& optim) {
  if (optim.min_lr > optim.lr) {
    return Bad("optim.min_lr = %g is above optim.lr = %g", optim.min_lr,
               optim.lr);
  }
  if (optim.decay_steps != 0 && optim.warmup_steps > optim.decay_steps) {
    return Bad("optim.warmup_steps = %d is above optim.decay_steps = %d",
               optim.warmup_steps, optim.decay_steps);
  }
  return absl::OkStatus();
}

absl::Status CheckData(const Config& config) {
  const DataConfig& data = config.data;
  if (data.paths.empty()) {
    return Bad("data.paths is empty; `holdfast data` makes token files");
  }
  if (!data.weights.empty() && data.weights.size() != data.paths.size()) {
    return Bad("data.weights has %d entries, data.paths has %d",
               data.weights.size(), data.paths.size());
  }
  if (!data.weights.empty() &&
      std::none_of(data.weights.begin(), data.weights.end(),
                   [](double weight) { return weight > 0; })) {
    return Bad("data.weights are all 0; nothing would be read");
  }
  if (config.train.eval_interval > 0 && data.eval_fraction == 0) {
    return Bad(
        "train.eval_interval = %d, but data.eval_fraction = 0 holds "
        "nothing out",
        config.train.eval_interval);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> StageLayers(const Config& config) {
  const int64_t layers = config.model.layers;
  const int64_t pp = config.parallel.pp;
  const std::vector<int64_t>& given = config.parallel.stages;
  if (given.empty()) {
    if (layers < pp) {
      return Bad(
          "parallel.pp = %d stages need at least one layer each, "
          "model.layers is %d",
          pp, layers);
    }
    HF_ASSIGN_OR_RETURN(
        std::vector<ckpt::StageChunks> even,
        ckpt::EvenStages(static_cast<int>(layers), static_cast<int>(pp),
                         /*embedding_layers=*/1,
                         /*head_layers=*/1));
    std::vector<int64_t> plan;
    for (const ckpt::StageChunks& stage : even) {
      plan.push_back(stage[0].count);
    }
    return plan;
  }
  const std::string list = absl::StrJoin(given, ", ");
  if (static_cast<int64_t>(given.size()) != pp) {
    return Bad(
        "parallel.stages = [%s] has %d entries, parallel.pp is %d; give "
        "one entry a stage",
        list, given.size(), pp);
  }
  int64_t sum = 0;
  for (const int64_t stage : given) {
    if (stage < 1) {
      return Bad(
          "parallel.stages = [%s] has a stage of %d layers; each needs "
          "at least 1",
          list, stage);
    }
    sum += stage;
  }
  if (sum != layers) {
    return Bad(
        "parallel.stages = [%s] adds up to %d layers, model.layers is "
        "%d",
        list, sum, layers);
  }
  return given;
}

absl::Status CheckShape(const Config& config, int64_t world) {
  HF_RETURN_IF_ERROR(CheckMesh(config.parallel, world));
  HF_RETURN_IF_ERROR(CheckModel(config.model, config.parallel.tp));
  HF_RETURN_IF_ERROR(StageLayers(config).status());
  const int64_t dp =
      world / (config.parallel.tp * config.parallel.pp * config.parallel.cp);
  HF_RETURN_IF_ERROR(CheckBatch(config, dp));
  HF_RETURN_IF_ERROR(CheckOptim(config.optim));
  HF_RETURN_IF_ERROR(CheckData(config));
  return absl::OkStatus();
}

absl::Status CheckBuilt(const Config& config) {
  const ParallelConfig& parallel = config.parallel;
  const struct {
    bool asked;
    const char* refusal;
  } unbuilt[] = {
      {config.device == DeviceChoice::kFake,
       "device = \"fake\": the trainer's saves need memory that the host may "
       "read; use \"cpu\""},
      {parallel.cp != 1,
       "parallel.cp: this build has no context parallelism; use 1"},
      {parallel.ep != 1,
       "parallel.ep: this build has no expert parallelism; use 1"},
      {parallel.chunks != 1,
       "parallel.chunks: this build has no interleaved schedule; use 1"},
      {parallel.sharding == Sharding::kFull,
       "parallel.sharding = \"full\": this build divides the optimizer only; "
       "use \"optimizer\""},
      {parallel.sharding == Sharding::kHybrid,
       "parallel.sharding = \"hybrid\": this build divides the optimizer only; "
       "use \"optimizer\""},
      {parallel.sequence_parallel,
       "parallel.sequence_parallel: this build has none; use false"},
      {parallel.recompute != Recompute::kNone,
       "parallel.recompute: this build keeps all activations; use \"none\""},
      {config.checkpoint.interval.automatic,
       "checkpoint.interval = \"auto\": this build does not choose it; give "
       "steps or a time"},
      {config.checkpoint.files.count != FileCount::kPerRank &&
           config.checkpoint.codec != CodecChoice::kNone,
       "checkpoint.codec: files that ranks share (checkpoint.files) are not "
       "compressed; use \"none\", or checkpoint.files = \"per_rank\""},
  };
  for (const auto& [asked, refusal] : unbuilt) {
    if (asked) return absl::UnimplementedError(refusal);
  }
  return absl::OkStatus();
}

absl::Status CheckConfig(const Config& config, int64_t world) {
  HF_RETURN_IF_ERROR(CheckBuilt(config));
  return CheckShape(config, world);
}

}  // namespace holdfast::trainer
