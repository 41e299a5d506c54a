// tools/convert/memory_share.cc: see memory_share.h.

#include "tools/convert/memory_share.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "ckpt/convert/checkpoint_writer.h"
#include "tools/common/text.h"

namespace holdfast::tools {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// Of a limit: plans, indexes, and what the libraries take.
constexpr uint64_t kBeside = 24 * kMiB;
constexpr uint64_t kReadBytes = 2 * kMiB;
constexpr int kReadsInFlight = 4;
// A reader's two units of a coded source.
constexpr uint64_t kDecoderBytes = 3 * kMiB;

constexpr uint64_t kEncoderBytes = 9 * kMiB;

}  // namespace

uint64_t ConvertThreadBytes(ckpt::Codec codec) {
  if (codec == ckpt::Codec::kNone) return ckpt::kConvertWindowBytes;
  return 2 * ckpt::kConvertWindowBytes + kEncoderBytes;
}

uint64_t MemoryToOpen(uint64_t limit) {
  return limit > kBeside ? limit - kBeside : 0;
}

absl::Status CheckMetadataFits(std::string_view what, uint64_t needed,
                               uint64_t max) {
  if (needed <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: reading it may take %s, and --memory-limit leaves %s; %s would do",
      what, BytesText(static_cast<double>(needed)),
      BytesText(static_cast<double>(max)),
      BytesText(static_cast<double>(needed + kBeside))));
}

absl::StatusOr<MemoryShare> ShareMemory(const MemoryWish& wish) {
  uint64_t each = wish.thread_bytes;
  uint64_t kept = wish.source_bytes;
  if (wish.reads_checkpoint) {
    each += kReadBytes * kReadsInFlight;
    if (wish.source_is_coded) each += kDecoderBytes;
    kept = std::clamp(wish.limit / 8, 8 * kMiB, 64 * kMiB);
  }
  const uint64_t least = kBeside + kept + each;
  if (wish.limit < least) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--memory-limit: %s are too few; one thread needs %s%s",
        BytesText(static_cast<double>(wish.limit)),
        BytesText(static_cast<double>(least)),
        wish.source_bytes == 0 ? ""
                               : ", with what the source's metadata take"));
  }
  // One reads while another writes, on each processor.
  const int wanted =
      wish.threads > 0 ? wish.threads : std::clamp(2 * wish.processors, 4, 64);
  MemoryShare share;
  share.threads = static_cast<int>(
      std::min<uint64_t>(wanted, (wish.limit - kBeside - kept) / each));
  share.source.readers = share.threads;
  share.source.read.read_bytes_max = kReadBytes;
  share.source.read.reads_in_flight = kReadsInFlight;
  share.source.kept_bytes_max = kept;
  share.bytes_planned = kBeside + kept + each * share.threads;
  return share;
}

}  // namespace holdfast::tools
