// tests/peers/logits.cc: what our model says to given tokens, with the weights
// of a checkpoint.
//
//   peers_logits CHECKPOINT f32|bf16 TOKENS SEQUENCES OUT
//
// TOKENS is a file of int32, SEQUENCES of equal length; OUT gets FP32 logits
// [tokens, vocab]. f32 computes in FP32 with the masters, bf16 in BF16 with the
// weights. Started by tests/peers/hf_test.py.

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "ckpt/base/check.h"
#include "ckpt/convert/checkpoint_source.h"
#include "kernels/device.h"
#include "tests/support/tiny_model.h"
#include "tools/convert/train_target.h"

namespace holdfast {
namespace {

std::vector<int32_t> ReadTokens(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<int32_t> tokens(bytes.size() / sizeof(int32_t));
  std::memcpy(tokens.data(), bytes.data(), tokens.size() * sizeof(int32_t));
  return tokens;
}

// Item of (name, kind) into the weight region of a stage that holds everything.
void LoadWeights(ckpt::StateSource& source, const std::string& kind,
                 tests::LoneStage& lone) {
  std::byte* const weights =
      static_cast<std::byte*>(lone.state->regions()[ckpt::kWeightRegion].data);
  for (const ckpt::LocalTensor& local : lone.state->tensors()) {
    const std::string& name = lone.tensors.specs[local.tensor].name;
    bool found = false;
    for (ckpt::ItemIndex i = 0; i < source.items().size(); ++i) {
      const ckpt::ItemSpec& item = source.items()[i];
      if (item.name != name || item.kind != kind) continue;
      HF_CHECK(item.dtype == lone.layout->options().weight_dtype,
               "%s of '%s' is of another type than the model computes in", kind,
               name);
      const size_t size = static_cast<size_t>(SizeOf(item.dtype));
      const ckpt::WantedRun want{
          i,
          ckpt::WholeBox(item.shape),
          0,
          local.elements,
          {weights + static_cast<size_t>(local.first_block) *
                         ckpt::kBlockElements * size,
           static_cast<size_t>(local.elements) * size}};
      const absl::Status filled = source.Fill({&want, 1});
      HF_CHECK(filled.ok(), "%s", filled.ToString());
      found = true;
    }
    HF_CHECK(found, "the checkpoint has no %s of '%s'", kind, name);
  }
}

int Main(char** argv) {
  const bool bf16 = std::string(argv[2]) == "bf16";
  const auto source =
      ckpt::CheckpointSource::Open(argv[1], {}, ckpt::RealClock());
  HF_CHECK(source.ok(), "%s", source.status().ToString());
  auto model = tools::ModelOfAttributes((*source)->attributes());
  HF_CHECK(model.ok(), "%s", model.status().ToString());
  const std::vector<int32_t> tokens = ReadTokens(argv[3]);
  int64_t sequences = 0;
  HF_CHECK(absl::SimpleAtoi(argv[4], &sequences) && sequences > 0 &&
               static_cast<int64_t>(tokens.size()) % sequences == 0,
           "%d tokens are not %s sequences", tokens.size(), argv[4]);
  model->seq_len = static_cast<int64_t>(tokens.size()) / sequences;

  const std::unique_ptr<kernels::Device> device = kernels::NewCpuDevice();
  tests::LoneStage lone({.model = *model,
                         .compute = bf16 ? trainer::ComputeType::kBf16
                                         : trainer::ComputeType::kF32,
                         .micro_seqs = sequences},
                        *device);
  LoadWeights(**source, bf16 ? "weight" : "master", lone);
  tests::TinyBatch batch(*model, sequences, 1);
  batch.tokens = tokens;
  batch.targets.assign(tokens.size(), 0);
  batch.mask.assign(tokens.size(), 1);
  lone.Forward(batch, 1.0f);

  const std::vector<float> logits = lone.stage->Logits();
  const size_t columns = logits.size() / tokens.size();
  std::ofstream out(argv[5], std::ios::binary);
  for (size_t row = 0; row < tokens.size(); ++row) {
    out.write(reinterpret_cast<const char*>(logits.data() + row * columns),
              model->vocab * static_cast<int64_t>(sizeof(float)));
  }
  out.close();
  HF_CHECK(out.good(), "cannot write %s", argv[5]);
  return 0;
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs("usage: peers_logits CHECKPOINT f32|bf16 TOKENS SEQUENCES OUT\n",
               stderr);
    return 64;
  }
  return holdfast::Main(argv);
}
