// What communicators take, in figures and as allocated.

#include "trainer/parallel/communication_memory.h"

#include <atomic>

#include "ckpt/base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/fake_device.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

CommunicationMemory Of(const ckpt::Mesh& mesh, int rank,
                       int ranks_per_host = kGpusPerHost) {
  return PlanNcclMemory(mesh, ckpt::Rank{rank}, ranks_per_host);
}

TEST(CommunicationMemoryTest, ALoneRankTakesNothing) {
  EXPECT_EQ(Of({}, 0).device(), 0);
}

TEST(CommunicationMemoryTest, EightThatAllSendToAllTakeWhatWasMeasured) {
  // 3.28 GB on 8 H100 with 32 channels (NVIDIA/nccl issue 1685).
  const CommunicationMemory tp = Of({.tp = 8}, 5);
  EXPECT_NEAR(static_cast<double>(tp.library) / 1e9, 3.29, 0.05);
  EXPECT_EQ(tp.scratch, 64 * kMiB);
}

TEST(CommunicationMemoryTest, PeersElsewhereShareAPoolWhateverTheirNumber) {
  const CommunicationMemory few = Of({.dp = 16}, 0, /*ranks_per_host=*/1);
  const CommunicationMemory many = Of({.dp = 80}, 0, /*ranks_per_host=*/1);
  EXPECT_EQ(few.library, many.library);
  // A pool of 128 MiB, rings of 588 MiB, and 16 for the communicator.
  EXPECT_EQ(many.library / kMiB, 732);
  EXPECT_EQ(many.scratch, kMiB);
  EXPECT_GT(Of({.dp = 80}, 0, 8).library, many.library);
}

TEST(CommunicationMemoryTest, LanesAreOfTheNeighbours) {
  // No tied table passes through a stage in the middle, and lanes are small:
  // 16 MiB each and a pool of 16.
  EXPECT_EQ(Of({.pp = 8}, 3, 1).library, (16 + 4 * (16 + 16)) * kMiB);
  EXPECT_EQ(Of({.pp = 8}, 0, 1).library, (16 + 128 + 2 * (16 + 16)) * kMiB);
}

TEST(CommunicationMemoryTest, ScratchIsWhatAMeshAllocates) {
  const ckpt::Mesh shape{.tp = 2, .dp = 2};
  kernels::FakeDeviceOptions options;
  options.device_bytes = size_t{300} << 20;
  const auto device = kernels::NewFakeDevice(options);
  ASSERT_TRUE(device.ok()) << device.status();
  std::atomic<int64_t> planned = 0;
  int64_t taken = 0;
  const absl::Status status =
      RunInprocRanks(4, [&](Collectives& world) -> absl::Status {
        HF_ASSIGN_OR_RETURN(const MeshCollectives mesh,
                            SplitMesh(world, shape));
        HF_ASSIGN_OR_RETURN(const DeviceMesh made, SharedMesh(mesh, **device));
        planned += Of(shape, world.rank()).scratch;
        HF_RETURN_IF_ERROR(world.Barrier());
        if (world.rank() == 0) {
          taken = static_cast<int64_t>((*device)->device_bytes_used());
        }
        return world.Barrier();
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(taken, planned);
  EXPECT_EQ(taken, 4 * 65 * kMiB);
}

}  // namespace
}  // namespace holdfast::trainer
