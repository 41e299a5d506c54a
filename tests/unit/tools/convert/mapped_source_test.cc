// Items made of foreign tensors: every run of every box must be what the plain
// loop over the declaration gives.

#include "tools/convert/mapped_source.h"

#include <cstring>

#include "ckpt/base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::tools {
namespace {

using ckpt::DType;
using ::testing::HasSubstr;

// F32 tensors whose element i of tensor t is 1000 t + i.
class Numbered final : public ForeignTensors {
 public:
  explicit Numbered(std::vector<ForeignTensor> tensors)
      : tensors_(std::move(tensors)) {}
  const std::vector<ForeignTensor>& tensors() const override {
    return tensors_;
  }
  absl::Status Read(int tensor, int64_t first, int64_t count,
                    std::span<std::byte> out) override {
    for (int64_t i = 0; i < count; ++i) {
      const float value = ValueOf(tensor, first + i);
      std::memcpy(out.data() + 4 * i, &value, 4);
    }
    read_ += out.size();
    return absl::OkStatus();
  }
  std::string identity() const override { return "numbered"; }
  uint64_t bytes_read() const override { return read_; }

  static float ValueOf(int tensor, int64_t element) {
    return static_cast<float>(1000 * tensor + element);
  }

 private:
  std::vector<ForeignTensor> tensors_;
  uint64_t read_ = 0;
};

std::shared_ptr<Numbered> Tensors() {
  return std::make_shared<Numbered>(std::vector<ForeignTensor>{
      {"cube", DType::kF32, {4, 3, 2}},
      {"ids", DType::kI64, {4}},
      {"norm", DType::kF32, {10}},
      {"qkv", DType::kF32, {16, 4}},
      {"scale", DType::kF32, {}},
  });
}

std::vector<float> Filled(ckpt::StateSource& source, ckpt::ItemIndex item,
                          const ckpt::Box& part, int64_t first, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count), -1.0f);
  const ckpt::WantedRun want{item, part, first, count,
                             std::as_writable_bytes(std::span(out))};
  EXPECT_TRUE(source.Fill({&want, 1}).ok());
  return out;
}

TEST(MappedSourceTest, RotaryPairsMoveHalfAHeadApart) {
  auto from = Tensors();
  const int qkv = FindTensor(from->tensors(), "qkv");
  auto source = MakeMappedSource(
      from,
      {{{"q", "master", DType::kF32, {8, 4}}, RotaryPairsApart(qkv, 4, 2, 4)}},
      {});
  ASSERT_TRUE(source.ok()) << source.status();
  const std::vector<float> rows =
      Filled(**source, 0, ckpt::WholeBox(std::vector<int64_t>{8, 4}), 0, 32);
  const int64_t expected[] = {4, 6, 5, 7, 8, 10, 9, 11};
  for (int row = 0; row < 8; ++row) {
    for (int column = 0; column < 4; ++column) {
      EXPECT_EQ(rows[row * 4 + column],
                Numbered::ValueOf(qkv, expected[row] * 4 + column));
    }
  }
}

TEST(MappedSourceTest, AnyRunOfAnyBoxIsThatOfThePlainLoop) {
  auto from = Tensors();
  const int cube = FindTensor(from->tensors(), "cube");
  const int qkv = FindTensor(from->tensors(), "qkv");
  const int norm = FindTensor(from->tensors(), "norm");
  std::vector<MappedItem> items = {
      {{"a", "master", DType::kF32, {4, 3, 2}},
       {{cube, 2, 2, 1}, {cube, 0, 2, 1}}},
      {{"b", "master", DType::kF32, {9, 4}},
       {{qkv, 0, 3, 5}, {qkv, 1, 2, 1}, {qkv, 15, 1, 1}, {qkv, 2, 3, 3}}},
      {{"c", "master", DType::kF32, {6}}, {{norm, 1, 3, 4}, {norm, 4, 3, 1}}},
  };
  auto source = MakeMappedSource(from, items, {});
  ASSERT_TRUE(source.ok()) << source.status();
  uint64_t draws = 0;
  const auto draw = [&](int64_t below) {
    return static_cast<int64_t>(ckpt::Philox64(3, 0, draws++) %
                                static_cast<uint64_t>(below));
  };
  for (int round = 0; round < 600; ++round) {
    const auto item = static_cast<ckpt::ItemIndex>(draw(3));
    const std::vector<int64_t>& shape = items[item].item.shape;
    ckpt::Box box = ckpt::WholeBox(shape);
    for (size_t d = 0; d < shape.size(); ++d) {
      box.first[d] = draw(shape[d]);
      box.count[d] = 1 + draw(shape[d] - box.first[d]);
    }
    const int64_t first = draw(box.elements());
    const int64_t count = 1 + draw(box.elements() - first);
    const std::vector<float> got = Filled(**source, item, box, first, count);

    int64_t row_elements = 1;
    for (size_t d = 1; d < shape.size(); ++d) row_elements *= shape[d];
    for (int64_t i = 0; i < count; ++i) {
      // Coordinates of the run's element, from its place in the box.
      int64_t left = first + i, scale = 1, in_row = 0, row = 0;
      for (int d = static_cast<int>(shape.size()) - 1; d >= 0; --d) {
        const int64_t index = box.first[d] + left % box.count[d];
        left /= box.count[d];
        if (d > 0) {
          in_row += index * scale;
          scale *= shape[d];
        } else {
          row = index;
        }
      }
      float expected = -2.0f;
      for (const RowRun& run : items[item].rows) {
        if (row < run.count) {
          expected = Numbered::ValueOf(
              run.tensor,
              (run.first + row * run.stride) * row_elements + in_row);
          break;
        }
        row -= run.count;
      }
      ASSERT_EQ(got[i], expected) << "round " << round << " element " << i;
    }
  }
}

TEST(MappedSourceTest, CastsScalarsAndMakesZeros) {
  auto from = Tensors();
  const int scale = FindTensor(from->tensors(), "scale");
  auto source = MakeMappedSource(
      from,
      {{{"s", "weight", DType::kBf16, {}}, WholeTensor(*from, scale)},
       {{"s", "exp_avg", DType::kF32, {}}, {}}},
      {{"step", "0"}});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->items()[0].kind, "exp_avg");
  EXPECT_EQ(Filled(**source, 0, {}, 0, 1)[0], 0.0f);
  uint16_t weight = 0;
  const ckpt::WantedRun want{
      1, {}, 0, 1, std::as_writable_bytes(std::span(&weight, 1))};
  ASSERT_TRUE((*source)->Fill({&want, 1}).ok());
  EXPECT_EQ(weight, 0x457a);  // 4000
  EXPECT_EQ((*source)->attributes().at("step"), "0");
}

TEST(MappedSourceTest, RefusesDeclarationsThatDoNotFit) {
  auto from = Tensors();
  const int qkv = FindTensor(from->tensors(), "qkv");
  const int ids = FindTensor(from->tensors(), "ids");
  const auto refusal = [&](std::vector<MappedItem> items) {
    return std::string(
        MakeMappedSource(from, std::move(items), {}).status().message());
  };
  const ckpt::ItemSpec four{"q", "master", DType::kF32, {4, 4}};
  EXPECT_THAT(refusal({{four, {{qkv, 13, 4, 1}}}}),
              HasSubstr("are not all in tensor 'qkv', which has 16"));
  EXPECT_THAT(refusal({{four, {{qkv, 1, 4, INT64_MAX}}}}),
              HasSubstr("are not all in tensor 'qkv'"));
  EXPECT_THAT(refusal({{four, {{qkv, 0, 3, 1}}}}),
              HasSubstr("it has 4 rows, its sources 3"));
  EXPECT_THAT(refusal({{{"q", "master", DType::kF32, {4, 5}}, {{qkv, 0, 4}}}}),
              HasSubstr("its rows have 5 elements, those of tensor 'qkv'"));
  EXPECT_THAT(refusal({{{"q", "master", DType::kF32, {4}}, {{ids, 0, 4}}}}),
              HasSubstr("tensor 'ids' is i64, which is not cast to f32"));
  EXPECT_THAT(refusal({{four, {{99, 0, 4, 1}}}}),
              HasSubstr("there is no tensor 99"));
  EXPECT_THAT(refusal({{four, {{qkv, 0, 4, 1}}}, {four, {{qkv, 0, 4, 1}}}}),
              HasSubstr("made twice"));
}

}  // namespace
}  // namespace holdfast::tools
