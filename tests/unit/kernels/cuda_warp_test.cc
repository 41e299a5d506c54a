// The host's warp against plain matrix products, and its checks against code
// that breaks the rules.

#include "kernels/cuda_warp.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

TEST(CudaWarpTest, EveryElementOfAnOperandIsHeldOnce) {
  int a[16][16] = {};
  int b[16][8] = {};
  int d[16][8] = {};
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    for (int i = 0; i < 8; ++i) {
      ++a[PlaceInA(lane, i).row][PlaceInA(lane, i).column];
    }
    for (int i = 0; i < 4; ++i) {
      ++b[PlaceInB(lane, i).row][PlaceInB(lane, i).column];
      ++d[PlaceInD(lane, i).row][PlaceInD(lane, i).column];
    }
  }
  for (const auto& row : a) {
    for (int count : row) EXPECT_EQ(count, 1);
  }
  for (const auto& row : b) {
    for (int count : row) EXPECT_EQ(count, 1);
  }
  for (const auto& row : d) {
    for (int count : row) EXPECT_EQ(count, 1);
  }
}

// Spot values of the PTX manual's figures for mma.m16n8k16: thread 5 is group
// 1, second in it.
TEST(CudaWarpTest, LaneFiveHoldsWhatTheManualSays) {
  EXPECT_EQ(PlaceInA(5, 0).row, 1);
  EXPECT_EQ(PlaceInA(5, 0).column, 2);
  EXPECT_EQ(PlaceInA(5, 3).row, 9);
  EXPECT_EQ(PlaceInA(5, 3).column, 3);
  EXPECT_EQ(PlaceInA(5, 4).row, 1);
  EXPECT_EQ(PlaceInA(5, 4).column, 10);
  EXPECT_EQ(PlaceInB(5, 3).row, 11);
  EXPECT_EQ(PlaceInB(5, 3).column, 1);
  EXPECT_EQ(PlaceInD(5, 2).row, 9);
  EXPECT_EQ(PlaceInD(5, 2).column, 2);
}

// Puts 16 rows of 16 Bf16 into shared memory at `to`, 32 bytes a row.
void Put(SharedMemoryOnHost& shared, SharedOffset to,
         const std::vector<Bf16>& matrix) {
  for (size_t i = 0; i < matrix.size(); ++i) {
    std::memcpy(shared.At(to + static_cast<SharedOffset>(2 * i), 2), &matrix[i],
                2);
  }
}

TEST(CudaWarpTest, MatricesFromSharedMemoryMultiplyAsOnPaper) {
  const auto x = RandomValues<Bf16>(256, 1);
  const auto y = RandomValues<Bf16>(256, 2);
  SharedMemoryOnHost shared(1024);
  Put(shared, 0, x);
  Put(shared, 512, y);
  Warp warp(&shared, 0);
  PerLane<uint32_t, 4> x_words;
  PerLane<uint32_t, 4> y_words;
  PerLane<uint32_t, 4> y_turned;
  const auto whole = [](SharedOffset at) {
    return [at](int lane) {
      return at + static_cast<SharedOffset>(lane % 16 * 32 + lane / 16 * 16);
    };
  };
  warp.LoadMatrices<false>(x_words, 0, whole(0));
  warp.LoadMatrices<true>(y_turned, 0, whole(512));
  warp.LoadMatrices<false>(y_words, 0, [](int lane) {
    return static_cast<SharedOffset>(512 + (lane / 16 * 8 + lane % 8) * 32 +
                                     lane / 8 % 2 * 16);
  });
  PerLane<float, 8> plain;   // X Y
  PerLane<float, 8> across;  // X Y^T
  warp.ForEachLane([&](int lane) {
    for (int i = 0; i < 8; ++i) plain(lane, i) = across(lane, i) = 0.0f;
  });
  for (int half = 0; half < 2; ++half) {
    warp.Multiply(plain, half * 4, x_words, 0, y_turned, half * 2);
    warp.Multiply(across, half * 4, x_words, 0, y_words, half * 2);
  }
  warp.ForEachLane([&](int lane) {
    for (int i = 0; i < 8; ++i) {
      const int row = PlaceInD(lane, i % 4).row;
      const int column = PlaceInD(lane, i % 4).column + i / 4 * 8;
      double want_plain = 0.0;
      double want_across = 0.0;
      for (int k = 0; k < 16; ++k) {
        const double left = ToFloat(x[row * 16 + k]);
        want_plain += left * ToFloat(y[k * 16 + column]);
        want_across += left * ToFloat(y[column * 16 + k]);
      }
      EXPECT_NEAR(plain(lane, i), want_plain, 1e-5) << lane << ", " << i;
      EXPECT_NEAR(across(lane, i), want_across, 1e-5) << lane << ", " << i;
    }
  });
}

TEST(CudaWarpTest, ACopyIsNotThereBeforeItIsWaitedFor) {
  alignas(16) const float from[4 * kWarpLanes] = {1.0f, 2.0f};
  SharedMemoryOnHost shared(16 * kWarpLanes);
  Warp warp(&shared, 0);
  warp.CopyInBackground([&](int lane) {
    return SharedCopy{.to = static_cast<SharedOffset>(16 * lane),
                      .from = from + 4 * lane,
                      .valid = lane != 1};
  });
  const auto first = [&](SharedOffset at) {
    float value;
    std::memcpy(&value, shared.At(at, 4), 4);
    return value;
  };
  EXPECT_TRUE(std::isnan(first(0)));
  warp.WaitForCopies();
  EXPECT_EQ(first(4), 2.0f);
  EXPECT_EQ(first(16), 0.0f);
}

TEST(CudaWarpTest, RowsOfOneBankCountAsConflicts) {
  SharedMemoryOnHost shared(32 * 1024);
  Warp warp(&shared, 0);
  PerLane<uint32_t, 4> words;
  // Rows of 128 bytes, all first pieces: eight rows on the same four banks.
  warp.LoadMatrices<false>(
      words, 0, [](int lane) { return static_cast<SharedOffset>(lane * 128); });
  EXPECT_EQ(shared.accesses(), 4);
  EXPECT_EQ(shared.conflicts(), 4 * 7);
  // One word for all is one turn.
  warp.Load<float>([](int) { return SharedOffset{64}; }, [](int, float) {});
  EXPECT_EQ(shared.conflicts(), 4 * 7);
}

TEST(CudaWarpDeathTest, SharedMemoryEndsWhereItEnds) {
  SharedMemoryOnHost shared(64);
  Warp warp(&shared, 0);
  EXPECT_DEATH(warp.Store<float>(
                   [](int lane) { return static_cast<SharedOffset>(4 * lane); },
                   [](int) { return 0.0f; }),
               "shared memory: 4 bytes at 64 of 64");
}

}  // namespace
}  // namespace holdfast::kernels
