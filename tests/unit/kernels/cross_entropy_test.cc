// Cross entropy over a divided vocabulary, joined here as a tensor-parallel
// group would, against the plain formula on the undivided logits.

#include "kernels/cross_entropy.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class CrossEntropyTest : public testing::Test {};
TYPED_TEST_SUITE(CrossEntropyTest, ComputeTypes);

constexpr int64_t kRows = 11;

// Logits [kRows, padded] of which `valid` columns count.
template <typename T>
struct Problem {
  int64_t valid, padded;
  std::vector<T> logits;
  std::vector<int32_t> targets;
  std::vector<float> weights;

  Problem(int64_t valid_columns, int64_t padded_columns)
      : valid(valid_columns),
        padded(padded_columns),
        logits(RandomValues<T>(kRows * padded_columns, 1, 6.0f)) {
    for (int64_t r = 0; r < kRows; ++r) {
      targets.push_back(static_cast<int32_t>(r * 31 % valid));
      weights.push_back(r == 4 ? 0.0f : 0.25f + 0.125f * r);
    }
    targets[0] = static_cast<int32_t>(valid - 1);
  }
};

struct Answer {
  std::vector<float> losses;
  std::vector<float> dlogits;  // [kRows, padded]
};

// `ranks` equal parts of the padded columns.
template <typename T>
Answer Compute(const Problem<T>& p, int64_t ranks, bool in_place = false) {
  const int64_t part = p.padded / ranks;
  std::vector<std::vector<T>> logits(ranks);
  std::vector<LogitsView<T>> views;
  std::vector<float> max(kRows, -std::numeric_limits<float>::infinity());
  for (int64_t k = 0; k < ranks; ++k) {
    for (int64_t r = 0; r < kRows; ++r) {
      const T* row = p.logits.data() + r * p.padded + k * part;
      logits[k].insert(logits[k].end(), row, row + part);
    }
    views.push_back(
        {.data = logits[k].data(),
         .stride = part,
         .rows = kRows,
         .columns = part,
         .valid_columns = std::clamp<int64_t>(p.valid - k * part, 0, part),
         .column_begin = k * part});
    std::vector<float> local(kRows);
    CrossEntropyMax(CpuStream(), views[k], local.data());
    for (int64_t r = 0; r < kRows; ++r) max[r] = std::fmax(max[r], local[r]);
  }
  std::vector<float> sum(kRows, 0.0f);
  std::vector<float> target(kRows, 0.0f);
  for (const LogitsView<T>& view : views) {
    std::vector<float> local_sum(kRows);
    std::vector<float> local_target(kRows);
    CrossEntropySum(CpuStream(), view, max.data(), p.targets.data(),
                    local_sum.data(), local_target.data());
    for (int64_t r = 0; r < kRows; ++r) {
      sum[r] += local_sum[r];
      target[r] += local_target[r];
    }
  }
  Answer answer;
  answer.losses.resize(kRows);
  CrossEntropyLoss(CpuStream(), kRows, sum.data(), target.data(),
                   p.weights.data(), answer.losses.data());
  answer.dlogits.resize(kRows * p.padded);
  for (int64_t k = 0; k < ranks; ++k) {
    std::vector<T> separate(logits[k].size(), FromFloat<T>(7.0f));
    T* out = in_place ? logits[k].data() : separate.data();
    CrossEntropyBackward(CpuStream(), views[k], max.data(), sum.data(),
                         p.targets.data(), p.weights.data(), out, part);
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < part; ++c) {
        answer.dlogits[r * p.padded + k * part + c] =
            ToFloat(out[r * part + c]);
      }
    }
  }
  return answer;
}

template <typename T>
void PlainAnswer(const Problem<T>& p, std::vector<double>* losses,
                 std::vector<double>* dlogits) {
  losses->assign(kRows, 0.0);
  dlogits->assign(kRows * p.padded, 0.0);
  for (int64_t r = 0; r < kRows; ++r) {
    if (p.weights[r] == 0.0f) continue;
    double sum = 0.0;
    for (int64_t c = 0; c < p.valid; ++c) {
      sum += std::exp(double{ToFloat(p.logits[r * p.padded + c])});
    }
    (*losses)[r] =
        std::log(sum) - ToFloat(p.logits[r * p.padded + p.targets[r]]);
    for (int64_t c = 0; c < p.valid; ++c) {
      const double probability =
          std::exp(double{ToFloat(p.logits[r * p.padded + c])}) / sum;
      (*dlogits)[r * p.padded + c] =
          p.weights[r] * (probability - (c == p.targets[r] ? 1.0 : 0.0));
    }
  }
}

TYPED_TEST(CrossEntropyTest, AgreesWithThePlainFormulaWhateverTheRanks) {
  // 90 valid of 96: with four ranks the last holds 18 and six pads.
  const Problem<TypeParam> p(90, 96);
  std::vector<double> losses;
  std::vector<double> dlogits;
  PlainAnswer(p, &losses, &dlogits);
  for (int64_t ranks : {1, 2, 4}) {
    SCOPED_TRACE(ranks);
    const Answer answer = Compute(p, ranks);
    ExpectNear(answer.losses, losses, 2e-6);
    ExpectNear(answer.dlogits, dlogits, kRounding<TypeParam> + 3e-6, 1e-2);
  }
}

TYPED_TEST(CrossEntropyTest, SumsLongRowsAccurately) {
  const Problem<TypeParam> p(9001, 9024);
  std::vector<double> losses;
  std::vector<double> dlogits;
  PlainAnswer(p, &losses, &dlogits);
  const Answer answer = Compute(p, 2);
  ExpectNear(answer.losses, losses, 1e-6);
}

TYPED_TEST(CrossEntropyTest, ARankOfOnlyPaddingAddsNothing) {
  const Problem<TypeParam> p(40, 96);  // With four ranks two hold pads only.
  std::vector<double> losses;
  std::vector<double> dlogits;
  PlainAnswer(p, &losses, &dlogits);
  const Answer answer = Compute(p, 4);
  ExpectNear(answer.losses, losses, 2e-6);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 40; c < 96; ++c) {
      ASSERT_EQ(answer.dlogits[r * 96 + c], 0.0f);
    }
  }
}

TYPED_TEST(CrossEntropyTest, PadsAndMaskedRowsMayHoldAnything) {
  Problem<TypeParam> p(90, 96);
  const Answer clean = Compute(p, 2);
  const TypeParam nan = FromFloat<TypeParam>(std::nanf(""));
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t c = 90; c < 96; ++c) p.logits[r * 96 + c] = nan;
  }
  for (int64_t c = 0; c < 96; ++c) p.logits[4 * 96 + c] = nan;
  p.targets[4] = -100;  // Row 4 has weight 0.
  const Answer dirty = Compute(p, 2);
  EXPECT_TRUE(SameBits(clean.losses, dirty.losses));
  EXPECT_TRUE(SameBits(clean.dlogits, dirty.dlogits));
  EXPECT_EQ(clean.losses[4], 0.0f);
}

TYPED_TEST(CrossEntropyTest, GradientMayOverwriteTheLogits) {
  const Problem<TypeParam> p(90, 96);
  EXPECT_TRUE(SameBits(Compute(p, 2, /*in_place=*/false).dlogits,
                       Compute(p, 2, /*in_place=*/true).dlogits));
}

TEST(CrossEntropyGradientTest, AgreesWithFiniteDifferences) {
  const Problem<float> p(20, 24);
  const Answer answer = Compute(p, 2);
  ExpectGradient(
      p.logits, answer.dlogits,
      [&](const std::vector<float>& logits) {
        Problem<float> moved = p;
        moved.logits = logits;
        std::vector<double> losses;
        std::vector<double> dlogits;
        PlainAnswer(moved, &losses, &dlogits);
        double sum = 0.0;
        for (int64_t r = 0; r < kRows; ++r) sum += losses[r] * p.weights[r];
        return sum;
      },
      1e-3f, 1e-5);
}

TYPED_TEST(CrossEntropyTest, ThreadCountNeverChangesABit) {
  const Problem<TypeParam> p(5000, 5056);
  ExpectSameBitsOnAnyThreadCount([&] {
    Answer answer = Compute(p, 2);
    answer.dlogits.insert(answer.dlogits.end(), answer.losses.begin(),
                          answer.losses.end());
    return answer.dlogits;
  });
}

TEST(CrossEntropyEdgeTest, ANanLogitReachesTheLossOfItsRowOnly) {
  Problem<float> p(90, 96);
  const Answer clean = Compute(p, 1);
  p.logits[2 * 96 + 17] = std::nanf("");
  const Answer answer = Compute(p, 1);
  for (int64_t r = 0; r < kRows; ++r) {
    if (r == 2) {
      EXPECT_TRUE(std::isnan(answer.losses[r]));
    } else {
      EXPECT_EQ(answer.losses[r], clean.losses[r]);
    }
  }
}

}  // namespace
}  // namespace holdfast::kernels
