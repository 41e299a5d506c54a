// Tensors of a few elements, cut in ways that can be drawn on paper.

#include "tools/convert/dcp/dcp_cover.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::tools {
namespace {

using ::testing::HasSubstr;

DcpTensor Tensor(
    std::vector<int64_t> shape,
    std::vector<std::pair<std::vector<int64_t>, std::vector<int64_t>>> chunks) {
  DcpTensor tensor;
  tensor.name = "w";
  tensor.shape = std::move(shape);
  for (auto& [first, count] : chunks) {
    tensor.chunks.push_back({DcpLengths(first.begin(), first.end()),
                             DcpLengths(count.begin(), count.end()),
                             {}});
  }
  std::sort(
      tensor.chunks.begin(), tensor.chunks.end(),
      [](const DcpChunk& a, const DcpChunk& b) { return a.first < b.first; });
  return tensor;
}

std::string Refusal(const DcpTensor& tensor) {
  return std::string(CheckCover(tensor).message());
}

TEST(DcpCoverTest, ChunksThatTileATensorAreItsElements) {
  EXPECT_TRUE(CheckCover(Tensor({}, {{{}, {}}})).ok());
  EXPECT_TRUE(CheckCover(Tensor({0, 4}, {})).ok());
  EXPECT_TRUE(CheckCover(Tensor({4}, {{{0}, {3}}, {{3}, {1}}})).ok());
  // A pinwheel: no line cuts it in two.
  EXPECT_TRUE(CheckCover(Tensor({3, 3}, {{{0, 0}, {1, 2}},
                                         {{0, 2}, {2, 1}},
                                         {{2, 1}, {1, 2}},
                                         {{1, 0}, {2, 1}},
                                         {{1, 1}, {1, 1}}}))
                  .ok());
}

TEST(DcpCoverTest, HolesOverlapsAndStraysAreRefusedWithNumbers) {
  EXPECT_THAT(Refusal(Tensor({4}, {{{0}, {3}}})),
              HasSubstr("'w' [4]: its chunks have 3 of its 4 elements"));
  EXPECT_THAT(Refusal(Tensor({4}, {{{0}, {3}}, {{2}, {1}}})),
              HasSubstr("the chunks at [0] and [2] overlap"));
  EXPECT_THAT(Refusal(Tensor({4}, {{{0}, {3}}, {{2}, {2}}})),
              HasSubstr("more than its 4 elements"));
  EXPECT_THAT(Refusal(Tensor({4}, {{{2}, {3}}})),
              HasSubstr("a chunk [2] of [3] is not inside"));
  EXPECT_THAT(Refusal(Tensor({4, 4}, {{{2}, {2}}})), HasSubstr("not inside"));
  EXPECT_THAT(Refusal(Tensor({4}, {{{-1}, {2}}})), HasSubstr("not inside"));
  EXPECT_THAT(Refusal(Tensor({}, {{{}, {}}, {{}, {}}})),
              HasSubstr("more than its 1 elements"));
  EXPECT_THAT(Refusal(Tensor({-4}, {})), HasSubstr("impossible"));
  EXPECT_THAT(Refusal(Tensor({int64_t{1} << 40, int64_t{1} << 40}, {})),
              HasSubstr("impossible"));
}

TEST(DcpCoverTest, ThousandsOfRowChunksAreCheckedInNoTime) {
  DcpTensor tensor;
  tensor.name = "w";
  tensor.shape = {200000, 8};
  for (int64_t i = 0; i < 100000; ++i) {
    tensor.chunks.push_back({{2 * i, 0}, {2, 8}, {}});
  }
  EXPECT_TRUE(CheckCover(tensor).ok());
  tensor.chunks[500].first[0] += 1;
  EXPECT_FALSE(CheckCover(tensor).ok());
}

}  // namespace
}  // namespace holdfast::tools
