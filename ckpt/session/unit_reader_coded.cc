// ckpt/session/unit_reader_coded.cc: units of a coded file: where they are
// stored, and from what is stored to plain bytes.

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "ckpt/format/checksum.h"
#include "ckpt/session/unit_reader_state.h"

namespace holdfast::ckpt {

// The index: of the size that the footer says, and of the plain image that the
// manifest says.
absl::Status UnitReader::State::TakeCodedIndex(uint32_t file) {
  const ShardFile& expected = manifest->files[file];
  auto decoded = DecodeCodedIndex(index.span(), expected.unit_count);
  if (!decoded.ok()) return decoded.status();
  coded = *std::move(decoded);
  uint64_t plain_end = kShardBlockBytes;
  uint64_t stored_end = kShardBlockBytes;
  for (const CodedUnit& unit : coded) {
    units.push_back({plain_end, unit.bytes, unit.crc});
    plain_end += unit.bytes;
    stored_end += unit.padded_bytes();
  }
  if (plain_end != expected.data_end() || stored_end != index_offset) {
    return absl::DataLossError(absl::StrFormat(
        "its units hold %d bytes in %d; the manifest records %d, the footer %d",
        plain_end - kShardBlockBytes, stored_end - kShardBlockBytes,
        expected.plain_bytes, index_offset - kShardBlockBytes));
  }
  by_place.resize(coded.size());
  std::iota(by_place.begin(), by_place.end(), 0);
  std::sort(by_place.begin(), by_place.end(), [this](uint32_t a, uint32_t b) {
    return coded[a].offset < coded[b].offset;
  });
  return absl::OkStatus();
}

// From runs of the plain image to runs of what is stored. Units of all regions
// were written side by side, so what is wanted of several regions lies together
// again.
void UnitReader::State::PlanCodedReads(const std::vector<UnitRead>& runs,
                                       const FileWant::Place& where) {
  place = where;
  reads.clear();
  reads_begun = 0;
  std::vector<bool> wanted(coded.size());
  for (const UnitRead& run : runs) {
    std::fill_n(wanted.begin() + run.first_unit, run.unit_count, true);
  }
  for (uint32_t i = 0; i < by_place.size(); ++i) {
    const CodedUnit& unit = coded[by_place[i]];
    if (!wanted[by_place[i]]) continue;
    const uint64_t bytes = unit.padded_bytes();
    if (!reads.empty()) {
      UnitRead& last = reads.back().run;
      if (last.offset + last.bytes == unit.offset &&
          last.bytes + bytes <= options.read_bytes_max) {
        last.bytes += bytes;
        ++last.unit_count;
        continue;
      }
    }
    reads.push_back({{unit.offset, bytes, i, 1}, {}});
  }
}

// "" or what is wrong.
std::string UnitReader::State::DecodeUnit(const CodedUnit& unit,
                                          std::span<const std::byte> stored,
                                          std::span<std::byte> plain) {
  const auto rest = stored.subspan(unit.bytes_stored);
  if (std::any_of(rest.begin(), rest.end(),
                  [](std::byte b) { return b != std::byte{0}; })) {
    return "has bytes that are not zero after its frame";
  }
  const absl::Status decoded =
      decoder->Decode(stored.first(unit.bytes_stored), unit.planes, plain);
  return std::string(decoded.message());
}

void UnitReader::State::CheckCodedRun(uint32_t file, const Slot& slot,
                                      const Sink& sink) {
  if (!decoder.has_value()) {
    decoder.emplace(kUnitBytesMax);
    plain_unit = AlignedBuffer(kUnitBytesMax);
  }
  const uint32_t end = slot.run->first_unit + slot.run->unit_count;
  for (uint32_t i = slot.run->first_unit; i < end; ++i) {
    const uint32_t number = by_place[i];
    const CodedUnit& unit = coded[number];
    const std::span<const std::byte> stored = slot.memory.subspan(
        unit.offset - slot.run->offset, unit.padded_bytes());
    const uint32_t crc = Crc32c(stored);
    std::span<std::byte> plain;
    std::string wrong;
    if (crc != unit.crc) {
      wrong = absl::StrFormat("crc32c is %08x, the index records %08x", crc,
                              unit.crc);
    } else if (unit.codec == Codec::kZstd) {
      if (place) plain = place(units[number].offset, unit.bytes);
      if (plain.empty()) plain = plain_unit.span().first(unit.bytes);
      wrong = DecodeUnit(unit, stored, plain);
    }
    if (!wrong.empty()) {
      DamagedUnit(file, number, unit.offset, std::move(wrong))
          .IgnoreError();  // looked at through stopped()
      if (stopped()) return;
      continue;
    }
    sink(file, units[number].offset, plain.empty() ? stored : plain);
  }
}

}  // namespace holdfast::ckpt
