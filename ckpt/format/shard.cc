// ckpt/format/shard.cc: header, index and footer of a shard file, to bytes and
// back. Decoders accept one spelling: they encode what they have read and
// compare, so that every byte they do not name must be zero.

#include "ckpt/format/shard.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/index_rules.h"
#include "ckpt/format/wire.h"

namespace holdfast::ckpt {
namespace {

constexpr uint32_t kShardVersion = 1;
constexpr size_t kCrcAt = kShardBlockBytes - 4;
constexpr size_t kUnitEntryBytes = 16;

using Magic = std::array<char, 8>;
// A first byte that no text has and a newline at the end, as PNG does it, so
// that a copy in text mode is seen at once.
constexpr Magic kHeaderMagic = {'\x89', 'H', 'F', 'S', 'H', 'R', 'D', '\n'};
constexpr Magic kFooterMagic = {'\x89', 'H', 'F', 'F', 'O', 'O', 'T', '\n'};

void WriteIdentity(const Magic& magic, const ShardIdentity& identity,
                   Writer* out) {
  out->Fixed(magic);
  out->Fixed(kShardVersion);
  out->Fixed(identity.file);
  out->Fixed(identity.file_count);
  out->Fixed(identity.id.incarnation);
  out->Fixed(identity.id.attempt);
  out->Fixed(uint32_t{0});
  out->Fixed(identity.id.step);
  out->Fixed(identity.run_id);
}

std::vector<std::byte> SealBlock(Writer* out) {
  out->ZerosUntil(kCrcAt);
  out->Fixed(Crc32c(out->bytes()));
  return out->Take();
}

// The checks and the fields that header and footer have in common. What follows
// is left to be read from `in`.
absl::StatusOr<ShardIdentity> ReadIdentity(std::string_view what,
                                           const Magic& magic,
                                           std::span<const std::byte> block,
                                           Reader* in) {
  if (block.size() != kShardBlockBytes) {
    return absl::DataLossError(
        absl::StrFormat("the %s has %d bytes, %d expected", what, block.size(),
                        kShardBlockBytes));
  }
  if (in->Fixed<Magic>() != magic) {
    return absl::DataLossError(absl::StrFormat(
        "no shard %s there (its first 8 bytes are others)", what));
  }
  const uint32_t found = Crc32c(block.first(kCrcAt));
  const uint32_t recorded = Reader(block.subspan(kCrcAt)).Fixed<uint32_t>();
  if (found != recorded) {
    return absl::DataLossError(absl::StrFormat(
        "the %s is damaged: its crc32c is %08x, it records %08x", what, found,
        recorded));
  }
  const uint32_t version = in->Fixed<uint32_t>();
  if (version != kShardVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the %s is of shard version %d; this program reads version %d", what,
        version, kShardVersion));
  }
  ShardIdentity identity;
  identity.file = in->Fixed<uint32_t>();
  identity.file_count = in->Fixed<uint32_t>();
  identity.id.incarnation = in->Fixed<uint32_t>();
  identity.id.attempt = in->Fixed<uint32_t>();
  in->Fixed<uint32_t>();
  identity.id.step = in->Fixed<int64_t>();
  identity.run_id = in->Fixed<RunId>();
  return identity;
}

absl::Status CheckSpelling(std::string_view what,
                           std::span<const std::byte> found,
                           std::span<const std::byte> encoded) {
  const auto [a, b] =
      std::mismatch(found.begin(), found.end(), encoded.begin(), encoded.end());
  if (a == found.end() && b == encoded.end()) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "the %s has a byte that is not zero where version %d has zeros, at %d",
      what, kShardVersion, a - found.begin()));
}

}  // namespace

std::vector<std::byte> EncodeShardHeader(const ShardIdentity& identity) {
  Writer out;
  WriteIdentity(kHeaderMagic, identity, &out);
  return SealBlock(&out);
}

std::vector<std::byte> EncodeShardFooter(const ShardIdentity& identity,
                                         uint64_t index_offset,
                                         uint32_t unit_count,
                                         uint32_t crc_index,
                                         uint64_t plain_bytes) {
  Writer out;
  WriteIdentity(kFooterMagic, identity, &out);
  out.Fixed(index_offset);
  out.Fixed(unit_count);
  out.Fixed(crc_index);
  out.Fixed(plain_bytes);
  return SealBlock(&out);
}

uint64_t ShardIndexBytes(uint32_t unit_count) {
  return IndexBytes(unit_count, kUnitEntryBytes);
}

std::vector<std::byte> EncodeShardIndex(std::span<const Unit> units) {
  std::vector<Unit> sorted(units.begin(), units.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const Unit& a, const Unit& b) { return a.offset < b.offset; });
  Writer out;
  uint64_t end = kShardBlockBytes;
  for (const Unit& unit : sorted) {
    HF_CHECK(unit.offset == end && unit.bytes > 0 &&
                 unit.bytes <= kUnitBytesMax &&
                 unit.bytes % kShardBlockBytes == 0,
             "a unit of %d bytes at %d, the last one ends at %d", unit.bytes,
             unit.offset, end);
    end += unit.bytes;
    out.Fixed(unit.offset);
    out.Fixed(unit.bytes);
    out.Fixed(unit.crc);
  }
  out.ZerosUntil(ShardIndexBytes(static_cast<uint32_t>(sorted.size())));
  return out.Take();
}

absl::StatusOr<ShardIdentity> DecodeShardHeader(
    std::span<const std::byte> block) {
  Reader in(block);
  HF_ASSIGN_OR_RETURN(const ShardIdentity identity,
                      ReadIdentity("header", kHeaderMagic, block, &in));
  HF_RETURN_IF_ERROR(
      CheckSpelling("header", block, EncodeShardHeader(identity)));
  return identity;
}

absl::StatusOr<ShardFooter> DecodeShardFooter(
    std::span<const std::byte> block) {
  Reader in(block);
  ShardFooter footer;
  HF_ASSIGN_OR_RETURN(footer.identity,
                      ReadIdentity("footer", kFooterMagic, block, &in));
  footer.index_offset = in.Fixed<uint64_t>();
  footer.unit_count = in.Fixed<uint32_t>();
  footer.crc_index = in.Fixed<uint32_t>();
  footer.plain_bytes = in.Fixed<uint64_t>();
  HF_RETURN_IF_ERROR(CheckSpelling(
      "footer", block,
      EncodeShardFooter(footer.identity, footer.index_offset, footer.unit_count,
                        footer.crc_index, footer.plain_bytes)));
  if (footer.index_offset < kShardBlockBytes ||
      footer.index_offset % kShardBlockBytes != 0) {
    return absl::DataLossError(absl::StrFormat(
        "the footer puts the index at %d, which is not a "
        "multiple of %d from %d up",
        footer.index_offset, kShardBlockBytes, kShardBlockBytes));
  }
  return footer;
}

absl::StatusOr<std::vector<Unit>> DecodeShardIndex(
    std::span<const std::byte> bytes, uint32_t unit_count) {
  HF_RETURN_IF_ERROR(CheckIndexSize(bytes, unit_count, kUnitEntryBytes));
  std::vector<Unit> units(unit_count);
  Reader in(bytes);
  uint64_t end = kShardBlockBytes;
  for (uint32_t i = 0; i < unit_count; ++i) {
    Unit& unit = units[i];
    unit.offset = in.Fixed<uint64_t>();
    unit.bytes = in.Fixed<uint32_t>();
    unit.crc = in.Fixed<uint32_t>();
    if (unit.offset != end || unit.bytes == 0 || unit.bytes > kUnitBytesMax ||
        unit.bytes % kShardBlockBytes != 0) {
      return absl::DataLossError(absl::StrFormat(
          "the index has unit %d of %d at %d with %d bytes; it must start at "
          "%d, where the one before ends, and have a multiple of %d up to %d",
          i, unit_count, unit.offset, unit.bytes, end, kShardBlockBytes,
          kUnitBytesMax));
    }
    end += unit.bytes;
  }
  HF_RETURN_IF_ERROR(CheckZerosAfter(in, bytes, unit_count));
  return units;
}

}  // namespace holdfast::ckpt
