// tools/convert/safetensors.h: the header of a safetensors file, as bytes.
// Pure.
//
//   file := header_bytes:u64 header[header_bytes] data
//
// Little-endian. `header` is one JSON object, perhaps followed by spaces: for
// each tensor {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, and
// at
// "__metadata__" an object of strings. Offsets count from the start of `data`,
// which the tensors fill without a hole and without an overlap, row-major. (The
// format and its limit of 100 MB a header: huggingface/safetensors, README and
// safetensors/src/tensor.rs.)
//
// Decoding treats the bytes as hostile: what is twice there, overlaps, leaves a
// hole, lies outside the file, has a shape whose size does not fit, or is not
// of the grammar above, is kInvalidArgument with what was found where. Memory
// is at most a few times the header's.

#ifndef HOLDFAST_TOOLS_CONVERT_SAFETENSORS_H_
#define HOLDFAST_TOOLS_CONVERT_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/layout/tensor.h"

namespace holdfast::tools {

inline constexpr uint64_t kSafetensorsHeaderBytesMax = 100'000'000;
inline constexpr size_t kSafetensorsDimensionsMax = 16;

struct SafeTensor {
  std::string name;
  std::string dtype;           // as the file spells it: "BF16"
  std::vector<int64_t> shape;  // may hold zeros; empty is a scalar
  uint64_t offset = 0;         // of its first byte, from the start of the file
  uint64_t bytes = 0;

  friend bool operator==(const SafeTensor&, const SafeTensor&) = default;
};

struct SafetensorsHeader {
  std::vector<SafeTensor> tensors;  // by offset, empty ones first, then by name
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // from the start of the file

  friend bool operator==(const SafetensorsHeader&,
                         const SafetensorsHeader&) = default;
};

// Bytes of an element of a dtype as the files spell it; 0: no such type. Types
// of less than a byte are not known.
uint64_t SafetensorsElementBytes(std::string_view dtype);
// nullopt where we have no such type.
std::optional<ckpt::DType> DTypeOfSafetensors(std::string_view dtype);
std::string_view SafetensorsNameOf(ckpt::DType dtype);

// The length of the JSON, from the file's first 8 bytes. `file_bytes` is the
// file's size.
absl::StatusOr<uint64_t> DecodeSafetensorsPrefix(
    std::span<const std::byte, 8> prefix, uint64_t file_bytes);

// `json` is what follows the prefix, of the length that it says.
absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(
    std::span<const std::byte> json, uint64_t file_bytes);

// The prefix and the JSON, padded so that the data start on a multiple of 8.
// Offsets are given anew: the tensors follow each other in their order here.
// Names are UTF-8 and unique (CHECK).
std::vector<std::byte> EncodeSafetensorsHeader(
    std::span<const SafeTensor> tensors,
    const std::map<std::string, std::string>& metadata);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_SAFETENSORS_H_
