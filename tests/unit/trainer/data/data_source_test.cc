// From files to batches: targets one token on, masks at the target, the same
// rows whoever asks, and refusals before training starts.

#include "trainer/data/data_source.h"

#include <cmath>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/trainer/data/token_files.h"

namespace holdfast::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<DataSource> Open(const DataConfig& config,
                                 const DataOptions& options) {
  auto source = DataSource::Open(config, options);
  EXPECT_TRUE(source.ok()) << source.status();
  return *std::move(source);
}

std::string Refusal(const DataConfig& config, const DataOptions& options) {
  const auto source = DataSource::Open(config, options);
  EXPECT_EQ(source.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(source.status().message());
}

TEST(DataSourceTest, RowsAreWindowsWithTargetsOneTokenOn) {
  TempFolder folder;
  WriteTokens(folder / "a", 300, {Counting(100), Counting(101, 100)});
  const auto source = Open({.paths = {folder / "a"}, .eval_fraction = 0.1},
                           {.seq_len = 8, .vocab = 300, .seed = 3});
  ASSERT_EQ(source->samples().windows()[0], (WindowCounts{23, 2}));
  Batch batch;
  std::vector<uint64_t> indices(23);
  std::iota(indices.begin(), indices.end(), uint64_t{0});
  source->LoadBatch(indices, batch);
  ASSERT_EQ(batch.rows, 23);
  ASSERT_EQ(batch.tokens.size(), 23 * 8);
  for (size_t row = 0; row < 23; ++row) {
    const auto first =
        static_cast<int32_t>(8 * source->At(indices[row]).window);
    for (int32_t i = 0; i < 8; ++i) {
      EXPECT_EQ(batch.tokens[row * 8 + i], first + i);
      EXPECT_EQ(batch.targets[row * 8 + i], first + i + 1);
      EXPECT_EQ(batch.counts[row * 8 + i], 1);
    }
  }
  source->LoadEvalBatch(std::vector<uint64_t>{0, 1}, batch);
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.tokens[0] + batch.tokens[8], 23 * 8 + 24 * 8);
}

TEST(DataSourceTest, ARowDoesNotDependOnWhoAsksForIt) {
  TempFolder folder;
  WriteTokens(folder / "a", 500, {Counting(400)});
  WriteTokens(folder / "b", 500, {Counting(90, 400)});
  const auto source =
      Open({.paths = {folder / "a", folder / "b"}, .weights = {3, 1}},
           {.seq_len = 4, .vocab = 500, .seed = 3});
  std::vector<uint64_t> all(24);
  std::iota(all.begin(), all.end(), uint64_t{1000});
  Batch whole;
  source->LoadBatch(all, whole);
  for (const size_t ranks : {2, 3, 8}) {
    Batch part;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const size_t rows = all.size() / ranks;
      source->LoadBatch(std::span(all).subspan(rank * rows, rows), part);
      ASSERT_TRUE(std::equal(part.tokens.begin(), part.tokens.end(),
                             whole.tokens.begin() + rank * rows * 4));
    }
  }
}

TEST(DataSourceTest, MasksStandAtTheTargetAndAreCountedCheaply) {
  TempFolder folder;
  std::vector<bool> counts(41);
  for (int i = 0; i < 41; ++i) counts[i] = i % 5 != 0;
  WriteTokens(folder / "a", 300, {Counting(41)}, counts);
  const auto source = Open({.paths = {folder / "a"}, .eval_fraction = 0.2},
                           {.seq_len = 8, .vocab = 300});
  Batch batch;
  const auto check = [&](uint64_t counted) {
    uint64_t sum = 0;
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(batch.counts[i], batch.targets[i] % 5 != 0);
      sum += batch.counts[i];
    }
    EXPECT_EQ(counted, sum);
  };
  for (uint64_t index = 0; index < 4; ++index) {
    source->LoadBatch(std::span(&index, 1), batch);
    check(source->CountingTokens(index));
  }
  const uint64_t zero = 0;
  source->LoadEvalBatch(std::span(&zero, 1), batch);
  check(source->EvalCountingTokens(0));
}

TEST(DataSourceTest, SteadyStateReusesItsBatch) {
  TempFolder folder;
  WriteTokens(folder / "a", 300, {Counting(200)});
  const auto source =
      Open({.paths = {folder / "a"}}, {.seq_len = 8, .vocab = 300});
  Batch batch;
  source->LoadBatch(std::vector<uint64_t>{0, 1, 2}, batch);
  const int32_t* tokens = batch.tokens.data();
  source->LoadBatch(std::vector<uint64_t>{7, 8, 9}, batch);
  source->LoadBatch(std::vector<uint64_t>{5}, batch);
  EXPECT_EQ(batch.tokens.data(), tokens);
}

TEST(DataSourceTest, RefusesBadDataBeforeTrainingStarts) {
  TempFolder folder;
  WriteTokens(folder / "a", 300, {Counting(300)});
  WriteTokens(folder / "short", 300, {Counting(8)});
  EXPECT_THAT(Refusal({.paths = {folder / "a", folder / "none"}},
                      {.seq_len = 8, .vocab = 300}),
              HasSubstr("none.idx: No such file"));
  EXPECT_THAT(
      Refusal({.paths = {folder / "a"}}, {.seq_len = 8, .vocab = 258}),
      AllOf(HasSubstr("a.bin: offset 516"), HasSubstr("model.vocab = 258")));
  EXPECT_TRUE(
      DataSource::Open({.paths = {folder / "a"}},
                       {.seq_len = 8, .vocab = 258, .check_tokens = false})
          .ok())
      << "another rank checks";
  EXPECT_THAT(
      Refusal({.paths = {folder / "short"}}, {.seq_len = 8, .vocab = 300}),
      AllOf(HasSubstr("short: 8 tokens make 0 sequences of 8 + 1"),
            HasSubstr("none is left to train on")));
}

TEST(DataSourceTest, FingerprintTellsOtherSamplesFromTheSame) {
  TempFolder folder;
  WriteTokens(folder / "a", 300, {Counting(200)});
  WriteTokens(folder / "copy", 300, {Counting(200)});
  WriteTokens(folder / "b", 300, {Counting(150, 50)});
  const DataOptions options{.seq_len = 8, .vocab = 300, .seed = 1};
  const auto of = [&](const DataConfig& config, DataOptions with) {
    return Open(config, with)->Fingerprint();
  };
  const DataConfig ab{.paths = {folder / "a", folder / "b"}, .weights = {1, 1}};
  const std::string print = of(ab, options);
  EXPECT_EQ(print.size(), 16);
  EXPECT_EQ(print,
            of({.paths = {folder / "copy", folder / "b"}, .weights = {2, 2}},
               options))
      << "files may move, weights be scaled";
  DataConfig other = ab;
  other.weights = {1, 2};
  EXPECT_NE(print, of(other, options));
  other = ab;
  std::swap(other.paths[0], other.paths[1]);
  EXPECT_NE(print, of(other, options));
  other = ab;
  other.eval_fraction = 0.5;
  EXPECT_NE(print, of(other, options));
  DataOptions longer = options;
  longer.seq_len = 9;
  EXPECT_NE(print, of(ab, longer));
}

TEST(DataSourceTest, UnigramEntropyFollowsTheMixture) {
  TempFolder folder;
  // One set of ones, one of twos, mixed 3 to 1.
  WriteTokens(folder / "a", 4, {std::vector<int32_t>(100, 1)});
  WriteTokens(folder / "b", 4, {std::vector<int32_t>(500, 2)});
  const auto source =
      Open({.paths = {folder / "a", folder / "b"}, .weights = {3, 1}},
           {.seq_len = 4, .vocab = 4});
  EXPECT_NEAR(source->UnigramNats(),
              -0.75 * std::log(0.75) - 0.25 * std::log(0.25), 1e-12);
}

}  // namespace
}  // namespace holdfast::trainer
