// kernels/cuda_attention.h: attention on the tensor cores, Bf16: tiles, and
// what forward and backward share.
//
// Method. A block of warps keeps a tile of rows in shared memory and passes
// tiles of the other side by it; the next one is on its way meanwhile
// (cp.async, two buffers). Scores, probabilities and their gradients exist for
// one pair of tiles, in registers: a product's result has the layout in which
// the next product takes its left operand. The backward goes over the scores
// twice, once with queries staying (dq) and once with keys staying (dk, dv, the
// heads of a group one after the other). No element is added to by two blocks,
// so there are no atomics, and a result does not depend on scheduling: where
// dk and dv are divided over blocks, each leaves its own sums and a second pass
// adds them in order (kernels/attention_split.h).
//
// Filling a GPU. Of these kernels a processor holds one block, or two of the
// forward. Causal tiles differ in work, so the grid starts with the longest.
// Forward and dq have a block for every 128 queries of every query head, 512 of
// them for 16 heads of 4,096 positions, which is enough; below some 25,000 for
// the product of sequences, heads and positions they leave processors idle.
//
// Layout. A tile in shared memory has rows of kHeadDim Bf16 in pieces of 16
// bytes; piece p of row r lies at place p ^ (r % 8) of its row. The 8 rows of a
// matrix that goes to registers are then in 8 different groups of 4 banks, as
// are 8 neighbouring pieces of one row: no access of these kernels waits for a
// bank (cuda_attention_test counts them).
//
// Sizes. head_dim up to kHeadDim is filled up with zeros. Positions are any
// number: rows beyond the end are zeros, and not stored.
//
// Order and rounding. As the processor's version (kernels/attention.h): sums in
// FP32, keys in order, probabilities rounded to Bf16 before they meet v, score
// gradients before they meet q and k; the maximum and the sum are those of the
// unrounded FP32 scores. Not the same bits: tiles are smaller, the tensor cores
// add 16 products at a time in their own order, and exponentials are 2^x by the
// GPU's instruction (relative error below 2^-22). A probability may so round to
// the neighbouring Bf16, at worst 2^-8 of it. Against the processor, with u =
// 2^-8 for rounding to Bf16:
//
//   out         within 2 u of the largest |v|
//   dq, dk, dv  within 3 u of their largest element, or of a sixteenth of the
//               largest of all three
//   lse         within 3e-5 * max(1, |lse|): sums of head_dim exact products,
//               each rounded or cut to FP32
//
// NaN. As there: later positions, and earlier ones of the same kAttentionTile.

#ifndef HOLDFAST_KERNELS_CUDA_ATTENTION_H_
#define HOLDFAST_KERNELS_CUDA_ATTENTION_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/bf16.h"
#include "kernels/cuda_host_device.h"
#include "kernels/cuda_warp.h"

namespace holdfast::kernels {

// How much of the work one block does. The accumulators of a warp are 16 *
// kFragments rows; kStreamed rows of the other side pass at a time.
template <int kHeadDimOf, int kWarpsOf, int kFragmentsOf, int kStreamedOf>
struct AttentionTiles {
  static constexpr int kHeadDim = kHeadDimOf;
  static constexpr int kWarps = kWarpsOf;
  static constexpr int kFragments = kFragmentsOf;
  static constexpr int kStreamed = kStreamedOf;

  static constexpr int kThreads = kWarps * kWarpLanes;
  static constexpr int kWarpRows = 16 * kFragments;
  static constexpr int kRows = kWarps * kWarpRows;
  static constexpr int kRowBytes = 2 * kHeadDim;
  static constexpr int kStayingBytes = kRows * kRowBytes;
  static constexpr int kStreamedBytes = kStreamed * kRowBytes;

  static_assert(kHeadDim == 64 || kHeadDim == 128);
  static_assert(kStreamed % 16 == 0);
  // A NaN must not reach further than the processor's tiles let it.
  static_assert(kAttentionTile % kRows == 0 && kAttentionTile % kStreamed == 0);
};

// The table. Per block: rows that stay and that pass, shared memory. Per
// thread: floats of sums and of scores, and the registers of nvcc 13.0 for
// compute capability 9.0 and 10.0 (-Xptxas -v: none spilled).
//
//   forward   64   128 x 64    48 KiB    64 + 32 * 2    222, 195
//            128   128 x 64    96 KiB   128 + 32 * 2    255, 255
//   dq        64   128 x 64    64 KiB    32 + 32 * 2    156, 128
//            128   128 x 64   128 KiB    64 + 32 * 2    166, 174
//   dk, dv    64   128 x 64    65 KiB    64 + 32 * 2    174, 172
//            128   128 x 64   129 KiB   128 + 32 * 2    253, 254
template <int kHeadDim>
using ForwardTiles = AttentionTiles<kHeadDim, 4, 2, 64>;
template <int kHeadDim>
using QueryGradientTiles = AttentionTiles<kHeadDim, 8, 1, 64>;
template <int kHeadDim>
using KeyGradientTiles = AttentionTiles<kHeadDim, 8, 1, 64>;

// Blocks of a launch: x counts (sequence, head), y tiles.
struct AttentionGrid {
  int64_t x = 0;
  int64_t y = 0;
};

namespace attention {

HF_BLOCK_CODE constexpr int CeilDiv(int a, int b) { return (a + b - 1) / b; }
HF_BLOCK_CODE constexpr int Smaller(int a, int b) { return a < b ? a : b; }

inline constexpr float kLog2OfE = 1.44269504f;
inline constexpr float kLogOf2 = 0.693147181f;

// Where piece `piece` of row `row` of a tile lies in it.
template <int kHeadDim>
HF_BLOCK_CODE constexpr SharedOffset PieceOffset(int row, int piece) {
  return static_cast<SharedOffset>(row * (2 * kHeadDim) +
                                   ((piece ^ (row % 8)) * 16));
}

// The same for the rows and pieces that a lane names when it takes part in
// loading matrices, split so that a lane's share is computed once: `row` is a
// multiple of 8 plus the lane's, `piece` even plus the lane's 0 or 1.
template <int kHeadDim>
HF_BLOCK_CODE constexpr SharedOffset LanePieceOffset(int row_of_lane,
                                                     int piece_of_lane, int row,
                                                     int piece) {
  return static_cast<SharedOffset>(row * (2 * kHeadDim)) +
         (PieceOffset<kHeadDim>(row_of_lane, piece_of_lane) ^
          static_cast<SharedOffset>(piece * 16));
}

// Starts copying a tile's rows from memory; rows from `rows` on and columns
// from `head_dim` on become zeros. All warps of the block take part.
template <typename Tiles, int kRows>
HF_BLOCK_CODE void LoadTile(Warp& warp, SharedOffset to, const Bf16* from,
                            int64_t stride, int rows, int head_dim) {
  constexpr int kPieces = Tiles::kHeadDim / 8;
  constexpr int kRowsPerRound = Tiles::kThreads / kPieces;
  constexpr int kRounds = kRows / kRowsPerRound;
  static_assert(kRounds * kRowsPerRound == kRows && kRowsPerRound % 8 == 0);
  HF_UNROLL
  for (int round = 0; round < kRounds; ++round) {
    // What differs between lanes is the same in every round.
    const int64_t round_at = round * kRowsPerRound * stride;
    warp.CopyInBackground([&](int lane) {
      const int thread = warp.index() * kWarpLanes + lane;
      const int row = thread / kPieces;
      const int piece = thread % kPieces;
      const bool valid =
          row + round * kRowsPerRound < rows && piece * 8 < head_dim;
      const Bf16* const lane_from = from + (row * stride + piece * 8);
      return SharedCopy{.to = to + PieceOffset<Tiles::kHeadDim>(row, piece) +
                              static_cast<SharedOffset>(round * kRowsPerRound *
                                                        Tiles::kRowBytes),
                        .from = lane_from + round_at,
                        .valid = valid};
    });
  }
}

// scores = X Y^T, over head_dim: X the warp's rows at `x`, Y the streamed tile
// at `y`. Scores (f, n), four per lane, at (f * kStreamed / 8 + n) * 4.
template <typename Tiles, int kScores>
HF_BLOCK_CODE void MultiplyRows(Warp& warp, SharedOffset x, SharedOffset y,
                                PerLane<float, kScores>& scores) {
  constexpr int kColumns = Tiles::kStreamed / 8;
  static_assert(kScores == Tiles::kFragments * kColumns * 4);
  warp.ForEachLane([&](int lane) {
    HF_UNROLL
    for (int i = 0; i < kScores; ++i) scores(lane, i) = 0.0f;
  });
  // Unrolled whole, it keeps more addresses than there are registers.
  HF_UNROLL_BY(4)
  for (int k = 0; k < Tiles::kHeadDim / 16; ++k) {
    PerLane<uint32_t, Tiles::kFragments * 4> x_words;
    HF_UNROLL
    for (int f = 0; f < Tiles::kFragments; ++f) {
      // Rows 0-7 and 8-15 of the left half, then of the right.
      warp.template LoadMatrices<false>(x_words, f * 4, [&](int lane) {
        return x + LanePieceOffset<Tiles::kHeadDim>(lane % 16, lane / 16,
                                                    f * 16, k * 2);
      });
    }
    HF_UNROLL
    for (int n = 0; n < kColumns; n += 2) {
      // Two operands of 8 rows of Y; each in its left and right half.
      PerLane<uint32_t, 4> y_words;
      warp.template LoadMatrices<false>(y_words, 0, [&](int lane) {
        return y + LanePieceOffset<Tiles::kHeadDim>(lane / 16 * 8 + lane % 8,
                                                    lane / 8 % 2, n * 8, k * 2);
      });
      HF_UNROLL
      for (int f = 0; f < Tiles::kFragments; ++f) {
        HF_UNROLL
        for (int half = 0; half < 2; ++half) {
          warp.Multiply(scores, (f * kColumns + n + half) * 4, x_words, f * 4,
                        y_words, half * 2);
        }
      }
    }
  }
}

// sums += W Y: W the warp's rows of weights in the layout of scores, rounded to
// Bf16 here, Y the streamed tile at `y`. Sums (f, n), n over 8 columns of
// head_dim, at (f * kHeadDim / 8 + n) * 4.
template <typename Tiles, int kScores, int kSums>
HF_BLOCK_CODE void AddWeightedRows(Warp& warp,
                                   const PerLane<float, kScores>& weights,
                                   SharedOffset y,
                                   PerLane<float, kSums>& sums) {
  constexpr int kColumns = Tiles::kStreamed / 8;
  constexpr int kSumColumns = Tiles::kHeadDim / 8;
  static_assert(kScores == Tiles::kFragments * kColumns * 4);
  static_assert(kSums == Tiles::kFragments * kSumColumns * 4);
  HF_UNROLL
  for (int k = 0; k < Tiles::kStreamed / 16; ++k) {
    // Two neighbouring 16 x 8 results are one 16 x 16 operand.
    PerLane<uint32_t, Tiles::kFragments * 4> words;
    warp.ForEachLane([&](int lane) {
      HF_UNROLL
      for (int f = 0; f < Tiles::kFragments; ++f) {
        HF_UNROLL
        for (int word = 0; word < 4; ++word) {
          const int first = (f * kColumns + k * 2) * 4 + word * 2;
          words(lane, f * 4 + word) =
              PackBf16(weights(lane, first), weights(lane, first + 1));
        }
      }
    });
    HF_UNROLL
    for (int n = 0; n < kSumColumns; n += 2) {
      // 16 rows of Y, transposed: two operands of 8 columns.
      PerLane<uint32_t, 4> y_words;
      warp.template LoadMatrices<true>(y_words, 0, [&](int lane) {
        return y + LanePieceOffset<Tiles::kHeadDim>(lane % 16, lane / 16,
                                                    k * 16, n);
      });
      HF_UNROLL
      for (int f = 0; f < Tiles::kFragments; ++f) {
        HF_UNROLL
        for (int half = 0; half < 2; ++half) {
          warp.Multiply(sums, (f * kSumColumns + n + half) * 4, words, f * 4,
                        y_words, half * 2);
        }
      }
    }
  }
}

// Stores the warp's rows of sums, rounded. They go through the warp's own rows
// of shared memory at `through`, so that a lane stores 16 bytes; nobody else
// may look at those rows any more. `rows` is how many of the warp's rows exist.
template <typename Tiles, int kSums>
HF_BLOCK_CODE void StoreRows(Warp& warp, const PerLane<float, kSums>& sums,
                             SharedOffset through, Bf16* to, int64_t stride,
                             int rows, int head_dim) {
  constexpr int kSumColumns = Tiles::kHeadDim / 8;
  constexpr int kPieces = Tiles::kHeadDim / 8;
  warp.Sync();
  HF_UNROLL
  for (int f = 0; f < Tiles::kFragments; ++f) {
    HF_UNROLL
    for (int n = 0; n < kSumColumns; ++n) {
      HF_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int first = (f * kSumColumns + n) * 4 + half * 2;
        warp.template Store<uint32_t>(
            [&](int lane) {
              return through +
                     PieceOffset<Tiles::kHeadDim>(
                         f * 16 + PlaceInD(lane, half * 2).row, n) +
                     static_cast<SharedOffset>(lane % 4 * 4);
            },
            [&](int lane) {
              return PackBf16(sums(lane, first), sums(lane, first + 1));
            });
      }
    }
  }
  warp.Sync();
  HF_UNROLL
  for (int round = 0; round < Tiles::kWarpRows * kPieces / kWarpLanes;
       ++round) {
    warp.template Load<SixteenBytes>(
        [&](int lane) {
          const int i = round * kWarpLanes + lane;
          return through +
                 PieceOffset<Tiles::kHeadDim>(i / kPieces, i % kPieces);
        },
        [&](int lane, const SixteenBytes& value) {
          const int i = round * kWarpLanes + lane;
          const int row = i / kPieces;
          const int piece = i % kPieces;
          if (row < rows && piece * 8 < head_dim) {
            *reinterpret_cast<SixteenBytes*>(to + row * stride + piece * 8) =
                value;
          }
        });
  }
}

}  // namespace attention
}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ATTENTION_H_
