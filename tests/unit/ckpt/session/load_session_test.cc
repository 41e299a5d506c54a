// One rank loads a small checkpoint: straight into place or by way of buffers,
// the bytes are the same.

#include "ckpt/session/load_session.h"

#include "ckpt/session/io.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_fixture.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::JobMemory;
using tests::SimStorage;

class LoadSessionTest : public StartTest {
 protected:
  static UnitReaderOptions Placed() {
    UnitReaderOptions options;
    options.placed_in_flight = 3;
    options.placed_bytes_min = kStorageAlignment;
    return options;
  }
  static UnitReaderOptions Buffered() {
    UnitReaderOptions options;
    options.placed_in_flight = 0;
    return options;
  }
  // Loads what `rank` of `layout` wants of step 300.
  LoadOutcome Load(const JobLayout& layout, Rank rank,
                   const UnitReaderOptions& options) {
    SimStorage storage(disk_, {.process = 70});
    tests::SimClock clock;
    SessionEnv env;
    env.storage = &storage;
    env.clock = &clock;
    env.space = 5;
    env.ops_max = 8;
    const Holding wanted = layout.WantedBy(rank);
    JobMemory memory(wanted);
    const LoadTarget target(memory.spans());
    LoadSession session(env, AttemptDir(k300), &manifest_300_, &layout.items(),
                        &wanted, &target, options);
    RunAlone(&storage, &clock, &session);
    if (session.outcome().status.ok()) {
      EXPECT_EQ(memory.Differs(layout, wanted, k300.step), "");
    }
    return session.outcome();
  }
};

TEST_F(LoadSessionTest, OnTheLayoutOfTheSaveUnitsAreReadStraightIntoPlace) {
  const LoadOutcome placed = Load(*saved_layout_, Rank{0}, Placed());
  ASSERT_TRUE(placed.status.ok()) << placed.status;
  EXPECT_GT(placed.bytes_placed, placed.bytes_wanted / 4);
  EXPECT_LT(placed.bytes_placed, placed.bytes_read);

  const LoadOutcome buffered = Load(*saved_layout_, Rank{0}, Buffered());
  ASSERT_TRUE(buffered.status.ok()) << buffered.status;
  EXPECT_EQ(buffered.bytes_placed, 0);
  EXPECT_EQ(buffered.bytes_read, placed.bytes_read) << "no byte twice";
}

TEST_F(LoadSessionTest, OnAnotherLayoutTheSameBytesArrive) {
  for (const int tp : {1, 4}) {
    const auto layout = tests::SmallLayout(tp, 1, 1);
    for (int rank = 0; rank < tp; ++rank) {
      const LoadOutcome outcome = Load(*layout, Rank{rank}, Placed());
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    }
  }
}

TEST_F(LoadSessionTest, DamageInAUnitThatWasReadIntoPlaceIsFound) {
  const uint64_t bytes = manifest_300_.files[0].bytes;
  const uint64_t data_end = bytes - kShardBlockBytes -
                            ShardIndexBytes(manifest_300_.files[0].unit_count);
  for (uint64_t at = kShardBlockBytes; at < data_end; at += kShardBlockBytes) {
    disk_.FlipBit(Shard(k300, 0), at + 77, 1);
    const LoadOutcome outcome = Load(*saved_layout_, Rank{0}, Placed());
    EXPECT_TRUE(absl::IsDataLoss(outcome.status)) << at;
    ASSERT_TRUE(outcome.damage.has_value()) << at;
    EXPECT_LE(outcome.damage->offset, at);
    EXPECT_GT(outcome.damage->offset + outcome.damage->bytes, at);
    EXPECT_THAT(outcome.damage->what, HasSubstr("crc32c"));
    disk_.FlipBit(Shard(k300, 0), at + 77, 1);
  }
}

}  // namespace
}  // namespace holdfast::ckpt
