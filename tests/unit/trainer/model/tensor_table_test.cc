// The table is checked against published models: their parameter counts are
// known, and their names are what other tools look for.

#include "trainer/model/tensor_table.h"

#include <set>
#include <string>

#include "ckpt/layout/train_layout.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using ::testing::HasSubstr;

// Llama 2 7B: 6,738,415,616 parameters in 291 tensors.
ModelConfig Llama7b() {
  return {.layers = 32,
          .hidden = 4096,
          .heads = 32,
          .kv_heads = 32,
          .ffn = 11008,
          .vocab = 32000,
          .seq_len = 4096};
}

ModelConfig Small() {
  return {.layers = 2,
          .hidden = 24,
          .heads = 4,
          .kv_heads = 2,
          .ffn = 40,
          .vocab = 37,
          .seq_len = 8};
}

int64_t Elements(const ModelTensors& tensors) {
  int64_t total = 0;
  for (const ckpt::TensorSpec& spec : tensors.specs) {
    total += ckpt::WholeBox(spec.shape).elements();
  }
  return total;
}

TEST(TensorTableTest, CountsTheParametersOfAKnownModel) {
  const ModelTensors tensors = BuildTensorTable(Llama7b(), 1);
  EXPECT_EQ(tensors.specs.size(), 291u);
  EXPECT_EQ(Elements(tensors), 6738415616);
  EXPECT_EQ(ParameterCount(Llama7b()), 6738415616);
}

TEST(TensorTableTest, ATiedModelHasOneTable) {
  ModelConfig model = Small();
  const ModelTensors untied = BuildTensorTable(model, 1);
  model.tied = true;
  const ModelTensors tied = BuildTensorTable(model, 1);
  EXPECT_EQ(Elements(untied) - Elements(tied), 37 * 24);
  EXPECT_EQ(Elements(tied), ParameterCount(model));
  EXPECT_EQ(tied.head, tied.embedding);
  EXPECT_TRUE(tied.specs[tied.embedding].tied_to_last_stage);
  EXPECT_NE(untied.head, untied.embedding);
}

TEST(TensorTableTest, NamesAreUniqueAndHuggingFaces) {
  const ModelTensors tensors = BuildTensorTable(Small(), 1);
  std::set<std::string> names;
  for (const ckpt::TensorSpec& spec : tensors.specs) names.insert(spec.name);
  EXPECT_EQ(names.size(), tensors.specs.size());
  EXPECT_EQ(tensors.specs[tensors.layers[1].k].name,
            "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(tensors.specs[tensors.layers[1].k].shape,
            (std::vector<int64_t>{12, 24}));
  EXPECT_TRUE(names.contains("model.norm.weight"));
  EXPECT_TRUE(names.contains("lm_head.weight"));
}

TEST(TensorTableTest, EveryTpRankGetsWholeTilesOfTheVocabulary) {
  for (const int tp : {1, 2, 4}) {
    const ModelTensors tensors = BuildTensorTable(Small(), tp);
    EXPECT_EQ(tensors.specs[tensors.embedding].tp_pad_multiple,
              kVocabRowsMultiple * tp);
    EXPECT_EQ(tensors.specs[tensors.head].tp_pad_multiple,
              kVocabRowsMultiple * tp);
  }
}

TEST(TensorTableTest, RefusesNumbersThatDoNotFitByName) {
  ModelConfig model = Small();
  EXPECT_TRUE(CheckModel(model, 2).ok());
  EXPECT_THAT(std::string(CheckModel(model, 4).message()),
              HasSubstr("model.kv_heads = 2 is not a multiple of parallel.tp"));
  model.kv_heads = 3;
  EXPECT_THAT(std::string(CheckModel(model, 1).message()),
              HasSubstr("model.heads = 4 is not a multiple of model.kv_heads"));
  model = Small();
  model.hidden = 20;
  EXPECT_THAT(std::string(CheckModel(model, 1).message()),
              HasSubstr("model.hidden = 20 over model.heads = 4"));
  model = Small();
  model.ffn = 0;
  EXPECT_THAT(std::string(CheckModel(model, 1).message()),
              HasSubstr("model.ffn is 0"));
}

TEST(TensorTableTest, WeightDecayIsForMatrices) {
  const ModelTensors tensors = BuildTensorTable(Small(), 1);
  EXPECT_TRUE(IsDecayed(tensors.specs[tensors.embedding]));
  EXPECT_TRUE(IsDecayed(tensors.specs[tensors.layers[0].down]));
  EXPECT_FALSE(IsDecayed(tensors.specs[tensors.layers[0].post_norm]));
  EXPECT_FALSE(IsDecayed(tensors.specs[tensors.final_norm]));
}

TEST(TensorTableTest, FlopsOfATokenAreSixPerMultipliedParameterAndAttention) {
  // By hand: per layer 24*24 (q) + 2*12*24 (k, v) + 24*24 (o) + 3*24*40; two
  // layers; the head 37*24. Attention 12 * 2 layers * 24 * 8.
  const double multiplied = 2 * (576 + 576 + 576 + 2880) + 888;
  EXPECT_DOUBLE_EQ(FlopsPerToken(Small()), 6 * multiplied + 12 * 2 * 24 * 8);
  ModelConfig tied = Small();
  tied.tied = true;
  EXPECT_DOUBLE_EQ(FlopsPerToken(tied), FlopsPerToken(Small()));
}

}  // namespace
}  // namespace holdfast::trainer
