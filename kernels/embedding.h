// kernels/embedding.h: rows of a vocabulary-parallel table, and their gradient.
//
// A rank holds rows [vocab_begin, vocab_begin + vocab_rows) of the vocabulary.
// A token outside that range gives a row of zeros, so the sum over the ranks of
// a tensor-parallel group is the whole answer: one term and zeros, exact.
//
// Order. The gradient of a table row adds its tokens in token order, in FP32,
// one by one onto what is there, whatever the number of threads.

#ifndef HOLDFAST_KERNELS_EMBEDDING_H_
#define HOLDFAST_KERNELS_EMBEDDING_H_

#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/stream.h"

namespace holdfast::kernels {

template <typename T>
struct EmbeddingArgs {
  const int32_t* tokens = nullptr;  // [count], ids of the whole vocabulary
  int64_t count = 0;
  const T* table = nullptr;  // [vocab_rows, hidden]
  int64_t vocab_begin = 0;
  int64_t vocab_rows = 0;
  int64_t hidden = 0;
  T* out = nullptr;  // [count, hidden]
};

template <typename T>
void EmbeddingForward(Stream& stream, const EmbeddingArgs<T>& args);

template <typename T>
struct EmbeddingBackwardArgs {
  const int32_t* tokens = nullptr;  // [count]
  int64_t count = 0;
  const T* dout = nullptr;  // [count, hidden]
  int64_t vocab_begin = 0;
  int64_t vocab_rows = 0;
  int64_t hidden = 0;
  float* dtable = nullptr;  // [vocab_rows, hidden], added to
};

template <typename T>
void EmbeddingBackward(Stream& stream, const EmbeddingBackwardArgs<T>& args);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_EMBEDDING_H_
