// Packs, and how flat arrays and matrices are cut into them for the GPU.

#include "kernels/cuda_pack.h"

#include <map>

#include "gtest/gtest.h"
#include "tests/unit/kernels/cuda_helpers.h"

namespace holdfast::kernels {
namespace {

TEST(CudaPackTest, AMisalignedPackTrapsAsOnTheDevice) {
  alignas(16) float values[12] = {};
  EXPECT_EQ(LoadPack<4>(values + 4).at[3], 0.0f);
  EXPECT_FALSE(PackAligned<4>(values + 1));
  EXPECT_TRUE(PackAligned<8>(values + 4));
  EXPECT_DEATH(LoadPack<4>(values + 2), "");
  EXPECT_DEATH(StorePack(Pack<float, 4>{}, values + 1), "");
}

// Counts how often each element is met.
struct CountFlat {
  int* times;
  template <int kCount>
  HF_HOST_DEVICE void Run(int64_t at) const {
    for (int i = 0; i < kCount; ++i) ++times[at + i];
  }
};

TEST(CudaPackTest, FlatKernelsMeetEachElementOnce) {
  for (int64_t count : {0, 1, 3, 4, 5, 1023, 1024, 1025, 5000}) {
    for (int64_t blocks : {1, 2, 7}) {
      std::vector<int> times(static_cast<size_t>(count), 0);
      RunOnHost(FlatKernel<CountFlat, 4>{{times.data()}, count}, blocks);
      EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << count;
    }
  }
}

struct CountRows {
  int* times;
  int64_t row_packs;
  HF_HOST_DEVICE void Run(int64_t row, int64_t pack) const {
    ++times[row * row_packs + pack];
  }
};

TEST(CudaPackTest, RowKernelsMeetEachPackOnce) {
  for (int64_t rows : {1, 2, 9, 300}) {
    for (int64_t packs : {1, 3, 64, 255, 256, 257, 1000}) {
      for (int64_t most : {1, 5, 32768}) {
        std::vector<int> times(static_cast<size_t>(rows * packs), 0);
        RunRows(CountRows{times.data(), packs}, rows, packs,
                HostRunner{HostOrder::kForward, most});
        EXPECT_EQ(times, std::vector<int>(times.size(), 1))
            << rows << " x " << packs;
      }
    }
  }
  RunRows(CountRows{nullptr, 0}, 4, 0, HostRunner{});
  RunRows(CountRows{nullptr, 3}, 0, 3, HostRunner{});
}

// Remembers where it was instead of touching memory.
struct RememberFlat {
  std::map<int64_t, int>* met;
  template <int kCount>
  HF_HOST_DEVICE void Run(int64_t at) const {
    (*met)[at] += kCount;
  }
};
struct RememberRows {
  std::map<int64_t, int64_t>* met;  // The row of each pack.
  HF_HOST_DEVICE void Run(int64_t row, int64_t pack) const {
    (*met)[pack] = row;
  }
};

TEST(CudaPackTest, IndicesReachTwoToTheForty) {
  const int64_t count = (int64_t{1} << 40) + 3;
  std::map<int64_t, int> met;
  const FlatKernel<RememberFlat, 8> flat{{&met}, count};
  const int64_t blocks = flat.blocks();
  EXPECT_EQ(blocks, (int64_t{1} << 29) + 1);
  HostBlock last(256, blocks - 2, blocks, 0, HostOrder::kForward);
  flat(last);
  EXPECT_EQ(met.size(), 256u);
  EXPECT_EQ(met.begin()->first, (int64_t{1} << 40) - 2048);
  EXPECT_EQ(met.rbegin()->first, (int64_t{1} << 40) - 8);
  HostBlock first(256, 0, blocks, 0, HostOrder::kForward);
  met.clear();
  flat(first);  // Its first pack each, and the three elements beyond packs.
  EXPECT_EQ(met.rbegin()->first, count - 1);
  EXPECT_EQ(met.size(), 259u);

  std::map<int64_t, int64_t> row_of;
  const int64_t rows = int64_t{1} << 32;
  const auto matrix = RowsKernel<RememberRows>::Of({&row_of}, rows, 300);
  HostBlock end(256, matrix.blocks() - 1, matrix.blocks(), 0,
                HostOrder::kForward);
  matrix(end);
  EXPECT_EQ(row_of.size(), 44u);
  EXPECT_EQ(row_of.at(299), rows - 1);
}

}  // namespace
}  // namespace holdfast::kernels
