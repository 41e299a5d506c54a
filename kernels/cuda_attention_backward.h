// kernels/cuda_attention_backward.h: the gradients of attention on the tensor
// cores, the code of one block (kernels/cuda_attention.h says how).
//
// Two kernels of one form. In the first, queries stay and keys pass:
//
//   p = exp(scale q k^T - lse)    ds = scale p (dout v^T - delta)    dq += ds k
//
// In the second, keys stay and the queries of every head of their group pass,
// one head after the other; scores are made transposed, so that they are the
// left operand of both sums as they are:
//
//   p^T = exp(scale k q^T - lse)  dv += p^T dout
//   ds^T = scale p^T (v dout^T - delta)           dk += ds^T q
//
// What passes by a tile of keys may be divided over several blocks, which then
// leave FP32 sums for kernels/cuda_attention_join.h
// (kernels/attention_split.h).
//
// lse and delta (dout . out, AttentionDelta) belong to rows of scores in the
// first and to columns in the second, where they pass with the queries.

#ifndef HOLDFAST_KERNELS_CUDA_ATTENTION_BACKWARD_H_
#define HOLDFAST_KERNELS_CUDA_ATTENTION_BACKWARD_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/attention_split.h"
#include "kernels/cuda_attention.h"
#include "kernels/cuda_host_device.h"
#include "kernels/cuda_warp.h"

namespace holdfast::kernels {

template <typename TilesOf, bool kKeysStay>
struct AttentionBackwardBlock {
  using Tiles = TilesOf;
  static constexpr int kSharedBytes =
      2 * Tiles::kStayingBytes + 4 * Tiles::kStreamedBytes +
      (kKeysStay ? 4 * Tiles::kStreamed * static_cast<int>(sizeof(float)) : 0);

  static_assert(!kKeysStay || (Tiles::kRows == kKeyTileRows &&
                               Tiles::kStreamed == kPassingTileRows));

  AttentionBackwardArgs<Bf16> args;
  const float* delta;           // [sequences, heads, positions]
  KeyGradientSplit split = {};  // With keys staying.
  float* partial = nullptr;     // Of more than one part.

  AttentionGrid Grid() const {
    const AttentionShape& shape = args.shape;
    return {.x = shape.sequences * (kKeysStay ? shape.kv_heads : shape.heads),
            .y = (shape.positions + Tiles::kRows - 1) / Tiles::kRows *
                 (kKeysStay ? split.parts : 1)};
  }

  // Of block (x, y) in a grid of `height` blocks along y. Those with the most
  // to pass start first: late queries, early keys.
  HF_BLOCK_CODE void operator()(WarpBlock& block, int x, int y,
                                int height) const {
    const Place place(args, split, x, kKeysStay ? y : height - 1 - y);
    if (place.first_pass >= place.end_pass) return;  // A tile of fewer parts.
    PerWarp<State, Tiles::kWarps> states;
    block.Part(states, [&](Warp& warp, State& state) {
      warp.ForEachLane([&](int lane) { state.Clear(lane); });
      LoadStaying(warp, place);
      LoadPassing(warp, place, place.first_pass);
      if constexpr (!kKeysStay) LoadRowValues(warp, place, state);
    });
    for (int pass = place.first_pass; pass < place.end_pass; ++pass) {
      block.Phase(states, [&](Warp& warp, State&) { warp.WaitForCopies(); });
      block.Part(states, [&](Warp& warp, State& state) {
        warp.ForgetLane();
        // All warps are past the barrier, so done with the other buffer.
        if (pass + 1 < place.end_pass) LoadPassing(warp, place, pass + 1);
        AddTile(warp, place, pass, state);
      });
    }
    block.Part(states,
               [&](Warp& warp, State& state) { Finish(warp, place, state); });
  }

 private:
  static constexpr int kColumns = Tiles::kStreamed / 8;
  static constexpr int kScores = Tiles::kFragments * kColumns * 4;
  static constexpr int kSums = Tiles::kFragments * Tiles::kHeadDim / 2;
  static constexpr int kLaneRows = 2 * Tiles::kFragments;

  static constexpr SharedOffset kStaying = 0;
  static constexpr SharedOffset kPassing = 2 * Tiles::kStayingBytes;
  static constexpr SharedOffset kColumnValues =
      kPassing + 4 * Tiles::kStreamedBytes;

  struct State {
    PerLane<float, kSums> first;                    // dq or dk
    PerLane<float, kKeysStay ? kSums : 1> second;   // dv
    PerLane<float, kKeysStay ? 1 : kLaneRows> lse;  // In units of log 2.
    PerLane<float, kKeysStay ? 1 : kLaneRows> delta;

    HF_BLOCK_CODE void Clear(int lane) {
      HF_UNROLL
      for (int i = 0; i < kSums; ++i) first(lane, i) = 0.0f;
      if constexpr (kKeysStay) {
        HF_UNROLL
        for (int i = 0; i < kSums; ++i) second(lane, i) = 0.0f;
      }
    }
  };

  // The block's head and tile, and what passes by: tiles, of each head those
  // from `first_tile` on, `tiles_of_head` of them; counted over the heads,
  // those from first_pass to end_pass.
  struct Place {
    int row_of_sequence;
    int values_of_sequence;  // In lse and delta.
    int head;
    int passing_head;  // The first.
    int first_row;
    int first_tile;
    int tiles_of_head;
    int first_pass;
    int end_pass;
    int part;  // -1 where the tile has but one.
    int positions;
    int head_dim;

    HF_BLOCK_CODE Place(const AttentionBackwardArgs<Bf16>& args,
                        const KeyGradientSplit& split, int x, int y) {
      const AttentionShape& shape = args.shape;
      const int tile = kKeysStay ? y / split.parts : y;
      const int group = static_cast<int>(shape.heads / shape.kv_heads);
      const int staying_heads =
          static_cast<int>(kKeysStay ? shape.kv_heads : shape.heads);
      positions = static_cast<int>(shape.positions);
      head_dim = static_cast<int>(shape.head_dim);
      head = x % staying_heads;
      passing_head = kKeysStay ? head * group : head / group;
      const int sequence = x / staying_heads;
      row_of_sequence = sequence * positions;
      values_of_sequence = row_of_sequence * static_cast<int>(shape.heads);
      first_row = tile * Tiles::kRows;
      first_tile = kKeysStay ? first_row / Tiles::kStreamed : 0;
      const int end =
          kKeysStay ? positions
                    : attention::Smaller(first_row + Tiles::kRows, positions);
      tiles_of_head = attention::CeilDiv(end, Tiles::kStreamed) - first_tile;
      first_pass = 0;
      end_pass = tiles_of_head * (kKeysStay ? group : 1);
      part = -1;
      if (kKeysStay && split.parts > 1) {
        const int of_tile = y % split.parts;
        first_pass = of_tile * split.part_tiles;
        if (end_pass > split.part_tiles) part = of_tile;
        end_pass = attention::Smaller(first_pass + split.part_tiles, end_pass);
      }
    }

    HF_BLOCK_CODE int FirstColumn(int pass) const {
      return (first_tile + pass % tiles_of_head) * Tiles::kStreamed;
    }
  };

  HF_BLOCK_CODE static SharedOffset Staying(int which, const Warp& warp) {
    return kStaying + static_cast<SharedOffset>(
                          which * Tiles::kStayingBytes +
                          warp.index() * Tiles::kWarpRows * Tiles::kRowBytes);
  }
  HF_BLOCK_CODE static SharedOffset Passing(int which, int pass) {
    return kPassing + static_cast<SharedOffset>((which * 2 + pass % 2) *
                                                Tiles::kStreamedBytes);
  }
  // lse (0) and delta (1) of the passing queries.
  HF_BLOCK_CODE static SharedOffset ColumnValues(int which, int pass) {
    return kColumnValues + static_cast<SharedOffset>((which * 2 + pass % 2) *
                                                     Tiles::kStreamed * 4);
  }

  HF_BLOCK_CODE void LoadStaying(Warp& warp, const Place& place) const {
    const int row = place.row_of_sequence + place.first_row;
    const int column = place.head * place.head_dim;
    const int rows = place.positions - place.first_row;
    const int64_t first_stride = kKeysStay ? args.k_stride : args.q_stride;
    const int64_t second_stride = kKeysStay ? args.v_stride : args.dout_stride;
    attention::LoadTile<Tiles, Tiles::kRows>(
        warp, kStaying,
        (kKeysStay ? args.k : args.q) + row * first_stride + column,
        first_stride, rows, place.head_dim);
    attention::LoadTile<Tiles, Tiles::kRows>(
        warp, kStaying + Tiles::kStayingBytes,
        (kKeysStay ? args.v : args.dout) + row * second_stride + column,
        second_stride, rows, place.head_dim);
  }

  HF_BLOCK_CODE void LoadPassing(Warp& warp, const Place& place,
                                 int pass) const {
    const int first = place.FirstColumn(pass);
    const int head = place.passing_head + pass / place.tiles_of_head;
    const int row = place.row_of_sequence + first;
    const int column = head * place.head_dim;
    const int rows = place.positions - first;
    const int64_t first_stride = kKeysStay ? args.q_stride : args.k_stride;
    const int64_t second_stride = kKeysStay ? args.dout_stride : args.v_stride;
    attention::LoadTile<Tiles, Tiles::kStreamed>(
        warp, Passing(0, pass),
        (kKeysStay ? args.q : args.k) + row * first_stride + column,
        first_stride, rows, place.head_dim);
    attention::LoadTile<Tiles, Tiles::kStreamed>(
        warp, Passing(1, pass),
        (kKeysStay ? args.dout : args.v) + row * second_stride + column,
        second_stride, rows, place.head_dim);
    if constexpr (kKeysStay) LoadColumnValues(warp, place, head, first, pass);
  }

  // Queries beyond the end get zeros: their q and dout are zeros too, so they
  // add nothing.
  HF_BLOCK_CODE void LoadColumnValues(Warp& warp, const Place& place, int head,
                                      int first, int pass) const {
    static_assert(2 * Tiles::kStreamed <= Tiles::kThreads &&
                  Tiles::kStreamed % kWarpLanes == 0);
    constexpr int kWarpsEach = Tiles::kStreamed / kWarpLanes;
    const int which = warp.index() / kWarpsEach;
    if (which >= 2) return;
    const float* const from = (which == 0 ? args.lse : delta) +
                              place.values_of_sequence + head * place.positions;
    const int column = warp.index() % kWarpsEach * kWarpLanes;
    warp.CopyWordsInBackground([&](int lane) {
      return SharedCopy{.to = ColumnValues(which, pass) +
                              static_cast<SharedOffset>((column + lane) * 4),
                        .from = from + first + column + lane,
                        .valid = first + column + lane < place.positions};
    });
  }

  HF_BLOCK_CODE void LoadRowValues(Warp& warp, const Place& place,
                                   State& state) const {
    const int values = place.values_of_sequence + place.head * place.positions;
    warp.ForEachLane([&](int lane) {
      HF_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        const int row = place.first_row + warp.index() * Tiles::kWarpRows +
                        i / 2 * 16 + PlaceInD(lane, i % 2 * 2).row;
        const bool exists = row < place.positions;
        state.lse(lane, i) =
            exists ? args.lse[values + row] * attention::kLog2OfE : 0.0f;
        state.delta(lane, i) = exists ? delta[values + row] : 0.0f;
      }
    });
  }

  HF_BLOCK_CODE void AddTile(Warp& warp, const Place& place, int pass,
                             State& state) const {
    const int first_column = place.FirstColumn(pass);
    const int first_row = place.first_row + warp.index() * Tiles::kWarpRows;
    // Where no query of the pair sees a key of it.
    if (kKeysStay ? first_column + Tiles::kStreamed <= first_row
                  : first_column >= first_row + Tiles::kWarpRows) {
      return;
    }
    const bool on_diagonal =
        kKeysStay ? first_column < first_row + Tiles::kWarpRows - 1
                  : first_column + Tiles::kStreamed - 1 > first_row;
    PerLane<float, kScores> scores;
    attention::MultiplyRows<Tiles>(warp, Staying(0, warp), Passing(0, pass),
                                   scores);
    if (on_diagonal) {
      ReplaceFuture(warp, first_row, first_column, -__builtin_huge_valf(),
                    scores);
    }
    Exponentiate(warp, pass, state, scores);
    if constexpr (kKeysStay) {
      attention::AddWeightedRows<Tiles>(warp, scores, Passing(1, pass),
                                        state.second);
    }
    warp.ForgetLane();
    PerLane<float, kScores> dscores;
    attention::MultiplyRows<Tiles>(warp, Staying(1, warp), Passing(1, pass),
                                   dscores);
    Differentiate(warp, pass, state, scores, dscores);
    if (on_diagonal) {
      ReplaceFuture(warp, first_row, first_column, 0.0f, dscores);
    }
    attention::AddWeightedRows<Tiles>(warp, dscores, Passing(0, pass),
                                      state.first);
  }

  // Which of a lane's rows score i belongs to.
  HF_BLOCK_CODE static constexpr int LaneRow(int i) {
    return i / 4 / kColumns * 2 + i / 2 % 2;
  }

  HF_BLOCK_CODE static void ReplaceFuture(Warp& warp, int first_row,
                                          int first_column, float by,
                                          PerLane<float, kScores>& scores) {
    warp.ForEachLane([&](int lane) {
      HF_UNROLL
      for (int i = 0; i < kScores; ++i) {
        const MatrixPlace place = PlaceInD(lane, i % 4);
        const int row = first_row + i / 4 / kColumns * 16 + place.row;
        const int column = first_column + i / 4 % kColumns * 8 + place.column;
        if (kKeysStay ? row > column : column > row) scores(lane, i) = by;
      }
    });
  }

  // Calls use(lane, n, even, odd) with the values of the lane's two columns of
  // each 8, even i and odd i of a score.
  template <typename Use>
  HF_BLOCK_CODE static void ForEachColumnValue(Warp& warp, SharedOffset values,
                                               const Use& use) {
    HF_UNROLL
    for (int n = 0; n < kColumns; ++n) {
      warp.template Load<TwoFloats>(
          [&](int lane) {
            return values +
                   static_cast<SharedOffset>((n * 8 + lane % 4 * 2) * 4);
          },
          [&](int lane, const TwoFloats& two) { use(lane, n, two); });
    }
  }

  // Raw scores become probabilities.
  HF_BLOCK_CODE void Exponentiate(Warp& warp, int pass, const State& state,
                                  PerLane<float, kScores>& scores) const {
    const float scale = args.shape.scale * attention::kLog2OfE;
    if constexpr (kKeysStay) {
      ForEachColumnValue(
          warp, ColumnValues(0, pass),
          [&](int lane, int n, const TwoFloats& lse) {
            HF_UNROLL
            for (int f = 0; f < Tiles::kFragments; ++f) {
              HF_UNROLL
              for (int i = 0; i < 4; ++i) {
                float& score = scores(lane, (f * kColumns + n) * 4 + i);
                score =
                    Exp2(score * scale - lse.at[i % 2] * attention::kLog2OfE);
              }
            }
          });
    } else {
      warp.ForEachLane([&](int lane) {
        HF_UNROLL
        for (int i = 0; i < kScores; ++i) {
          scores(lane, i) =
              Exp2(scores(lane, i) * scale - state.lse(lane, LaneRow(i)));
        }
      });
    }
  }

  // Gradients of probabilities become those of raw scores.
  HF_BLOCK_CODE void Differentiate(Warp& warp, int pass, const State& state,
                                   const PerLane<float, kScores>& p,
                                   PerLane<float, kScores>& dscores) const {
    const float scale = args.shape.scale;
    if constexpr (kKeysStay) {
      ForEachColumnValue(warp, ColumnValues(1, pass),
                         [&](int lane, int n, const TwoFloats& row_delta) {
                           HF_UNROLL
                           for (int f = 0; f < Tiles::kFragments; ++f) {
                             HF_UNROLL
                             for (int i = 0; i < 4; ++i) {
                               const int at = (f * kColumns + n) * 4 + i;
                               dscores(lane, at) =
                                   p(lane, at) *
                                   (dscores(lane, at) - row_delta.at[i % 2]) *
                                   scale;
                             }
                           }
                         });
    } else {
      warp.ForEachLane([&](int lane) {
        HF_UNROLL
        for (int i = 0; i < kScores; ++i) {
          dscores(lane, i) =
              p(lane, i) * (dscores(lane, i) - state.delta(lane, LaneRow(i))) *
              scale;
        }
      });
    }
  }

  HF_BLOCK_CODE void Finish(Warp& warp, const Place& place,
                            const State& state) const {
    const int first_row = place.first_row + warp.index() * Tiles::kWarpRows;
    const int rows = place.positions - first_row;
    if constexpr (kKeysStay) {
      if (place.part >= 0) {
        StorePartial(warp, place, 0, first_row, rows, state.first);
        StorePartial(warp, place, 1, first_row, rows, state.second);
        return;
      }
    }
    const int64_t row = place.row_of_sequence + first_row;
    const int column = place.head * place.head_dim;
    const int64_t stride = kKeysStay ? args.dk_stride : args.dq_stride;
    attention::StoreRows<Tiles>(
        warp, state.first, Staying(0, warp),
        (kKeysStay ? args.dk : args.dq) + row * stride + column, stride, rows,
        place.head_dim);
    if constexpr (kKeysStay) {
      attention::StoreRows<Tiles>(warp, state.second, Staying(1, warp),
                                  args.dv + row * args.dv_stride + column,
                                  args.dv_stride, rows, place.head_dim);
    }
  }

  // The warp's rows of dk (0) or dv (1), to the part's place in `partial`. Four
  // lanes store 32 neighbouring bytes.
  HF_BLOCK_CODE void StorePartial(Warp& warp, const Place& place, int which,
                                  int first_row, int rows,
                                  const PerLane<float, kSums>& sums) const {
    const AttentionShape& shape = args.shape;
    const int64_t matrix = place.part * 2 + which;
    const int64_t heads_rows = place.row_of_sequence * shape.kv_heads +
                               place.head * place.positions + first_row;
    float* const to =
        partial + (matrix * shape.sequences * shape.kv_heads * place.positions +
                   heads_rows) *
                      place.head_dim;
    warp.ForEachLane([&](int lane) {
      HF_UNROLL
      for (int i = 0; i < kSums; i += 2) {
        const MatrixPlace at = PlaceInD(lane, i % 4);
        const int fragment = i / 4 / (Tiles::kHeadDim / 8);
        const int row = fragment * 16 + at.row;
        const int column = i / 4 % (Tiles::kHeadDim / 8) * 8 + at.column;
        if (row < rows && column < place.head_dim) {
          *reinterpret_cast<TwoFloats*>(to + row * place.head_dim + column) = {
              {sums(lane, i), sums(lane, i + 1)}};
        }
      }
    });
  }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ATTENTION_BACKWARD_H_
