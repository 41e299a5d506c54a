// trainer/startup.h: everything between the command line and the first step.
//
//   configuration -> mesh -> data -> layout -> memory -> checkpoint -> state
//
// Each phase ends in an agreement of all ranks: when one fails, all stop before
// the next, and the rank that failed says why. Nothing is written to the run
// directory before the configuration, the data and the memory are known to fit.

#ifndef HOLDFAST_TRAINER_STARTUP_H_
#define HOLDFAST_TRAINER_STARTUP_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/checkpointer.h"
#include "ckpt/layout/train_layout.h"
#include "trainer/batch_source.h"
#include "trainer/config.h"
#include "trainer/data/data_source.h"
#include "trainer/device_copier.h"
#include "trainer/parallel/mesh_collectives.h"
#include "trainer/resume_state.h"
#include "trainer/run_device.h"
#include "trainer/run_records.h"
#include "trainer/step.h"
#include "trainer/trainer.h"

namespace holdfast::trainer {

// What loading took, over all ranks.
struct LoadFigures {
  int64_t bytes_total = 0;
  double seconds = 0;               // of the rank that took longest
  double raw_read_bytes_per_s = 0;  // rank 0 only; 0: unknown

  // 0: unknown. With several hosts it can exceed 1.
  double raw_share() const {
    return seconds > 0 && raw_read_bytes_per_s > 0
               ? static_cast<double>(bytes_total) / seconds /
                     raw_read_bytes_per_s
               : 0;
  }
};

// A run that is ready for its first step. Members are destroyed last to first.
struct TrainRun {
  TrainRun() = default;
  ~TrainRun();
  TrainRun(const TrainRun&) = delete;
  TrainRun& operator=(const TrainRun&) = delete;

  TrainOptions options;
  // A signal came before the run was taken: nothing below is to be used.
  bool asked_to_leave = false;
  Config config;
  ckpt::Mesh mesh;
  MeshCollectives collectives;
  std::shared_ptr<ckpt::TrainLayout> layout;
  RunDevice device;
  std::unique_ptr<DeviceMesh> device_mesh;
  std::unique_ptr<DataSource> data;
  std::unique_ptr<BatchSource> train_data, eval_data;
  std::unique_ptr<StepRunner> runner;
  std::unique_ptr<DeviceCopier> copier;  // where the state is in a device
  std::unique_ptr<ckpt::Checkpointer> checkpointer;
  std::unique_ptr<RunRecords> records;  // rank 0 only
  ckpt::LoadReport load;
  LoadFigures loading;
  ResumeState state;
  double matmul_flops = 0;        // of all ranks together
  int64_t memory_base_bytes = 0;  // resident before the state was allocated
  int64_t memory_planned_bytes =
      0;  // of this rank: the plan, and the checkpoint arena
};

// Collective. The error is this rank's own where it failed, else says on which
// phase another rank did. Its code is the same on all ranks.
absl::StatusOr<std::unique_ptr<TrainRun>> StartRun(const TrainOptions& options,
                                                   TrainEnv& env);

// OK when `mine` is OK on every rank; else `mine`, or the code of a rank that
// failed. Collective; `phase` names what was done.
absl::Status Agree(Collectives& world, const absl::Status& mine,
                   const std::string& phase);

// A rank's bytes that the optimizer may be about to change, as the checkpoint's
// fence names them.
class FenceGate final : public UpdateGate {
 public:
  // Owned blocks start at block `owned_first` of the weight region, whose
  // elements have `weight_bytes`.
  FenceGate(ckpt::Checkpointer& checkpointer, int64_t owned_first,
            int weight_bytes)
      : checkpointer_(checkpointer),
        owned_first_(owned_first),
        weight_bytes_(weight_bytes) {}

  void BeforeUpdate(int64_t first, int64_t count) override;

 private:
  ckpt::Checkpointer& checkpointer_;
  const int64_t owned_first_;
  const int weight_bytes_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_STARTUP_H_
