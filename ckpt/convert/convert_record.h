// ckpt/convert/convert_record.h: what an unfinished conversion says about
// itself, as bytes. Pure.
//
//   OUT/conversion/record         whose it is: put before anything else
//   OUT/conversion/round-00012    what round 12 has written and synced
//
// Both are made at once or not at all, end in a CRC32C of what is before it,
// and are removed when the manifest is there.

#ifndef HOLDFAST_CKPT_CONVERT_CONVERT_RECORD_H_
#define HOLDFAST_CKPT_CONVERT_CONVERT_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/base/types.h"
#include "ckpt/format/coded_units.h"
#include "ckpt/format/digest.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

std::string RoundRecordName(uint32_t round);  // "conversion/round-00012"
// Of an entry of conversion/, if it is one.
std::optional<uint32_t> ParseRoundRecord(std::string_view entry);

struct ConversionRecord {
  RunId run_id{};          // of the result, drawn once
  std::string source;      // StateSource::identity
  std::string target;      // the layout, in words
  std::string form;        // "run", "checkpoint"
  std::string codec;       // "none", "zstd:0"
  std::string attributes;  // the digest of the result's, in words
  int64_t step = 0;
  uint64_t plan_hash = 0;
  friend bool operator==(const ConversionRecord&,
                         const ConversionRecord&) = default;
};

std::vector<std::byte> EncodeConversion(const ConversionRecord& record);
// kDataLoss: not whole.
absl::StatusOr<ConversionRecord> DecodeConversion(
    std::span<const std::byte> bytes);

// What a result remembers of its making, as its attribute ".conversion": all of
// the record but the run's id.
std::string ConversionText(const ConversionRecord& record);

// "" when both are of the same conversion, else what differs, in words: "it
// reads checkpoint ..., this call checkpoint ...".
std::string ConversionDiffers(const ConversionRecord& there,
                              const ConversionRecord& wanted);

struct RoundRecord {
  uint64_t plan_hash = 0;
  uint32_t round = 0;
  // By place in the plan's order, of the round's units: the checksum; of a
  // coded file all of the entry.
  bool coded = false;
  std::vector<uint32_t> crcs;
  std::vector<CodedUnit> units;
  // What the round adds to the items' digests; ascending.
  std::vector<std::pair<ItemIndex, Digest128>> digests;
  friend bool operator==(const RoundRecord&, const RoundRecord&) = default;
};

std::vector<std::byte> EncodeRound(const RoundRecord& record);
absl::StatusOr<RoundRecord> DecodeRound(std::span<const std::byte> bytes);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_CONVERT_RECORD_H_
