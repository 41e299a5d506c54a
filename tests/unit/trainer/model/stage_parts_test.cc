// The model cut in pieces: pipeline stages give the same bits as one stage,
// tensor-parallel ranks the same numbers up to the order of sums, and the fake
// device the same bits as the CPU, whatever it delays.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/fake_device.h"
#include "tests/support/tiny_model.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::trainer {
namespace {

using ckpt::kBlockElements;
using tests::LoneStage;
using tests::LoneStageOptions;
using tests::TinyBatch;
using tests::TinyModel;

struct Case {
  bool tied;
  ComputeType compute;
};

class StagePartsTest : public testing::TestWithParam<Case> {
 protected:
  StagePartsTest()
      : model_(TinyModel(GetParam().tied)), device_(kernels::NewCpuDevice()) {
    model_.layers = 3;
  }

  LoneStageOptions Options() const {
    return {.model = model_, .compute = GetParam().compute};
  }

  ModelConfig model_;
  std::unique_ptr<kernels::Device> device_;
};

// Copies `from`'s tied table into the copy that the last stage holds.
void FillTiedCopy(const LoneStage& from, LoneStage& to) {
  const int table = from.tensors.embedding;
  const int64_t bytes = from.state->shape().weight_bytes;
  const ckpt::BlockRange blocks = to.state->shape().tied_head_blocks;
  std::memcpy(to.state->regions()[ckpt::kWeightRegion].data +
                  blocks.first * kBlockElements * bytes,
              from.state->regions()[ckpt::kWeightRegion].data +
                  from.OffsetOf(table) * bytes,
              blocks.count * kBlockElements * bytes);
}

void Pass(LoneStage& from, Stage::Message out, LoneStage& to,
          Stage::Message in) {
  const std::span<std::byte> message = from.stage->message(out, 0);
  std::copy(message.begin(), message.end(), to.stage->message(in, 0).begin());
}

// Gradients of `part` against those of the whole, tensor by tensor.
void ExpectSameGradients(const LoneStage& part, const LoneStage& whole) {
  for (const ckpt::LocalTensor& local : part.state->tensors()) {
    int64_t at = whole.OffsetOf(local.tensor);
    if (!local.updated_here) {  // A tied copy: the whole's second accumulator.
      at = whole.state->shape().tied_head_blocks.first * kBlockElements;
    }
    const float* const expected = whole.state->gradients(0) + at;
    const float* const found =
        part.state->gradients(0) + local.first_block * kBlockElements;
    EXPECT_EQ(std::memcmp(expected, found, local.elements * sizeof(float)), 0)
        << part.tensors.specs[local.tensor].name;
    EXPECT_TRUE(std::any_of(found, found + local.elements, [](float value) {
      return value != 0.0f;
    })) << part.tensors.specs[local.tensor].name;
  }
}

TEST_P(StagePartsTest, TwoUnevenStagesGiveTheBitsOfOne) {
  LoneStage whole(Options(), *device_);
  LoneStageOptions options = Options();
  options.mesh.pp = 2;
  options.stages = {1, 2};
  LoneStage first(options, *device_);
  options.at.pp = 1;
  LoneStage last(options, *device_);
  if (model_.tied) FillTiedCopy(first, last);

  const TinyBatch batch(model_, 2, 3);
  const float weight = 1.0f / static_cast<float>(batch.counting());
  const double loss_of_whole = whole.Forward(batch, weight);
  whole.Backward();

  first.Forward(batch, weight);
  Pass(first, Stage::Message::kOutput, last, Stage::Message::kInput);
  EXPECT_EQ(last.Forward(batch, weight), loss_of_whole);
  last.Backward();
  Pass(last, Stage::Message::kInputGradient, first,
       Stage::Message::kOutputGradient);
  first.Backward();

  ExpectSameGradients(first, whole);
  ExpectSameGradients(last, whole);
}

TEST_P(StagePartsTest, TwoTensorParallelRanksGiveTheNumbersOfOne) {
  LoneStage whole(Options(), *device_);
  const TinyBatch batch(model_, 2, 3);
  const float weight = 1.0f / static_cast<float>(batch.counting());
  const double loss_of_whole = whole.Forward(batch, weight);
  whole.Backward();

  const bool bf16 = GetParam().compute == ComputeType::kBf16;
  const double tolerance = bf16 ? 3e-2 : 1e-5;  // relative to the largest
  std::vector<float> norms[2];
  const absl::Status status = RunInprocRanks(2, [&](Collectives& tp) {
    LoneStageOptions options = Options();
    options.mesh.tp = 2;
    options.at.tp = tp.rank();
    options.tp = &tp;
    LoneStage part(options, *device_);
    const double loss = part.Forward(batch, weight);
    part.Backward();
    EXPECT_NEAR(loss, loss_of_whole, loss_of_whole * (bf16 ? 1e-3 : 1e-5));
    for (const ckpt::LocalTensor& local : part.state->tensors()) {
      const ckpt::TensorSpec& spec = part.tensors.specs[local.tensor];
      SCOPED_TRACE(spec.name);
      const int64_t columns = spec.shape.back();
      const float* const expected =
          whole.state->gradients(0) + whole.OffsetOf(local.tensor);
      const float* const found =
          part.state->gradients(0) + local.first_block * kBlockElements;
      float largest = 0.0f;
      for (int64_t i = 0; i < ckpt::WholeBox(spec.shape).elements(); ++i) {
        largest = std::max(largest, std::abs(expected[i]));
      }
      const ckpt::Box& box = local.part;
      const int64_t rows = box.dimensions == 1 ? 1 : box.count[0];
      const int64_t row_first = box.dimensions == 1 ? 0 : box.first[0];
      const int64_t width = box.count[box.dimensions - 1];
      const int64_t column_first = box.first[box.dimensions - 1];
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < width; ++c) {
          EXPECT_NEAR(found[r * width + c],
                      expected[(row_first + r) * columns + column_first + c],
                      tolerance * largest);
        }
      }
      if (spec.tp_dimension < 0) {
        norms[tp.rank()].insert(norms[tp.rank()].end(), found,
                                found + local.elements);
      }
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  // What every TP rank holds whole has the same bits on each.
  EXPECT_FALSE(norms[0].empty());
  EXPECT_EQ(norms[0], norms[1]);
}

// Device memory that the host may not touch, and work that finishes late.
std::vector<float> GradientsOn(kernels::Device& device,
                               const LoneStageOptions& options,
                               const TinyBatch& batch, double* loss) {
  LoneStage lone(options, device);
  *loss = lone.Forward(batch, 0.03125f);
  lone.Backward();
  const kernels::Buffer& buffer = lone.state->gradient_buffer(0);
  std::vector<float> copy(lone.state->gradient_elements());
  kernels::Stream& stream = lone.stage->stream();
  device.Copy({kernels::MemorySpace::kHost,
               reinterpret_cast<std::byte*>(copy.data()), buffer.bytes},
              buffer, stream);
  device.Sync(stream);
  return copy;
}

TEST_P(StagePartsTest, TheFakeDeviceGivesTheBitsOfTheCpu) {
  const TinyBatch batch(model_, 2, 3);
  double on_cpu = 0.0;
  const std::vector<float> expected =
      GradientsOn(*device_, Options(), batch, &on_cpu);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    kernels::FakeDeviceOptions fake_options;
    fake_options.seed = seed;
    fake_options.device_bytes = size_t{64} << 20;
    fake_options.eager_max = seed == 4 ? 0 : 3;
    auto fake = kernels::NewFakeDevice(fake_options);
    ASSERT_TRUE(fake.ok()) << fake.status();
    double on_fake = 0.0;
    EXPECT_EQ(GradientsOn(**fake, Options(), batch, &on_fake), expected);
    EXPECT_EQ(on_fake, on_cpu);
  }
}

TEST_P(StagePartsTest, TheFakeDeviceJoinsTensorParallelRanks) {
  const TinyBatch batch(model_, 2, 3);
  std::vector<float> expected[2], found[2];
  for (const bool fake : {false, true}) {
    const absl::Status status = RunInprocRanks(2, [&](Collectives& tp) {
      LoneStageOptions options = Options();
      options.mesh.tp = 2;
      options.at.tp = tp.rank();
      options.tp = &tp;
      double loss = 0.0;
      if (fake) {
        kernels::FakeDeviceOptions fake_options;
        fake_options.device_bytes = size_t{64} << 20;
        auto device = kernels::NewFakeDevice(fake_options);
        if (!device.ok()) return device.status();
        found[tp.rank()] = GradientsOn(**device, options, batch, &loss);
      } else {
        expected[tp.rank()] = GradientsOn(*device_, options, batch, &loss);
      }
      return absl::OkStatus();
    });
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(found[0], expected[0]);
  EXPECT_EQ(found[1], expected[1]);
}

INSTANTIATE_TEST_SUITE_P(
    All, StagePartsTest,
    testing::Values(Case{false, ComputeType::kF32},
                    Case{true, ComputeType::kF32},
                    Case{false, ComputeType::kBf16},
                    Case{true, ComputeType::kBf16}),
    [](const auto& info) {
      return std::string(info.param.tied ? "Tied" : "Untied") +
             (info.param.compute == ComputeType::kBf16 ? "Bf16" : "F32");
    });

}  // namespace
}  // namespace holdfast::trainer
