// kernels/embedding_cpu.cc: gather by rows; scatter by columns, so that one
// thread meets the tokens in their order.

#include <cstring>

#include "kernels/embedding.h"
#include "kernels/kernel_set.h"
#include "kernels/parallel.h"
#include "kernels/vector.h"

namespace holdfast::kernels {
namespace {

constexpr int64_t kRowsPerItem = 64;
constexpr int64_t kColumnsPerItem = 128;

template <typename T>
HOLDFAST_VECTOR_CLONES void ScatterColumns(const EmbeddingBackwardArgs<T>& args,
                                           int64_t begin, int64_t end) {
  for (int64_t i = 0; i < args.count; ++i) {
    const int64_t row = args.tokens[i] - args.vocab_begin;
    if (row < 0 || row >= args.vocab_rows) continue;
    const T* from = args.dout + i * args.hidden;
    float* to = args.dtable + row * args.hidden;
#pragma omp simd
    for (int64_t c = begin; c < end; ++c) to[c] += ToFloat(from[c]);
  }
}

}  // namespace

template <typename T>
void EmbeddingForward(Stream& stream, const EmbeddingArgs<T>& args) {
  if (auto* set = KernelSetOf<T>(stream))
    return set->EmbeddingForward(stream, args);
  stream.Launch([args] {
    const size_t row_bytes = static_cast<size_t>(args.hidden) * sizeof(T);
    ParallelRanges(args.count, kRowsPerItem, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        void* to = args.out + i * args.hidden;
        const int64_t row = args.tokens[i] - args.vocab_begin;
        if (row < 0 || row >= args.vocab_rows) {
          std::memset(to, 0, row_bytes);
        } else {
          std::memcpy(to, args.table + row * args.hidden, row_bytes);
        }
      }
    });
  });
}

template <typename T>
void EmbeddingBackward(Stream& stream, const EmbeddingBackwardArgs<T>& args) {
  if (auto* set = KernelSetOf<T>(stream))
    return set->EmbeddingBackward(stream, args);
  stream.Launch([args] {
    ParallelRanges(
        args.hidden, kColumnsPerItem,
        [&](int64_t begin, int64_t end) { ScatterColumns(args, begin, end); });
  });
}

template void EmbeddingForward(Stream&, const EmbeddingArgs<float>&);
template void EmbeddingForward(Stream&, const EmbeddingArgs<Bf16>&);
template void EmbeddingBackward(Stream&, const EmbeddingBackwardArgs<float>&);
template void EmbeddingBackward(Stream&, const EmbeddingBackwardArgs<Bf16>&);

}  // namespace holdfast::kernels
