// The figures of the full-size target, out of the same functions that lay out
// the smallest run. The time is printed, not asserted.

#include "tests/unit/ckpt/layout/full_size.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

TEST(FullSizeTest, AllRanksArePlannedInOneProcessAndCarryTheSameLoad) {
  const auto start = std::chrono::steady_clock::now();
  const auto layout = FullSizeLayout({.tp = 8, .pp = 8, .dp = 80});
  ASSERT_EQ(layout->world(), 5120);

  double parameters = 0;
  for (const TensorSpec& tensor : layout->tensors()) {
    parameters += WholeBox(tensor.shape).elements();
  }
  EXPECT_NEAR(parameters, 500e9, 0.5e9);

  uint64_t total = 0, most = 0;
  uint64_t least = std::numeric_limits<uint64_t>::max();
  uint64_t resident_most = 0;
  size_t fragments = 0;
  for (int rank = 0; rank < layout->world(); ++rank) {
    const Holding holding = layout->StoredBy(Rank{rank});
    uint64_t bytes = 0;
    for (const Fragment& f : holding.fragments) {
      bytes += f.count * SizeOf(layout->items()[f.item].dtype);
    }
    total += bytes;
    most = std::max(most, bytes);
    least = std::min(least, bytes);
    fragments += holding.fragments.size();
    // Gradients are in memory only: 4 bytes for each parameter held.
    uint64_t resident = 2 * holding.region_bytes[kWeightRegion];
    for (const uint64_t region : holding.region_bytes) resident += region;
    resident_most = std::max(resident_most, resident);
  }
  const double ms = std::chrono::duration<double, std::milli>(
                        std::chrono::steady_clock::now() - start)
                        .count();
  std::printf(
      "%d ranks, %zu fragments, %.3f TB, %.4f to %.4f GB a rank, "
      "planned in %.0f ms\n",
      layout->world(), fragments, total * 1e-12, least * 1e-9, most * 1e-9, ms);

  EXPECT_EQ(total, static_cast<uint64_t>(14 * parameters));  // 7 TB
  EXPECT_NEAR(total / 5120.0, 1.37e9, 0.01e9);
  EXPECT_NEAR(most, 1.37e9, 0.03e9);
  EXPECT_NEAR(least, 1.37e9, 0.03e9);
  // 6 + 12/80 bytes for each of 7.8125e9 parameters: 48.046875 GB a GPU.
  EXPECT_NEAR(resident_most, 48.046875e9, 0.02 * 48.046875e9);
}

}  // namespace
}  // namespace holdfast::ckpt
