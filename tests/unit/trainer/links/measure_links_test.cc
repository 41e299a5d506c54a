// The measurement itself, on ranks that are threads.

#include "trainer/links/measure_links.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "ckpt/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fake_device.h"
#include "tests/support/sim_clock.h"
#include "trainer/parallel/device_mesh.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

LinkTestOptions Small() {
  LinkTestOptions options;
  options.message_bytes = 4096;
  options.sum_bytes = 4096;
  options.repeats = 3;
  options.latency_repeats = 3;
  return options;
}

// What every rank of a job of `mesh` gets.
std::vector<LinkMeasurements> Measure(const ckpt::Mesh& mesh,
                                      const LinkTestOptions& options) {
  std::vector<LinkMeasurements> all(static_cast<size_t>(mesh.world()));
  const absl::Status status =
      RunInprocRanks(mesh.world(), [&](Collectives& world) -> absl::Status {
        HF_ASSIGN_OR_RETURN(MeshCollectives split, SplitMesh(world, mesh));
        HF_ASSIGN_OR_RETURN(all[static_cast<size_t>(world.rank())],
                            MeasureLinks(split, options));
        return absl::OkStatus();
      });
  EXPECT_TRUE(status.ok()) << status;
  return all;
}

TEST(MeasureLinksTest, EveryLinkThatTrainingUsesIsMeasuredOnceAndAllRanksKnow) {
  const ckpt::Mesh mesh{.tp = 2, .pp = 3, .dp = 2};
  const std::vector<LinkMeasurements> all = Measure(mesh, Small());
  using Key = std::pair<LinkAxis, std::pair<int, int>>;
  std::set<Key> expected;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const ckpt::Coordinates at = ckpt::CoordinatesOf(mesh, ckpt::Rank{rank});
    const auto add = [&](LinkAxis axis, ckpt::Coordinates to) {
      expected.insert({axis, {rank, ckpt::Index(ckpt::RankAt(mesh, to))}});
    };
    ckpt::Coordinates to = at;
    if (++to.tp < mesh.tp) add(LinkAxis::kTp, to);
    to = at;
    if (++to.pp < mesh.pp) add(LinkAxis::kPp, to);
    to = at;
    if (++to.dp < mesh.dp) add(LinkAxis::kDp, to);
  }
  for (const LinkMeasurements& measured : all) {
    std::set<Key> found;
    for (const PairRecord& pair : measured.pairs) {
      EXPECT_TRUE(found.insert({pair.axis, {pair.a, pair.b}}).second);
      EXPECT_GT(pair.bytes_per_s, 0);
      EXPECT_GT(pair.latency_us, 0);
    }
    EXPECT_EQ(found, expected);
    // Six TP groups and six DP groups; a pipeline sums nothing.
    EXPECT_THAT(measured.groups, SizeIs(12));
  }
  const GroupRecord& last = all[0].groups.back();
  EXPECT_EQ(last.members, 2);
  EXPECT_THAT(RanksOfGroup(mesh, {LinkAxis::kPp, 1, 3, 0, 0}),
              ElementsAre(1, 5, 9));
}

// Messages take ten microseconds of the rank's own clock, and large ones
// between ranks 1 and 3 of a DP group twenty milliseconds.
class SlowedOps final : public LinkOps {
 public:
  SlowedOps(Collectives& group, int64_t bytes_max, tests::SimClock& clock)
      : rank_(group.rank()),
        inner_(NewHostLinkOps(group, bytes_max)),
        clock_(clock) {}

  absl::Status Send(int64_t bytes, int to) override {
    Pass(bytes, to);
    return inner_->Send(bytes, to);
  }
  absl::Status Receive(int64_t bytes, int from) override {
    Pass(bytes, from);
    return inner_->Receive(bytes, from);
  }
  absl::Status AllReduce(int64_t bytes) override {
    Pass(bytes, rank_);
    return inner_->AllReduce(bytes);
  }

 private:
  void Pass(int64_t bytes, int peer) {
    const bool slow =
        std::min(rank_, peer) == 1 && std::max(rank_, peer) == 3 && bytes > 8;
    clock_.Sleep(slow ? absl::Milliseconds(20) : absl::Microseconds(10));
  }

  const int rank_;
  const std::unique_ptr<LinkOps> inner_;
  tests::SimClock& clock_;
};

TEST(MeasureLinksTest, ASlowCableIsFoundAndNamed) {
  const ckpt::Mesh mesh{.dp = 5};
  LinkMeasurements measured;
  const absl::Status status =
      RunInprocRanks(mesh.world(), [&](Collectives& world) -> absl::Status {
        HF_ASSIGN_OR_RETURN(MeshCollectives split, SplitMesh(world, mesh));
        tests::SimClock clock;
        LinkTestOptions options = Small();
        options.clock = &clock;
        options.open_ops =
            [&](Collectives& group, LinkAxis,
                int64_t bytes_max) -> absl::StatusOr<std::unique_ptr<LinkOps>> {
          return std::make_unique<SlowedOps>(group, bytes_max, clock);
        };
        HF_ASSIGN_OR_RETURN(const LinkMeasurements mine,
                            MeasureLinks(split, options));
        if (world.rank() == 0) measured = mine;
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  LinkExpectations expected;
  // 4,096 bytes in a millisecond.
  expected.inside.bytes_per_s = 4.096e6;
  const LinkReport report = JudgeLinks(
      measured.pairs, measured.groups, expected,
      [](int) { return std::string("here"); },
      [&](const GroupRecord& group) { return RanksOfGroup(mesh, group); });
  ASSERT_THAT(report.slow, SizeIs(1));
  EXPECT_EQ(report.slow[0].pair.a, 1);
  EXPECT_EQ(report.slow[0].pair.b, 3);
  EXPECT_NEAR(report.slow[0].pair.bytes_per_s, 4096 / 0.02, 1);
  EXPECT_FALSE(report.meets_expectations());
}

TEST(MeasureLinksTest, LinksOfDeviceMemoryAreMeasuredInTheSameWay) {
  const ckpt::Mesh mesh{.tp = 2, .dp = 2};
  kernels::FakeDeviceOptions fake;
  fake.device_bytes = size_t{64} << 20;
  const auto device = kernels::NewFakeDevice(fake);
  ASSERT_TRUE(device.ok()) << device.status();
  LinkMeasurements measured;
  const absl::Status status =
      RunInprocRanks(mesh.world(), [&](Collectives& world) -> absl::Status {
        HF_ASSIGN_OR_RETURN(MeshCollectives split, SplitMesh(world, mesh));
        HF_ASSIGN_OR_RETURN(const DeviceMesh over,
                            SharedMesh(split, **device, size_t{1} << 20));
        LinkTestOptions options = Small();
        options.open_ops = [&](Collectives&, LinkAxis axis, int64_t bytes_max) {
          return NewDeviceLinkOps(axis == LinkAxis::kTp ? *over.tp : *over.dp,
                                  **device, bytes_max);
        };
        HF_ASSIGN_OR_RETURN(const LinkMeasurements mine,
                            MeasureLinks(split, options));
        if (world.rank() == 0) measured = mine;
        return absl::OkStatus();
      });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(measured.pairs, SizeIs(4));
  EXPECT_THAT(measured.groups, SizeIs(4));
}

TEST(MeasureLinksTest, AnEndThatGivesUpEndsTheTestForAll) {
  LinkTestOptions options = Small();
  const absl::Status status =
      RunInprocRanks(3, [&](Collectives& world) -> absl::Status {
        HF_ASSIGN_OR_RETURN(MeshCollectives split, SplitMesh(world, {.dp = 3}));
        if (world.rank() == 1) return absl::UnavailableError("cable cut");
        return MeasureLinks(split, options).status();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST(MeasureLinksTest, ProgressCountsRoundsToTheEnd) {
  LinkTestOptions options = Small();
  std::vector<std::pair<int64_t, int64_t>> seen;
  options.progress = [&](int64_t done, int64_t of) {
    seen.emplace_back(done, of);
  };
  Measure({.tp = 2, .dp = 3}, options);
  // A sum each for tp and dp, one round of pairs for tp and three for dp.
  ASSERT_THAT(seen, SizeIs(6));
  EXPECT_EQ(seen.back(), (std::pair<int64_t, int64_t>{6, 6}));
}

}  // namespace
}  // namespace holdfast::trainer
