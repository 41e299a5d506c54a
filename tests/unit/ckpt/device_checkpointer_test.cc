// A job whose state is in devices: memory that the checkpoint layer reaches by
// copies alone, which run late. What is saved and loaded is what the host's
// memory would have had, on any layout, and a device that fails costs the save
// or the start, by name.

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/checkpointer.h"
#include "ckpt/group/inproc_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/column_layout.h"
#include "tests/support/late_copier.h"
#include "tests/support/party.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using tests::ColumnLayout;
using tests::Finish;
using tests::LateCopier;
using tests::TempDir;

struct Cut {
  int tp = 1;
  int pp = 1;
  int dp = 1;
};

// One rank: regions, and the device's copier when they are a device's.
struct Member {
  Rank rank{};
  std::shared_ptr<const JobLayout> layout;
  std::vector<AlignedBuffer> memory;
  std::vector<std::span<std::byte>> regions;
  std::unique_ptr<LateCopier> copier;
  absl::StatusOr<std::unique_ptr<Checkpointer>> opened;

  Checkpointer& checkpointer() { return **opened; }

  // What this rank stores, random, a function of `seed`.
  void Fill(uint64_t seed) {
    std::mt19937_64 random(seed * 1000 + static_cast<uint64_t>(Index(rank)));
    for (const Fragment& fragment : layout->StoredBy(rank).fragments) {
      const uint64_t bytes = static_cast<uint64_t>(fragment.count) *
                             SizeOf(layout->items()[fragment.item].dtype);
      for (uint64_t i = 0; i < bytes; i += 4) {
        const auto value = static_cast<uint32_t>(random());
        std::memcpy(regions[fragment.region].data() + fragment.offset + i,
                    &value, 4);
      }
    }
  }
  // An optimizer's walk over all regions side by side, by the device.
  void StoreAll(int value) {
    constexpr uint64_t kParts = 16;
    for (uint64_t part = 0; part < kParts; ++part) {
      for (uint32_t region = 0; region < regions.size(); ++region) {
        const uint64_t from = regions[region].size() * part / kParts;
        const uint64_t to = regions[region].size() * (part + 1) / kParts;
        if (from == to) continue;
        checkpointer().FenceWrite(region, from, to - from);
        copier->Store(region, from, to - from, value);
      }
    }
  }
};

class DeviceCheckpointerTest : public testing::Test {
 protected:
  CheckpointerOptions Options() const {
    CheckpointerOptions options;
    options.run_dir = dir_.path();
    options.recheck_after_write = true;
    options.fence_ms = 20'000;
    return options;
  }

  // Runs `body` on every rank, a thread each; returns them with their memory.
  std::vector<Member> Run(const Cut& cut, bool on_device,
                          const CheckpointerOptions& options,
                          const std::function<void(Member&)>& body) {
    const std::shared_ptr<const JobLayout> layout =
        ColumnLayout(cut.tp, cut.pp, cut.dp);
    auto groups = MakeInprocGroups(layout->world());
    std::vector<Member> members(layout->world());
    std::vector<std::thread> threads;
    for (int i = 0; i < layout->world(); ++i) {
      threads.emplace_back([&, i] {
        Member& me = members[i];
        me.rank = Rank{i};
        me.layout = layout;
        for (const uint64_t bytes : layout->StoredBy(me.rank).region_bytes) {
          me.memory.emplace_back(bytes);
          me.regions.push_back(me.memory.back().span());
        }
        if (on_device) {
          me.copier = std::make_unique<LateCopier>(me.regions);
          me.copier->RunByItself();
        }
        me.opened =
            Checkpointer::Open(options, std::move(groups[i]), layout,
                               me.regions, RealClock(), me.copier.get());
        ASSERT_TRUE(me.opened.ok()) << me.opened.status();
        body(me);
        me.opened = absl::UnknownError("closed");
      });
    }
    for (std::thread& thread : threads) thread.join();
    return members;
  }

  // The run's newest checkpoint.
  std::vector<Member> Load(const Cut& cut, bool on_device,
                           const CheckpointerOptions& options) {
    return Run(cut, on_device, options, [](Member& me) {
      const auto report = me.checkpointer().ClaimAndLoad({});
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_TRUE(report->loaded);
      EXPECT_TRUE(me.checkpointer().Close().ok());
    });
  }

  void Save(const Cut& cut, bool on_device, const CheckpointerOptions& options,
            uint64_t seed) {
    Run(cut, on_device, options, [&](Member& me) {
      ASSERT_TRUE(me.checkpointer().ClaimAndLoad({}).ok());
      me.Fill(seed);
      ASSERT_TRUE(
          me.checkpointer().BeginSave({static_cast<int64_t>(seed), {}}).ok());
      if (on_device) me.StoreAll(0x77);
      const SaveReport report = Finish(me.checkpointer());
      EXPECT_TRUE(report.status.ok()) << report.status;
      EXPECT_EQ(report.bytes_copied > 0, on_device);
      EXPECT_TRUE(me.checkpointer().Close().ok());
    });
  }

  static std::string Difference(const std::vector<Member>& a,
                                const std::vector<Member>& b) {
    for (size_t rank = 0; rank < a.size(); ++rank) {
      for (size_t region = 0; region < a[rank].regions.size(); ++region) {
        const auto& x = a[rank].regions[region];
        const auto& y = b[rank].regions[region];
        const auto at = std::mismatch(x.begin(), x.end(), y.begin());
        if (at.first != x.end()) {
          return absl::StrFormat("rank %d, region %d, byte %d", rank, region,
                                 at.first - x.begin());
        }
      }
    }
    return "";
  }

  TempDir dir_;
};

TEST_F(DeviceCheckpointerTest, ADeviceLoadsWhatTheHostLoadsOnAnyLayout) {
  for (const char* codec : {"none", "zstd"}) {
    CheckpointerOptions options = Options();
    options.codec = codec;
    Save({.tp = 2, .dp = 2}, /*on_device=*/false, options,
         codec[0] == 'n' ? 1 : 2);
    for (const Cut& cut : {Cut{.tp = 2, .dp = 2}, Cut{}, Cut{.tp = 4},
                           Cut{.tp = 1, .pp = 2, .dp = 2}}) {
      const auto host = Load(cut, false, options);
      const auto device = Load(cut, true, options);
      EXPECT_EQ(Difference(host, device), "")
          << codec << " " << cut.tp << cut.pp << cut.dp;
    }
  }
}

// Whole shard, rings of many and of one slot; files of each rank and shared.
TEST_F(DeviceCheckpointerTest, WhatADeviceSavesBesideStoresTheHostLoads) {
  uint64_t seed = 0;
  for (const uint64_t arena : {uint64_t{0}, uint64_t{1}, uint64_t{2} << 20}) {
    for (const char* codec : {"none", "zstd"}) {
      CheckpointerOptions options = Options();
      options.arena_bytes = arena;
      options.codec = codec;
      const Cut cut{.tp = 2};
      Save(cut, true, options, ++seed);
      const auto loaded = Load(cut, false, options);
      for (const Member& member : loaded) {
        Member expected = {.rank = member.rank,
                           .layout = member.layout,
                           .memory = {},
                           .regions = {},
                           .copier = nullptr,
                           .opened = absl::UnknownError("none")};
        for (const auto& region : member.regions) {
          expected.memory.emplace_back(region.size());
          expected.regions.push_back(expected.memory.back().span());
        }
        expected.Fill(seed);
        // What other ranks store of it is theirs.
        for (const Fragment& fragment :
             member.layout->StoredBy(member.rank).fragments) {
          const uint64_t bytes =
              static_cast<uint64_t>(fragment.count) *
              SizeOf(member.layout->items()[fragment.item].dtype);
          ASSERT_EQ(
              std::memcmp(
                  member.regions[fragment.region].data() + fragment.offset,
                  expected.regions[fragment.region].data() + fragment.offset,
                  bytes),
              0)
              << "arena " << arena << ", " << codec << ", rank "
              << Index(member.rank) << ", "
              << member.layout->items()[fragment.item].name;
        }
      }
    }
  }
}

TEST_F(DeviceCheckpointerTest, ADeviceThatFailsCostsTheSaveByName) {
  Run({.dp = 2}, true, Options(), [](Member& me) {
    ASSERT_TRUE(me.checkpointer().ClaimAndLoad({}).ok());
    me.Fill(1);
    if (me.rank == Rank{1}) {
      me.copier->Fail(absl::DataLossError("uncorrectable memory at 0x70"));
    }
    ASSERT_TRUE(me.checkpointer().BeginSave({1, {}}).ok());
    me.StoreAll(1);  // nobody is held up
    const SaveReport report = Finish(me.checkpointer());
    if (me.rank == Rank{1}) {
      EXPECT_EQ(report.outcome, SaveReport::Outcome::kFailed);
      EXPECT_EQ(report.status.code(), absl::StatusCode::kInternal);
    } else {
      EXPECT_EQ(report.outcome, SaveReport::Outcome::kAborted);
    }
    EXPECT_THAT(std::string(report.status.message()),
                HasSubstr("from the device: uncorrectable memory at 0x70"));
    me.checkpointer().Close().IgnoreError();
  });
}

TEST_F(DeviceCheckpointerTest, ADeviceThatFailsStopsTheStartByName) {
  Save({.dp = 2}, false, Options(), 1);
  Run({.dp = 2}, true, Options(), [](Member& me) {
    if (me.rank == Rank{1})
      me.copier->Fail(absl::DataLossError("an uncorrectable"));
    const auto report = me.checkpointer().ClaimAndLoad({});
    EXPECT_EQ(report.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(report.status().message()),
                HasSubstr("copying what was read to the device: an uncorrect"));
    me.checkpointer().Close().IgnoreError();
  });
  // Nothing was taken for damage.
  const auto again = Load({.dp = 2}, true, Options());
  EXPECT_EQ(Difference(Load({.dp = 2}, false, Options()), again), "");
}

TEST_F(DeviceCheckpointerTest, AStepThatWaitsForCopiesIsCountedAndBounded) {
  CheckpointerOptions options = Options();
  options.fence_ms = 30;
  Run({}, true, options, [](Member& me) {
    ASSERT_TRUE(me.checkpointer().ClaimAndLoad({}).ok());
    me.copier->RunByItself(false);
    ASSERT_TRUE(me.checkpointer().BeginSave({1, {}}).ok());
    me.checkpointer().FenceWrite(1, 0, 4096);
    me.checkpointer().FenceWrite(2, 0, 4096);  // does not wait once more
    const SaveReport report = Finish(me.checkpointer());
    EXPECT_EQ(report.outcome, SaveReport::Outcome::kFailed);
    EXPECT_THAT(std::string(report.status.message()),
                HasSubstr("checkpoint.fence_ms"));
    EXPECT_GE(report.fence_wait_ms, 30);
    EXPECT_LT(report.fence_wait_ms, 20'000);
    EXPECT_EQ(report.bytes_copied, 0u);
    // The next one is another save.
    me.copier->RunByItself();
    ASSERT_TRUE(me.checkpointer().BeginSave({2, {}}).ok());
    const absl::Status second = Finish(me.checkpointer()).status;
    EXPECT_TRUE(second.ok()) << second;
    me.checkpointer().Close().IgnoreError();
  });
}

TEST_F(DeviceCheckpointerTest, MemoryThatIsNotThereAndPagesThatCannotBeClosed) {
  AlignedBuffer memory(1 << 20);
  const std::shared_ptr<const JobLayout> layout = ColumnLayout(1, 1, 1);
  std::vector<AlignedBuffer> buffers;
  std::vector<std::span<std::byte>> regions;
  for (const uint64_t bytes : layout->StoredBy(Rank{0}).region_bytes) {
    buffers.emplace_back(bytes);
    regions.push_back(buffers.back().span());
  }
  LateCopier copier(regions);
  copier.LimitMemory(4096);
  const auto open = [&](const CheckpointerOptions& options) {
    return Checkpointer::Open(options, std::move(MakeInprocGroups(1)[0]),
                              layout, regions, RealClock(), &copier)
        .status();
  };
  EXPECT_EQ(open(Options()).code(), absl::StatusCode::kResourceExhausted);
  CheckpointerOptions protect = Options();
  protect.protect_unreleased = true;
  EXPECT_EQ(open(protect).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace holdfast::ckpt
