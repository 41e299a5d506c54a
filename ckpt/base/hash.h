// ckpt/base/hash.h: a stable 64-bit hash of text, FNV-1a.
//
// For comparing and naming, never against an attacker. Stable for ever: values
// travel between ranks and stand in files. Fowler, Noll, Vo; offset basis and
// prime as published (RFC 9923).

#ifndef HOLDFAST_CKPT_BASE_HASH_H_
#define HOLDFAST_CKPT_BASE_HASH_H_

#include <cstdint>
#include <string_view>

namespace holdfast::ckpt {

constexpr uint64_t Hash64(std::string_view text,
                          uint64_t seed = 0xcbf29ce484222325) {
  uint64_t hash = seed;
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BASE_HASH_H_
