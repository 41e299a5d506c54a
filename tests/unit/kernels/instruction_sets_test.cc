// One golden hash of each vectorised kernel's bits. A normal build runs the
// best clone for the processor, a sanitized one the baseline
// (kernels/vector.h): both must find the same hash, as must every other
// processor.

#include <cstdint>

#include "gtest/gtest.h"
#include "kernels/adamw.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/rmsnorm.h"
#include "kernels/swiglu.h"
#include "kernels/vector.h"
#include "tests/unit/kernels/helpers.h"

namespace holdfast::kernels {
namespace {

// FNV-1a over the bytes.
template <typename T>
uint64_t Hash(const std::vector<T>& values) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
  for (size_t i = 0; i < values.size() * sizeof(T); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  }
  return hash;
}

// The standard's generators are fixed but its distributions are not: values
// from a multiplicative sequence instead, in [-4, 4).
template <typename T>
std::vector<T> Values(int64_t count, uint64_t seed) {
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    value = FromFloat<T>(
        static_cast<float>(static_cast<int32_t>(seed >> 40) - (1 << 23)) /
        static_cast<float>(1 << 21));
  }
  return values;
}

constexpr int64_t kRows = 21;
constexpr int64_t kColumns = 333;

TEST(InstructionSetsTest, RmsNorm) {
  const auto x = Values<Bf16>(kRows * kColumns, 1);
  const auto w = Values<Bf16>(kColumns, 2);
  const auto dy = Values<Bf16>(kRows * kColumns, 3);
  std::vector<Bf16> y(x.size()), dx(x.size());
  std::vector<float> rstd(kRows), dw(kColumns);
  RmsNormForward(CpuStream(), RmsNormArgs<Bf16>{.x = x.data(),
                                                .weight = w.data(),
                                                .y = y.data(),
                                                .rstd = rstd.data(),
                                                .rows = kRows,
                                                .hidden = kColumns});
  RmsNormBackward(CpuStream(), RmsNormBackwardArgs<Bf16>{.x = x.data(),
                                                         .weight = w.data(),
                                                         .rstd = rstd.data(),
                                                         .dy = dy.data(),
                                                         .dx = dx.data(),
                                                         .dweight = dw.data(),
                                                         .rows = kRows,
                                                         .hidden = kColumns});
  EXPECT_EQ(Hash(y), 0x8344bfd2640dde54u);
  EXPECT_EQ(Hash(rstd), 0x9ac0da33f2d1259cu);
  EXPECT_EQ(Hash(dx), 0xe3728db6cc96e711u);
  EXPECT_EQ(Hash(dw), 0xf5e632788b114872u);
}

TEST(InstructionSetsTest, Swiglu) {
  const auto both = Values<float>(kRows * 2 * kColumns, 1);
  const auto dout = Values<float>(kRows * kColumns, 2);
  std::vector<float> out(dout.size()), dboth(both.size());
  SwigluForward(CpuStream(), SwigluArgs<float>{.gate = both.data(),
                                               .up = both.data() + kColumns,
                                               .in_stride = 2 * kColumns,
                                               .out = out.data(),
                                               .rows = kRows,
                                               .columns = kColumns});
  SwigluBackward(CpuStream(),
                 SwigluBackwardArgs<float>{.gate = both.data(),
                                           .up = both.data() + kColumns,
                                           .in_stride = 2 * kColumns,
                                           .dout = dout.data(),
                                           .dgate = dboth.data(),
                                           .dup = dboth.data() + kColumns,
                                           .dstride = 2 * kColumns,
                                           .rows = kRows,
                                           .columns = kColumns});
  EXPECT_EQ(Hash(out), 0xb20e8c38e1e6e761u);
  EXPECT_EQ(Hash(dboth), 0x819f9e08d8b233e6u);
}

TEST(InstructionSetsTest, CrossEntropy) {
  auto logits = Values<Bf16>(kRows * 5000, 1);
  const std::vector<int32_t> targets(kRows, 17);
  const std::vector<float> weights(kRows, 0.125f);
  std::vector<float> max(kRows), sum(kRows), target(kRows);
  const LogitsView<Bf16> view = {.data = logits.data(),
                                 .stride = 5000,
                                 .rows = kRows,
                                 .columns = 5000,
                                 .valid_columns = 4987};
  CrossEntropyMax(CpuStream(), view, max.data());
  CrossEntropySum(CpuStream(), view, max.data(), targets.data(), sum.data(),
                  target.data());
  CrossEntropyBackward(CpuStream(), view, max.data(), sum.data(),
                       targets.data(), weights.data(), logits.data(), 5000);
  EXPECT_EQ(Hash(max), 0x715c5741486b6df5u);
  EXPECT_EQ(Hash(sum), 0x00c8a81c3b340de5u);
  EXPECT_EQ(Hash(logits), 0x54f78b640095984du);
}

TEST(InstructionSetsTest, AdamWAndSums) {
  const int64_t count = 5003;
  auto master = Values<float>(count, 1);
  auto moment1 = Values<float>(count, 2);
  std::vector<float> moment2(count, 0.25f);
  const auto grad = Values<float>(count, 3);
  std::vector<Bf16> weight(count);
  AdamW(CpuStream(), AdamWArgs<Bf16>{.weight = weight.data(),
                                     .master = master.data(),
                                     .moment1 = moment1.data(),
                                     .moment2 = moment2.data(),
                                     .grad = grad.data(),
                                     .count = count,
                                     .step = 1,
                                     .lr = 1e-3f,
                                     .weight_decay = 0.1f});
  std::vector<double> sums(BlockCount(count));
  BlockSumsOfSquares(CpuStream(), grad.data(), count, sums.data());
  EXPECT_EQ(Hash(weight), 0x1deb8377983538e2u);
  EXPECT_EQ(Hash(master), 0x7139de7dc6663c58u);
  EXPECT_EQ(Hash(moment2), 0x4bf0ac3ee03388e0u);
  EXPECT_EQ(Hash(sums), 0x7e7acb5d1abbeeb1u);
}

}  // namespace
}  // namespace holdfast::kernels
