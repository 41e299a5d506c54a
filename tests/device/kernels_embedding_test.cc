// The embedding on the device: the processor's bits, whatever tokens repeat.

#include <random>

#include "kernels/embedding.h"
#include "tests/device/kernel_case.h"

namespace holdfast::tests {
namespace {

using kernels::EmbeddingArgs;
using kernels::EmbeddingBackwardArgs;

// Every `common`-th token is the same; the others come from four times the
// rows that are here. 0: none.
std::vector<int32_t> Tokens(int64_t count, int64_t begin, int64_t rows,
                            int64_t common, uint64_t seed) {
  std::vector<int32_t> tokens;
  std::mt19937_64 random(seed);
  for (int64_t i = 0; i < count; ++i) {
    const auto any = static_cast<int64_t>(random() % (4 * rows));
    tokens.push_back(static_cast<int32_t>(
        common > 0 && i % common == 0 ? begin + rows / 2 : any));
  }
  return tokens;
}

class KernelsOnDevice_Embedding : public OnDevice {
 protected:
  template <typename T>
  void ExpectEmbedding(int64_t count, int64_t hidden, int64_t begin,
                       int64_t rows, int64_t common, size_t offset = 0) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " count " << count << " hidden "
                 << hidden << " rows " << rows << " offset " << offset);
    const auto tokens = Tokens(count, begin, rows, common, seed);
    const auto table = RandomValues<T>(rows * hidden, seed + 1);
    const auto dout = RandomValues<T>(count * hidden, seed + 2);
    const auto before = RandomValues<float>(rows * hidden, seed + 3);
    std::vector<T> out(dout.size());
    std::vector<float> dtable = before;
    EmbeddingArgs<T> forward = {.tokens = tokens.data(),
                                .count = count,
                                .table = table.data(),
                                .vocab_begin = begin,
                                .vocab_rows = rows,
                                .hidden = hidden,
                                .out = out.data()};
    EmbeddingBackwardArgs<T> backward = {.tokens = tokens.data(),
                                         .count = count,
                                         .dout = dout.data(),
                                         .vocab_begin = begin,
                                         .vocab_rows = rows,
                                         .hidden = hidden,
                                         .dtable = dtable.data()};
    kernels::EmbeddingForward(CpuStream(), forward);
    kernels::EmbeddingBackward(CpuStream(), backward);

    const auto stream = device().NewStream();
    DeviceArray<int32_t> device_tokens(device(), tokens);
    DeviceArray<T> device_table(device(), table, offset);
    DeviceArray<T> device_out(device(), out.size());
    DeviceArray<T> device_dout(device(), dout, offset);
    DeviceArray<float> device_dtable(device(), before);
    forward.tokens = backward.tokens = device_tokens.data();
    forward.table = device_table.data();
    forward.out = device_out.data();
    backward.dout = device_dout.data();
    backward.dtable = device_dtable.data();
    kernels::EmbeddingForward(*stream, forward);
    kernels::EmbeddingBackward(*stream, backward);
    ExpectSameBits(device_out.Get(*stream), out);
    ExpectSameBits(device_dtable.Get(*stream), dtable);
  }

  void Measure(const std::string& name, int64_t common) {
    constexpr int64_t kTokens = 16384;
    constexpr int64_t kRows = 128256;
    constexpr int64_t kHidden = 2048;
    Zeros zeros(device());
    DeviceArray<int32_t> tokens(device(),
                                Tokens(kTokens, 0, kRows / 4, common, 1));
    const auto stream = device().NewStream();
    const double count = static_cast<double>(kTokens * kHidden);
    const EmbeddingBackwardArgs<Bf16> backward = {
        .tokens = tokens.data(),
        .count = kTokens,
        .dout = zeros.Of<Bf16>(kTokens * kHidden),
        .vocab_rows = kRows,
        .hidden = kHidden,
        .dtable = zeros.Of<float>(kRows * kHidden)};
    // As if each token had a row of its own.
    RecordBandwidth(device(), *stream, "embedding backward bf16" + name,
                    10 * count,
                    [&] { kernels::EmbeddingBackward(*stream, backward); });
    if (common != 0) return;
    const EmbeddingArgs<Bf16> forward = {
        .tokens = tokens.data(),
        .count = kTokens,
        .table = zeros.Of<Bf16>(kRows * kHidden),
        .vocab_rows = kRows,
        .hidden = kHidden,
        .out = zeros.Of<Bf16>(kTokens * kHidden)};
    RecordBandwidth(device(), *stream, "embedding forward bf16", 4 * count,
                    [&] { kernels::EmbeddingForward(*stream, forward); });
  }
};

TEST_F(KernelsOnDevice_Embedding, SmallShapesAndAddresses) {
  ExpectEmbedding<float>(37, 16, 6, 5, 3);
  ExpectEmbedding<Bf16>(37, 16, 6, 5, 3);
  ExpectEmbedding<Bf16>(200, 130, 10, 9, 2);
  ExpectEmbedding<Bf16>(100, 264, 3, 40, 0, 1);
  ExpectEmbedding<Bf16>(300, 33, 8, 1, 1);
  ExpectEmbedding<Bf16>(0, 16, 0, 8, 0);
}

TEST_F(KernelsOnDevice_Embedding, ManyTokens) {
  ExpectEmbedding<float>(Many(3000), 256, 0, 5000, 20);
  ExpectEmbedding<Bf16>(Many(9000), 256, 1000, 3000, 20);
  ExpectEmbedding<Bf16>(Many(40000), 64, 0, 50000, 5);  // More than one chunk.
}

TEST_F(KernelsOnDevice_Embedding, Bandwidth) {
  if (!HasSpeed(device())) GTEST_SKIP() << "no GPU to measure";
  Measure("", 0);
  Measure(", every 20th token the same", 20);
}

}  // namespace
}  // namespace holdfast::tests
