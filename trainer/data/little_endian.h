// trainer/data/little_endian.h: integers in files, at any alignment.
//
// Token files are little-endian and so are the machines this runs on; a build
// for another byte order stops here.

#ifndef HOLDFAST_TRAINER_DATA_LITTLE_ENDIAN_H_
#define HOLDFAST_TRAINER_DATA_LITTLE_ENDIAN_H_

#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace holdfast::trainer {

static_assert(std::endian::native == std::endian::little);

// The caller has checked that offset + sizeof(T) is within `bytes`.
template <typename T>
T LoadInt(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void AppendInt(std::vector<std::byte>& bytes, T value) {
  const auto* data = reinterpret_cast<const std::byte*>(&value);
  bytes.insert(bytes.end(), data, data + sizeof(T));
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_LITTLE_ENDIAN_H_
