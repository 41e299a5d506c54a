// tests/support/step_rig.cc: see step_rig.h.

#include "tests/support/step_rig.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "kernels/bf16.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::tests {

using trainer::Collectives;
using trainer::ComputeType;
using trainer::StepOptions;
using trainer::StepResult;
using trainer::StepRunner;

TinyBatch TinySource::BatchOf(int64_t microbatch) const {
  return TinyBatch(model_, micro_seqs_,
                   seed_ * 1'000'003 + static_cast<uint64_t>(step_) * 1009 +
                       static_cast<uint64_t>(microbatch));
}

absl::StatusOr<trainer::Microbatch> TinySource::Get(int64_t microbatch) {
  current_ = std::make_unique<TinyBatch>(BatchOf(microbatch));
  return current_->view();
}

int64_t TinySource::CountingTokens(int64_t microbatches) const {
  int64_t counting = 0;
  for (int64_t m = 0; m < microbatches; ++m) counting += BatchOf(m).counting();
  return counting;
}

std::unique_ptr<ckpt::TrainLayout> LayoutOf(const RunOptions& options) {
  std::vector<int> stages = options.stages;
  if (stages.empty()) {
    for (int pp = 0; pp < options.mesh.pp; ++pp) {
      const auto cut = [&](int at) {
        return static_cast<int>(at * options.model.layers / options.mesh.pp);
      };
      stages.push_back(cut(pp + 1) - cut(pp));
    }
  }
  return TinyLayout(options.model, options.compute, options.mesh, stages);
}

StepOptions StepOptionsOf(const RunOptions& options,
                          const ckpt::TrainLayout& layout) {
  StepOptions step;
  step.model = options.model;
  step.optim = options.optim;
  step.numerics.compute = options.compute;
  step.numerics.invariant = options.invariant;
  step.numerics.virtual_dp = options.virtual_dp;
  step.batch.global_seqs = options.global_seqs;
  step.batch.micro_seqs = options.micro_seqs;
  step.overlap = options.overlap;
  step.layout = &layout;
  return step;
}

namespace {

// Calls visit(i, bytes) for element i of the whole logical item of a fragment
// and the place of that element in memory, in memory's order.
template <class Visit>
void VisitFragment(const ckpt::Fragment& fragment, const ckpt::ItemSpec& item,
                   std::byte* region, const Visit& visit) {
  const int64_t stride =
      ckpt::WholeBox(item.shape).count[item.shape.size() - 1];
  std::byte* at = region + fragment.offset;
  for (const ckpt::Box& box :
       ckpt::BoxesOfRun(fragment.part, fragment.first, fragment.count)) {
    const int last = box.dimensions - 1;
    const int64_t rows = box.dimensions == 1 ? 1 : box.count[0];
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t row = box.dimensions == 1 ? 0 : box.first[0] + r;
      for (int64_t c = 0; c < box.count[last]; ++c) {
        visit(static_cast<size_t>(row * stride + box.first[last] + c), at);
        at += ckpt::SizeOf(item.dtype);
      }
    }
  }
}

float ReadAs(ckpt::DType dtype, const std::byte* from) {
  if (dtype == ckpt::DType::kBf16) {
    kernels::Bf16 narrow;
    std::memcpy(&narrow, from, sizeof(narrow));
    return kernels::ToFloat(narrow);
  }
  float value = 0.0f;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

void WriteAs(ckpt::DType dtype, float value, std::byte* to) {
  if (dtype == ckpt::DType::kBf16) {
    const kernels::Bf16 narrow = kernels::RoundToBf16(value);
    std::memcpy(to, &narrow, sizeof(narrow));
  } else {
    std::memcpy(to, &value, sizeof(value));
  }
}

// Copies what `rank` stores into the whole logical tensors of the record.
void CollectStored(const ckpt::TrainLayout& layout, ckpt::Rank rank,
                   kernels::Device& device, const trainer::TrainState& state,
                   RunRecord& record) {
  std::vector<std::vector<std::byte>> regions;
  const auto stream = device.NewStream();
  for (const kernels::Buffer& region : state.regions()) {
    std::vector<std::byte>& copy = regions.emplace_back(region.bytes);
    device.Copy({kernels::MemorySpace::kHost, copy.data(), copy.size()}, region,
                *stream);
  }
  device.Sync(*stream);
  for (const ckpt::Fragment& fragment : layout.StoredBy(rank).fragments) {
    const ckpt::ItemSpec& item = layout.items()[fragment.item];
    std::vector<float>& values = record.stored[item.name + "/" + item.kind];
    values.resize(static_cast<size_t>(ckpt::WholeBox(item.shape).elements()));
    VisitFragment(
        fragment, item, regions[fragment.region].data(),
        [&](size_t i, std::byte* at) { values[i] = ReadAs(item.dtype, at); });
  }
}

class RankRun {
 public:
  RankRun(const RunOptions& options, const ckpt::TrainLayout& layout,
          Collectives& world, std::mutex& mutex, RunRecord& record)
      : options_(options),
        layout_(layout),
        world_(world),
        mutex_(mutex),
        record_(record),
        own_device_(options.shared_device != nullptr ? nullptr
                    : options.device ? options.device(world.rank())
                                     : kernels::NewCpuDevice()),
        device_(own_device_ != nullptr ? own_device_.get()
                                       : options.shared_device) {}

  absl::Status Run() {
    HF_ASSIGN_OR_RETURN(trainer::MeshCollectives mesh,
                        trainer::SplitMesh(world_, options_.mesh));
    StepOptions step_options = StepOptionsOf(options_, layout_);
    step_options.mesh = &mesh;
    step_options.device = device_;
    trainer::DeviceMesh device_mesh;
    if (options_.shared_device != nullptr) {
      HF_ASSIGN_OR_RETURN(
          device_mesh, trainer::SharedMesh(mesh, *device_, size_t{64} << 10));
      step_options.device_mesh = &device_mesh;
    }
    step_options.clock = &ckpt::RealClock();
    HF_ASSIGN_OR_RETURN(const std::unique_ptr<StepRunner> runner,
                        StepRunner::Create(step_options));
    const ckpt::Rank rank{world_.rank()};
    HF_ASSIGN_OR_RETURN(const trainer::MemoryPlan plan,
                        StepRunner::PlanMemory(step_options, rank));
    HF_CHECK(plan == runner->memory(), "rank %d: %d bytes planned, %d taken",
             world_.rank(), plan.total(), runner->memory().total());
    HF_RETURN_IF_ERROR(runner->Initialise(options_.seed));
    if (!options_.weights.empty()) {
      FillOwned(layout_, rank, options_.weights, runner->state());
      HF_RETURN_IF_ERROR(runner->RefreshWeights());
    }
    const std::unique_ptr<StepSource> source_owned =
        options_.source
            ? options_.source()
            : std::make_unique<TinySource>(options_.model, options_.micro_seqs,
                                           options_.seed);
    StepSource& source = *source_owned;
    const int64_t microbatches = options_.global_seqs / options_.micro_seqs;
    for (int64_t step = 1; step <= options_.steps; ++step) {
      if (options_.before_step) {
        options_.before_step(world_.rank(), step, *runner);
      }
      source.BeginStep(step);
      HF_ASSIGN_OR_RETURN(
          const StepResult result,
          runner->RunStep(step, source.CountingTokens(microbatches), source,
                          nullptr));
      Record(step, result);
    }
    if (options_.eval_microbatches > 0) {
      source.BeginStep(1'000'000);
      HF_ASSIGN_OR_RETURN(const trainer::EvalResult result,
                          runner->RunEval(options_.eval_microbatches, source));
      const std::lock_guard<std::mutex> lock(mutex_);
      HF_CHECK(record_.eval_tokens == 0 ||
                   (record_.eval_loss == result.loss &&
                    record_.eval_tokens == result.counting_tokens),
               "ranks disagree about the evaluation");
      record_.eval_loss = result.loss;
      record_.eval_tokens = result.counting_tokens;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    CollectStored(layout_, rank, *device_, runner->state(), record_);
    return absl::OkStatus();
  }

 private:
  void Record(int64_t step, const StepResult& result) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto index = static_cast<size_t>(step - 1);
    if (record_.losses.size() == index) {
      record_.losses.push_back(result.loss);
      record_.loss_bits.push_back(result.loss_bits);
      record_.grad_norms.push_back(result.grad_norm);
      record_.skipped.push_back(result.skipped_nonfinite);
      return;
    }
    HF_CHECK(record_.loss_bits[index] == result.loss_bits &&
                 std::memcmp(&record_.grad_norms[index], &result.grad_norm,
                             sizeof(float)) == 0 &&
                 record_.skipped[index] == result.skipped_nonfinite,
             "step %d: rank %d reports another result", step, world_.rank());
  }

  const RunOptions& options_;
  const ckpt::TrainLayout& layout_;
  Collectives& world_;
  std::mutex& mutex_;
  RunRecord& record_;
  const std::unique_ptr<kernels::Device> own_device_;
  kernels::Device* const device_;
};

}  // namespace

void FillOwned(const ckpt::TrainLayout& layout, ckpt::Rank rank,
               const std::map<std::string, std::vector<float>>& values,
               trainer::TrainState& state) {
  for (const ckpt::Fragment& fragment : layout.WantedBy(rank).fragments) {
    const ckpt::ItemSpec& item = layout.items()[fragment.item];
    if (item.kind != "weight" && item.kind != "master") continue;
    const std::vector<float>& of_tensor = values.at(item.name);
    VisitFragment(fragment, item, state.regions()[fragment.region].data,
                  [&](size_t i, std::byte* at) {
                    WriteAs(item.dtype, of_tensor.at(i), at);
                  });
  }
}

RunRecord TrainTiny(const RunOptions& options) {
  const std::unique_ptr<ckpt::TrainLayout> layout = LayoutOf(options);
  RunRecord record;
  std::mutex mutex;
  const absl::Status status =
      trainer::RunInprocRanks(options.mesh.world(), [&](Collectives& world) {
        return RankRun(options, *layout, world, mutex, record).Run();
      });
  HF_CHECK(status.ok(), "%s", status.ToString());
  return record;
}

std::string FirstDifference(const RunRecord& a, const RunRecord& b) {
  if (a.losses.size() != b.losses.size()) return "number of steps";
  for (size_t step = 0; step < a.losses.size(); ++step) {
    if (a.loss_bits[step] != b.loss_bits[step]) {
      return absl::StrFormat("loss of step %d: %.9g and %.9g", step + 1,
                             a.losses[step], b.losses[step]);
    }
    if (std::memcmp(&a.grad_norms[step], &b.grad_norms[step], 4) != 0) {
      return absl::StrFormat("gradient norm of step %d: %.9g and %.9g",
                             step + 1, a.grad_norms[step], b.grad_norms[step]);
    }
  }
  if (std::memcmp(&a.eval_loss, &b.eval_loss, sizeof(double)) != 0) {
    return absl::StrFormat("evaluation: %.17g and %.17g", a.eval_loss,
                           b.eval_loss);
  }
  if (a.stored.size() != b.stored.size()) return "number of stored items";
  for (const auto& [name, values] : a.stored) {
    const auto found = b.stored.find(name);
    if (found == b.stored.end()) return name + " is in one run only";
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::memcmp(&values[i], &found->second[i], sizeof(float)) != 0) {
        return absl::StrFormat("%s element %d: %.9g and %.9g", name, i,
                               values[i], found->second[i]);
      }
    }
  }
  return "";
}

}  // namespace holdfast::tests
