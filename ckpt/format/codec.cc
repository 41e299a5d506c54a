// ckpt/format/codec.cc: zstd in memory that was taken beforehand.
//
// Contexts in a workspace of the caller are of zstd's static interface: with
// the ordinary one a context grows and shrinks its memory as inputs change.

#define ZSTD_STATIC_LINKING_ONLY
#include "ckpt/format/codec.h"

#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {
namespace {

// zstd picks its tables by the level and by which of these sizes an input does
// not exceed; smaller inputs do not always have smaller tables.
constexpr size_t kSizeClasses[] = {size_t{16} << 10, size_t{128} << 10,
                                   size_t{256} << 10};

// zstd's negative levels look at one position of so many only, and switch the
// coding of literals off, which is switched on again below.
constexpr int kHardlyAnySearch = -1000;

int LevelOfZstd(int level) { return level == 0 ? kHardlyAnySearch : level; }

size_t WorkspaceBytes(int level, size_t plain_max) {
  const auto bytes = [level](size_t size) {
    return ZSTD_estimateCCtxSize_usingCParams(
        ZSTD_getCParams(level, size, /*dictSize=*/0));
  };
  size_t most = bytes(plain_max);
  for (const size_t size : kSizeClasses) {
    if (size < plain_max) most = std::max(most, bytes(size));
  }
  return most;
}

}  // namespace

int ZstdLevelMax() { return ZSTD_maxCLevel(); }

ZstdEncoder::ZstdEncoder(int level, size_t plain_max)
    : planes_(plain_max),
      workspace_(WorkspaceBytes(LevelOfZstd(level), plain_max)) {
  HF_CHECK(level >= kZstdLevelMin && level <= ZstdLevelMax(),
           "zstd level %d of %d-%d", level, kZstdLevelMin, ZstdLevelMax());
  context_ = ZSTD_initStaticCCtx(workspace_.data(), workspace_.size());
  HF_CHECK(context_ != nullptr, "no zstd context in %d bytes",
           workspace_.size());
  // Units have a checksum around the frame; a second one inside costs time.
  for (const auto& [parameter, value] :
       {std::pair(ZSTD_c_compressionLevel, LevelOfZstd(level)),
        std::pair(ZSTD_c_literalCompressionMode, int{ZSTD_ps_enable}),
        std::pair(ZSTD_c_contentSizeFlag, 1),
        std::pair(ZSTD_c_checksumFlag, 0)}) {
    const size_t result = ZSTD_CCtx_setParameter(context_, parameter, value);
    HF_CHECK(!ZSTD_isError(result), "zstd parameter %d: %s", int{parameter},
             ZSTD_getErrorName(result));
  }
}

size_t ZstdEncoder::Encode(std::span<const std::byte> plain, int planes,
                           std::span<std::byte> out) {
  HF_CHECK(plain.size() <= planes_.size(), "%d bytes for an encoder of %d",
           plain.size(), planes_.size());
  std::span<const std::byte> in = plain;
  if (planes > 1) {
    const std::span<std::byte> split = planes_.span().first(plain.size());
    SplitPlanes(plain, planes, split);
    in = split;
  }
  const size_t result =
      ZSTD_compress2(context_, out.data(), out.size(), in.data(), in.size());
  if (!ZSTD_isError(result)) return result;
  HF_CHECK(ZSTD_getErrorCode(result) == ZSTD_error_dstSize_tooSmall,
           "zstd, %d bytes: %s", in.size(), ZSTD_getErrorName(result));
  return 0;
}

ZstdDecoder::ZstdDecoder(size_t plain_max)
    : planes_(plain_max), workspace_(ZSTD_estimateDCtxSize()) {
  context_ = ZSTD_initStaticDCtx(workspace_.data(), workspace_.size());
  HF_CHECK(context_ != nullptr, "no zstd context in %d bytes",
           workspace_.size());
}

absl::Status ZstdDecoder::Decode(std::span<const std::byte> frame, int planes,
                                 std::span<std::byte> plain) {
  HF_CHECK(plain.size() <= planes_.size() && IsPlaneCount(planes),
           "%d bytes in %d planes for a decoder of %d", plain.size(), planes,
           planes_.size());
  // Before any of it is decoded: one frame, of that length, that needs nothing
  // which is not in it. ZSTD_decompress would take several, and skip others.
  ZSTD_frameHeader header;
  const size_t head = ZSTD_getFrameHeader(&header, frame.data(), frame.size());
  if (head != 0 || header.frameType != ZSTD_frame) {
    return absl::DataLossError("is no zstd frame");
  }
  if (header.frameContentSize != plain.size() || header.dictID != 0 ||
      header.windowSize > std::max<size_t>(plain.size(), 1024)) {
    return absl::DataLossError(absl::StrFormat(
        "is a zstd frame of %d bytes with a window of %d and dictionary %d; "
        "expected %d bytes, a window within them and none",
        header.frameContentSize, header.windowSize, header.dictID,
        plain.size()));
  }
  const size_t length =
      ZSTD_findFrameCompressedSize(frame.data(), frame.size());
  if (length != frame.size()) {
    return absl::DataLossError(
        ZSTD_isError(length)
            ? absl::StrFormat("is cut short or damaged: %s",
                              ZSTD_getErrorName(length))
            : absl::StrFormat("has %d bytes, its zstd frame %d", frame.size(),
                              length));
  }
  const std::span<std::byte> out =
      planes > 1 ? planes_.span().first(plain.size()) : plain;
  const size_t result = ZSTD_decompressDCtx(context_, out.data(), out.size(),
                                            frame.data(), frame.size());
  if (ZSTD_isError(result) || result != plain.size()) {
    return absl::DataLossError(absl::StrFormat(
        "does not decompress: %s",
        ZSTD_isError(result) ? ZSTD_getErrorName(result) : "too short"));
  }
  if (planes > 1) JoinPlanes(out, planes, plain);
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt
