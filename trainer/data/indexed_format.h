// trainer/data/indexed_format.h: Megatron's PREFIX.idx, as bytes.
//
// Pure: bytes to values and back. All integers little-endian.
//
//   index := magic[9] version:u64 type:u8 sequences:u64 documents:u64
//            length:i32 * sequences        tokens of each sequence
//            pointer:i64 * sequences       its first byte in PREFIX.bin
//            document:i64 * documents      its first sequence; [0] is 0, and
//            the
//                                          last one closes the last document
//            mode:i8 * sequences           of multimodal sets only; not read
//   magic := "MMIDIDX" 00 00               version := 1
//   type  := 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 f64, 7 f32, 8 u16
//
// PREFIX.bin is the tokens and nothing else. `documents` counts the closing
// entry: one document of one sequence has the list 0, 1. The layout was read
// from megatron/core/datasets/indexed_dataset.py of Megatron-LM.
//
// Example. Two documents, 3 and 1 tokens of u16: magic at 0, version 1 at 9,
// type 8 at 17, 2 sequences at 18, 3 entries at 26, lengths 3, 1 at 34,
// pointers 0, 6 at 42, documents 0, 1, 2 at 58; 82 bytes. The .bin has 8 bytes.

#ifndef HOLDFAST_TRAINER_DATA_INDEXED_FORMAT_H_
#define HOLDFAST_TRAINER_DATA_INDEXED_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::trainer {

// The types that can hold tokens; the two of floating point are refused.
enum class TokenType : uint8_t {
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kI32 = 4,
  kI64 = 5,
  kU16 = 8,
};

size_t TokenBytes(TokenType type);

// The type Megatron gives a vocabulary: u16 below 65,500 tokens, else i32.
TokenType TokenTypeFor(int64_t vocab);

// What a reader needs once all lists have been checked.
struct IndexSummary {
  TokenType type = TokenType::kU16;
  uint64_t sequences = 0;
  uint64_t documents = 0;  // Without the closing entry.
  uint64_t tokens = 0;

  friend bool operator==(const IndexSummary&, const IndexSummary&) = default;
};

// `lengths` of all sequences; `documents` with its leading 0 and its closing
// entry.
std::vector<std::byte> EncodeIndex(TokenType type,
                                   std::span<const int32_t> lengths,
                                   std::span<const int64_t> documents);

// Checks every entry. Sequences must follow one another without gaps, so that
// the tokens of the whole set are the bytes of PREFIX.bin in order; and
// PREFIX.bin must have `bin_bytes` of exactly them.
//
// kInvalidArgument: the message starts with `name` and has offset, expected and
//     found. Costs one pass over `index`, about 1 ms for 100,000 sequences.
absl::StatusOr<IndexSummary> DecodeIndex(std::span<const std::byte> index,
                                         uint64_t bin_bytes,
                                         std::string_view name);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_INDEXED_FORMAT_H_
