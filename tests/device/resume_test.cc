// What is saved on the device is what the processor loads, and the other way:
// every byte of the state, and the logical digests of the checkpoints.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/checkpointer.h"
#include "ckpt/group/inproc_group.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/device/test_device.h"
#include "tests/support/step_rig.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/support/train_job.h"
#include "trainer/device_copier.h"
#include "trainer/parallel/inproc_collectives.h"
#include "trainer/parallel/mesh_collectives.h"
#include "trainer/step.h"

namespace holdfast::tests {
namespace {

using RegionBytes = std::vector<std::vector<std::byte>>;

// A model of one rank whose state lies in the memory of `device`, and its run.
class Model {
 public:
  static absl::StatusOr<std::unique_ptr<Model>> Open(
      trainer::Collectives& world, kernels::Device& device,
      const std::string& run_dir) {
    auto model = std::unique_ptr<Model>(new Model(device));
    HF_ASSIGN_OR_RETURN(model->mesh_, trainer::SplitMesh(world, {}));
    trainer::StepOptions options =
        StepOptionsOf(model->options_, *model->layout_);
    options.mesh = &model->mesh_;
    options.device = &device;
    options.clock = &ckpt::RealClock();
    HF_ASSIGN_OR_RETURN(model->runner_, trainer::StepRunner::Create(options));
    ckpt::CheckpointerOptions checkpoint;
    checkpoint.run_dir = run_dir;
    checkpoint.keep_last = ckpt::kKeepAll;
    std::vector<std::span<std::byte>> regions;
    for (const kernels::Buffer& region : model->runner_->state().regions()) {
      regions.emplace_back(region.data, region.bytes);
    }
    if (!device.NewStream()->immediate()) {
      model->copier_ = std::make_unique<trainer::DeviceCopier>(
          device, model->runner_->state().regions(),
          [runner = model->runner_.get()] { return runner->StateEvent(); });
    }
    HF_ASSIGN_OR_RETURN(
        model->checkpointer_,
        ckpt::Checkpointer::Open(
            checkpoint, std::move(ckpt::MakeInprocGroups(1)[0]), model->layout_,
            regions, ckpt::RealClock(), model->copier_.get()));
    return model;
  }

  ckpt::Checkpointer& checkpointer() { return *checkpointer_; }
  trainer::StepRunner& runner() { return *runner_; }

  absl::Status Step(int64_t step) {
    TinySource source(options_.model, options_.micro_seqs, options_.seed);
    source.BeginStep(step);
    const int64_t microbatches = options_.global_seqs / options_.micro_seqs;
    return runner_
        ->RunStep(step, source.CountingTokens(microbatches), source, nullptr)
        .status();
  }

  // The name of the checkpoint.
  absl::StatusOr<std::string> Save(int64_t step) {
    HF_RETURN_IF_ERROR(checkpointer_->BeginSave({step, {{"who", "test"}}}));
    const auto report = checkpointer_->WaitForSave(absl::Minutes(1));
    if (!report.has_value()) return absl::DeadlineExceededError("no report");
    HF_RETURN_IF_ERROR(report->status);
    return ckpt::ToString(report->id);
  }

  RegionBytes State() {
    RegionBytes all;
    const auto stream = device_.NewStream();
    for (const kernels::Buffer& region : runner_->state().regions()) {
      std::vector<std::byte> bytes(region.bytes);
      device_.Copy({kernels::MemorySpace::kHost, bytes.data(), bytes.size()},
                   region, *stream);
      device_.Sync(*stream);
      all.push_back(std::move(bytes));
    }
    HF_CHECK(device_.status().ok(), "%s", device_.status().ToString());
    return all;
  }

 private:
  explicit Model(kernels::Device& device) : device_(device) {
    options_.model = TinyModel(/*tied=*/true);
    options_.compute = trainer::ComputeType::kBf16;
    layout_ = LayoutOf(options_);
  }

  RunOptions options_;
  std::shared_ptr<const ckpt::TrainLayout> layout_;
  kernels::Device& device_;
  trainer::MeshCollectives mesh_;
  std::unique_ptr<trainer::StepRunner> runner_;
  std::unique_ptr<trainer::DeviceCopier> copier_;
  std::unique_ptr<ckpt::Checkpointer> checkpointer_;
};

class ResumeOnDevice : public OnDevice {
 protected:
  std::string Run(const std::string& name) const {
    const std::string path = dir_.path() + "/" + name;
    std::filesystem::create_directory(path);
    return path;
  }
  std::string Digest(const std::string& run_dir, const std::string& name) {
    TrainJob job;
    job.options.run_dir = run_dir;
    return job.DigestOf(name);
  }

 private:
  TempDir dir_;
};

TEST_F(ResumeOnDevice, StateAndDigestsAreTheSameThereAndBack) {
  const auto cpu = kernels::NewCpuDevice();
  const std::string first = Run("first");
  const std::string second = Run("second");
  const std::string third = Run("third");
  std::string saved_first, saved_second, saved_third;
  RegionBytes on_device, on_cpu, back;
  const absl::Status status = trainer::RunInprocRanks(
      1, [&](trainer::Collectives& world) -> absl::Status {
        {  // Two steps on the device, saved.
          HF_ASSIGN_OR_RETURN(const auto model,
                              Model::Open(world, device(), first));
          HF_RETURN_IF_ERROR(model->checkpointer().ClaimAndLoad({}).status());
          HF_RETURN_IF_ERROR(model->runner().Initialise(1));
          for (int64_t step : {1, 2}) HF_RETURN_IF_ERROR(model->Step(step));
          HF_ASSIGN_OR_RETURN(saved_first, model->Save(2));
          on_device = model->State();
          HF_RETURN_IF_ERROR(model->checkpointer().Close());
        }
        {  // Taken by the processor and saved again, as it is.
          HF_ASSIGN_OR_RETURN(const auto model,
                              Model::Open(world, *cpu, second));
          ckpt::LoadRequest request;
          request.init_from = first + "@2";
          HF_RETURN_IF_ERROR(
              model->checkpointer().ClaimAndLoad(request).status());
          HF_RETURN_IF_ERROR(model->runner().RefreshWeights());
          on_cpu = model->State();
          HF_ASSIGN_OR_RETURN(saved_second, model->Save(2));
          HF_RETURN_IF_ERROR(model->checkpointer().Close());
        }
        // And by the device, which goes on.
        HF_ASSIGN_OR_RETURN(const auto model,
                            Model::Open(world, device(), third));
        ckpt::LoadRequest request;
        request.init_from = second + "@2";
        HF_RETURN_IF_ERROR(
            model->checkpointer().ClaimAndLoad(request).status());
        HF_RETURN_IF_ERROR(model->runner().RefreshWeights());
        back = model->State();
        HF_ASSIGN_OR_RETURN(saved_third, model->Save(2));
        HF_RETURN_IF_ERROR(model->Step(3));
        return model->checkpointer().Close();
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(on_cpu, on_device);
  EXPECT_EQ(back, on_device);
  const std::string digest = Digest(first, saved_first);
  EXPECT_FALSE(digest.empty());
  EXPECT_EQ(Digest(second, saved_second), digest);
  EXPECT_EQ(Digest(third, saved_third), digest);
}

}  // namespace
}  // namespace holdfast::tests
