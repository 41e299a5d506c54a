// tests/fuzz/safetensors_properties.h: what must hold for any bytes at all that
// are offered as a safetensors file. Decoding refuses them with a status, or
// accepts them; then the tensors lie inside the file, side by side, each as
// long as its type and shape say, and encoded again they decode to the same.
// JSON has many spellings, so the same bytes are not asked.
//
// Called by the fuzz target beside this file and, with its corpus and with
// mutations of it, by an ordinary test. Aborts when the property is broken, and
// returns how often something was accepted.

#ifndef HOLDFAST_TESTS_FUZZ_SAFETENSORS_PROPERTIES_H_
#define HOLDFAST_TESTS_FUZZ_SAFETENSORS_PROPERTIES_H_

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "tools/convert/safetensors.h"

namespace holdfast::tools {

[[noreturn]] inline void SafetensorsBroken(const char* what) {
  std::fprintf(stderr, "a safetensors header was accepted, and %s\n", what);
  std::abort();
}

// Decodes a whole file.
inline absl::StatusOr<SafetensorsHeader> DecodeSafetensorsBytes(
    std::span<const std::byte> bytes) {
  if (bytes.size() < 8) return absl::InvalidArgumentError("short");
  const auto json_bytes =
      DecodeSafetensorsPrefix(bytes.first<8>(), bytes.size());
  if (!json_bytes.ok()) return json_bytes.status();
  return DecodeSafetensorsHeader(bytes.subspan(8, *json_bytes), bytes.size());
}

inline int CheckSafetensorsFile(std::span<const std::byte> bytes) {
  const auto header = DecodeSafetensorsBytes(bytes);
  if (!header.ok()) return 0;
  uint64_t at = header->data_begin;
  for (const SafeTensor& tensor : header->tensors) {
    if (tensor.offset != at) SafetensorsBroken("the tensors do not tile");
    at += tensor.bytes;
    if (at > bytes.size()) SafetensorsBroken("a tensor lies outside");
    uint64_t expected = SafetensorsElementBytes(tensor.dtype);
    for (const int64_t dimension : tensor.shape) {
      if (dimension < 0) SafetensorsBroken("a dimension is negative");
      expected *= static_cast<uint64_t>(dimension);
    }
    if (expected != tensor.bytes) SafetensorsBroken("a size does not fit");
  }
  if (at != bytes.size()) SafetensorsBroken("bytes are left over");

  const std::vector<std::byte> again =
      EncodeSafetensorsHeader(header->tensors, header->metadata);
  const uint64_t data_bytes = bytes.size() - header->data_begin;
  if (again.size() - 8 > kSafetensorsHeaderBytesMax) return 1;
  auto decoded = DecodeSafetensorsHeader(std::span(again).subspan(8),
                                         again.size() + data_bytes);
  if (!decoded.ok()) SafetensorsBroken("encoded again it is refused");
  const uint64_t moved = decoded->data_begin - header->data_begin;
  for (SafeTensor& tensor : decoded->tensors) tensor.offset -= moved;
  decoded->data_begin -= moved;
  if (*decoded != *header) SafetensorsBroken("encoded again it is another");
  return 1;
}

// The bytes as a file, and once more as the JSON alone of a file that is as
// long as the largest number in it that could be an offset: mutations would
// hardly ever meet the length of the data otherwise.
inline int CheckSafetensorsBytes(std::span<const std::byte> bytes) {
  int accepted = CheckSafetensorsFile(bytes);
  if (bytes.size() < 8) return accepted;
  std::vector<std::byte> file(bytes.begin(), bytes.end());
  const std::span<const std::byte> json = bytes.subspan(8);
  constexpr uint64_t kDataMax = 4096;
  uint64_t longest = 0, number = 0;
  for (const std::byte b : json) {
    const int digit = std::to_integer<int>(b) - '0';
    number = digit >= 0 && digit <= 9 && number <= kDataMax
                 ? number * 10 + static_cast<uint64_t>(digit)
                 : 0;
    if (number <= kDataMax && number > longest) longest = number;
  }
  const uint64_t json_bytes = json.size();
  std::memcpy(file.data(), &json_bytes, 8);
  file.resize(file.size() + longest);
  accepted += CheckSafetensorsFile(file);
  return accepted;
}

}  // namespace holdfast::tools

#endif  // HOLDFAST_TESTS_FUZZ_SAFETENSORS_PROPERTIES_H_
