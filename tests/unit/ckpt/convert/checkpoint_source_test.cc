// A checkpoint as a source of state: any runs of any layout, verified.

#include "ckpt/convert/checkpoint_source.h"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bare_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::FillAll;
using tests::SmallLayout;

class CheckpointSourceTest : public ::testing::Test {
 protected:
  // Its path.
  std::string Save(const JobLayout& layout, int zstd_level = -1) {
    return tests::SaveBare(dir_.path(), absl::StrFormat("saved%d", ++saves_),
                           layout, {{"step", "300"}}, zstd_level);
  }

  tests::TempDir dir_{tests::MemoryFolder()};
  int saves_ = 0;
};

TEST_F(CheckpointSourceTest, FillsAnyLayoutFromAnyOther) {
  for (const int zstd_level : {-1, 0}) {
    const std::string path = Save(*SmallLayout(2, 1, 2), zstd_level);
    const auto source = CheckpointSource::Open(path, {}, RealClock());
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->attributes().at("step"), "300");
    for (const auto& layout :
         {SmallLayout(1, 1, 1), SmallLayout(4, 2, 3), SmallLayout(2, 1, 2)}) {
      for (const size_t at_once : {1, 1000}) {
        const absl::Status status = FillAll(**source, *layout, at_once);
        EXPECT_TRUE(status.ok()) << status;
      }
    }
  }
}

TEST_F(CheckpointSourceTest, ThreadsFillAtTheSameTime) {
  const std::string path = Save(*SmallLayout(4, 1, 1));
  const auto source = CheckpointSource::Open(path, {.readers = 3}, RealClock());
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->fills_at_once(), 3);
  const auto layout = SmallLayout(1, 2, 2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      const absl::Status status = FillAll(**source, *layout, 2);
      EXPECT_TRUE(status.ok()) << status;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT((*source)->bytes_read(), 0u);
}

TEST_F(CheckpointSourceTest, DamageIsNamedAndNothingOfItIsGiven) {
  const auto layout = SmallLayout(2, 1, 1);
  const std::string path = Save(*layout);
  {
    std::fstream file(path + "/shard-00001.hf",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(5000);
    file.put('\xee');
  }
  const auto source = CheckpointSource::Open(path, {}, RealClock());
  ASSERT_TRUE(source.ok()) << source.status();
  const absl::Status status = FillAll(**source, *layout, 1000);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("shard-00001.hf"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("crc32c"));
}

TEST_F(CheckpointSourceTest, SaysWhatIsNotThere) {
  const auto source =
      CheckpointSource::Open(dir_.path() + "/nothing", {}, RealClock());
  EXPECT_EQ(source.status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointSourceTest, ItsIdentityIsThatOfTheManifest) {
  const std::string one = Save(*SmallLayout(1, 1, 1));
  const std::string two = Save(*SmallLayout(2, 1, 1));
  const auto first = CheckpointSource::Open(one, {}, RealClock());
  const auto second = CheckpointSource::Open(two, {}, RealClock());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE((*first)->identity(), (*second)->identity());
  // The state is the same.
  EXPECT_EQ(DigestOfState((*first)->items(), (*first)->recorded_digests(),
                          (*first)->attributes()),
            DigestOfState((*second)->items(), (*second)->recorded_digests(),
                          (*second)->attributes()));
}

}  // namespace
}  // namespace holdfast::ckpt
