// tests/golden/dcp-megatron was saved by the real megatron-core
// (tests/golden/make_megatron_golden.py); dcp_megatron.bin has what torch reads
// in it, by our names. Each item that is imported must be that, to the bit.

#include <cstring>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/golden_file.h"
#include "tests/support/temp_dir.h"
#include "tools/convert/megatron_common.h"
#include "tools/convert/running_jobs.h"

namespace holdfast::tools {
namespace {

using ::testing::HasSubstr;

constexpr char kMegatron[] = HOLDFAST_SOURCE_DIR "/tests/golden/dcp-megatron";

ImportRequest Request() {
  ImportRequest request;
  request.from = kMegatron;
  return request;
}

// An item as FP32; BF16 is its upper half.
std::vector<float> Whole(ckpt::StateSource& source, size_t index) {
  const ckpt::ItemSpec& item = source.items()[index];
  const ckpt::Box whole = ckpt::WholeBox(item.shape);
  const auto count = static_cast<size_t>(whole.elements());
  const auto size = static_cast<size_t>(ckpt::SizeOf(item.dtype));
  std::vector<std::byte> bytes(count * size);
  const ckpt::WantedRun want{static_cast<ckpt::ItemIndex>(index), whole, 0,
                             whole.elements(), bytes};
  const absl::Status status = source.Fill(std::span(&want, 1));
  EXPECT_TRUE(status.ok()) << status;
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(reinterpret_cast<std::byte*>(&values[i]) + (4 - size),
                bytes.data() + i * size, size);
  }
  return values;
}

void ExpectGolden(ckpt::StateSource& source, const std::string& weights) {
  const tests::GoldenFile golden(HOLDFAST_SOURCE_DIR
                                 "/tests/golden/dcp_megatron.bin");
  EXPECT_EQ(source.items().size(), golden.arrays().size());
  for (size_t i = 0; i < source.items().size(); ++i) {
    const ckpt::ItemSpec& item = source.items()[i];
    const std::string kind = item.kind == "weight" ? weights : item.kind;
    EXPECT_EQ(Whole(source, i), golden.floats(kind + "/" + item.name))
        << item.kind << " of " << item.name;
  }
}

TEST(MegatronImportTest, EveryItemIsWhatMegatronSaved) {
  auto state = OpenMegatron(Request());
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->step, 3);
  // From the arguments of Megatron-LM that are in the checkpoint.
  ASSERT_TRUE(state->model.has_value());
  EXPECT_EQ(state->model->layers, 2);
  EXPECT_EQ(state->model->kv_heads, 2);
  EXPECT_EQ(state->model->vocab, 11);  // of 16 padded rows
  ExpectGolden(*state->source, "weight");
}

TEST(MegatronImportTest, ARunInFp32ReadsMastersAsWeights) {
  ImportRequest request = Request();
  request.compute = trainer::ComputeType::kF32;
  auto state = OpenMegatron(request);
  ASSERT_TRUE(state.ok()) << state.status();
  ExpectGolden(*state->source, "master");
}

TEST(MegatronImportTest, AModelFileStandsBeforeTheArguments) {
  const tests::TempDir dir;
  ImportRequest request = Request();
  request.model_file = dir.path() + "/model.toml";
  std::ofstream(request.model_file)
      << "[model]\nlayers = 3\nhidden = 16\nheads = 4\nkv_heads = 2\nffn = 12\n"
         "vocab = 11\nseq_len = 32\n";
  const auto state = OpenMegatron(request);
  EXPECT_EQ(state.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(state.status().message()),
              HasSubstr("by the model that was given"));
}

TEST(MegatronImportTest, AKeyOfAnotherKindOfModelStopsTheImport) {
  const tests::TempDir dir;
  const std::string copy = dir.path() + "/copy";
  std::filesystem::copy(kMegatron, copy);
  std::ifstream in(copy + "/.metadata", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  // The same length, so that the pickle stays whole.
  const std::string from = "decoder.final_layernorm.weight";
  const std::string to = "decoder.final_layernorm.wEIGHT";
  ASSERT_NE(bytes.find(from), std::string::npos);
  for (size_t at = 0; (at = bytes.find(from, at)) != std::string::npos;) {
    bytes.replace(at, from.size(), to);
  }
  std::ofstream(copy + "/.metadata", std::ios::binary) << bytes;
  ImportRequest request = Request();
  request.from = copy;
  const auto state = OpenMegatron(request);
  EXPECT_THAT(std::string(state.status().message()),
              HasSubstr("decoder.final_layernorm.weight (weight of "
                        "model.norm.weight)"));
}

// An archive of torch.save with `pickle` in it, without checksums.
std::string Archive(const std::string& pickle) {
  const auto number = [](uint64_t value, size_t bytes) {
    std::string text;
    for (size_t i = 0; i < bytes; ++i, value >>= 8) {
      text += static_cast<char>(value);
    }
    return text;
  };
  const std::string name = "a/data.pkl";
  // From the flags on, what both headers of a record have.
  const std::string record = number(0, 12) + number(pickle.size(), 4) +
                             number(pickle.size(), 4) + number(name.size(), 2) +
                             number(0, 2);
  const std::string local = "PK\3\4" + number(20, 2) + record + name + pickle;
  const std::string directory =
      "PK\1\2" + number(20, 2) + number(20, 2) + record + number(0, 14) + name;
  return local + directory + "PK\5\6" + number(0, 4) + number(1, 2) +
         number(1, 2) + number(directory.size(), 4) + number(local.size(), 4) +
         number(0, 2);
}

absl::StatusOr<MegatronCommon> CommonOf(const std::string& pickle) {
  const tests::TempDir dir;
  const std::string copy = dir.path() + "/copy";
  std::filesystem::copy(HOLDFAST_SOURCE_DIR "/tests/golden/dcp-mixed", copy);
  std::ofstream(copy + "/common.pt", std::ios::binary) << Archive(pickle);
  auto directory = DcpDirectory::Open(copy);
  EXPECT_TRUE(directory.ok()) << directory.status();
  return ReadMegatronCommon(**directory);
}

std::string Text(const std::string& text) {
  return "X" + std::string(1, static_cast<char>(text.size())) +
         std::string(3, '\0') + text;
}

TEST(MegatronImportTest, StateThatHoldsItselfIsLookedAtOnce) {
  // {"optimizer": [the list itself, 2000 times, {"step": 7}]}
  std::string list = std::string("]q") + '\0' + "(";
  for (int i = 0; i < 2000; ++i) list += std::string("h") + '\0';
  list += "}" + Text("step") + "K\7s" + "e";
  const auto common =
      CommonOf("\x80\2}" + Text("optimizer") + list + "s" + ".");
  ASSERT_TRUE(common.ok()) << common.status();
  EXPECT_EQ(common->optimizer_steps, 7);
}

TEST(MegatronImportTest, ANegativeIterationIsNone) {
  const auto common =
      CommonOf("\x80\2}" + Text("iteration") + "J\xff\xff\xff\xffs" + ".");
  ASSERT_TRUE(common.ok()) << common.status();
  EXPECT_FALSE(common->iteration.has_value());
}

// Its norms scale by one more than what it stores.
TEST(MegatronImportTest, ArgumentsThatTheModelHasNotAreRefused) {
  std::string arguments = "cargparse\nNamespace\n)R}" + std::string("(");
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{
           {"num_layers", "K\2"},
           {"hidden_size", "K\x10"},
           {"num_attention_heads", "K\4"},
           {"ffn_hidden_size", "K\x0c"},
           {"padded_vocab_size", "K\x10"},
           {"seq_length", "K\x20"},
           {"normalization", Text("RMSNorm")},
           {"swiglu", "\x88"},
           {"position_embedding_type", Text("rope")}}) {
    arguments += Text(name) + value;
  }
  const auto common = [&](const std::string& more) {
    return CommonOf("\x80\2}" + Text("args") + arguments + more + "ubs.");
  };
  ASSERT_TRUE(common("").ok()) << common("").status();
  EXPECT_TRUE(common("")->model.has_value());
  EXPECT_THAT(
      std::string(
          common(Text("apply_layernorm_1p") + "\x88").status().message()),
      HasSubstr("apply_layernorm_1p is set"));
  EXPECT_THAT(
      std::string(
          common(Text("window_size") + "K\1K\1\x86").status().message()),
      HasSubstr("window_size is set"));
}

}  // namespace
}  // namespace holdfast::tools
