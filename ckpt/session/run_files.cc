// ckpt/session/run_files.cc: how the small records of a run are spelled.
//
// A record is lines of "key value", a first line that says what it is and a
// last line with the CRC32C of all bytes before it. There is one spelling: what
// decodes encodes back to the same bytes, which is how Decode ends.

#include "ckpt/session/run_files.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/checksum.h"

namespace holdfast::ckpt {
namespace {

constexpr char kHexDigits[] = "0123456789abcdef";

// Control characters, DEL and '%' as %xx; a value stays on its line.
std::string Escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '%') {
      out += '%';
      out += kHexDigits[byte >> 4];
      out += kHexDigits[byte & 15];
    } else {
      out += c;
    }
  }
  return out;
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

std::optional<std::string> Unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexValue(text[i + 1]);
    const int low = HexValue(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out += static_cast<char>(high << 4 | low);
    i += 2;
  }
  return out;
}

template <typename Integer>
std::optional<Integer> ParseInteger(std::string_view text, int base = 10) {
  Integer value{};
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<RunId> ParseRunId(std::string_view text) {
  RunId id{};
  if (text.size() != 2 * id.size()) return std::nullopt;
  for (size_t i = 0; i < id.size(); ++i) {
    const int high = HexValue(text[2 * i]);
    const int low = HexValue(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    id[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return id;
}

std::vector<std::byte> ToBytes(std::string_view text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

std::vector<std::byte> Finish(std::string text) {
  const uint32_t crc = Crc32c(std::as_bytes(std::span(text)));
  absl::StrAppendFormat(&text, "crc32c %08x\n", crc);
  return ToBytes(text);
}

// Reads the lines of a record in order.
class Reader {
 public:
  // Checks the last line. kDataLoss when it does not fit.
  static absl::StatusOr<Reader> Open(std::span<const std::byte> bytes,
                                     std::string_view title) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                                bytes.size());
    constexpr size_t kLastLine = sizeof("crc32c 01234567\n") - 1;
    if (text.size() < kLastLine) {
      return absl::DataLossError(absl::StrFormat(
          "a record of %d bytes is too short to be whole", text.size()));
    }
    const std::string_view body = text.substr(0, text.size() - kLastLine);
    const std::string expected =
        absl::StrFormat("crc32c %08x\n", Crc32c(bytes.subspan(0, body.size())));
    const std::string_view found = text.substr(body.size());
    if (found != expected) {
      return absl::DataLossError(absl::StrFormat(
          "its last line is \"%s\", its bytes have \"%s\"",
          Escape(found.substr(0, kLastLine - 1)),
          Escape(std::string_view(expected).substr(0, kLastLine - 1))));
    }
    Reader reader(body);
    const std::string_view first = reader.NextLine();
    if (first != title) {
      return absl::DataLossError(
          absl::StrFormat("its first line is \"%s\", expected \"%s\"",
                          Escape(first), std::string(title)));
    }
    return reader;
  }

  // The value of the next line if its key is `key`.
  std::optional<std::string_view> Take(std::string_view key) {
    const size_t before = at_;
    const std::string_view line = NextLine();
    if (line.size() > key.size() && line.starts_with(key) &&
        line[key.size()] == ' ') {
      return line.substr(key.size() + 1);
    }
    at_ = before;
    return std::nullopt;
  }

 private:
  explicit Reader(std::string_view text) : text_(text) {}

  std::string_view NextLine() {
    const size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) return {};
    const std::string_view line = text_.substr(at_, end - at_);
    at_ = end + 1;
    return line;
  }

  std::string_view text_;
  size_t at_ = 0;
};

absl::Status BadLine(std::string_view key) {
  return absl::DataLossError(absl::StrFormat(
      "its line \"%s\" is missing or malformed", std::string(key)));
}

template <typename T>
absl::Status Store(std::optional<T> value, std::string_view key, T* target) {
  if (!value) return BadLine(key);
  *target = *std::move(value);
  return absl::OkStatus();
}

template <typename Integer>
absl::Status TakeInteger(Reader& reader, std::string_view key,
                         Integer* target) {
  const auto text = reader.Take(key);
  if (!text) return BadLine(key);
  return Store(ParseInteger<Integer>(*text), key, target);
}

absl::Status TakeRunId(Reader& reader, RunId* target) {
  const auto text = reader.Take("run_id");
  if (!text) return BadLine("run_id");
  return Store(ParseRunId(*text), "run_id", target);
}

std::string SealedLine(const SealedCheckpoint& sealed) {
  return absl::StrFormat("%s %d %08x", ToString(sealed.id),
                         sealed.commit_number, sealed.manifest_crc);
}

// "ID COMMIT CRC", and what follows them in `rest`.
std::optional<SealedCheckpoint> ParseSealed(std::string_view text,
                                            std::string_view* rest) {
  std::string_view words[3];
  for (std::string_view& word : words) {
    const size_t end = std::min(text.find(' '), text.size());
    word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  *rest = text;
  const auto id = ParseCheckpointId(words[0]);
  const auto commit_number = ParseInteger<uint64_t>(words[1]);
  const auto crc = ParseInteger<uint32_t>(words[2], 16);
  if (!id || !commit_number || !crc) return std::nullopt;
  return SealedCheckpoint{*id, *commit_number, *crc};
}

// The one spelling: `value` encoded must be `bytes`.
template <typename T>
absl::StatusOr<T> IfSpelledSo(T value, const std::vector<std::byte>& encoded,
                              std::span<const std::byte> bytes) {
  if (!std::equal(encoded.begin(), encoded.end(), bytes.begin(), bytes.end())) {
    return absl::DataLossError(
        "its lines are not spelled or ordered as this program writes them");
  }
  return value;
}

constexpr std::string_view kClaimTitle = "holdfast owner claim 1";
constexpr std::string_view kSealTitle = "holdfast owner seal 1";
constexpr std::string_view kRunIdTitle = "holdfast run 1";

}  // namespace

std::vector<std::byte> EncodeClaim(const OwnerClaim& claim) {
  std::string text = absl::StrFormat(
      "%s\nrun_id %s\nincarnation %d\nhost %s\npid %d\ntime_unix_ms %d\n"
      "world %d\n",
      std::string(kClaimTitle), ToHex(claim.run_id), claim.incarnation,
      Escape(claim.host), claim.pid, claim.time_unix_ms, claim.world);
  if (!claim.mark.empty()) {
    absl::StrAppendFormat(&text, "boot %s\nnamespaces %s\nstart_ticks %d\n",
                          Escape(claim.mark.boot),
                          Escape(claim.mark.namespaces),
                          claim.mark.start_ticks);
  }
  return Finish(std::move(text));
}

absl::StatusOr<OwnerClaim> DecodeClaim(std::span<const std::byte> bytes) {
  HF_ASSIGN_OR_RETURN(Reader reader, Reader::Open(bytes, kClaimTitle));
  OwnerClaim claim;
  HF_RETURN_IF_ERROR(TakeRunId(reader, &claim.run_id));
  HF_RETURN_IF_ERROR(TakeInteger(reader, "incarnation", &claim.incarnation));
  const auto host = reader.Take("host");
  if (!host) return BadLine("host");
  HF_RETURN_IF_ERROR(Store(Unescape(*host), "host", &claim.host));
  HF_RETURN_IF_ERROR(TakeInteger(reader, "pid", &claim.pid));
  HF_RETURN_IF_ERROR(TakeInteger(reader, "time_unix_ms", &claim.time_unix_ms));
  HF_RETURN_IF_ERROR(TakeInteger(reader, "world", &claim.world));
  if (const auto boot = reader.Take("boot")) {
    HF_RETURN_IF_ERROR(Store(Unescape(*boot), "boot", &claim.mark.boot));
    const auto namespaces = reader.Take("namespaces");
    if (!namespaces) return BadLine("namespaces");
    HF_RETURN_IF_ERROR(
        Store(Unescape(*namespaces), "namespaces", &claim.mark.namespaces));
    HF_RETURN_IF_ERROR(
        TakeInteger(reader, "start_ticks", &claim.mark.start_ticks));
  }
  return IfSpelledSo(claim, EncodeClaim(claim), bytes);
}

std::vector<std::byte> EncodeSeal(const OwnerSeal& seal) {
  std::string text = absl::StrFormat("%s\nrun_id %s\nincarnation %d\nhead %s\n",
                                     std::string(kSealTitle),
                                     ToHex(seal.run_id), seal.incarnation,
                                     seal.head ? ToString(*seal.head) : "none");
  for (const SealedCheckpoint& sealed : seal.line) {
    absl::StrAppendFormat(&text, "line %s\n", SealedLine(sealed));
  }
  for (const SupersededCheckpoint& superseded : seal.superseded) {
    absl::StrAppendFormat(&text, "superseded %s %s\n",
                          SealedLine(superseded.checkpoint),
                          Escape(superseded.reason));
  }
  return Finish(std::move(text));
}

absl::StatusOr<OwnerSeal> DecodeSeal(std::span<const std::byte> bytes) {
  HF_ASSIGN_OR_RETURN(Reader reader, Reader::Open(bytes, kSealTitle));
  OwnerSeal seal;
  HF_RETURN_IF_ERROR(TakeRunId(reader, &seal.run_id));
  HF_RETURN_IF_ERROR(TakeInteger(reader, "incarnation", &seal.incarnation));
  const auto head = reader.Take("head");
  if (!head) return BadLine("head");
  if (*head != "none") {
    seal.head = ParseCheckpointId(*head);
    if (!seal.head) return BadLine("head");
  }
  std::string_view rest;
  while (const auto text = reader.Take("line")) {
    const auto sealed = ParseSealed(*text, &rest);
    if (!sealed || !rest.empty()) return BadLine("line");
    seal.line.push_back(*sealed);
  }
  while (const auto text = reader.Take("superseded")) {
    const auto sealed = ParseSealed(*text, &rest);
    const auto reason = Unescape(rest);
    if (!sealed || !reason) return BadLine("superseded");
    seal.superseded.push_back({*sealed, *reason});
  }
  const bool head_is_last =
      seal.head ? !seal.line.empty() && seal.line.back().id == *seal.head
                : seal.line.empty();
  if (!head_is_last) {
    return absl::DataLossError("its head is not the last of its line");
  }
  return IfSpelledSo(seal, EncodeSeal(seal), bytes);
}

std::vector<std::byte> EncodeRunId(const RunId& id) {
  return Finish(
      absl::StrFormat("%s\nrun_id %s\n", std::string(kRunIdTitle), ToHex(id)));
}

absl::StatusOr<RunId> DecodeRunId(std::span<const std::byte> bytes) {
  HF_ASSIGN_OR_RETURN(Reader reader, Reader::Open(bytes, kRunIdTitle));
  RunId id{};
  HF_RETURN_IF_ERROR(TakeRunId(reader, &id));
  return IfSpelledSo(id, EncodeRunId(id), bytes);
}

std::string ClaimName(uint32_t incarnation) {
  return absl::StrFormat("%s/i%04d.claim", kOwnersDir, incarnation);
}

std::string SealName(uint32_t incarnation) {
  return absl::StrFormat("%s/i%04d.seal", kOwnersDir, incarnation);
}

std::string AttemptDir(const CheckpointId& id) {
  return absl::StrFormat("%s/%s", kCheckpointsDir, ToString(id));
}

std::string AdoptedDir(const CheckpointId& id, uint32_t owner) {
  return absl::StrFormat("%s.o%04d", AttemptDir(id), owner);
}

std::optional<CheckpointId> ParseCheckpointId(std::string_view text) {
  const size_t incarnation = text.find(".i");
  const size_t attempt = text.find(".a");
  if (!text.starts_with("step-") || incarnation == std::string_view::npos ||
      attempt == std::string_view::npos || attempt < incarnation) {
    return std::nullopt;
  }
  const auto step = ParseInteger<int64_t>(text.substr(5, incarnation - 5));
  const auto number = ParseInteger<uint32_t>(
      text.substr(incarnation + 2, attempt - incarnation - 2));
  const auto count = ParseInteger<uint32_t>(text.substr(attempt + 2));
  if (!step || !number || !count || *step < 0) return std::nullopt;
  const CheckpointId id{*step, *number, *count};
  if (ToString(id) != text) return std::nullopt;
  return id;
}

std::optional<ParsedDir> ParseCheckpointDir(std::string_view entry) {
  const size_t suffix = entry.find(".o");
  const auto id = ParseCheckpointId(entry.substr(0, suffix));
  if (!id) return std::nullopt;
  if (suffix == std::string_view::npos) return ParsedDir{*id, std::nullopt};
  const auto owner = ParseInteger<uint32_t>(entry.substr(suffix + 2));
  if (!owner ||
      AdoptedDir(*id, *owner) !=
          absl::StrFormat("%s/%s", kCheckpointsDir, std::string(entry))) {
    return std::nullopt;
  }
  return ParsedDir{*id, *owner};
}

std::optional<ParsedOwnerFile> ParseOwnerFile(std::string_view entry) {
  const size_t dot = entry.find('.');
  if (!entry.starts_with('i') || dot == std::string_view::npos) {
    return std::nullopt;
  }
  const auto incarnation = ParseInteger<uint32_t>(entry.substr(1, dot - 1));
  if (!incarnation || *incarnation == 0) return std::nullopt;
  const std::string name =
      absl::StrFormat("%s/%s", kOwnersDir, std::string(entry));
  if (name == ClaimName(*incarnation)) {
    return ParsedOwnerFile{*incarnation, false};
  }
  if (name == SealName(*incarnation))
    return ParsedOwnerFile{*incarnation, true};
  return std::nullopt;
}

}  // namespace holdfast::ckpt
