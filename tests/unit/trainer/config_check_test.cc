// Numbers that do not fit are refused before anything starts, with the numbers
// in the message; systems that are not built are refused by name.

#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "trainer/config.h"

namespace holdfast::trainer {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Config Small(const std::vector<std::string>& sets = {}) {
  const auto config = ParseConfig(R"(
    model.layers = 6
    model.hidden = 48
    model.heads = 6
    model.ffn = 96
    model.vocab = 258
    model.seq_len = 16
    batch.global_seqs = 24
    batch.micro_seqs = 2
    train.steps = 100
    data.paths = ["a"])",
                                  "small", sets);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : Config{};
}

std::string Refusal(const std::vector<std::string>& sets, int64_t world) {
  Config config = Small(sets);
  const absl::Status status = ResolveConfig(config, world);
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(ConfigCheckTest, ResolvingFillsInWhatFollows) {
  Config config = Small({"parallel.tp=2", "parallel.pp=2"});
  ASSERT_TRUE(ResolveConfig(config, 8).ok());
  EXPECT_EQ(config.parallel.dp, 2);
  EXPECT_THAT(config.parallel.stages, ElementsAre(3, 3));
  EXPECT_EQ(config.optim.decay_steps, 100);
  EXPECT_EQ(config.numerics.virtual_dp, 6) << "24 / 2 = 12 divides by 6, not 8";
  const Config once = config;
  ASSERT_TRUE(ResolveConfig(config, 8).ok());
  EXPECT_EQ(config, once);
}

TEST(ConfigCheckTest, RanksMustDivideByTheModelsOwn) {
  EXPECT_THAT(Refusal({"parallel.tp=2", "parallel.pp=2"}, 6),
              HasSubstr("6 ranks do not divide by parallel.tp x pp x cp = 2 x "
                        "2 x 1 = 4"));
  EXPECT_THAT(Refusal({"parallel.tp=2"}, 1), HasSubstr("1 ranks"));
}

TEST(ConfigCheckTest, DpMayBeAssertedAndThenMustHold) {
  EXPECT_THAT(Refusal({"parallel.dp=3", "parallel.tp=2"}, 4),
              HasSubstr("parallel.dp = 3, but 4 ranks / (tp 2 x pp 1 x cp 1) "
                        "= 2; start 6 ranks"));
  Config config = Small({"parallel.dp=2", "parallel.tp=2"});
  EXPECT_TRUE(ResolveConfig(config, 4).ok());
}

TEST(ConfigCheckTest, SizesMustDivideOverTensorParallelRanks) {
  EXPECT_THAT(Refusal({"parallel.tp=4"}, 4),
              HasSubstr("model.heads = 6 does not divide by parallel.tp = 4"));
  EXPECT_THAT(
      Refusal({"parallel.tp=3", "model.kv_heads=2"}, 3),
      HasSubstr("model.kv_heads = 2 does not divide by parallel.tp = 3"));
  EXPECT_THAT(Refusal({"parallel.tp=2", "model.ffn=97"}, 2),
              HasSubstr("model.ffn = 97 does not divide"));
  EXPECT_THAT(Refusal({"model.hidden=50"}, 1),
              HasSubstr("model.hidden = 50 does not divide by model.heads"));
  EXPECT_THAT(Refusal({"model.kv_heads=4"}, 1),
              HasSubstr("does not divide by model.kv_heads = 4"));
  EXPECT_THAT(Refusal({"model.hidden=18"}, 1), HasSubstr("is odd"));
}

TEST(ConfigCheckTest, LayersAreNeverDropped) {
  EXPECT_THAT(Refusal({"parallel.pp=8"}, 8),
              HasSubstr("parallel.pp = 8 stages need at least one layer each, "
                        "model.layers is 6"));
  EXPECT_THAT(Refusal({"parallel.pp=2", "parallel.stages=[2,3]"}, 2),
              HasSubstr("[2, 3] adds up to 5 layers, model.layers is 6"));
  EXPECT_THAT(Refusal({"parallel.pp=2", "parallel.stages=[6]"}, 2),
              HasSubstr("has 1 entries, parallel.pp is 2"));
  Config config = Small({"parallel.pp=4"});
  ASSERT_TRUE(ResolveConfig(config, 4).ok());
  EXPECT_THAT(config.parallel.stages, ElementsAre(1, 2, 2, 1));
}

TEST(ConfigCheckTest, BatchIsNeverRounded) {
  EXPECT_THAT(Refusal({"numerics.invariant=false"}, 5),
              HasSubstr("batch.global_seqs = 24 does not divide by "
                        "batch.micro_seqs x dp = 2 x 5 = 10; nothing is "
                        "rounded"));
  EXPECT_THAT(Refusal({"batch.micro_seqs=5"}, 1),
              HasSubstr("batch.global_seqs = 24 does not divide by "
                        "batch.micro_seqs = 5"));
  EXPECT_THAT(Refusal({"numerics.virtual_dp=5"}, 1),
              HasSubstr("numerics.virtual_dp x batch.micro_seqs = 5 x 2 = 10"));
  EXPECT_THAT(Refusal({"numerics.virtual_dp=2"}, 3),
              HasSubstr("dp = 3 replicas, but the sum has numerics.virtual_dp "
                        "= 2 leaves"));
  Config config = Small({"numerics.virtual_dp=4"});
  EXPECT_TRUE(ResolveConfig(config, 3).ok()) << "leaves need not divide by dp";
}

TEST(ConfigCheckTest, OtherNumbersThatContradictEachOther) {
  EXPECT_THAT(Refusal({"optim.min_lr=1"}, 1), HasSubstr("is above optim.lr"));
  EXPECT_THAT(Refusal({"optim.warmup_steps=101"}, 1),
              HasSubstr("optim.warmup_steps = 101 is above optim.decay_steps = "
                        "100"));
  EXPECT_THAT(Refusal({"data.weights=[1,2]"}, 1),
              HasSubstr("data.weights has 2 entries, data.paths has 1"));
  EXPECT_THAT(Refusal({"data.weights=[0]"}, 1), HasSubstr("all 0"));
  EXPECT_THAT(Refusal({"data.paths=[]"}, 1), HasSubstr("data.paths is empty"));
  EXPECT_THAT(Refusal({"data.eval_fraction=0", "train.eval_interval=5"}, 1),
              HasSubstr("holds nothing out"));
}

TEST(ConfigCheckTest, SystemsThatAreNotBuiltAreRefusedByName) {
  const std::string asked[] = {"device=fake",
                               "parallel.cp=2",
                               "parallel.ep=2",
                               "parallel.chunks=2",
                               "parallel.sharding=full",
                               "parallel.sharding=hybrid",
                               "parallel.sequence_parallel=true",
                               "parallel.recompute=full",
                               "parallel.recompute=selective",
                               "checkpoint.interval=auto"};
  for (const std::string& set : asked) {
    const absl::Status status = CheckBuilt(Small({set}));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << set;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(set.substr(0, set.find('='))));
  }
  EXPECT_TRUE(CheckBuilt(Small()).ok());
}

TEST(ConfigCheckTest, FilesThatRanksShareAreNotCompressed) {
  for (const char* const files :
       {"checkpoint.files=per_node", "checkpoint.files=2"}) {
    EXPECT_TRUE(CheckBuilt(Small({files})).ok());
    const absl::Status status =
        CheckBuilt(Small({files, "checkpoint.codec=zstd"}));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << files;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("checkpoint.codec: files that ranks share"));
  }
  EXPECT_TRUE(
      CheckBuilt(Small({"checkpoint.files=per_rank", "checkpoint.codec=zstd"}))
          .ok());
}

Config Shipped(const std::string& name) {
  const auto config = LoadConfig(
      absl::StrCat(HOLDFAST_SOURCE_DIR, "/trainer/configs/", name), {});
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : Config{};
}

TEST(ConfigCheckTest, ShippedConfigurationsAreWhatTheyClaim) {
  EXPECT_EQ(ParameterCount(Shipped("tiny.toml").model), 1'624'128);
  EXPECT_EQ(ParameterCount(Shipped("gpt-124m.toml").model), 123'587'328);
  EXPECT_EQ(ParameterCount(Shipped("llama-1b.toml").model), 1'235'814'400);
  EXPECT_EQ(ParameterCount(Shipped("dense-500b.toml").model), 501'072'478'208);
  EXPECT_TRUE(CheckConfig(Shipped("llama-1b.toml"), 8).ok());
  for (const int64_t world : {1, 2}) {
    EXPECT_TRUE(CheckConfig(Shipped("gpt-124m.toml"), world).ok());
  }
}

TEST(ConfigCheckTest, TinyFitsTheQuickstartsLayouts) {
  struct Layout {
    int64_t tp, pp, dp;
  };
  for (const Layout& layout : std::vector<Layout>{
           {1, 1, 1}, {2, 2, 2}, {2, 2, 3}, {2, 2, 1}, {2, 1, 2}, {1, 2, 3}}) {
    Config config = Shipped("tiny.toml");
    config.parallel.tp = layout.tp;
    config.parallel.pp = layout.pp;
    const absl::Status status =
        ResolveConfig(config, layout.tp * layout.pp * layout.dp);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(config.parallel.dp, layout.dp);
  }
}

TEST(ConfigCheckTest, FullSizeTargetHasThePlansFigures) {
  Config config = Shipped("dense-500b.toml");
  const absl::Status status = ResolveConfig(config, 5120);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(config.parallel.dp, 80);
  EXPECT_THAT(config.parallel.stages,
              ElementsAre(15, 16, 16, 16, 16, 16, 16, 15));
  EXPECT_EQ(config.batch.global_seqs * config.model.seq_len, 10'485'760);
  EXPECT_NEAR(ParameterCount(config.model) / 500e9, 1.0, 0.005);
  // 64 and 40 replicas continue it, 81 would need more leaves.
  for (const int64_t dp : {64, 40, 32}) {
    EXPECT_TRUE(CheckConfig(Shipped("dense-500b.toml"), 64 * dp).ok()) << dp;
  }
  EXPECT_FALSE(CheckConfig(Shipped("dense-500b.toml"), 64 * 81).ok());
}

}  // namespace
}  // namespace holdfast::trainer
