// trainer/data/indexed_format.cc: encode and check an index.

#include "trainer/data/indexed_format.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "trainer/data/little_endian.h"

namespace holdfast::trainer {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
constexpr uint64_t kVersion = 1;
constexpr size_t kTypeOffset = 17;
constexpr size_t kHeaderBytes = 34;

template <typename... Args>
absl::Status Bad(std::string_view name, const absl::FormatSpec<Args...>& format,
                 const Args&... args) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: ", name) +
                                    absl::StrFormat(format, args...));
}

}  // namespace

size_t TokenBytes(TokenType type) {
  switch (type) {
    case TokenType::kU8:
    case TokenType::kI8:
      return 1;
    case TokenType::kI16:
    case TokenType::kU16:
      return 2;
    case TokenType::kI32:
      return 4;
    case TokenType::kI64:
      return 8;
  }
  HF_CHECK(false, "no token type has code %d", static_cast<int>(type));
}

TokenType TokenTypeFor(int64_t vocab) {
  return vocab < 65500 ? TokenType::kU16 : TokenType::kI32;
}

std::vector<std::byte> EncodeIndex(TokenType type,
                                   std::span<const int32_t> lengths,
                                   std::span<const int64_t> documents) {
  std::vector<std::byte> out;
  out.reserve(kHeaderBytes + 12 * lengths.size() + 8 * documents.size());
  for (const char c : kMagic) out.push_back(static_cast<std::byte>(c));
  AppendInt(out, kVersion);
  AppendInt(out, static_cast<uint8_t>(type));
  AppendInt(out, static_cast<uint64_t>(lengths.size()));
  AppendInt(out, static_cast<uint64_t>(documents.size()));
  for (const int32_t length : lengths) AppendInt(out, length);
  int64_t pointer = 0;
  for (const int32_t length : lengths) {
    AppendInt(out, pointer);
    pointer += int64_t{length} * static_cast<int64_t>(TokenBytes(type));
  }
  for (const int64_t document : documents) AppendInt(out, document);
  return out;
}

absl::StatusOr<IndexSummary> DecodeIndex(std::span<const std::byte> index,
                                         uint64_t bin_bytes,
                                         std::string_view name) {
  if (index.size() < kHeaderBytes) {
    return Bad(name,
               "%d bytes, but the header of an index has %d; the file "
               "was cut off or is no token index",
               index.size(), kHeaderBytes);
  }
  if (std::memcmp(index.data(), kMagic, sizeof(kMagic)) != 0) {
    return Bad(name,
               "does not start with MMIDIDX and two zero bytes; this is "
               "no index of Megatron's indexed format");
  }
  const auto version = LoadInt<uint64_t>(index, sizeof(kMagic));
  if (version != kVersion) {
    return Bad(name, "offset 9: version %d, expected %d", version, kVersion);
  }
  const auto code = LoadInt<uint8_t>(index, kTypeOffset);
  const bool integer = (code >= 1 && code <= 5) || code == 8;
  if (!integer) {
    return Bad(name,
               "offset 17: token type %d%s, expected an integer type: 1 "
               "to 5, or 8",
               code, code == 6 || code == 7 ? " (floating point)" : "");
  }
  const auto sequences = LoadInt<uint64_t>(index, 18);
  const auto entries = LoadInt<uint64_t>(index, 26);
  const uint64_t body = index.size() - kHeaderBytes;
  // Divisions first: counts from a foreign file may overflow when multiplied.
  if (sequences > body / 12 || entries > body / 8) {
    return Bad(name,
               "offset 18: %d sequences and %d document entries do not "
               "fit in %d bytes; the file was cut off",
               sequences, entries, index.size());
  }
  const uint64_t lists = 12 * sequences + 8 * entries;
  if (body != lists && body != lists + sequences) {
    return Bad(name,
               "%d bytes, but %d sequences and %d document entries make "
               "%d (or %d with modes); the file was cut off or added to",
               index.size(), sequences, entries, kHeaderBytes + lists,
               kHeaderBytes + lists + sequences);
  }
  if (entries == 0) {
    return Bad(name,
               "offset 26: no document entries; even an empty set has "
               "one");
  }
  IndexSummary summary{.type = static_cast<TokenType>(code),
                       .sequences = sequences,
                       .documents = entries - 1};
  const uint64_t token_bytes = TokenBytes(summary.type);
  const size_t pointers = kHeaderBytes + 4 * sequences;
  for (uint64_t i = 0; i < sequences; ++i) {
    const auto length = LoadInt<int32_t>(index, kHeaderBytes + 4 * i);
    if (length < 0) {
      return Bad(name, "offset %d: sequence %d has a length of %d",
                 kHeaderBytes + 4 * i, i, length);
    }
    const auto pointer = LoadInt<int64_t>(index, pointers + 8 * i);
    const uint64_t expected = summary.tokens * token_bytes;
    if (pointer < 0 || static_cast<uint64_t>(pointer) != expected) {
      return Bad(name,
                 "offset %d: sequence %d starts at byte %d of the .bin, "
                 "expected %d, where the one before ends",
                 pointers + 8 * i, i, pointer, expected);
    }
    summary.tokens += static_cast<uint64_t>(length);
  }
  const size_t documents = pointers + 8 * sequences;
  int64_t previous = 0;
  for (uint64_t i = 0; i < entries; ++i) {
    const auto first = LoadInt<int64_t>(index, documents + 8 * i);
    if (i == 0 ? first != 0 : first < previous) {
      return Bad(name,
                 "offset %d: document %d starts at sequence %d, expected "
                 "%s %d",
                 documents + 8 * i, i, first, i == 0 ? "" : "at least",
                 previous);
    }
    previous = first;
  }
  if (static_cast<uint64_t>(previous) != sequences) {
    return Bad(name,
               "offset %d: the last document ends at sequence %d, but "
               "there are %d",
               documents + 8 * (entries - 1), previous, sequences);
  }
  if (bin_bytes != summary.tokens * token_bytes) {
    return Bad(name,
               "lists %d tokens of %d bytes, %d in all, but its .bin has "
               "%d bytes; one of the two was cut off or is of another set",
               summary.tokens, token_bytes, summary.tokens * token_bytes,
               bin_bytes);
  }
  return summary;
}

}  // namespace holdfast::trainer
