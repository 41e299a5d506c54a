// ckpt/format/codec.h: bytes to fewer bytes and back: byte planes and zstd.
//
// The one door to zstd. Pure: bytes in, bytes out, into memory of the caller.
//
// Elements of floating point hardly compress as they are: the bytes that say
// much (sign and exponent) lie between bytes that look random (the mantissa).
// Split into planes, all first bytes, then all second bytes and so on, the
// former compress and the latter are found out quickly:
//
//   elements  a0 a1 a2 a3  b0 b1 b2 b3  c0 c1 c2 c3
//   planes    a0 b0 c0  a1 b1 c1  a2 b2 c2  a3 b3 c3
//
// Thread: one at a time for each encoder and decoder. Memory: all of it is
//     taken by the constructors; coding allocates nothing.

#ifndef HOLDFAST_CKPT_FORMAT_CODEC_H_
#define HOLDFAST_CKPT_FORMAT_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/aligned_buffer.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace holdfast::ckpt {

enum class Codec : uint8_t { kNone = 0, kZstd = 1 };

// The names of the codecs in configurations and in a manifest's features.
inline constexpr char kZstdName[] = "zstd";

// Level 0 codes each byte by how often it occurs and looks for no repetitions:
// planes of floating point have hardly any, so it is as small as level 1 and
// twice as fast (bench_codec). From 1 on zstd's own levels.
inline constexpr int kZstdLevelMin = 0;
inline constexpr int kZstdLevelDefault = 0;
int ZstdLevelMax();

// 1, 2, 4 or 8.
constexpr bool IsPlaneCount(int planes) {
  return planes == 1 || planes == 2 || planes == 4 || planes == 8;
}

// `width` bytes an element, one of the above (CHECK). What is left when `bytes`
// is not a multiple of it comes last, as it is. `out` has as many bytes as `in`
// and does not overlap it.
void SplitPlanes(std::span<const std::byte> in, int width,
                 std::span<std::byte> out);
void JoinPlanes(std::span<const std::byte> in, int width,
                std::span<std::byte> out);

class ZstdEncoder {
 public:
  // For inputs of up to `plain_max` bytes. The level is in range (CHECK).
  ZstdEncoder(int level, size_t plain_max);

  // One frame that says how long its contents are, of `plain` in planes of
  // `planes`-byte elements. Its length; 0 when it does not fit into `out`.
  size_t Encode(std::span<const std::byte> plain, int planes,
                std::span<std::byte> out);

  size_t memory_bytes() const { return workspace_.size() + planes_.size(); }

 private:
  AlignedBuffer planes_;
  AlignedBuffer workspace_;
  ZSTD_CCtx_s* context_ = nullptr;  // lives in workspace_
};

class ZstdDecoder {
 public:
  explicit ZstdDecoder(size_t plain_max);

  // `frame` is one frame whose contents fill `plain`. kDataLoss says what is
  // wrong with it; `plain` then holds anything.
  absl::Status Decode(std::span<const std::byte> frame, int planes,
                      std::span<std::byte> plain);

 private:
  AlignedBuffer planes_;
  AlignedBuffer workspace_;
  ZSTD_DCtx_s* context_ = nullptr;  // lives in workspace_
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_FORMAT_CODEC_H_
