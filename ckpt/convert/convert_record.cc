// ckpt/convert/convert_record.cc: see convert_record.h.

#include "ckpt/convert/convert_record.h"

#include <charconv>

#include "absl/strings/str_format.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/wire.h"
#include "ckpt/session/run_files.h"

namespace holdfast::ckpt {
namespace {

constexpr char kRecordMagic[] = "holdfast conversion 1\n";
constexpr char kRoundMagic[] = "holdfast round 1\n";
constexpr std::string_view kRoundPrefix = "round-";

std::vector<std::byte> Finish(Writer writer) {
  writer.Fixed(Crc32c(writer.bytes()));
  return writer.Take();
}

// What is between the magic and the checksum.
absl::StatusOr<std::span<const std::byte>> Body(
    std::span<const std::byte> bytes, std::string_view magic) {
  if (bytes.size() < magic.size() + sizeof(uint32_t)) {
    return absl::DataLossError(absl::StrFormat(
        "a record of %d bytes is too short to be whole", bytes.size()));
  }
  const std::string_view begin(reinterpret_cast<const char*>(bytes.data()),
                               magic.size());
  if (begin != magic) {
    return absl::DataLossError("it begins with other words than a record does");
  }
  const auto covered = bytes.first(bytes.size() - sizeof(uint32_t));
  Reader tail(bytes.subspan(covered.size()));
  const auto found = tail.Fixed<uint32_t>();
  const uint32_t crc = Crc32c(covered);
  if (found != crc) {
    return absl::DataLossError(
        absl::StrFormat("crc32c is %08x, the record ends in %08x", crc, found));
  }
  return covered.subspan(magic.size());
}

absl::Status Malformed(const Reader& reader) {
  return absl::DataLossError(absl::StrFormat(
      "a record that ends or goes wrong at byte %d", reader.position()));
}

}  // namespace

std::string RoundRecordName(uint32_t round) {
  return absl::StrFormat("%s/%s%05d", kConversionDir, std::string(kRoundPrefix),
                         round);
}

std::optional<uint32_t> ParseRoundRecord(std::string_view entry) {
  if (entry.substr(0, kRoundPrefix.size()) != kRoundPrefix) return std::nullopt;
  const std::string_view digits = entry.substr(kRoundPrefix.size());
  uint32_t round = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), round);
  if (error != std::errc{} || end != digits.data() + digits.size()) {
    return std::nullopt;
  }
  if (RoundRecordName(round) !=
      absl::StrFormat("%s/%s", kConversionDir, std::string(entry))) {
    return std::nullopt;
  }
  return round;
}

std::vector<std::byte> EncodeConversion(const ConversionRecord& record) {
  Writer writer;
  writer.Raw(kRecordMagic, sizeof(kRecordMagic) - 1);
  writer.Raw(record.run_id.data(), record.run_id.size());
  writer.Zigzag(record.step);
  writer.Fixed(record.plan_hash);
  for (const std::string* text : {&record.source, &record.target, &record.form,
                                  &record.codec, &record.attributes}) {
    writer.String(*text);
  }
  return Finish(std::move(writer));
}

absl::StatusOr<ConversionRecord> DecodeConversion(
    std::span<const std::byte> bytes) {
  const auto body = Body(bytes, kRecordMagic);
  if (!body.ok()) return body.status();
  Reader reader(*body);
  ConversionRecord record;
  reader.Raw(record.run_id.data(), record.run_id.size());
  record.step = reader.Zigzag();
  record.plan_hash = reader.Fixed<uint64_t>();
  for (std::string* text : {&record.source, &record.target, &record.form,
                            &record.codec, &record.attributes}) {
    *text = reader.String();
  }
  if (!reader.ok() || reader.left() > 0) return Malformed(reader);
  return record;
}

std::string ConversionText(const ConversionRecord& record) {
  return absl::StrFormat(
      "from %s to %s, step %d, as %s, codec %s, attributes %s, plan %016x",
      record.source, record.target, record.step, record.form, record.codec,
      record.attributes, record.plan_hash);
}

std::string ConversionDiffers(const ConversionRecord& there,
                              const ConversionRecord& wanted) {
  const auto differ = [](std::string_view what, const std::string& a,
                         const std::string& b) {
    return absl::StrFormat("its %s is %s, that of this call is %s",
                           std::string(what), a, b);
  };
  if (there.source != wanted.source) {
    return differ("source", there.source, wanted.source);
  }
  if (there.target != wanted.target) {
    return differ("layout", there.target, wanted.target);
  }
  if (there.form != wanted.form) {
    return differ("form", there.form, wanted.form);
  }
  if (there.codec != wanted.codec) {
    return differ("codec", there.codec, wanted.codec);
  }
  if (there.step != wanted.step) {
    return differ("step", absl::StrFormat("%d", there.step),
                  absl::StrFormat("%d", wanted.step));
  }
  if (there.attributes != wanted.attributes) {
    return differ("attributes' digest", there.attributes, wanted.attributes);
  }
  if (there.plan_hash != wanted.plan_hash) {
    return "it was planned otherwise (another version of this program?)";
  }
  return "";
}

std::vector<std::byte> EncodeRound(const RoundRecord& record) {
  Writer writer;
  writer.Raw(kRoundMagic, sizeof(kRoundMagic) - 1);
  writer.Fixed(record.plan_hash);
  writer.Fixed(record.round);
  writer.Fixed(static_cast<uint8_t>(record.coded));
  if (record.coded) {
    writer.Varint(record.units.size());
    for (const CodedUnit& unit : record.units) {
      writer.Fixed(unit.offset);
      writer.Fixed(unit.bytes_stored);
      writer.Fixed(unit.bytes);
      writer.Fixed(unit.crc);
      writer.Fixed(static_cast<uint8_t>(unit.codec));
      writer.Fixed(unit.planes);
    }
  } else {
    writer.Varint(record.crcs.size());
    for (const uint32_t crc : record.crcs) writer.Fixed(crc);
  }
  writer.Varint(record.digests.size());
  for (const auto& [item, digest] : record.digests) {
    writer.Varint(item);
    writer.Fixed(digest.low);
    writer.Fixed(digest.high);
  }
  return Finish(std::move(writer));
}

absl::StatusOr<RoundRecord> DecodeRound(std::span<const std::byte> bytes) {
  const auto body = Body(bytes, kRoundMagic);
  if (!body.ok()) return body.status();
  Reader reader(*body);
  RoundRecord record;
  record.plan_hash = reader.Fixed<uint64_t>();
  record.round = reader.Fixed<uint32_t>();
  const auto coded = reader.Fixed<uint8_t>();
  if (coded > 1) reader.Fail();
  record.coded = coded == 1;
  if (record.coded) {
    constexpr size_t kUnitBytes = 8 + 4 + 4 + 4 + 1 + 1;
    record.units.resize(reader.Count(kUnitBytes));
    for (CodedUnit& unit : record.units) {
      unit.offset = reader.Fixed<uint64_t>();
      unit.bytes_stored = reader.Fixed<uint32_t>();
      unit.bytes = reader.Fixed<uint32_t>();
      unit.crc = reader.Fixed<uint32_t>();
      const auto codec = reader.Fixed<uint8_t>();
      if (codec > static_cast<uint8_t>(Codec::kZstd)) reader.Fail();
      unit.codec = static_cast<Codec>(codec);
      unit.planes = reader.Fixed<uint8_t>();
      if (!IsPlaneCount(unit.planes)) reader.Fail();
    }
  } else {
    record.crcs.resize(reader.Count(sizeof(uint32_t)));
    for (uint32_t& crc : record.crcs) crc = reader.Fixed<uint32_t>();
  }
  record.digests.resize(reader.Count(1 + 16));
  for (auto& [item, digest] : record.digests) {
    item = reader.Varint32();
    digest.low = reader.Fixed<uint64_t>();
    digest.high = reader.Fixed<uint64_t>();
  }
  if (!reader.ok() || reader.left() > 0) return Malformed(reader);
  return record;
}

}  // namespace holdfast::ckpt
