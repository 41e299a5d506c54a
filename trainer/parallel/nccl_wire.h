// trainer/parallel/nccl_wire.h: what the GPU plug-in offers for communication:
// messages over NCCL, as the rest of the program sees them. nccl_wire.cc is
// part of the plug-in; trainer/parallel/gpu_mesh.h opens all that a rank needs.
//
// A wire has one NCCL communicator for its group and, where it is given lanes,
// one of two ranks for each lane, each with a stream of its own of high
// priority: a message in one lane never waits for another. NCCL adds nothing
// up: sums are made by our kernels, in our order.
//
// No call blocks in NCCL. Communicators are non-blocking; every wait is a loop
// that asks for errors, has a deadline, and gives the name of what is waited
// for to WaitNames. The job listens to the step thread's waits for the device
// too, whoever begins them, and asks there. The first error, or message that is
// abandoned, aborts every communicator of the job, so that nothing on the GPU
// waits for ever, and all later calls return it. Order of an end that is not a
// good one: abort, which ends the kernels that wait for others; the streams;
// the memory.
//
// Thread: the step thread, which also makes the job. Aborting runs on a thread
// of its own, which is left behind if NCCL does not return; the device has
// failed then, and what NCCL may still use is left to the end of the process
// (kernels/cuda_device.h).

#ifndef HOLDFAST_TRAINER_PARALLEL_NCCL_WIRE_H_
#define HOLDFAST_TRAINER_PARALLEL_NCCL_WIRE_H_

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "trainer/parallel/device_wire.h"

namespace holdfast::trainer {

// What the ranks of a new communicator must share; made by one of them.
using NcclId = std::array<std::byte, 128>;

// Learns what the step thread waits for.
class WaitNames {
 public:
  virtual ~WaitNames() = default;
  virtual void Begin(std::string_view operation) = 0;
  virtual void End() = 0;
};

class NcclWire : public DeviceWire {
 public:
  // NCCL's own sum, in NCCL's order, for comparison: no run uses it. Rank r
  // gets elements [r * out.size(), (r + 1) * out.size()) of the sum over ranks.
  virtual absl::Status LibraryReduceScatter(std::span<const float> in,
                                            std::span<float> out,
                                            kernels::Stream& stream) = 0;
};

class NcclJob {
 public:
  // Messages of one tag between this rank and one other.
  struct Lane {
    int peer = 0;  // In the wire's group.
    int tag = 0;
    NcclId id = {};
  };
  struct WireOptions {
    std::string name;  // "tp"
    int rank = 0;
    int size = 1;
    NcclId id = {};
    // In an order in which the ranks of a group do not wait in a circle.
    std::vector<Lane> lanes = {};
  };

  virtual ~NcclJob() = default;

  // For a rank that ends because of `why`: aborts all communicators, so that
  // nothing on the GPU waits for others any more. At most ten seconds.
  virtual void GiveUp(const absl::Status& why) = 0;

  // Collective over the group, and over both ranks of a lane. The job outlives
  // the wire. kDeadlineExceeded: somebody did not come.
  virtual absl::StatusOr<std::unique_ptr<NcclWire>> OpenWire(
      const WireOptions& options) = 0;
};

struct NcclJobOptions {
  std::string where;         // "rank 3 on n017", for errors.
  int timeout_ms = 600'000;  // Of setting up, and of NCCL's taking of a call.
  kernels::Device* device = nullptr;  // The plug-in's; outlives the job.
  WaitNames* names = nullptr;         // May be null; outlives the job.
};

// What the second entry point of the plug-in returns; `build` as in
// kernels/device_plugin.h.
struct CollectivesPluginEntry {
  const char* build = nullptr;
  absl::StatusOr<std::string> (*version)() = nullptr;  // "NCCL 2.28.9"
  absl::StatusOr<NcclId> (*make_id)() = nullptr;
  absl::StatusOr<std::unique_ptr<NcclJob>> (*open_job)(
      const NcclJobOptions& options) = nullptr;
};

inline constexpr char kCollectivesPluginSymbol[] =
    "holdfast_collectives_plugin";
using CollectivesPluginFunction = const CollectivesPluginEntry*();

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_NCCL_WIRE_H_
