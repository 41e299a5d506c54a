// tests/device/snapshot_bench.cc: what a save takes from training on a device.
//
//   bench_device_snapshot --device cuda --config trainer/configs/gpt-124m.toml
//
// 1. The snapshot beside a plain copy of the same bytes: the copies of a save
//    from Arm until the writer could have every unit, and one copy for each
//    region into pinned memory. In turn; the median of the pairs' shares.
// 2. A save every N steps beside N steps without one: whole cycles in turn, the
//    median of the pairs' extra time. The save is a whole one, to --dir.
// 3. That checkpoint back into the device.
//
// On the fake device, for the program's own sake, figures mean nothing. One
// JSON line last; exit 77 and a reason where the device is not to be had.

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/philox.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/checkpointer.h"
#include "ckpt/group/inproc_group.h"
#include "ckpt/session/save_plans.h"
#include "ckpt/snapshot/staged_snapshot.h"
#include "kernels/device_plugin.h"
#include "kernels/fake_device.h"
#include "nlohmann/json.hpp"
#include "tests/bench/support/random_source.h"
#include "tests/support/temp_dir.h"
#include "trainer/config.h"
#include "trainer/device_copier.h"
#include "trainer/model/tensor_table.h"
#include "trainer/parallel/inproc_collectives.h"
#include "trainer/parallel/mesh_collectives.h"
#include "trainer/startup.h"
#include "trainer/step.h"

namespace holdfast::trainer {
namespace {

constexpr int kExitSkipped = 77;
constexpr double kShareGoal = 0.95;
constexpr double kCostGoalPercent = 1;

struct BenchOptions {
  std::string config = HOLDFAST_SOURCE_DIR "/trainer/configs/gpt-124m.toml";
  std::vector<std::string> sets;
  std::string device = "cuda";
  std::string dir;  // of the run; "": a temporary one
  int64_t seqs = 256;
  int64_t micro_seqs = 32;
  int64_t every = 10;
  int64_t cycles = 3;  // of each kind
  int64_t pairs = 7;
  int64_t arena_mb = 0;
};

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::StatusOr<std::unique_ptr<kernels::Device>> OpenDevice(
    const std::string& name) {
  if (name == "fake") {
    return kernels::NewFakeDevice({.device_bytes = size_t{256} << 20});
  }
  HF_ASSIGN_OR_RETURN(kernels::DevicePlugin* const plugin,
                      kernels::LoadDevicePlugin(name));
  return plugin->Open(0);
}

class Bench {
 public:
  Bench(const BenchOptions& bench, kernels::Device& device, std::string run_dir)
      : bench_(bench), device_(device), run_dir_(std::move(run_dir)) {}

  absl::Status Run(Collectives& world);

 private:
  absl::Status MakeRunner(Collectives& world);
  std::unique_ptr<DeviceCopier> NewCopier() {
    return std::make_unique<DeviceCopier>(
        device_, runner_->state().regions(),
        [this] { return runner_->StateEvent(); });
  }
  absl::StatusOr<std::unique_ptr<ckpt::Checkpointer>> OpenCheckpointer(
      DeviceCopier& copier);
  absl::Status MeasureCopies();
  absl::Status MeasureSaves();
  absl::Status MeasureLoad();
  // Seconds of so many steps.
  absl::StatusOr<double> Steps(int64_t count, UpdateGate* gate);
  double Now() const { return absl::ToDoubleSeconds(clock_.Monotonic()); }

  const BenchOptions bench_;
  kernels::Device& device_;
  const std::string run_dir_;
  ckpt::Clock& clock_ = ckpt::RealClock();
  StepOptions options_;
  std::shared_ptr<ckpt::TrainLayout> layout_;
  MeshCollectives mesh_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<RandomSource> source_;
  int64_t step_ = 0;
  nlohmann::ordered_json json_;
};

absl::Status Bench::MakeRunner(Collectives& world) {
  HF_ASSIGN_OR_RETURN(const Config config,
                      LoadConfig(bench_.config, bench_.sets));
  options_.model = config.model;
  options_.optim = {.warmup_steps = 10, .decay_steps = 1000};
  options_.batch = {.global_seqs = bench_.seqs,
                    .micro_seqs = bench_.micro_seqs};
  options_.numerics.virtual_dp = 1;
  ckpt::TrainLayoutOptions layout_options;
  layout_options.stages = {{{0, static_cast<int>(options_.model.layers)}}};
  HF_ASSIGN_OR_RETURN(
      layout_, ckpt::TrainLayout::Create(
                   BuildTensorTable(options_.model, 1).specs, layout_options));
  HF_ASSIGN_OR_RETURN(mesh_, SplitMesh(world, {}));
  options_.layout = layout_.get();
  options_.mesh = &mesh_;
  options_.device = &device_;
  options_.clock = &clock_;
  HF_ASSIGN_OR_RETURN(runner_, StepRunner::Create(options_));
  HF_RETURN_IF_ERROR(runner_->Initialise(1));
  source_ = std::make_unique<RandomSource>(options_.model, bench_.micro_seqs);
  json_["model"] = std::filesystem::path(bench_.config).stem().string();
  json_["parameters"] = ParameterCount(options_.model);
  return absl::OkStatus();
}

absl::Status Bench::MeasureCopies() {
  const auto& regions = runner_->state().regions();
  ckpt::SavePlans plans(layout_.get(), ckpt::Rank{0});
  const std::vector<ckpt::SnapshotUnit> units = plans.SnapshotUnits();
  ckpt::CopyPlan plan =
      ckpt::PlanCopies(units, static_cast<uint64_t>(bench_.arena_mb) << 20);
  const std::unique_ptr<DeviceCopier> copier = NewCopier();
  const double copies = static_cast<double>(plan.copies.size());
  HF_ASSIGN_OR_RETURN(const std::span<std::byte> arena,
                      copier->TakeMemory(plan.arena_bytes));
  ckpt::StagedSnapshot snapshot(units, regions.size(), std::move(plan), arena,
                                *copier, clock_);

  const std::unique_ptr<kernels::Stream> stream = device_.NewStream();
  std::vector<kernels::OwnedBuffer> plain;
  double bytes = 0;
  for (const kernels::Buffer& region : regions) {
    HF_ASSIGN_OR_RETURN(
        plain.emplace_back(),
        kernels::AllocateOwned(device_, kernels::MemorySpace::kPinned,
                               region.bytes));
    bytes += static_cast<double>(region.bytes);
  }

  std::vector<double> plain_s, snapshot_s, arm_s, shares;
  for (int64_t pair = 0; pair <= bench_.pairs; ++pair) {
    double start = Now();
    for (size_t i = 0; i < regions.size(); ++i) {
      device_.Copy(plain[i].buffer(), regions[i], *stream);
    }
    device_.Sync(*stream);
    const double plain_seconds = Now() - start;

    start = Now();
    snapshot.Arm();
    const double armed = Now() - start;
    for (size_t unit = 0; unit < units.size(); ++unit) {
      while (!snapshot.BeginUnit(unit).has_value()) {
        HF_RETURN_IF_ERROR(snapshot.status());
        sched_yield();
      }
      HF_RETURN_IF_ERROR(snapshot.EndUnit(unit));
    }
    const double snapshot_seconds = Now() - start;
    snapshot.Release();
    if (pair == 0) continue;  // first touches
    plain_s.push_back(plain_seconds);
    snapshot_s.push_back(snapshot_seconds);
    arm_s.push_back(armed);
    shares.push_back(plain_seconds / snapshot_seconds);
  }
  HF_RETURN_IF_ERROR(device_.status());
  json_["state_bytes"] = bytes;
  json_["copies"] = copies;
  json_["plain_gb_s"] = bytes / Median(plain_s) / 1e9;
  json_["snapshot_gb_s"] = bytes / Median(snapshot_s) / 1e9;
  json_["snapshot_share"] = Median(shares);
  json_["snapshot_share_goal"] = kShareGoal;
  json_["arm_ms"] = 1e3 * Median(arm_s);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ckpt::Checkpointer>> Bench::OpenCheckpointer(
    DeviceCopier& copier) {
  ckpt::CheckpointerOptions options;
  options.run_dir = run_dir_;
  options.keep_last = 1;
  options.arena_bytes = static_cast<uint64_t>(bench_.arena_mb) << 20;
  std::vector<std::span<std::byte>> regions;
  for (const kernels::Buffer& region : runner_->state().regions()) {
    regions.emplace_back(region.data, region.bytes);
  }
  return ckpt::Checkpointer::Open(options,
                                  std::move(ckpt::MakeInprocGroups(1).front()),
                                  layout_, std::move(regions), clock_, &copier);
}

absl::StatusOr<double> Bench::Steps(int64_t count, UpdateGate* gate) {
  const int64_t tokens = bench_.seqs * options_.model.seq_len;
  const double start = Now();
  for (int64_t i = 0; i < count; ++i) {
    HF_RETURN_IF_ERROR(
        runner_->RunStep(++step_, tokens, *source_, gate).status());
    HF_RETURN_IF_ERROR(device_.status());
  }
  return Now() - start;
}

absl::Status Bench::MeasureSaves() {
  const std::unique_ptr<DeviceCopier> copier = NewCopier();
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<ckpt::Checkpointer> checkpointer,
                      OpenCheckpointer(*copier));
  HF_RETURN_IF_ERROR(checkpointer->ClaimAndLoad({}).status());
  const TrainStateShape& shape = runner_->state().shape();
  FenceGate gate(*checkpointer, shape.owned.first, shape.weight_bytes);
  HF_RETURN_IF_ERROR(Steps(2, &gate).status());  // plans of products
  std::vector<double> costs, waits, launches, write_rates, step_s;
  int64_t late = 0;
  for (int64_t cycle = 0; cycle < bench_.cycles; ++cycle) {
    HF_ASSIGN_OR_RETURN(const double without, Steps(bench_.every, &gate));
    const double start = Now();
    HF_RETURN_IF_ERROR(
        checkpointer->BeginSave({.step = step_, .attributes = {}}));
    HF_RETURN_IF_ERROR(Steps(bench_.every, &gate).status());
    const double with = Now() - start;
    late += checkpointer->save_in_flight();
    const auto report = checkpointer->WaitForSave(absl::Minutes(1));
    if (!report.has_value()) return absl::DeadlineExceededError("a save");
    HF_RETURN_IF_ERROR(report->status);
    costs.push_back(100 * (with - without) / without);
    waits.push_back(report->fence_wait_ms);
    launches.push_back(report->fence_copy_ms);
    write_rates.push_back(report->bytes_per_s / 1e9);
    step_s.push_back(without / static_cast<double>(bench_.every));
  }
  HF_RETURN_IF_ERROR(checkpointer->Close());
  json_["step_ms"] = 1e3 * Median(step_s);
  json_["save_every"] = bench_.every;
  json_["save_cost_percent"] = Median(costs);
  json_["save_cost_goal_percent"] = kCostGoalPercent;
  json_["save_cost_percent_each"] = costs;
  json_["fence_wait_ms"] = Median(waits);
  json_["fence_copy_ms"] = Median(launches);
  json_["save_write_gb_s"] = Median(write_rates);
  // Of them, saves that took longer than the steps between two: their end is
  // not in the figure.
  json_["saves"] = bench_.cycles;
  json_["saves_longer_than_the_cycle"] = late;
  return absl::OkStatus();
}

absl::Status Bench::MeasureLoad() {
  const std::unique_ptr<DeviceCopier> copier = NewCopier();
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<ckpt::Checkpointer> checkpointer,
                      OpenCheckpointer(*copier));
  ckpt::LoadRequest request;
  request.resume = ckpt::LoadRequest::Resume::kRequired;
  HF_ASSIGN_OR_RETURN(const ckpt::LoadReport report,
                      checkpointer->ClaimAndLoad(request));
  HF_RETURN_IF_ERROR(checkpointer->Close());
  json_["load_gb_s"] = report.bytes_per_s / 1e9;
  return runner_->RefreshWeights();
}

absl::Status Bench::Run(Collectives& world) {
  json_["bench"] = "device_snapshot";
  json_["device"] = std::string(device_.name());
  HF_RETURN_IF_ERROR(MakeRunner(world));
  HF_RETURN_IF_ERROR(MeasureCopies());
  HF_RETURN_IF_ERROR(MeasureSaves());
  HF_RETURN_IF_ERROR(MeasureLoad());
  json_["summary"] = absl::StrFormat(
      "snapshot %.3f of a plain copy's %.1f GB/s; a save every %d steps of "
      "%.0f "
      "ms costs %.2f %%; load %.2f GB/s",
      json_["snapshot_share"].get<double>(), json_["plain_gb_s"].get<double>(),
      bench_.every, json_["step_ms"].get<double>(),
      json_["save_cost_percent"].get<double>(),
      json_["load_gb_s"].get<double>());
  std::printf("%s\n", json_.dump().c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Snapshots and saves of state in a device.");
  BenchOptions bench;
  app.add_option("--config", bench.config, "The model");
  app.add_option("--set", bench.sets, "KEY=VALUE over the file")
      ->allow_extra_args(false);
  app.add_option("--device", bench.device, "cuda or fake")
      ->check(CLI::IsMember({"cuda", "fake"}));
  app.add_option("--dir", bench.dir, "An empty directory for the run");
  app.add_option("--seqs", bench.seqs, "Sequences of a step");
  app.add_option("--micro-seqs", bench.micro_seqs, "And of a microbatch");
  app.add_option("--every", bench.every, "Steps between two saves");
  app.add_option("--cycles", bench.cycles, "So many with a save, and without");
  app.add_option("--pairs", bench.pairs, "Copies of each kind");
  app.add_option("--arena-mb", bench.arena_mb, "0: the whole shard");
  CLI11_PARSE(app, argc, argv);
  const auto device = OpenDevice(bench.device);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n",
                 std::string(device.status().message()).c_str());
    return kExitSkipped;
  }
  const tests::TempDir temporary;
  const absl::Status status = RunInprocRanks(1, [&](Collectives& world) {
    Bench run(bench, **device,
              bench.dir.empty() ? temporary.path() : bench.dir);
    return run.Run(world);
  });
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 70;
}

}  // namespace
}  // namespace holdfast::trainer

int main(int argc, char** argv) { return holdfast::trainer::Main(argc, argv); }
