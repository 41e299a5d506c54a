// Directories of Hugging Face models: what goes in comes out, bit for bit; what
// is odd about the files is refused before anything is read or made.

#include "tools/convert/hf_llama.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/tools/convert/hf_files.h"
#include "tools/convert/cast.h"

namespace holdfast::tools {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class HfLlamaTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const {
    return folder_.path() + "/" + name;
  }
  absl::StatusOr<ImportedState> Open(
      const std::string& name,
      trainer::ComputeType compute = trainer::ComputeType::kBf16) const {
    ImportRequest request;
    request.from = Path(name);
    request.compute = compute;
    return OpenHfLlama(request);
  }
  std::string Refusal(
      const std::string& name,
      absl::StatusCode code = absl::StatusCode::kInvalidArgument) const {
    const auto state = Open(name);
    EXPECT_EQ(state.status().code(), code) << state.status();
    return std::string(state.status().message());
  }

  tests::TempDir folder_;
};

TEST_F(HfLlamaTest, MastersAreTheValuesWeightsAreRoundedMomentsAreZero) {
  const trainer::ModelConfig model = SmallHfModel(true);
  WriteHfModel(Path("m"), model);
  const auto state = Open("m");
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->model, model);
  EXPECT_EQ(state->step, 0);
  int masters = 0;
  for (ckpt::ItemIndex i = 0; i < state->source->items().size(); ++i) {
    const ckpt::ItemSpec& item = state->source->items()[i];
    const ckpt::Box whole = ckpt::WholeBox(item.shape);
    const int64_t elements = whole.elements();
    std::vector<std::byte> bytes(static_cast<size_t>(elements) *
                                 static_cast<size_t>(SizeOf(item.dtype)));
    const ckpt::WantedRun want{i, whole, 0, elements, bytes};
    ASSERT_TRUE(state->source->Fill({&want, 1}).ok());
    const std::vector<float> values = HfValues(item.name, elements);
    const auto exact = std::as_bytes(std::span(values));
    std::vector<std::byte> expected(bytes.size());
    if (item.kind == "master") {
      expected.assign(exact.begin(), exact.end());
      ++masters;
    } else if (item.kind == "weight") {
      CastElements(ckpt::DType::kF32, exact, ckpt::DType::kBf16, expected);
    }
    EXPECT_EQ(bytes, expected) << item.kind << " of " << item.name;
  }
  EXPECT_EQ(masters, 20);
}

TEST_F(HfLlamaTest, HeadersAndIndexesBeyondTheMemoryThatThereIsAreRefused) {
  WriteHfModel(Path("m"), SmallHfModel(true));
  ImportRequest request;
  request.from = Path("m");
  request.memory_max = 100'000;
  const auto state = OpenHfLlama(request);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_GT(state->memory_bytes, 10'000u);
  request.memory_max = 5'000;
  const auto header = OpenHfLlama(request);
  EXPECT_TRUE(absl::IsInvalidArgument(header.status())) << header.status();
  EXPECT_THAT(header.status().message(),
              AllOf(HasSubstr("m/model.safetensors, whose header has"),
                    HasSubstr("--memory-limit leaves 5.00 kB")));
  fs::rename(Path("m/model.safetensors"), Path("m/a.safetensors"));
  WriteText(
      Path("m/model.safetensors.index.json"),
      "{\"weight_map\": {\"x\": \"a.safetensors\"}}" + std::string(1000, ' '));
  const auto index = OpenHfLlama(request);
  EXPECT_TRUE(absl::IsInvalidArgument(index.status())) << index.status();
  EXPECT_THAT(index.status().message(), HasSubstr("index.json, which has"));
}

TEST_F(HfLlamaTest, WhatIsExportedIsWhatWasImported) {
  for (const bool tied : {false, true}) {
    SCOPED_TRACE(tied);
    const std::string from = tied ? "tied" : "untied";
    WriteHfModel(Path(from), SmallHfModel(tied));
    auto state = Open(from);
    ASSERT_TRUE(state.ok()) << state.status();
    uint64_t last = 0, of = 0;
    ExportRequest request;
    request.out = Path(from + "-out");
    request.on_progress = [&](uint64_t done, uint64_t total) {
      EXPECT_GE(done, last);
      last = done;
      of = total;
    };
    const auto report = WriteHfLlama(state->source.get(), request);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(last, of);
    EXPECT_EQ(last, report->bytes);
    EXPECT_THAT(report->files, ElementsAre("model.safetensors", "config.json"));
    for (const char* file : {"model.safetensors", "config.json"}) {
      EXPECT_EQ(ReadText(Path(from) + "/" + file),
                ReadText(request.out + "/" + file));
    }
    EXPECT_FALSE(fs::exists(Path("." + from + "-out.partial")));
  }
}

TEST_F(HfLlamaTest, ShardsAreCutBetweenTensorsAndReadBack) {
  WriteHfModel(Path("m"), SmallHfModel(false));
  auto state = Open("m");
  ASSERT_TRUE(state.ok()) << state.status();
  ExportRequest request;
  request.out = Path("sharded");
  request.shard_bytes_max = 4000;
  ASSERT_TRUE(WriteHfLlama(state->source.get(), request).ok());
  EXPECT_TRUE(fs::exists(Path("sharded/model.safetensors.index.json")));
  EXPECT_FALSE(fs::exists(Path("sharded/model.safetensors")));
  auto again = Open("sharded");
  ASSERT_TRUE(again.ok()) << again.status();
  request.out = Path("whole");
  request.shard_bytes_max = uint64_t{1} << 40;
  ASSERT_TRUE(WriteHfLlama(again->source.get(), request).ok());
  EXPECT_EQ(ReadText(Path("whole/model.safetensors")),
            ReadText(Path("m/model.safetensors")));
}

TEST_F(HfLlamaTest, AnExportThatWasKilledIsBegunAnewAndNothingElseIsTouched) {
  WriteHfModel(Path("m"), SmallHfModel(true));
  auto state = Open("m");
  ASSERT_TRUE(state.ok());
  ExportRequest request;
  request.out = Path("out");
  // What a killed one leaves.
  fs::create_directory(Path(".out.partial"));
  WriteText(Path(".out.partial/model-00001-of-00002.safetensors"), "half");
  ASSERT_TRUE(WriteHfLlama(state->source.get(), request).ok());
  EXPECT_EQ(ReadText(Path("out/model.safetensors")),
            ReadText(Path("m/model.safetensors")));
  EXPECT_FALSE(fs::exists(Path("out/model-00001-of-00002.safetensors")));

  const auto twice = WriteHfLlama(state->source.get(), request);
  EXPECT_EQ(twice.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(twice.status().message(), HasSubstr("out exists already"));

  request.out = Path("other");
  fs::create_directory(Path(".other.partial"));
  WriteText(Path(".other.partial/letter.txt"), "mine");
  const auto foreign = WriteHfLlama(state->source.get(), request);
  EXPECT_THAT(foreign.status().message(), HasSubstr("holds 'letter.txt'"));
  EXPECT_EQ(ReadText(Path(".other.partial/letter.txt")), "mine");
  EXPECT_FALSE(fs::exists(Path("other")));
}

TEST_F(HfLlamaTest, F16RefusesWhatItCannotHoldAndOffersNothing) {
  WriteHfModel(Path("m"), SmallHfModel(true), [](HfTensorFile& file) {
    const float large = 1e6f;
    std::memcpy(file.data.data() + 40, &large, 4);
  });
  auto state = Open("m");
  ASSERT_TRUE(state.ok()) << state.status();
  ExportRequest request;
  request.out = Path("out");
  request.dtype = "f16";
  const auto report = WriteHfLlama(state->source.get(), request);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(report.status().message(),
              AllOf(HasSubstr("too large for f16"), HasSubstr("embed_tokens")));
  EXPECT_FALSE(fs::exists(Path("out")));
  EXPECT_FALSE(fs::exists(Path(".out.partial")));
}

TEST_F(HfLlamaTest, RefusesTensorsThatAreMissingUnknownOrOfAnotherShape) {
  WriteHfModel(Path("missing"), SmallHfModel(true), [](HfTensorFile& file) {
    file.data.resize(file.data.size() - file.tensors.back().bytes);
    file.tensors.pop_back();
  });
  EXPECT_THAT(Refusal("missing"), HasSubstr("no tensor 'model.norm.weight'"));
  WriteHfModel(Path("more"), SmallHfModel(true), [](HfTensorFile& file) {
    file.Add("model.layers.0.self_attn.q_proj.bias", {16});
  });
  EXPECT_THAT(Refusal("more"),
              AllOf(HasSubstr("1 tensors that the model"),
                    HasSubstr("model.layers.0.self_attn.q_proj.bias")));
  WriteHfModel(Path("long"), SmallHfModel(true), [](HfTensorFile& file) {
    file.Add(std::string(5000, 'x'), {1});
  });
  EXPECT_THAT(Refusal("long"), HasSubstr("a name of 5000 bytes"));
  WriteHfModel(Path("shape"), SmallHfModel(true), [](HfTensorFile& file) {
    file.tensors[0].shape = {16, 37};
  });
  EXPECT_THAT(Refusal("shape"), HasSubstr("is [16,37]; by config.json it is "
                                          "[37,16]"));
}

TEST_F(HfLlamaTest, ATiedHeadMayBeRepeatedButNotAnother) {
  WriteHfModel(Path("same"), SmallHfModel(true), [](HfTensorFile& file) {
    const std::string embedding = file.data.substr(0, file.tensors[0].bytes);
    file.tensors.push_back(
        {"lm_head.weight", "F32", {37, 16}, 0, file.tensors[0].bytes});
    file.data += embedding;
  });
  const auto state = Open("same");
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_THAT(state->notes[0], HasSubstr("repeats the tied embedding"));
  WriteHfModel(Path("other"), SmallHfModel(true), [](HfTensorFile& file) {
    file.Add("lm_head.weight", {37, 16});
  });
  EXPECT_THAT(Refusal("other"), HasSubstr("ties the head to the embedding"));
}

TEST_F(HfLlamaTest, NamesInTheIndexStayInTheDirectory) {
  WriteHfModel(Path("m"), SmallHfModel(true));
  fs::rename(Path("m/model.safetensors"), Path("outside.safetensors"));
  const auto index = [&](const std::string& file) {
    std::string map;
    for (const ckpt::TensorSpec& spec :
         BuildTensorTable(SmallHfModel(true), 1).specs) {
      map += absl::StrFormat("%s\"%s\":\"%s\"", map.empty() ? "" : ",",
                             spec.name, file);
    }
    WriteText(Path("m/model.safetensors.index.json"),
              "{\"weight_map\":{" + map + "}}");
  };
  for (const char* name :
       {"../outside.safetensors", "/etc/passwd", ".hidden", "", "a/b"}) {
    index(name);
    EXPECT_THAT(Refusal("m"), HasSubstr("no plain name of a file")) << name;
  }
  index("link.safetensors");
  fs::create_symlink(Path("outside.safetensors"), Path("m/link.safetensors"));
  EXPECT_THAT(Refusal("m"),
              AllOf(HasSubstr("symbolic link"), HasSubstr("cp -rL")));
  index("pipe.safetensors");
  ASSERT_EQ(::mkfifo(Path("m/pipe.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(Refusal("m"), HasSubstr("not a regular file"));
  index("gone.safetensors");
  EXPECT_THAT(Refusal("m", absl::StatusCode::kNotFound),
              HasSubstr("gone.safetensors"));
  fs::copy_file(Path("outside.safetensors"), Path("m/inside.safetensors"));
  index("inside.safetensors");
  EXPECT_TRUE(Open("m").ok());
}

TEST_F(HfLlamaTest, TheIndexAndTheFilesMustAgree) {
  WriteHfModel(Path("m"), SmallHfModel(true));
  WriteText(Path("m/model.safetensors.index.json"), "{}");
  EXPECT_THAT(Refusal("m"), HasSubstr("has both"));
  fs::rename(Path("m/model.safetensors"), Path("m/a.safetensors"));
  EXPECT_THAT(Refusal("m"), HasSubstr("no weight_map"));
  WriteText(Path("m/model.safetensors.index.json"),
            R"({"weight_map":{"model.norm.weight":"a.safetensors"}})");
  EXPECT_THAT(Refusal("m"), HasSubstr("does not name"));
  WriteText(Path("m/model.safetensors.index.json"),
            R"({"weight_map":{"x":"a.safetensors","x":"b.safetensors"}})");
  EXPECT_THAT(Refusal("m"), HasSubstr("the key 'x' twice"));
  HfTensorFile one;
  one.Add("x", {2});
  one.Write(Path("m/a.safetensors"));
  WriteText(Path("m/model.safetensors.index.json"),
            R"({"weight_map":{"x":"a.safetensors","y":"a.safetensors"}})");
  EXPECT_THAT(Refusal("m"), HasSubstr("places the tensor 'y' in a.safetensors, "
                                      "which has it not"));
}

TEST_F(HfLlamaTest, SaysWhatIsMissingOrCutOff) {
  EXPECT_THAT(Refusal("none", absl::StatusCode::kNotFound), HasSubstr("none"));
  fs::create_directory(Path("empty"));
  EXPECT_THAT(Refusal("empty", absl::StatusCode::kNotFound),
              HasSubstr("config.json"));
  WriteText(Path("file"), "x");
  EXPECT_THAT(Refusal("file"), HasSubstr("file"));
  WriteHfModel(Path("cut"), SmallHfModel(true));
  fs::resize_file(Path("cut/model.safetensors"),
                  fs::file_size(Path("cut/model.safetensors")) - 1);
  EXPECT_THAT(Refusal("cut"), HasSubstr("cut/model.safetensors: safetensors "
                                        "header: tensor"));
  fs::resize_file(Path("cut/model.safetensors"), 5);
  EXPECT_THAT(Refusal("cut"), HasSubstr("5 bytes are no safetensors file"));
  fs::remove(Path("cut/model.safetensors"));
  EXPECT_THAT(Refusal("cut", absl::StatusCode::kNotFound),
              HasSubstr("has neither"));
  // A claim of many layers takes no memory.
  trainer::ModelConfig many = SmallHfModel(true);
  WriteHfModel(Path("many"), many);
  many.layers = 65536;
  WriteText(Path("many/config.json"), HfConfigText(many, "float32"));
  EXPECT_THAT(Refusal("many"), HasSubstr("65536 layers in 20 tensors"));
}

}  // namespace
}  // namespace holdfast::tools
