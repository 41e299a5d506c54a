// Bytes read from a file land where the plan wants them, once each.

#include "ckpt/plan/scatter.h"

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/ckpt/plan/memory_job.h"

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Unit> UnitsOf(std::vector<uint32_t> blocks) {
  std::vector<Unit> units;
  uint64_t offset = 4096;
  for (const uint32_t n : blocks) {
    units.push_back({.offset = offset, .bytes = n * 4096});
    offset += n * 4096;
  }
  return units;
}

Manifest WithFiles(size_t count) {
  Manifest manifest;
  manifest.files.resize(count);
  return manifest;
}

TEST(ScatterTest, ReadsTheUnitsThatAStepTouchesAndJoinsNeighbours) {
  LoadPlan plan;
  plan.steps = {{.file = 2, .file_offset = 8190, .row_bytes = 4},
                {.file = 2, .file_offset = 20480, .row_bytes = 4097},
                {.file = 5, .file_offset = 4096, .row_bytes = 1}};
  const Scatter scatter(plan);
  EXPECT_THAT(scatter.files(), ElementsAre(2, 5));
  const std::vector<Unit> units = UnitsOf({1, 1, 2, 1, 1, 1});
  EXPECT_THAT(
      scatter.UnitsToRead(2, units, 1 << 20),
      ElementsAre(
          UnitRead{
              .offset = 4096, .bytes = 8192, .first_unit = 0, .unit_count = 2},
          UnitRead{.offset = 20480,
                   .bytes = 8192,
                   .first_unit = 3,
                   .unit_count = 2}));
  EXPECT_THAT(
      scatter.UnitsToRead(2, units, 4096),
      ElementsAre(UnitRead{4096, 4096, 0, 1}, UnitRead{8192, 4096, 1, 1},
                  UnitRead{20480, 4096, 3, 1}, UnitRead{24576, 4096, 4, 1}));
  EXPECT_THAT(scatter.UnitsToRead(3, units, 4096), IsEmpty());
}

TEST(ScatterTest, UnitsBetweenTheRowsOfAStepAreNotRead) {
  LoadPlan plan;
  // Rows at 4096, 16384, 28672 and 40960.
  plan.steps = {{.file_offset = 4096,
                 .file_stride = 12288,
                 .region_stride = 100,
                 .row_bytes = 100,
                 .rows = 4}};
  const Scatter scatter(plan);
  std::vector<uint32_t> read;
  for (const UnitRead& r :
       scatter.UnitsToRead(0, UnitsOf({1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), 4096)) {
    read.push_back(r.first_unit);
  }
  EXPECT_THAT(read, ElementsAre(0, 3, 6, 9));
}

TEST(ScatterTest, APlaceIsOnePieceThatHoldsAllAndIsAligned) {
  AlignedBuffer memory(40960);
  const std::vector<std::span<std::byte>> regions = {memory.span()};
  LoadPlan plan;
  plan.steps = {
      {.file_offset = 4096, .region_offset = 8192, .row_bytes = 8192},
      // Begins in mid-block of the region.
      {.file_offset = 16384, .region_offset = 20000, .row_bytes = 8192},
      // Two rows.
      {.file_offset = 28672,
       .file_stride = 4096,
       .region_offset = 28672,
       .region_stride = 8192,
       .row_bytes = 4096,
       .rows = 2}};
  const Scatter scatter(plan);
  const Manifest manifest = WithFiles(2);
  const Padding padding(&manifest, {}, {});
  const auto place = [&](uint64_t offset, uint64_t size) {
    const auto bytes = scatter.PlaceOf(0, offset, size, regions, padding);
    return bytes.empty() ? -1 : bytes.data() - memory.data();
  };
  EXPECT_EQ(place(4096, 8192), 8192);
  EXPECT_EQ(place(8192, 4096), 12288);
  EXPECT_EQ(scatter.PlaceOf(0, 8192, 4096, regions, padding).size(), 4096);
  EXPECT_EQ(place(4096, 12288), -1) << "its end is wanted by nobody";
  EXPECT_EQ(place(16384, 4096), -1) << "not aligned";
  EXPECT_EQ(place(28672, 4096), 28672);
  EXPECT_EQ(place(32768, 4096), 36864);
  EXPECT_EQ(place(28672, 8192), -1) << "rows apart";
  EXPECT_EQ(scatter.PlaceOf(1, 4096, 4096, regions, padding).size(), 0);
}

TEST(ScatterTest, PaddingOnBothSidesDoesNotPartAPlace) {
  AlignedBuffer memory(40960);
  const std::vector<std::span<std::byte>> regions = {memory.span()};
  // Three tensors of 5,000, 8,192 and 100 bytes, stored side by side from
  // 4,096.
  const std::vector<ItemSpec> items = {{"a", "w", DType::kU8, {5000}},
                                       {"b", "w", DType::kU8, {8192}},
                                       {"c", "w", DType::kU8, {100}}};
  Manifest manifest = WithFiles(1);
  const auto chunk = [](ItemIndex item, uint64_t offset, uint64_t bytes) {
    Chunk stored;
    stored.item = item;
    stored.offset = offset;
    stored.bytes_stored = bytes;
    return stored;
  };
  manifest.files[0].chunks = {chunk(0, 4096, 5000), chunk(1, 12288, 8192),
                              chunk(2, 20480, 100)};
  const auto fragment = [](ItemIndex item, int64_t count, uint64_t offset) {
    Fragment held;
    held.item = item;
    held.count = count;
    held.offset = offset;
    return held;
  };
  Holding wanted;
  wanted.fragments = {fragment(0, 5000, 8192), fragment(1, 8192, 16384),
                      fragment(2, 100, 24576)};
  LoadPlan plan;
  plan.steps = {
      {.file_offset = 4096, .region_offset = 8192, .row_bytes = 5000},
      {.file_offset = 12288, .region_offset = 16384, .row_bytes = 8192},
      {.file_offset = 20480, .region_offset = 24576, .row_bytes = 100}};
  constexpr uint64_t kSize = 20480;
  const auto place = [&] {
    return Scatter(plan).PlaceOf(0, 4096, kSize, regions,
                                 Padding(&manifest, items, wanted));
  };
  ASSERT_EQ(place().data(), memory.data() + 8192);
  EXPECT_EQ(place().size(), kSize);

  // In this job the first tensor goes on where the file has padding.
  wanted.fragments[0].count = 6000;
  EXPECT_TRUE(place().empty());
  wanted.fragments[0].count = 5000;
  // In that file it does, and this job wants less of it.
  manifest.files[0].chunks[0].bytes_stored = 6000;
  EXPECT_TRUE(place().empty());
  manifest.files[0].chunks[0].bytes_stored = 5000;
  // Another order in memory.
  std::swap(plan.steps[1].region_offset, plan.steps[2].region_offset);
  EXPECT_TRUE(place().empty());
}

TEST(ScatterTest, BytesThatAreInPlaceCountAndGoWhereElseTheyAreWanted) {
  AlignedBuffer memory(12288);
  const std::vector<std::span<std::byte>> regions = {memory.span()};
  LoadPlan plan;
  plan.steps = {{.file_offset = 4096, .row_bytes = 4096},
                {.file_offset = 5000, .region_offset = 8192, .row_bytes = 10}};
  const Scatter scatter(plan);
  const Manifest manifest = WithFiles(2);
  const auto place =
      scatter.PlaceOf(0, 4096, 4096, regions, Padding(&manifest, {}, {}));
  ASSERT_EQ(place.data(), memory.data());
  for (size_t i = 0; i < place.size(); ++i) place[i] = std::byte(i % 251);
  EXPECT_EQ(scatter.ScatterBytes(0, 4096, place, regions), 4106u);
  for (size_t i = 0; i < place.size(); ++i) {
    ASSERT_EQ(place[i], std::byte(i % 251)) << i;
  }
  EXPECT_EQ(memory.data()[8192], std::byte((5000 - 4096) % 251));
}

TEST(ScatterTest, ALongStepIsFoundBehindShortOnes) {
  LoadPlan plan;
  plan.steps = {{.file_offset = 4096, .row_bytes = 40000},
                {.file_offset = 4097, .region_offset = 50000, .row_bytes = 1},
                {.file_offset = 4098, .region_offset = 50001, .row_bytes = 1}};
  std::vector<std::byte> memory(60000);
  std::vector<std::span<std::byte>> regions = {memory};
  const std::vector<std::byte> bytes(100, std::byte{9});
  EXPECT_EQ(Scatter(plan).ScatterBytes(0, 30000, bytes, regions), 100u);
  EXPECT_EQ(memory[30000 - 4096], std::byte{9});
  EXPECT_EQ(Scatter(plan).ScatterBytes(0, 44096, bytes, regions), 0u);
  EXPECT_EQ(Scatter(plan).ScatterBytes(1, 30000, bytes, regions), 0u);
}

TEST(ScatterTest, AnyCutOfAFileIntoReadsCopiesTheSameBytes) {
  LoadPlan plan;
  plan.steps = {{.file_offset = 4096,
                 .file_stride = 70,
                 .region_offset = 0,
                 .region_stride = 30,
                 .row_bytes = 30,
                 .rows = 20},
                {.file_offset = 4126,
                 .file_stride = 70,
                 .region = 1,
                 .region_offset = 5,
                 .region_stride = 40,
                 .row_bytes = 40,
                 .rows = 20},
                {.file_offset = 5600,
                 .region = 0,
                 .region_offset = 700,
                 .row_bytes = 333}};
  std::vector<std::byte> file(8192);
  for (size_t i = 0; i < file.size(); ++i) {
    file[i] = std::byte(Philox64(1, 2, i) | 1);
  }
  std::vector<Bytes> expected = {Bytes(1100), Bytes(900)};
  uint64_t wanted = 0;
  for (const ReadStep& step : plan.steps) {
    for (uint64_t row = 0; row < step.rows; ++row) {
      std::copy_n(file.begin() + step.file_offset + row * step.file_stride,
                  step.row_bytes,
                  expected[step.region].begin() + step.region_offset +
                      row * step.region_stride);
      wanted += step.row_bytes;
    }
  }
  const Scatter scatter(plan);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<Bytes> memory = {Bytes(1100), Bytes(900)};
    std::vector<std::span<std::byte>> regions(memory.begin(), memory.end());
    uint64_t copied = 0;
    uint64_t draw = 0;
    for (uint64_t at = 0; at < file.size();) {
      const uint64_t size = std::min<uint64_t>(
          file.size() - at, 1 + Philox64(seed, 3, draw++) % (1 + seed * 9));
      copied += scatter.ScatterBytes(0, at, std::span(file).subspan(at, size),
                                     regions);
      at += size;
    }
    ASSERT_EQ(copied, wanted) << "seed " << seed;
    ASSERT_EQ(memory, expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace holdfast::ckpt
