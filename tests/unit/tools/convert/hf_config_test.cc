// config.json: what is read of it, and what is refused by its key.

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/tools/convert/hf_files.h"
#include "tools/convert/hf_llama.h"
#include "tools/convert/strict_json.h"

namespace holdfast::tools {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

json Llama(const json& more = json::object()) {
  json config = {{"model_type", "llama"},    {"hidden_size", 64},
                 {"intermediate_size", 176}, {"num_hidden_layers", 3},
                 {"num_attention_heads", 8}, {"vocab_size", 1013}};
  config.update(more);
  return config;
}

std::string Refusal(const json& config) {
  const auto model = ModelOfHfConfig(config, "config.json");
  EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument)
      << config;
  return std::string(model.status().message());
}

TEST(HfConfigTest, WhatIsAbsentIsTransformersDefault) {
  const auto model = ModelOfHfConfig(Llama(), "config.json");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->kv_heads, 8);
  EXPECT_EQ(model->seq_len, 2048);
  EXPECT_EQ(model->norm_eps, 1e-6);
  EXPECT_EQ(model->rope_theta, 10000.0);
  EXPECT_FALSE(model->tied);
}

TEST(HfConfigTest, ThetaIsReadWhereEitherVersionKeepsIt) {
  EXPECT_EQ(ModelOfHfConfig(Llama({{"rope_theta", 5e5}}), "")->rope_theta, 5e5);
  EXPECT_EQ(ModelOfHfConfig(
                Llama({{"rope_theta", 1e4},
                       {"rope_scaling", nullptr},
                       {"rope_parameters",
                        {{"rope_type", "default"}, {"rope_theta", 5e5}}}}),
                "")
                ->rope_theta,
            5e5);
}

TEST(HfConfigTest, WhatWeWriteIsWhatWeRead) {
  for (const bool tied : {false, true}) {
    const trainer::ModelConfig model = SmallHfModel(tied);
    const auto parsed = ParseStrictJson(HfConfigText(model, "bfloat16"), "");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->at("torch_dtype"), "bfloat16");
    const auto read = ModelOfHfConfig(*parsed, "");
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, model);
  }
}

TEST(HfConfigTest, RefusesByNameWhatOurModelHasNot) {
  EXPECT_THAT(
      Refusal(Llama({{"model_type", "mistral"}})),
      AllOf(HasSubstr("model_type is \"mistral\""), HasSubstr("llama")));
  EXPECT_THAT(Refusal(Llama({{"hidden_act", "gelu"}})),
              HasSubstr("hidden_act"));
  EXPECT_THAT(Refusal(Llama({{"attention_bias", true}})),
              HasSubstr("attention_bias is true; biases are not built"));
  EXPECT_THAT(Refusal(Llama({{"mlp_bias", true}})), HasSubstr("mlp_bias"));
  EXPECT_THAT(Refusal(Llama({{"head_dim", 16}})),
              HasSubstr("head_dim is 16; our heads have hidden / heads = 8"));
  EXPECT_THAT(Refusal(Llama({{"quantization_config", {{"bits", 4}}}})),
              HasSubstr("quantization_config"));
  EXPECT_THAT(
      Refusal(Llama({{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}}})),
      HasSubstr("type is \"linear\""));
  EXPECT_THAT(Refusal(Llama({{"rope_parameters",
                              {{"rope_type", "llama3"}, {"factor", 8.0}}}})),
              HasSubstr("rope_type is \"llama3\""));
  EXPECT_THAT(Refusal(Llama({{"partial_rotary_factor", 0.5}})),
              HasSubstr("partial_rotary_factor"));
}

TEST(HfConfigTest, RefusesNumbersThatAreNoSizes) {
  EXPECT_THAT(Refusal(json::array()), HasSubstr("no object"));
  EXPECT_THAT(Refusal(Llama({{"hidden_size", -64}})), HasSubstr("hidden_size"));
  EXPECT_THAT(Refusal(Llama({{"hidden_size", "64"}})), HasSubstr("\"64\""));
  EXPECT_THAT(Refusal(Llama({{"hidden_size", 64.5}})), HasSubstr("64.5"));
  EXPECT_THAT(Refusal(Llama({{"num_hidden_layers", 1u << 30}})),
              HasSubstr("model.layers is 1 to 65536 here"));
  EXPECT_THAT(Refusal(Llama({{"vocab_size", uint64_t{1} << 40}})),
              HasSubstr("vocab_size"));
  EXPECT_THAT(Refusal(Llama({{"rms_norm_eps", 0}})), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(Refusal(Llama({{"num_attention_heads", 7}})),
              HasSubstr("model.hidden = 64 over model.heads = 7"));
  EXPECT_THAT(Refusal(Llama({{"num_key_value_heads", 3}})),
              HasSubstr("model.kv_heads = 3"));
  json none = Llama();
  none.erase("hidden_size");
  EXPECT_THAT(Refusal(none), HasSubstr("hidden_size is absent"));
}

TEST(StrictJsonTest, RefusesWhatCouldBeReadInTwoWays) {
  EXPECT_THAT(ParseStrictJson(R"({"a":{"b":1,"b":2}})", "f").status().message(),
              HasSubstr("f has the key 'b' twice in one object"));
  EXPECT_THAT(ParseStrictJson("{} 1", "f").status().message(),
              HasSubstr("f is no JSON at byte"));
  EXPECT_THAT(ParseStrictJson("", "f").status().message(),
              HasSubstr("f is no JSON"));
  EXPECT_THAT(ParseStrictJson(std::string(65, '['), "f").status().message(),
              HasSubstr("more than 64 levels"));
  const auto fine = ParseStrictJson(
      R"([{"a":[1,-2,2.5,true,null,"x"]},{"a":{"a":{}}}])", "f");
  ASSERT_TRUE(fine.ok()) << fine.status();
  EXPECT_EQ(*fine,
            json::parse(R"([{"a":[1,-2,2.5,true,null,"x"]},{"a":{"a":{}}}])"));
}

}  // namespace
}  // namespace holdfast::tools
