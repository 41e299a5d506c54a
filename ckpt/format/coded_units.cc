// ckpt/format/coded_units.cc: see coded_units.h. The decoder accepts one
// spelling, like those of shard.cc.

#include "ckpt/format/coded_units.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/index_rules.h"
#include "ckpt/format/wire.h"

namespace holdfast::ckpt {
namespace {

constexpr size_t kCodedEntryBytes = 24;

}  // namespace

bool IsPossible(const CodedUnit& unit) {
  if (unit.bytes == 0 || unit.bytes > kUnitBytesMax ||
      unit.bytes % kShardBlockBytes != 0) {
    return false;
  }
  switch (unit.codec) {
    case Codec::kNone:
      return unit.bytes_stored == unit.bytes && unit.planes == 1;
    case Codec::kZstd:
      return unit.bytes_stored > 0 && unit.padded_bytes() < unit.bytes &&
             IsPlaneCount(unit.planes);
  }
  return false;
}

absl::Status CheckCodedUnits(std::span<const CodedUnit> units) {
  std::vector<std::pair<uint64_t, uint64_t>> places;  // begin, end
  places.reserve(units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    const CodedUnit& unit = units[i];
    if (!IsPossible(unit)) {
      return absl::DataLossError(absl::StrFormat(
          "the index has unit %d of %d with %d bytes in %d, codec %d, planes "
          "%d, which cannot be",
          i, units.size(), unit.bytes, unit.bytes_stored,
          static_cast<int>(unit.codec), unit.planes));
    }
    places.emplace_back(unit.offset, unit.offset + unit.padded_bytes());
  }
  std::sort(places.begin(), places.end());
  uint64_t end = kShardBlockBytes;
  for (const auto& place : places) {
    if (place.first != end) {
      return absl::DataLossError(absl::StrFormat(
          "the index has a unit at %d; the one stored before it ends at %d",
          place.first, end));
    }
    end = place.second;
  }
  return absl::OkStatus();
}

CodedUnit CodeUnit(ZstdEncoder& encoder, std::span<const std::byte> plain,
                   int planes, std::span<std::byte> out) {
  HF_CHECK(out.size() == plain.size() && plain.size() % kShardBlockBytes == 0,
           "a unit of %d bytes into %d", plain.size(), out.size());
  CodedUnit unit;
  unit.bytes = static_cast<uint32_t>(plain.size());
  unit.bytes_stored = static_cast<uint32_t>(encoder.Encode(
      plain, planes, out.first(plain.size() - kShardBlockBytes)));
  if (unit.bytes_stored > 0) {
    unit.codec = Codec::kZstd;
    unit.planes = static_cast<uint8_t>(planes);
    std::fill(out.begin() + unit.bytes_stored,
              out.begin() + unit.padded_bytes(), std::byte{0});
  } else {
    unit.bytes_stored = unit.bytes;
    std::copy(plain.begin(), plain.end(), out.begin());
  }
  unit.crc = Crc32c(out.first(unit.padded_bytes()));
  return unit;
}

uint64_t CodedIndexBytes(uint32_t unit_count) {
  return IndexBytes(unit_count, kCodedEntryBytes);
}

std::vector<std::byte> EncodeCodedIndex(std::span<const CodedUnit> units) {
  const absl::Status valid = CheckCodedUnits(units);
  HF_CHECK(valid.ok(), "%s", valid.ToString());
  Writer out;
  for (const CodedUnit& unit : units) {
    out.Fixed(unit.offset);
    out.Fixed(unit.bytes_stored);
    out.Fixed(unit.bytes);
    out.Fixed(unit.crc);
    out.Fixed(static_cast<uint8_t>(unit.codec));
    out.Fixed(unit.planes);
    out.Fixed(uint16_t{0});
  }
  out.ZerosUntil(CodedIndexBytes(static_cast<uint32_t>(units.size())));
  return out.Take();
}

absl::StatusOr<std::vector<CodedUnit>> DecodeCodedIndex(
    std::span<const std::byte> bytes, uint32_t unit_count) {
  HF_RETURN_IF_ERROR(CheckIndexSize(bytes, unit_count, kCodedEntryBytes));
  std::vector<CodedUnit> units(unit_count);
  Reader in(bytes);
  for (CodedUnit& unit : units) {
    unit.offset = in.Fixed<uint64_t>();
    unit.bytes_stored = in.Fixed<uint32_t>();
    unit.bytes = in.Fixed<uint32_t>();
    unit.crc = in.Fixed<uint32_t>();
    unit.codec = static_cast<Codec>(in.Fixed<uint8_t>());
    unit.planes = in.Fixed<uint8_t>();
    if (in.Fixed<uint16_t>() != 0) {
      return absl::DataLossError(absl::StrFormat(
          "the index has a byte that is not zero where there are zeros, at %d",
          in.position() - sizeof(uint16_t)));
    }
  }
  HF_RETURN_IF_ERROR(CheckZerosAfter(in, bytes, unit_count));
  HF_RETURN_IF_ERROR(CheckCodedUnits(units));
  return units;
}

}  // namespace holdfast::ckpt
