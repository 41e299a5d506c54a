// The GPU's embedding, run on the host, against the CPU's: the same bits,
// whatever tokens repeat.

#include "kernels/cuda_embedding.h"

#include <algorithm>

#include "gtest/gtest.h"
#include "tests/unit/kernels/cuda_helpers.h"

namespace holdfast::kernels {
namespace {

template <typename T>
class CudaEmbeddingTest : public testing::Test {};
TYPED_TEST_SUITE(CudaEmbeddingTest, ComputeTypes);

struct Shape {
  int64_t count, hidden, vocab_begin, vocab_rows, offset;
};

// Ids of a vocabulary of 4 * vocab_rows, every third one the same.
std::vector<int32_t> Tokens(const Shape& s) {
  std::vector<int32_t> tokens;
  std::mt19937_64 generator(7);
  for (int64_t i = 0; i < s.count; ++i) {
    tokens.push_back(static_cast<int32_t>(
        i % 3 == 0 ? s.vocab_begin : generator() % (4 * s.vocab_rows)));
  }
  return tokens;
}

const Shape kShapes[] = {{1, 8, 0, 4, 0},      {37, 16, 6, 5, 0},
                         {200, 130, 10, 9, 0}, {2500, 12, 50, 300, 0},
                         {100, 264, 3, 40, 1}, {70, 33, 0, 64, 0},
                         {0, 16, 0, 8, 0},     {300, 16, 8, 1, 0}};

TYPED_TEST(CudaEmbeddingTest, ForwardHasTheCpusBits) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(testing::Message() << s.count << " x " << s.hidden);
    const auto tokens = Tokens(s);
    const Placed<T> table(s.vocab_rows * s.hidden, s.offset, 1);
    const auto args = [&](std::vector<T>& out) {
      return EmbeddingArgs<T>{.tokens = tokens.data(),
                              .count = s.count,
                              .table = table.data(),
                              .vocab_begin = s.vocab_begin,
                              .vocab_rows = s.vocab_rows,
                              .hidden = s.hidden,
                              .out = out.data()};
    };
    std::vector<T> expected(s.count * s.hidden);
    EmbeddingForward(CpuStream(), args(expected));
    const std::string got = SameOnAnyGrid([&](const auto& run) {
      std::vector<T> out(expected.size());
      RunEmbeddingForward(args(out), run);
      return BytesOf(out);
    });
    EXPECT_EQ(got == BytesOf(expected), true);
  }
}

template <typename T>
EmbeddingBackwardArgs<T> BackwardArgs(const Shape& s,
                                      const std::vector<int32_t>& tokens,
                                      const T* dout, float* dtable) {
  return {.tokens = tokens.data(),
          .count = s.count,
          .dout = dout,
          .vocab_begin = s.vocab_begin,
          .vocab_rows = s.vocab_rows,
          .hidden = s.hidden,
          .dtable = dtable};
}

TYPED_TEST(CudaEmbeddingTest, BackwardHasTheCpusBits) {
  using T = TypeParam;
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(testing::Message() << s.count << " x " << s.hidden);
    const auto tokens = Tokens(s);
    const Placed<T> dout(s.count * s.hidden, s.offset, 1);
    const auto before = RandomValues<float>(s.vocab_rows * s.hidden, 2);
    std::vector<float> expected = before;
    EmbeddingBackward(CpuStream(),
                      BackwardArgs(s, tokens, dout.data(), expected.data()));
    const std::string got = SameOnAnyGrid([&](const auto& run) {
      std::vector<float> dtable = before;
      const auto args = BackwardArgs(s, tokens, dout.data(), dtable.data());
      std::vector<uint32_t> scratch(
          static_cast<size_t>(EmbeddingBackwardScratch(args)), 77u);
      RunEmbeddingBackward(args, scratch.data(), run);
      return BytesOf(dtable);
    });
    EXPECT_EQ(got == BytesOf(expected), true);
  }
}

// A vocabulary so large that a chunk holds few tokens: the order stays that of
// the tokens over all chunks.
TEST(CudaEmbeddingChunksTest, ManyChunksHaveTheCpusBits) {
  EXPECT_EQ(TokenKeys::LogChunk(1), 15);
  EXPECT_EQ(TokenKeys::LogChunk(131071), 15);
  EXPECT_EQ(TokenKeys::LogChunk(131072), 14);
  EXPECT_EQ(TokenKeys::LogChunk(int64_t{1} << 30), 1);
  EXPECT_EQ(TokenKeys::LogChunk((int64_t{1} << 31) - 1), 1);

  // Rows of one column: 2^28 of them would be a gibibyte, so only the first
  // few are there to be touched.
  const Shape s = {777, 1, 5, (int64_t{1} << 28) - 1, 0};
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < s.count; ++i) {
    tokens.push_back(static_cast<int32_t>(i % 11));  // 0 to 4 are not here.
  }
  const auto dout = RandomValues<float>(s.count, 1);
  std::vector<float> expected(6, 0.5f);
  std::vector<float> dtable = expected;
  EmbeddingBackward(CpuStream(),
                    BackwardArgs(s, tokens, dout.data(), expected.data()));
  const auto args = BackwardArgs(s, tokens, dout.data(), dtable.data());
  EXPECT_EQ(EmbeddingBackwardScratch(args), 16);
  std::vector<uint32_t> scratch(16);
  RunEmbeddingBackward(args, scratch.data(), HostRunner{});
  EXPECT_TRUE(SameBits(dtable, expected));
}

TEST(CudaEmbeddingChunksTest, SortingOrdersByRowThenPosition) {
  const int64_t count = 5000;  // More than a tile of the comparisons.
  const TokenKeys keys{100, 50, TokenKeys::LogChunk(50)};
  std::vector<int32_t> tokens;
  std::mt19937_64 generator(3);
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(90 + generator() % 70));
  }
  std::vector<uint32_t> expected;
  for (int64_t i = 0; i < count; ++i) {
    expected.push_back(keys.Key(tokens[i], i));
    EXPECT_EQ(keys.Position(expected.back()), i);
    const int64_t row = tokens[i] - 100;
    EXPECT_EQ(keys.Row(expected.back()), row >= 0 && row < 50 ? row : 50);
  }
  std::sort(expected.begin(), expected.end());
  std::vector<uint32_t> sorted(count);
  const SortTokensKernel kernel{tokens.data(), count, keys, sorted.data()};
  RunOnHost(kernel, kernel.blocks());
  EXPECT_EQ(sorted, expected);
}

}  // namespace
}  // namespace holdfast::kernels
