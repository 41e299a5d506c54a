// A job loads a checkpoint of another layout: each stored byte is read about
// once by all ranks together, and whatever happens to a reader, a piece or a
// unit, all ranks end alike.

#include "ckpt/session/exchange.h"

#include <functional>
#include <map>

#include "ckpt/session/messages.h"
#include "ckpt/session/owner_session.h"
#include "ckpt/storage/blocking.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/saved_run.h"
#include "tests/support/start_world.h"

namespace holdfast::ckpt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::SimFault;
using tests::SimOp;
using tests::StartWorld;

constexpr CheckpointId kOld{10, 1, 1};
constexpr CheckpointId kNew{20, 1, 2};

// A decoder of 4 layers, 4 MB of state, two thirds of it cut by columns.
std::unique_ptr<TrainLayout> Layout(int tp, int pp, int dp) {
  constexpr int64_t kHidden = 64, kFfn = 512;
  std::vector<TensorSpec> tensors;
  for (int layer = 0; layer < 4; ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape,
                         int tp_dimension) {
      tensors.push_back({.name = absl::StrFormat("layers.%d.%s", layer, name),
                         .shape = std::move(shape),
                         .tp_dimension = tp_dimension,
                         .layer = layer});
    };
    add("norm", {kHidden}, -1);
    add("up_proj", {kFfn, kHidden}, 0);
    add("down_proj", {kHidden, kFfn}, 1);
    add("o_proj", {kHidden, kFfn}, 1);
  }
  TrainLayoutOptions options;
  options.mesh = {.tp = tp, .pp = pp, .dp = dp};
  options.stages = *EvenStages(4, pp, 0, 0);
  auto layout = TrainLayout::Create(std::move(tensors), options);
  HF_CHECK(layout.ok(), "%s", layout.status().ToString());
  return *std::move(layout);
}

void Check(const absl::Status& status) {
  HF_CHECK(status.ok(), "%s", status.ToString());
}

// A run with two checkpoints of `layout`.
class SavedRun {
 public:
  explicit SavedRun(const JobLayout& layout) : disk_(Journaled()) {
    tests::SimStorage storage(disk_, {.process = 90});
    Check(tests::MakeRun(storage));
    Check(tests::Claim(storage, 1));
    OwnerSeal seal;
    seal.incarnation = 1;
    Check(tests::Seal(storage, seal));
    tests::CheckpointSpec spec;
    spec.run_id = tests::kTestRun;
    for (const CheckpointId& id : {kOld, kNew}) {
      if (id != kOld) spec.parent = spec.id;
      spec.id = id;
      spec.commit_number = id.attempt;
      spec.seed = id.step;
      auto manifest = tests::WriteShards(storage, layout, spec, AttemptDir(id));
      Check(manifest.status());
      Check(tests::WriteManifest(storage, AttemptDir(id), *manifest));
      manifest_ = *std::move(manifest);
    }
  }

  tests::SimDisk& disk() { return disk_; }
  // Of the new checkpoint.
  const Manifest& manifest() const { return manifest_; }
  std::string Shard(int file) const {
    return AttemptDir(kNew) + "/" + manifest_.files[file].name;
  }

 private:
  static tests::SimDiskOptions Journaled() {
    tests::SimDiskOptions options;
    options.journaled_names = true;
    return options;
  }
  tests::SimDisk disk_;
  Manifest manifest_;
};

// Small windows, pieces and bounds, so that there are many of each.
StartWorld::Options Sharing(uint64_t seed = 1) {
  StartWorld::Options options;
  options.seed = seed;
  options.owner.exchange.plan.window_bytes = 65536;
  options.owner.exchange.piece_bytes = 16384;
  options.owner.exchange.bytes_max = 65536;
  return options;
}

double Ratio(const StartWorld& world) {
  const OwnerResult& lead = world.result(0);
  uint64_t read = 0;
  uint64_t received = 0;
  for (int r = 0; r < world.world(); ++r) {
    read += world.result(r).bytes_read;
    received += world.result(r).bytes_received;
  }
  EXPECT_EQ(read, lead.job_bytes_read);
  EXPECT_EQ(received, lead.job_bytes_received);
  return 1.0 * read / lead.bytes_stored;
}

TEST(ExchangeTest, EachStoredByteIsReadAboutOnceByTheWholeJob) {
  struct Change {
    std::array<int, 3> from;
    std::array<int, 3> to;
  };
  for (const auto& [from, to] : std::vector<Change>{{{1, 1, 1}, {2, 1, 1}},
                                                    {{2, 1, 1}, {4, 1, 1}},
                                                    {{4, 1, 1}, {8, 1, 1}},
                                                    {{8, 1, 1}, {4, 1, 1}},
                                                    {{8, 1, 1}, {1, 1, 1}},
                                                    {{2, 2, 1}, {2, 1, 1}},
                                                    {{2, 1, 1}, {2, 4, 1}},
                                                    {{1, 1, 3}, {1, 1, 2}},
                                                    {{2, 1, 2}, {4, 2, 1}},
                                                    {{2, 2, 2}, {2, 2, 2}}}) {
    const auto saved_layout = Layout(from[0], from[1], from[2]);
    const auto layout = Layout(to[0], to[1], to[2]);
    SCOPED_TRACE(saved_layout->description() + " to " + layout->description());
    SavedRun run(*saved_layout);
    uint64_t stored = 0;
    for (const ShardFile& file : run.manifest().files) stored += file.bytes;
    StartWorld world(run.disk(), *layout, Sharing());
    world.Run();
    ASSERT_EQ(world.LoadedBy(20), "");
    EXPECT_EQ(world.result(0).bytes_stored, stored);
    EXPECT_LE(Ratio(world), 1.1);
    if (to[0] > from[0]) {
      EXPECT_GT(world.result(0).job_bytes_received, stored / 10);
    }
  }
}

TEST(ExchangeTest, WithoutSharingColumnsAreReadByAllWhoWantAPart) {
  SavedRun run(*Layout(1, 1, 1));
  const auto layout = Layout(4, 1, 1);
  StartWorld::Options options = Sharing();
  options.owner.share = false;
  StartWorld world(run.disk(), *layout, options);
  world.Run();
  ASSERT_EQ(world.LoadedBy(20), "");
  EXPECT_GT(Ratio(world), 2);
  EXPECT_EQ(world.result(0).job_bytes_received, 0);
}

}  // namespace
}  // namespace holdfast::ckpt
