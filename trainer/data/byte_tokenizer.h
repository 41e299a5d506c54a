// trainer/data/byte_tokenizer.h: the tokenizer `bytes`.
//
// A token is a byte; two more ids stand before and after each document:
//
//   0 to 255   the byte of that value
//   256        <bos>, the first token of a document
//   257        <eos>, the last one
//
// A document "hi" is 256 104 105 257.

#ifndef HOLDFAST_TRAINER_DATA_BYTE_TOKENIZER_H_
#define HOLDFAST_TRAINER_DATA_BYTE_TOKENIZER_H_

#include <cstdint>

namespace holdfast::trainer {

inline constexpr int32_t kByteBos = 256;
inline constexpr int32_t kByteEos = 257;
inline constexpr int64_t kByteVocab = 258;

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_BYTE_TOKENIZER_H_
