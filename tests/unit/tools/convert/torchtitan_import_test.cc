// tests/golden/dcp-titan is a checkpoint as torchtitan writes it, with fused
// qkv; dcp_titan_step.bin has gradients and what one step of torch's AdamW made
// of that state (tests/golden/make_dcp_golden.py). The state is imported, our
// AdamW takes the step, and the results must meet. Where a row belongs is
// computed here once more, element by element.

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/adamw.h"
#include "kernels/stream.h"
#include "tests/support/golden_file.h"
#include "tests/support/temp_dir.h"
#include "tools/convert/running_jobs.h"

namespace holdfast::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kTitan[] = HOLDFAST_SOURCE_DIR "/tests/golden/dcp-titan";
constexpr char kStep[] = HOLDFAST_SOURCE_DIR "/tests/golden/dcp_titan_step.bin";

std::string ModelFile(const tests::TempDir& dir, const std::string& more = "") {
  const std::string path = dir.path() + "/model.toml";
  std::ofstream(path) << "[model]\nlayers = 1\nhidden = 16\nheads = 4\n"
                         "ffn = 12\nvocab = 11\nseq_len = 64\n"
                      << (more.empty() ? "kv_heads = 2\n" : more);
  return path;
}

ImportRequest Request(const std::string& model) {
  ImportRequest request;
  request.from = kTitan;
  request.compute = trainer::ComputeType::kF32;
  request.model_file = model;
  return request;
}

std::vector<float> Whole(ckpt::StateSource& source, const std::string& name,
                         const std::string& kind) {
  for (size_t i = 0; i < source.items().size(); ++i) {
    const ckpt::ItemSpec& item = source.items()[i];
    if (item.name != name || item.kind != kind) continue;
    const ckpt::Box whole = ckpt::WholeBox(item.shape);
    std::vector<float> values(static_cast<size_t>(whole.elements()));
    const ckpt::WantedRun want{static_cast<ckpt::ItemIndex>(i), whole, 0,
                               whole.elements(),
                               std::as_writable_bytes(std::span(values))};
    const absl::Status status = source.Fill(std::span(&want, 1));
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }
  ADD_FAILURE() << "no item " << name << " " << kind;
  return {};
}

// Row `row` of one of our tensors as a row of torchtitan's, in the tensor that
// the optimizer knows (`fused`) or in the one that is stored.
constexpr int kHeads = 4, kKvHeads = 2, kHead = 4, kQueries = 2, kHidden = 16;

int TitanRow(const std::string& part, int row, bool fused) {
  if (part != "q" && part != "k" && part != "v") return row;
  const int head = row / kHead, in_head = row % kHead;
  // Pairs side by side: 0 1 2 3 here are 0 2 1 3 there.
  const int there =
      part == "v" ? in_head : in_head % (kHead / 2) * 2 + in_head / (kHead / 2);
  if (!fused) return head * kHead + there;
  const int group = part == "q" ? head / kQueries : head;
  const int slot = part == "q"   ? head % kQueries
                   : part == "k" ? kQueries
                                 : kQueries + 1;
  return (group * (kQueries + 2) + slot) * kHead + there;
}

struct Names {
  const char* ours;
  const char* part;    // "q", "k", "v" or ""
  const char* stored;  // torchtitan's key of the weight
  const char* known;   // and of the optimizer's state
};
constexpr char kFused[] = "layers.0.attention.qkv_linear.wqkv.weight";
constexpr Names kNames[] = {
    {"model.embed_tokens.weight", "", "tok_embeddings.weight", nullptr},
    {"lm_head.weight", "", "lm_head.weight", nullptr},
    {"model.norm.weight", "", "norm.weight", nullptr},
    {"model.layers.0.self_attn.q_proj.weight", "q",
     "layers.0.attention.qkv_linear.wq.weight", kFused},
    {"model.layers.0.self_attn.k_proj.weight", "k",
     "layers.0.attention.qkv_linear.wk.weight", kFused},
    {"model.layers.0.self_attn.v_proj.weight", "v",
     "layers.0.attention.qkv_linear.wv.weight", kFused},
    {"model.layers.0.self_attn.o_proj.weight", "",
     "layers.0.attention.wo.weight", nullptr},
    {"model.layers.0.mlp.gate_proj.weight", "",
     "layers.0.feed_forward.w1.weight", nullptr},
    {"model.layers.0.mlp.up_proj.weight", "", "layers.0.feed_forward.w3.weight",
     nullptr},
    {"model.layers.0.mlp.down_proj.weight", "",
     "layers.0.feed_forward.w2.weight", nullptr},
    {"model.layers.0.input_layernorm.weight", "",
     "layers.0.attention_norm.weight", nullptr},
    {"model.layers.0.post_attention_layernorm.weight", "",
     "layers.0.ffn_norm.weight", nullptr},
};

// `values` of torchtitan's rows, `count` elements of our tensor.
std::vector<float> Ours(const std::vector<float>& values, const Names& names,
                        size_t count, bool fused) {
  if (names.part[0] == '\0') return values;
  std::vector<float> ours(count);
  for (size_t i = 0; i < count; ++i) {
    const int row = TitanRow(names.part, static_cast<int>(i) / kHidden, fused);
    ours[i] = values[static_cast<size_t>(row * kHidden) + i % kHidden];
  }
  return ours;
}

TEST(TorchtitanImportTest, OneStepAfterTheImportIsTorchs) {
  const tests::TempDir dir;
  auto state = OpenTorchtitan(Request(ModelFile(dir)));
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->step, 3);
  EXPECT_EQ(state->source->items().size(), 4 * std::size(kNames));
  const tests::GoldenFile golden(kStep);
  const std::vector<float>& optim = golden.floats("optim");
  double worst = 0;
  for (const Names& names : kNames) {
    SCOPED_TRACE(names.ours);
    std::vector<float> weight = Whole(*state->source, names.ours, "weight");
    std::vector<float> master = Whole(*state->source, names.ours, "master");
    EXPECT_EQ(weight, master);
    std::vector<float> m = Whole(*state->source, names.ours, "exp_avg");
    std::vector<float> v = Whole(*state->source, names.ours, "exp_avg_sq");
    const std::string known =
        names.known != nullptr ? names.known : names.stored;
    const std::vector<float> grad = Ours(golden.floats("grad/" + known), names,
                                         master.size(), /*fused=*/true);
    ASSERT_EQ(grad.size(), master.size());
    kernels::AdamWArgs<float> step;
    step.weight = weight.data();
    step.master = master.data();
    step.moment1 = m.data();
    step.moment2 = v.data();
    step.grad = grad.data();
    step.count = static_cast<int64_t>(master.size());
    step.step = state->step + 1;
    step.lr = optim[0];
    step.beta1 = optim[1];
    step.beta2 = optim[2];
    step.eps = optim[3];
    step.weight_decay = optim[4];
    kernels::AdamW(kernels::CpuStream(), step);
    const auto compare = [&](const std::vector<float>& found,
                             const std::string& key, bool fused, double unit) {
      const std::vector<float> wanted =
          Ours(golden.floats(key), names, found.size(), fused);
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t i = 0; i < found.size(); ++i) {
        const double off = std::abs(double{found[i]} - double{wanted[i]});
        worst = std::max(worst, off / unit);
        ASSERT_LE(off, 1e-4 * unit + 2e-7 * std::abs(wanted[i]))
            << key << " element " << i;
      }
    };
    // The unit of a weight is one update, about the learning rate.
    compare(master, std::string("weight/") + names.stored, false, optim[0]);
    compare(m, "exp_avg/" + known, true, 1e-3);
    compare(v, "exp_avg_sq/" + known, true, 1e-3);
  }
  EXPECT_GT(worst, 0);  // torch orders its operations in another way
}

TEST(TorchtitanImportTest, KeysThatAreNothingOfTheModelStopTheImport) {
  const tests::TempDir dir;
  // With one tensor less in the model, keys are left over.
  ImportRequest request =
      Request(ModelFile(dir, "kv_heads = 2\ntied = true\n"));
  // The head that is stored is no copy of the embedding.
  EXPECT_THAT(std::string(OpenTorchtitan(request).status().message()),
              HasSubstr("'lm_head.weight' is another matrix than "
                        "'tok_embeddings.weight'"));
  request.ignore = {"lm_head.weight"};
  auto tied = OpenTorchtitan(request);
  ASSERT_FALSE(tied.ok());
  EXPECT_THAT(std::string(tied.status().message()),
              HasSubstr("keys that are nothing of torchtitan's Llama: "
                        "optimizer.state.lm_head.weight.exp_avg"));
  request.ignore = {"lm_head.weight", "optimizer.state.lm_head.*"};
  EXPECT_TRUE(OpenTorchtitan(request).ok()) << OpenTorchtitan(request).status();
  request.ignore = {"optimizer.state.lm_heed.*"};
  const auto typing_error = OpenTorchtitan(request);
  EXPECT_THAT(std::string(typing_error.status().message()),
              HasSubstr("--ignore optimizer.state.lm_heed.*"));
}

TEST(TorchtitanImportTest, AnOptimizerThatIsIgnoredIsNotImported) {
  const tests::TempDir dir;
  ImportRequest request = Request(ModelFile(dir));
  auto all = OpenTorchtitan(request);
  ASSERT_TRUE(all.ok()) << all.status();
  request.ignore = {"optimizer.state.*"};
  auto state = OpenTorchtitan(request);
  ASSERT_TRUE(state.ok()) << state.status();
  for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
    EXPECT_THAT(Whole(*state->source, "model.norm.weight", kind),
                testing::Each(0.0f));
    EXPECT_THAT(Whole(*all->source, "model.norm.weight", kind),
                testing::Not(testing::Each(0.0f)));
  }
  EXPECT_THAT(state->notes, testing::Contains(HasSubstr("moments are zero")));
  // An import of the one, interrupted, is not finished as the other.
  EXPECT_EQ(state->source->items(), all->source->items());
  EXPECT_EQ(state->source->attributes(), all->source->attributes());
  EXPECT_NE(state->source->identity(), all->source->identity());
}

TEST(TorchtitanImportTest, AModelOfOtherNumbersIsRefusedByTensor) {
  const tests::TempDir dir;
  const auto heads = OpenTorchtitan(Request(ModelFile(dir, "kv_heads = 4\n")));
  EXPECT_THAT(std::string(heads.status().message()),
              HasSubstr("wqkv.weight.exp_avg' has 32 rows; by the model that "
                        "was given it has 48 (for exp_avg of "
                        "model.layers.0.self_attn.k_proj.weight)"));
  ImportRequest none = Request("");
  EXPECT_THAT(std::string(OpenTorchtitan(none).status().message()),
              HasSubstr("give --model FILE"));
}

TEST(DcpImportTest, AnyCheckpointComesTensorByTensor) {
  ImportRequest request;
  request.from = HOLDFAST_SOURCE_DIR "/tests/golden/dcp-mixed";
  auto state = OpenDcp(request);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_FALSE(state->model.has_value());
  EXPECT_EQ(state->source->items().size(), 14u);
  const std::vector<float> grid = Whole(*state->source, "grid", "tensor");
  ASSERT_EQ(grid.size(), 60u);
  for (size_t i = 0; i < grid.size(); ++i) EXPECT_EQ(grid[i], i);
  // What has no type here is bytes.
  bool flags = false, step = false;
  for (const ckpt::ItemSpec& item : state->source->items()) {
    flags |= item.name == "flags" && item.kind == "torch.bool" &&
             item.shape == std::vector<int64_t>{2};
    step |= item.name == "step" && item.kind == "torch.save";
  }
  EXPECT_TRUE(flags);
  EXPECT_TRUE(step);
}

TEST(DcpImportTest, MetadataAndKeptRecordsCountAgainstTheMemoryThatThereIs) {
  ImportRequest request;
  request.from = HOLDFAST_SOURCE_DIR "/tests/golden/dcp-mixed";
  request.memory_max = uint64_t{30} << 20;
  const auto state = OpenDcp(request);
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_GT(state->memory_bytes, uint64_t{10} << 20);
  EXPECT_LT(state->memory_bytes, request.memory_max);
  const auto bytes = std::filesystem::file_size(request.from + "/.metadata");
  // Room for the file but not for what it says; then not even for the file.
  for (const uint64_t times : {6, 1}) {
    request.memory_max = times * bytes;
    const auto refused = OpenDcp(request);
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status())) << refused.status();
    EXPECT_THAT(std::string(refused.status().message()),
                HasSubstr("(--memory-limit)"));
  }
}

}  // namespace
}  // namespace holdfast::tools
