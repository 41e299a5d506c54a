// Which window stands at which index: every window once an epoch, shares exact,
// nothing remembered, and values that never change under a run.

#include "trainer/data/sample_source.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/data/fingerprint_hash.h"
#include "trainer/data/permutation.h"

namespace holdfast::trainer {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PermutationTest, IsABijectionForEverySizeAndKey) {
  for (const uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    for (uint64_t n = 1; n <= 130; ++n) {
      std::vector<bool> seen(n, false);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t place = Permute(key, n, i);
        ASSERT_LT(place, n);
        ASSERT_FALSE(seen[place]) << "key " << key << ", n " << n;
        seen[place] = true;
      }
    }
  }
  constexpr uint64_t kLarge = 50'021;
  std::vector<bool> seen(kLarge, false);
  for (uint64_t i = 0; i < kLarge; ++i) seen[Permute(42, kLarge, i)] = true;
  EXPECT_THAT(seen, Each(true));
}

TEST(PermutationTest, SpreadsNeighboursEvenly) {
  // 10,000 elements in 10 bins from each tenth of the indices: 100 expected in
  // each of 100 cells, standard deviation below 10.
  int cells[10][10] = {};
  for (uint64_t i = 0; i < 10'000; ++i) {
    ++cells[i / 1000][Permute(7, 10'000, i) / 1000];
  }
  for (const auto& row : cells) {
    for (const int count : row) EXPECT_NEAR(count, 100, 50);
  }
}

TEST(PermutationTest, KeysGiveUnrelatedOrders) {
  int fixed = 0;
  for (uint64_t i = 0; i < 10'000; ++i) {
    fixed += Permute(1, 10'000, i) == Permute(2, 10'000, i);
  }
  EXPECT_LT(fixed, 10) << "one is expected";
}

TEST(PermutationTest, ReachesTheLargestSizes) {
  const uint64_t n = (uint64_t{1} << 62) - 1;
  std::set<uint64_t> places;
  for (uint64_t i = 0; i < 100; ++i) places.insert(Permute(3, n, i));
  EXPECT_EQ(places.size(), 100);
}

TEST(MixtureTest, EveryPeriodHasTheExactQuotas) {
  const std::vector<double> weights = {0.5, 0.3, 0.2};
  const auto mixture = Mixture::Create(weights);
  ASSERT_TRUE(mixture.ok());
  EXPECT_THAT(mixture->quotas(), ElementsAre(500, 300, 200));
  for (const uint64_t period : {uint64_t{0}, uint64_t{17}}) {
    int counts[3] = {};
    for (uint64_t slot = 0; slot < kMixturePeriod; ++slot) {
      ++counts[mixture->PickAt(period * kMixturePeriod + slot).set];
    }
    EXPECT_THAT(counts, ElementsAre(500, 300, 200));
  }
}

TEST(MixtureTest, OccurrencesCountUpWithoutGaps) {
  const std::vector<double> weights = {1, 0, 3.3, 0.017};
  const auto mixture = Mixture::Create(weights);
  ASSERT_TRUE(mixture.ok());
  uint64_t next[4] = {};
  for (uint64_t i = 0; i < 5000; ++i) {
    const MixturePick pick = mixture->PickAt(i);
    ASSERT_EQ(pick.occurrence, next[pick.set]) << i;
    ++next[pick.set];
  }
  EXPECT_EQ(next[1], 0) << "weight 0 is never drawn";
  EXPECT_GT(next[3], 0);
}

TEST(MixtureTest, EveryPrefixIsCloseToTheWeights) {
  const std::vector<double> weights = {0.61, 0.2, 0.13, 0.05, 0.01};
  const auto mixture = Mixture::Create(weights);
  ASSERT_TRUE(mixture.ok());
  double counts[5] = {};
  for (uint64_t i = 0; i < kMixturePeriod; ++i) {
    ++counts[mixture->PickAt(i).set];
    for (int set = 0; set < 5; ++set) {
      ASSERT_LT(std::abs(counts[set] - weights[set] * (i + 1.0)), 1.5) << i;
    }
  }
}

TEST(MixtureTest, QuantisesToWholeSlotsAndKeepsTheSmallest) {
  const auto quotas = [](std::vector<double> weights) {
    const auto mixture = Mixture::Create(weights);
    EXPECT_TRUE(mixture.ok());
    const auto span = mixture->quotas();
    return std::vector<uint32_t>(span.begin(), span.end());
  };
  EXPECT_THAT(quotas({7}), ElementsAre(1000));
  EXPECT_THAT(quotas({1, 1, 1}), ElementsAre(334, 333, 333));
  EXPECT_THAT(quotas({1, 1e-9}), ElementsAre(999, 1));
  EXPECT_THAT(quotas({1e-9, 1e-9, 1e9, 1e9}), ElementsAre(1, 1, 499, 499));
  EXPECT_THAT(quotas(std::vector<double>(1000, 1.0)), Each(1));
}

TEST(MixtureTest, RefusesWhatIsNoMixture) {
  const auto refuse = [](std::vector<double> weights) {
    return Mixture::Create(weights).status().code();
  };
  EXPECT_EQ(refuse({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refuse({0, 0}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refuse({1, -1}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refuse({1, NAN}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refuse(std::vector<double>(1001, 1.0)),
            absl::StatusCode::kInvalidArgument);
}

TEST(WindowsTest, OverlapByOneTokenAndHoldOutTheLast) {
  EXPECT_EQ(CountWindows(0, 4, 0), (WindowCounts{0, 0}));
  EXPECT_EQ(CountWindows(4, 4, 0), (WindowCounts{0, 0}));
  EXPECT_EQ(CountWindows(5, 4, 0), (WindowCounts{1, 0}));
  EXPECT_EQ(CountWindows(8, 4, 0), (WindowCounts{1, 0}));
  EXPECT_EQ(CountWindows(9, 4, 0), (WindowCounts{2, 0}));
  EXPECT_EQ(CountWindows(401, 4, 0.1), (WindowCounts{90, 10}));
  EXPECT_EQ(CountWindows(9, 4, 0.001), (WindowCounts{1, 1}));
  EXPECT_EQ(CountWindows(5, 4, 0.5), (WindowCounts{1, 0}));
}

SampleSource Source(std::vector<WindowCounts> windows,
                    std::vector<double> weights = {}) {
  auto source = SampleSource::Create(windows, weights);
  EXPECT_TRUE(source.ok()) << source.status();
  return *std::move(source);
}

TEST(SampleSourceTest, ReadsEachTrainingWindowOnceAnEpoch) {
  const SampleSource source = Source({{37, 5}, {500, 9}}, {0.7, 0.3});
  std::vector<std::vector<std::vector<int>>> seen(
      2, std::vector<std::vector<int>>(40, std::vector<int>(500, 0)));
  uint64_t read[2] = {};
  for (uint64_t i = 0; i < 2000; ++i) {
    const SampleRef sample = source.At(9, i);
    ASSERT_LT(sample.window, source.windows()[sample.set].train)
        << "held-out windows are never trained on";
    ASSERT_EQ(sample.epoch,
              read[sample.set] / source.windows()[sample.set].train);
    ++read[sample.set];
    ++seen[sample.set][sample.epoch][sample.window];
  }
  EXPECT_EQ(read[0], 1400);
  EXPECT_EQ(read[1], 600);
  for (int set = 0; set < 2; ++set) {
    const uint64_t n = source.windows()[set].train;
    for (uint64_t epoch = 0; epoch < read[set] / n; ++epoch) {
      for (uint64_t window = 0; window < n; ++window) {
        ASSERT_EQ(seen[set][epoch][window], 1);
      }
    }
  }
}

TEST(SampleSourceTest, WithoutWeightsSizesDecide) {
  const SampleSource source = Source({{300, 0}, {100, 0}});
  EXPECT_THAT(source.mixture().quotas(), ElementsAre(750, 250));
}

TEST(SampleSourceTest, SeedsAndEpochsGiveOtherOrders) {
  const SampleSource source = Source({{100, 0}});
  int same_seed = 0;
  int same_epoch = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    same_seed += source.At(1, i).window == source.At(2, i).window;
    same_epoch += source.At(1, i).window == source.At(1, i + 100).window;
  }
  EXPECT_LT(same_seed, 10);
  EXPECT_LT(same_epoch, 10);
}

TEST(SampleSourceTest, EvaluationReadsHeldOutWindowsOnly) {
  const SampleSource source = Source({{10, 4}, {10, 0}, {10, 6}}, {1, 1, 1});
  ASSERT_TRUE(source.has_eval());
  std::vector<int> seen[3] = {std::vector<int>(20), std::vector<int>(20),
                              std::vector<int>(20)};
  for (uint64_t i = 0; i < 8; ++i) {
    const SampleRef sample = source.EvalAt(i);
    ASSERT_NE(sample.set, 1) << "it has none";
    ASSERT_GE(sample.window, 10);
    ++seen[sample.set][sample.window];
  }
  EXPECT_THAT(seen[0], Each(::testing::Le(1)));
  EXPECT_THAT(seen[2], Each(::testing::Le(1)));
  EXPECT_FALSE(Source({{10, 0}}).has_eval());
}

TEST(SampleSourceTest, RefusesASetWithNothingToTrainOn) {
  const std::vector<WindowCounts> windows = {{5, 0}, {0, 1}};
  EXPECT_THAT(std::string(SampleSource::Create(windows, {}).status().message()),
              HasSubstr("data set 1 of 2 has no whole sequence"));
  EXPECT_TRUE(SampleSource::Create(windows, std::vector<double>{1, 0}).ok());
}

// A checkpoint of today must find the same samples tomorrow: if this fails, the
// order of every run that is under way has changed.
TEST(SampleSourceTest, OrderNeverChanges) {
  const SampleSource source = Source({{1000, 10}, {333, 4}}, {0.8, 0.2});
  SampleDigest digest;
  for (uint64_t i = 0; i < 5000; ++i) digest.Add(source.At(1234, i));
  for (uint64_t i = 0; i < 20; ++i) digest.Add(source.EvalAt(i));
  EXPECT_EQ(digest.value(), 12124352623497922744u);
  FingerprintHash hash;
  hash.Add(uint64_t{1});
  hash.Add(std::as_bytes(std::span("holdfast", 9)));
  EXPECT_EQ(hash.value(), 11471248049034286257u);
}

TEST(SampleDigestTest, DependsOnSamplesAndOnTheirOrder) {
  const auto of = [](std::vector<SampleRef> samples) {
    SampleDigest digest;
    for (const SampleRef& sample : samples) digest.Add(sample);
    return digest.value();
  };
  const SampleRef a{0, 0, 5};
  const SampleRef b{0, 0, 6};
  EXPECT_EQ(of({a, b}), of({a, b}));
  EXPECT_NE(of({a, b}), of({b, a}));
  EXPECT_NE(of({a}), of({b}));
  EXPECT_NE(of({a}), of({SampleRef{1, 0, 5}}));
  EXPECT_NE(of({a}), of({a, a}));
  EXPECT_EQ(of({}), 0);
}

}  // namespace
}  // namespace holdfast::trainer
