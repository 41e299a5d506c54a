// The block of fibers shows what it is for: mistakes that a loop over the
// threads hides.

#include "tests/support/fiber_block.h"

#include "gtest/gtest.h"

namespace holdfast::kernels {
namespace {

#ifdef __SANITIZE_THREAD__
#define HF_SKIP_FIBERS() GTEST_SKIP() << "ThreadSanitizer knows no ucontext"
#else
#define HF_SKIP_FIBERS() static_cast<void>(0)
#endif

// Each thread publishes its number, then reads its neighbour's.
template <bool kBarrier>
struct Neighbours {
  static constexpr int kThreads = 64;
  static constexpr int kSharedBytes = kThreads * sizeof(int);
  int* got;

  template <typename Block>
  void operator()(Block& block) const {
    int* numbers = block.template shared<int>();
    const auto publish = [&](int thread) { numbers[thread] = thread; };
    if constexpr (kBarrier) {
      block.ForEach(publish);
    } else {
      block.ForEachOnly(publish);
    }
    block.ForEachOnly(
        [&](int thread) { got[thread] = numbers[(thread + 1) % kThreads]; });
  }
};

template <bool kBarrier>
bool NeighboursMeet(HostOrder order) {
  std::vector<int> got(64, -1);
  FiberRunner{order}(Neighbours<kBarrier>{got.data()}, 1);
  for (int t = 0; t < 64; ++t) {
    if (got[t] != (t + 1) % 64) return false;
  }
  return true;
}

TEST(FiberBlockTest, AMissingBarrierShows) {
  HF_SKIP_FIBERS();
  EXPECT_TRUE(NeighboursMeet<true>(HostOrder::kForward));
  EXPECT_TRUE(NeighboursMeet<true>(HostOrder::kBackward));
  EXPECT_FALSE(NeighboursMeet<false>(HostOrder::kForward));
  EXPECT_FALSE(NeighboursMeet<false>(HostOrder::kBackward));
}

struct AnothersValue {
  static constexpr int kThreads = 32;
  static constexpr int kSharedBytes = 0;
  template <typename Block>
  void operator()(Block& block) const {
    auto value = block.template PerThread<int>();
    block.ForEach([&](int thread) { value[thread] = thread; });
    block.ForEach([&](int thread) { value[thread] = value[thread ^ 1]; });
  }
};

struct LoneBarrier {
  static constexpr int kThreads = 64;
  static constexpr int kSharedBytes = 0;
  template <typename Block>
  void operator()(Block& block) const {
    int me = 0;
    block.ForEachOnly([&](int thread) { me = thread; });
    if (me < 32) block.ForEach([](int) {});
  }
};

TEST(FiberBlockTest, ForeignValuesAndLoneBarriersEndTheTest) {
  HF_SKIP_FIBERS();
  EXPECT_DEATH(FiberRunner{}(AnothersValue{}, 1),
               "thread 0 takes a value of thread 1");
  EXPECT_DEATH(FiberRunner{}(LoneBarrier{}, 1), "a barrier of the block");
}

struct Reductions {
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
  const float* x;
  float* sums;  // [3, kThreads]
  template <typename Block>
  void operator()(Block& block) const {
    auto eight = block.template PerThread<float>();
    auto warp = block.template PerThread<float>();
    auto all = block.template PerThread<float>();
    block.ForEachOnly(
        [&](int t) { eight[t] = warp[t] = all[t] = x[t] + x[t] * x[t]; });
    block.template Reduce<8>(eight, Plus{});
    block.template Reduce<32>(warp, Maximum{});
    block.template Reduce<256>(all, Plus{});
    block.ForEachOnly([&](int t) {
      sums[t] = eight[t];
      sums[kThreads + t] = warp[t];
      sums[2 * kThreads + t] = all[t];
    });
  }
};

TEST(FiberBlockTest, ReducesToTheBitsOfTheLoop) {
  HF_SKIP_FIBERS();
  std::vector<float> x;
  for (int t = 0; t < 256; ++t) x.push_back(1.0f / static_cast<float>(t + 3));
  std::vector<float> loop(3 * 256);
  RunOnHost(Reductions{x.data(), loop.data()}, 1);
  for (HostOrder order : {HostOrder::kForward, HostOrder::kBackward}) {
    std::vector<float> fibers(3 * 256);
    FiberRunner{order}(Reductions{x.data(), fibers.data()}, 1);
    EXPECT_EQ(fibers, loop);
  }
}

}  // namespace
}  // namespace holdfast::kernels
