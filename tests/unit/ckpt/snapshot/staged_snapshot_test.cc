// The copier below keeps each copy back until the test lets it run, and then
// takes what the memory holds at that moment: a snapshot that does not wait for
// events hands out the wrong bytes.

#include "ckpt/snapshot/staged_snapshot.h"

#include <cstring>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

constexpr uint64_t kPage = 4096;

class LateCopier : public AsyncCopier {
 public:
  explicit LateCopier(std::span<std::byte> device) : device_(device) {}

  uint64_t BeginCopy(uint32_t, uint64_t offset,
                     std::span<std::byte> to) override {
    copies_.push_back({offset, to});
    return copies_.size();
  }
  bool Passed(uint64_t event) override { return event <= done_; }

  void RunOne() {
    const Copy& copy = copies_[done_++];
    std::memcpy(copy.to.data(), device_.data() + copy.offset, copy.to.size());
  }

 private:
  struct Copy {
    uint64_t offset;
    std::span<std::byte> to;
  };
  std::span<std::byte> device_;
  std::vector<Copy> copies_;
  uint64_t done_ = 0;
};

class StagedSnapshotTest : public testing::Test {
 protected:
  StagedSnapshotTest() { std::memset(device_.data(), 7, device_.size()); }

  const std::vector<SnapshotUnit> units_ = {{0, 0, kPage}, {0, kPage, kPage}};
  AlignedBuffer device_{2 * kPage};
  AlignedBuffer staging_{2 * kPage};
  LateCopier copier_{device_.span()};
  StagedSnapshot snapshot_{units_, 1, staging_.span(), copier_};
};

TEST_F(StagedSnapshotTest, AUnitIsThereWhenItsCopyHasPassed) {
  snapshot_.Arm();
  EXPECT_FALSE(snapshot_.BeginUnit(0).has_value());
  copier_.RunOne();
  const auto bytes = snapshot_.BeginUnit(0);
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ((*bytes)[0], std::byte{7});
  EXPECT_FALSE(snapshot_.BeginUnit(1).has_value());
}

TEST_F(StagedSnapshotTest, TheOptimizerWaitsForTheCopyAndNotForTheWrite) {
  snapshot_.Arm();
  EXPECT_FALSE(snapshot_.TryWrite(0, 0, kPage));
  copier_.RunOne();
  EXPECT_TRUE(snapshot_.TryWrite(0, 0, kPage));
  EXPECT_FALSE(snapshot_.TryWrite(0, kPage - 1, 2)) << "meets unit 1";
  std::memset(device_.data(), 8, kPage);
  EXPECT_EQ((*snapshot_.BeginUnit(0))[0], std::byte{7}) << "the state at Arm";
}

TEST_F(StagedSnapshotTest, APoisonedOneHoldsNobodyUp) {
  snapshot_.Arm();
  snapshot_.Poison(absl::AbortedError("gone"));
  EXPECT_TRUE(snapshot_.TryWrite(0, 0, kPage));
  copier_.RunOne();
  ASSERT_TRUE(snapshot_.BeginUnit(0).has_value());
  EXPECT_EQ(snapshot_.EndUnit(0).message(), "gone");
  snapshot_.Release();
  EXPECT_FALSE(snapshot_.armed());
}

}  // namespace
}  // namespace holdfast::ckpt
