// trainer/data/token_set.cc: opening, checking and reading mapped tokens.

#include "trainer/data/token_set.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "trainer/data/fingerprint_hash.h"
#include "trainer/data/little_endian.h"
#include "trainer/data/mask_format.h"

namespace holdfast::trainer {
namespace {

constexpr uint64_t kSamples = 64;
constexpr uint64_t kSampleBytes = 4096;

// Calls `visit` with the tokens' C++ type as a value of that type.
template <typename Visit>
auto WithType(TokenType type, const Visit& visit) {
  switch (type) {
    case TokenType::kU8:
      return visit(uint8_t{});
    case TokenType::kI8:
      return visit(int8_t{});
    case TokenType::kI16:
      return visit(int16_t{});
    case TokenType::kI32:
      return visit(int32_t{});
    case TokenType::kI64:
      return visit(int64_t{});
    case TokenType::kU16:
      return visit(uint16_t{});
  }
  HF_CHECK(false, "no token type has code %d", static_cast<int>(type));
}

}  // namespace

absl::StatusOr<TokenSet> TokenSet::Open(const std::string& prefix) {
  TokenSet set;
  set.prefix_ = prefix;
  const auto open = [&](const char* suffix, MappedFile& out) -> absl::Status {
    auto file = MappedFile::Open(prefix + suffix);
    if (!file.ok()) {
      return absl::Status(
          file.status().code(),
          absl::StrFormat("opening token set %s: %s", prefix,
                          std::string(file.status().message())));
    }
    out = *std::move(file);
    return absl::OkStatus();
  };
  HF_RETURN_IF_ERROR(open(".idx", set.idx_));
  HF_RETURN_IF_ERROR(open(".bin", set.bin_));
  HF_ASSIGN_OR_RETURN(
      set.index_,
      DecodeIndex(set.idx_.bytes(), set.bin_.bytes().size(), prefix + ".idx"));
  // Whether a set has a mask is not recorded elsewhere: the fingerprint tells a
  // lost one from a set that never had one.
  if (access((prefix + ".mask").c_str(), F_OK) == 0) {
    HF_RETURN_IF_ERROR(open(".mask", set.mask_));
    HF_ASSIGN_OR_RETURN(
        set.mask_bits_,
        DecodeMask(set.mask_.bytes(), set.index_.tokens, prefix + ".mask"));
  }
  return set;
}

absl::Status TokenSet::CheckTokens(int64_t vocab) const {
  return WithType(index_.type, [&](auto zero) -> absl::Status {
    using Token = decltype(zero);
    const std::span<const std::byte> bytes = bin_.bytes();
    const auto at = [&](uint64_t i) {
      return static_cast<int64_t>(LoadInt<Token>(bytes, i * sizeof(Token)));
    };
    // A piece is judged by its extremes, which the compiler vectorises; only a
    // bad one is searched for the offset.
    constexpr uint64_t kPiece = 1 << 16;
    for (uint64_t first = 0; first < tokens(); first += kPiece) {
      const uint64_t end = std::min(tokens(), first + kPiece);
      Token lowest = 0;
      Token highest = 0;
      for (uint64_t i = first; i < end; ++i) {
        const auto token = LoadInt<Token>(bytes, i * sizeof(Token));
        lowest = std::min(lowest, token);
        highest = std::max(highest, token);
      }
      if (int64_t{lowest} >= 0 && int64_t{highest} < vocab) continue;
      uint64_t bad = first;
      while (at(bad) >= 0 && at(bad) < vocab) ++bad;
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s.bin: offset %d (token %d of %d): id %d is outside the model's "
          "vocabulary, 0 to %d (model.vocab = %d)",
          prefix_, bad * sizeof(Token), bad, tokens(), at(bad), vocab - 1,
          vocab));
    }
    return absl::OkStatus();
  });
}

void TokenSet::Read(uint64_t first, std::span<int32_t> out) const {
  HF_CHECK(first + out.size() <= tokens(), "%d + %d of %d tokens", first,
           out.size(), tokens());
  WithType(index_.type, [&](auto zero) {
    using Token = decltype(zero);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<int32_t>(
          LoadInt<Token>(bin_.bytes(), (first + i) * sizeof(Token)));
    }
  });
}

void TokenSet::ReadMask(uint64_t first, std::span<uint8_t> out) const {
  HF_CHECK(first + out.size() <= tokens(), "%d + %d of %d tokens", first,
           out.size(), tokens());
  if (!masked()) {
    std::fill(out.begin(), out.end(), uint8_t{1});
    return;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const uint64_t bit = first + i;
    out[i] = std::to_integer<unsigned>(mask_bits_[bit / 8]) >> (bit % 8) & 1;
  }
}

uint64_t TokenSet::Counting(uint64_t first, uint64_t count) const {
  HF_CHECK(first + count <= tokens(), "%d + %d of %d tokens", first, count,
           tokens());
  return masked() ? CountBits(mask_bits_, first, count) : count;
}

void TokenSet::AddCounts(uint64_t first, uint64_t count,
                         std::span<uint64_t> counts) const {
  HF_CHECK(first + count <= tokens(), "%d + %d of %d tokens", first, count,
           tokens());
  WithType(index_.type, [&](auto zero) {
    using Token = decltype(zero);
    for (uint64_t i = first; i < first + count; ++i) {
      if (masked() && CountBits(mask_bits_, i, 1) == 0) continue;
      ++counts[static_cast<size_t>(
          LoadInt<Token>(bin_.bytes(), i * sizeof(Token)))];
    }
  });
}

uint64_t TokenSet::Fingerprint() const {
  FingerprintHash hash;
  const std::span<const std::byte> bin = bin_.bytes();
  hash.Add(static_cast<uint64_t>(bin.size()));
  hash.Add(idx_.bytes());
  hash.Add(mask_.bytes());
  if (bin.size() <= kSamples * kSampleBytes) {
    hash.Add(bin);
  } else {
    // The first piece, the last one, and those between at even distances.
    const uint64_t span = bin.size() - kSampleBytes;
    for (uint64_t i = 0; i < kSamples; ++i) {
      const uint64_t offset = span / (kSamples - 1) * i +
                              span % (kSamples - 1) * i / (kSamples - 1);
      hash.Add(bin.subspan(offset, kSampleBytes));
    }
  }
  return hash.value();
}

}  // namespace holdfast::trainer
