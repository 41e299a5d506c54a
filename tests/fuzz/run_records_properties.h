// tests/fuzz/run_records_properties.h: what must hold for any bytes at all that
// are offered as a record of a run directory: refused with a status, or
// accepted and encoding back to the same bytes. It never crashes and never
// reads outside of them.

#ifndef HOLDFAST_TESTS_FUZZ_RUN_RECORDS_PROPERTIES_H_
#define HOLDFAST_TESTS_FUZZ_RUN_RECORDS_PROPERTIES_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/format/checksum.h"
#include "ckpt/session/run_files.h"
#include "tests/fuzz/format_properties.h"

namespace holdfast::ckpt {

// Returns how many decoders accepted something.
inline int CheckRecordBytes(std::span<const std::byte> bytes) {
  const auto check = [](std::span<const std::byte> record) {
    int accepted = 0;
    if (const auto id = DecodeRunId(record); id.ok()) {
      MustBeSame("run.id", record, EncodeRunId(*id));
      ++accepted;
    }
    if (const auto claim = DecodeClaim(record); claim.ok()) {
      MustBeSame("claim", record, EncodeClaim(*claim));
      ++accepted;
    }
    if (const auto seal = DecodeSeal(record); seal.ok()) {
      MustBeSame("seal", record, EncodeSeal(*seal));
      ++accepted;
    }
    return accepted;
  };
  int accepted = check(bytes);
  // Once more with a last line that fits.
  constexpr std::string_view kCrc = "crc32c ";
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text.resize(std::min(text.rfind(kCrc), text.size()));
  const uint32_t crc = Crc32c(std::as_bytes(std::span(text)));
  absl::StrAppendFormat(&text, "%s%08x\n", std::string(kCrc), crc);
  accepted += check(std::as_bytes(std::span(text)));
  // Names, too, come from directories that anyone may have written to.
  const std::string_view name(reinterpret_cast<const char*>(bytes.data()),
                              bytes.size());
  if (const auto dir = ParseCheckpointDir(name)) {
    const std::string again =
        dir->owner ? AdoptedDir(dir->id, *dir->owner) : AttemptDir(dir->id);
    const std::string whole = "checkpoints/" + std::string(name);
    MustBeSame("directory", std::as_bytes(std::span(whole)),
               {std::as_bytes(std::span(again)).begin(),
                std::as_bytes(std::span(again)).end()});
    ++accepted;
  }
  ParseOwnerFile(name);
  return accepted;
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_FUZZ_RUN_RECORDS_PROPERTIES_H_
