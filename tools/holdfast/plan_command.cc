// tools/holdfast/plan_command.cc: prints what a layout will need and take.

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "tools/holdfast/commands.h"
#include "trainer/config.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/run_plan.h"

namespace holdfast::tools {
namespace {

using nlohmann::ordered_json;

ordered_json ToJson(const trainer::MemoryPlan& memory) {
  return {{"weights", memory.weights},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"live_sums", memory.live_sums},
          {"activations", memory.activations},
          {"buffers", memory.buffers},
          {"communication", memory.communication},
          {"total", memory.total()}};
}

void PrintJson(const trainer::RunPlan& plan) {
  ordered_json json;
  json["layout"] = ckpt::ToString(plan.mesh);
  json["world"] = plan.mesh.world();
  json["parameters"] = plan.parameters;
  json["microbatches"] = plan.microbatches;
  json["tokens_per_step"] = plan.tokens_per_step;
  json["flops_per_token"] = plan.flops_per_token;
  json["bubble_share"] = plan.bubble_share;
  json["checkpoint_bytes"] = plan.checkpoint_bytes;
  json["checkpoint_bytes_rank_max"] = plan.checkpoint_bytes_rank_max;
  json["stages"] = ordered_json::array();
  for (const trainer::StagePlan& stage : plan.stages) {
    json["stages"].push_back({{"layers", stage.layers},
                              {"parameters", stage.parameters},
                              {"in_flight", stage.in_flight},
                              {"memory_bytes", ToJson(stage.memory)}});
  }
  std::printf("%s\n", json.dump().c_str());
}

void PrintText(const trainer::RunPlan& plan) {
  std::printf("layout       %s, %d ranks\n", ckpt::ToString(plan.mesh).c_str(),
              plan.mesh.world());
  std::printf("model        %.6g parameters, %.3g FLOPs a token\n",
              static_cast<double>(plan.parameters), plan.flops_per_token);
  std::printf(
      "step         %ld tokens, %ld microbatches a DP member, %.1f %% bubble\n",
      static_cast<long>(plan.tokens_per_step),
      static_cast<long>(plan.microbatches), 100 * plan.bubble_share);
  std::printf("checkpoint   %.6g GB, at most %.6g GB a rank\n\n",
              plan.checkpoint_bytes / 1e9,
              plan.checkpoint_bytes_rank_max / 1e9);
  std::printf(
      "bytes of the fullest rank of each stage, in MB\n"
      "stage layers  in flight    weights  gradients  optimizer  part. sums  "
      "activations    buffers       comm.      total\n");
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const trainer::StagePlan& stage = plan.stages[i];
    const trainer::MemoryPlan& memory = stage.memory;
    std::printf(
        "%5zu %6ld %10ld %10.1f %10.1f %10.1f %11.1f %12.1f %10.1f %10.1f "
        "%10.1f\n",
        i, static_cast<long>(stage.layers), static_cast<long>(stage.in_flight),
        memory.weights / 1e6, memory.gradients / 1e6, memory.optimizer / 1e6,
        memory.live_sums / 1e6, memory.activations / 1e6, memory.buffers / 1e6,
        memory.communication / 1e6, memory.total() / 1e6);
  }
}

}  // namespace

int RunPlan(const PlanOptions& options) {
  absl::StatusOr<trainer::Config> config =
      trainer::LoadConfig(options.config, options.sets);
  absl::Status status = config.status();
  if (status.ok()) {
    int64_t world = options.world;
    if (world == 0) {
      world = config->parallel.tp * config->parallel.pp * config->parallel.cp;
    }
    status = trainer::ResolveConfig(*config, world);
  }
  if (status.ok()) {
    const absl::StatusOr<trainer::RunPlan> plan = trainer::PlanRun(*config);
    if (plan.ok()) {
      if (options.json) {
        PrintJson(*plan);
      } else {
        PrintText(*plan);
      }
      return trainer::kExitFinished;
    }
    status = plan.status();
  }
  std::fprintf(stderr, "holdfast plan: %s\n",
               std::string(status.message()).c_str());
  return trainer::ExitCodeOf(status);
}

}  // namespace holdfast::tools
