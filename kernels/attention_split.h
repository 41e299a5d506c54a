// kernels/attention_split.h: over how many blocks of a GPU the gradients of
// keys and values are divided, and the memory that this takes. Arithmetic on
// shapes; for the kernels and for a plan of their memory.
//
// One block has the gradients of one tile of keys of one key head. Queries pass
// by it a tile at a time: of every head of the group, those that see the keys.
// With one key head and one long sequence, which is what 8 ranks of a model
// with 8 key heads have, these are 32 blocks at 4,096 positions, and the first
// has twice the mean work: a GPU of 132 processors would be an eighth busy. So
// where key tiles are fewer than kEnoughKeyTiles, what passes by a tile is cut
// into parts of equal length, each a block of its own. A part's sums stay FP32
// and go to scratch; a second kernel adds the parts of a tile in order and
// rounds once.
//
// The split is a function of the shape alone, so results do not depend on the
// GPU. A tile that is not cut has the bits of no split at all; one that is cut
// adds in another order and has other bits, within the same tolerance. The same
// sequence may so have other bits beside other ones (batch.micro_seqs, which
// the fingerprint has) or with more key heads on a rank (another TP).

#ifndef HOLDFAST_KERNELS_ATTENTION_SPLIT_H_
#define HOLDFAST_KERNELS_ATTENTION_SPLIT_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/attention.h"
#include "kernels/bf16.h"
#include "kernels/cuda_host_device.h"

namespace holdfast::kernels {

// Rows of a tile of keys, and of the queries that pass by it.
inline constexpr int kKeyTileRows = 128;
inline constexpr int kPassingTileRows = 64;

// From here on no tile is cut. By list scheduling on 132 and 148 processors,
// tiles in order of their work, 128 of them keep half busy and 192 about three
// quarters, as parts do.
inline constexpr int64_t kEnoughKeyTiles = 192;
// Parts aimed at: with half as many more that are short, two to four turns of
// the processors. More would balance little better and take more memory.
inline constexpr int64_t kKeyGradientParts = 256;
// Passing tiles of a part at least: to write a part's sums and read them again
// costs about as much time as four of them.
inline constexpr int64_t kPartTilesMin = 16;

// Passing tiles of key tile `tile`: of each head those from its own place on.
HF_HOST_DEVICE constexpr int64_t KeyTilePasses(const AttentionShape& shape,
                                               int64_t tile) {
  const int64_t of_head =
      (shape.positions + kPassingTileRows - 1) / kPassingTileRows -
      tile * (kKeyTileRows / kPassingTileRows);
  return of_head * (shape.heads / shape.kv_heads);
}

struct KeyGradientSplit {
  int parts = 1;       // Of the first key tile, which has the most to pass.
  int part_tiles = 0;  // That pass by in one part; no meaning with one part.

  HF_HOST_DEVICE int PartsOf(int passes) const {
    return parts == 1 ? 1 : (passes + part_tiles - 1) / part_tiles;
  }
};

inline KeyGradientSplit SplitKeyGradients(const AttentionShape& shape) {
  const int64_t tiles_of_head =
      (shape.positions + kKeyTileRows - 1) / kKeyTileRows;
  const int64_t tiles = shape.sequences * shape.kv_heads * tiles_of_head;
  if (tiles == 0 || tiles >= kEnoughKeyTiles) return {};
  // From the first tile to the last the passes fall evenly.
  const int64_t first = KeyTilePasses(shape, 0);
  const int64_t last = KeyTilePasses(shape, tiles_of_head - 1);
  const int64_t passes = tiles * (first + last) / 2;
  const int64_t part_tiles = std::max(
      kPartTilesMin, (passes + kKeyGradientParts - 1) / kKeyGradientParts);
  if (first <= part_tiles) return {};
  return {.parts = static_cast<int>((first + part_tiles - 1) / part_tiles),
          .part_tiles = static_cast<int>(part_tiles)};
}

// Floats of partial sums, dk and dv, [parts, 2, sequences, kv_heads, positions,
// head_dim]. A part is longer than passes / kKeyGradientParts and the mean tile
// has more than half the passes of the first, so parts * tiles is below 2 *
// kKeyGradientParts + kEnoughKeyTiles: at most 88 MiB, with heads of 128.
inline constexpr int64_t kKeyGradientPartialsMax =
    (2 * kKeyGradientParts + kEnoughKeyTiles) * 2 * kKeyTileRows * 128;
inline int64_t KeyGradientPartials(const AttentionShape& shape,
                                   const KeyGradientSplit& split) {
  if (split.parts == 1) return 0;
  return int64_t{2} * split.parts * shape.sequences * shape.kv_heads *
         shape.positions * shape.head_dim;
}

// Of the backward's row sums, which stand before the partial sums: whole 16
// bytes.
inline int64_t AttentionDeltaFloats(const AttentionShape& shape) {
  return (shape.sequences * shape.positions * shape.heads + 3) / 4 * 4;
}

// The head_dim that the tensor cores take; what is wider goes another way, as
// do floats.
inline constexpr int64_t kWarpsHeadDimMax = 128;

// Floats of scratch for one backward on a GPU, at most.
template <typename T>
int64_t AttentionBackwardScratch(const AttentionShape& shape) {
  const bool on_warps = std::is_same_v<T, Bf16> && shape.head_dim % 8 == 0 &&
                        shape.head_dim <= kWarpsHeadDimMax;
  return AttentionDeltaFloats(shape) +
         (on_warps ? KeyGradientPartials(shape, SplitKeyGradients(shape)) : 0);
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_ATTENTION_SPLIT_H_
