// kernels/cuda_attention_forward.h: attention forward on the tensor cores, the
// code of one block (kernels/cuda_attention.h says how).
//
// A block has a tile of queries of one head; keys and values pass. Each row
// keeps its running maximum, its sum of exponentials and its weighted sum of
// values; the sum is split over the 4 lanes of a row until the end. Scores are
// in units of log 2, so that an exponential is one instruction.

#ifndef HOLDFAST_KERNELS_CUDA_ATTENTION_FORWARD_H_
#define HOLDFAST_KERNELS_CUDA_ATTENTION_FORWARD_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda_attention.h"
#include "kernels/cuda_host_device.h"
#include "kernels/cuda_warp.h"

namespace holdfast::kernels {

template <typename TilesOf>
struct AttentionForwardBlock {
  using Tiles = TilesOf;
  static constexpr int kSharedBytes =
      Tiles::kStayingBytes + 4 * Tiles::kStreamedBytes;

  AttentionArgs<Bf16> args;

  AttentionGrid Grid() const {
    const AttentionShape& shape = args.shape;
    return {.x = shape.sequences * shape.heads,
            .y = (shape.positions + Tiles::kRows - 1) / Tiles::kRows};
  }

  // Of block (x, y) in a grid of `tiles` blocks along y. The last queries see
  // the most keys: they start first.
  HF_BLOCK_CODE void operator()(WarpBlock& block, int x, int y,
                                int tiles) const {
    const Place place(args, x, tiles - 1 - y);
    PerWarp<State, Tiles::kWarps> states;
    block.Part(states, [&](Warp& warp, State& state) {
      warp.ForEachLane([&](int lane) { state.Clear(lane); });
      attention::LoadTile<Tiles, Tiles::kRows>(
          warp, kQueries,
          args.q +
              int64_t{place.row_of_sequence + place.first_row} * args.q_stride +
              place.head * place.head_dim,
          args.q_stride, place.positions - place.first_row, place.head_dim);
      LoadKeys(warp, place, 0);
    });
    const int key_tiles = attention::CeilDiv(
        attention::Smaller(place.first_row + Tiles::kRows, place.positions),
        Tiles::kStreamed);
    for (int tile = 0; tile < key_tiles; ++tile) {
      block.Phase(states, [&](Warp& warp, State&) { warp.WaitForCopies(); });
      block.Part(states, [&](Warp& warp, State& state) {
        warp.ForgetLane();
        // All warps are past the barrier, so done with the other buffer.
        if (tile + 1 < key_tiles) LoadKeys(warp, place, tile + 1);
        AddTile(warp, place, tile, state);
      });
    }
    block.Part(states,
               [&](Warp& warp, State& state) { Finish(warp, place, state); });
  }

 private:
  static constexpr int kScores = Tiles::kFragments * Tiles::kStreamed / 2;
  static constexpr int kSums = Tiles::kFragments * Tiles::kHeadDim / 2;
  static constexpr int kLaneRows = 2 * Tiles::kFragments;

  static constexpr SharedOffset kQueries = 0;
  static constexpr SharedOffset kKeys = Tiles::kStayingBytes;
  static constexpr SharedOffset kValues = kKeys + 2 * Tiles::kStreamedBytes;

  // Row i of a lane: half i % 2 of fragment i / 2.
  struct State {
    PerLane<float, kSums> out;
    PerLane<float, kLaneRows> max;  // In units of log 2.
    PerLane<float, kLaneRows> sum;  // Of this lane's columns.

    HF_BLOCK_CODE void Clear(int lane) {
      HF_UNROLL
      for (int i = 0; i < kSums; ++i) out(lane, i) = 0.0f;
      HF_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        max(lane, i) = -__builtin_huge_valf();
        sum(lane, i) = 0.0f;
      }
    }
  };

  // The block's head and tile.
  struct Place {
    int row_of_sequence;
    int lse_at;
    int head;
    int kv_column;
    int first_row;
    int positions;
    int head_dim;

    HF_BLOCK_CODE Place(const AttentionArgs<Bf16>& args, int x, int tile) {
      const AttentionShape& shape = args.shape;
      const int heads = static_cast<int>(shape.heads);
      const int group = heads / static_cast<int>(shape.kv_heads);
      const int sequence = x / heads;
      const int kv_head = x % heads / group;
      head = x % heads;
      positions = static_cast<int>(shape.positions);
      head_dim = static_cast<int>(shape.head_dim);
      row_of_sequence = sequence * positions;
      kv_column = kv_head * head_dim;
      lse_at = x * positions;
      first_row = tile * Tiles::kRows;
    }
  };

  HF_BLOCK_CODE static SharedOffset Buffer(SharedOffset of, int tile) {
    return of + static_cast<SharedOffset>(tile % 2 * Tiles::kStreamedBytes);
  }

  HF_BLOCK_CODE void LoadKeys(Warp& warp, const Place& place, int tile) const {
    const int first = tile * Tiles::kStreamed;
    const int64_t row = place.row_of_sequence + first;
    const Bf16* const k = args.k + row * args.k_stride + place.kv_column;
    const Bf16* const v = args.v + row * args.v_stride + place.kv_column;
    attention::LoadTile<Tiles, Tiles::kStreamed>(
        warp, Buffer(kKeys, tile), k, args.k_stride, place.positions - first,
        place.head_dim);
    attention::LoadTile<Tiles, Tiles::kStreamed>(
        warp, Buffer(kValues, tile), v, args.v_stride, place.positions - first,
        place.head_dim);
  }

  HF_BLOCK_CODE void AddTile(Warp& warp, const Place& place, int tile,
                             State& state) const {
    const int first_column = tile * Tiles::kStreamed;
    const int first_row = place.first_row + warp.index() * Tiles::kWarpRows;
    if (first_column >= first_row + Tiles::kWarpRows) return;  // The future.
    PerLane<float, kScores> scores;
    attention::MultiplyRows<Tiles>(
        warp, kQueries + warp.index() * Tiles::kWarpRows * Tiles::kRowBytes,
        Buffer(kKeys, tile), scores);
    if (first_column + Tiles::kStreamed - 1 > first_row) {
      Mask(warp, first_row, first_column, scores);
    }
    warp.ForgetLane();
    Exponentiate(warp, args.shape.scale * attention::kLog2OfE, scores, state);
    attention::AddWeightedRows<Tiles>(warp, scores, Buffer(kValues, tile),
                                      state.out);
  }

  static constexpr int kColumns = Tiles::kStreamed / 8;

  HF_BLOCK_CODE static void Mask(Warp& warp, int first_row, int first_column,
                                 PerLane<float, kScores>& scores) {
    warp.ForEachLane([&](int lane) {
      HF_UNROLL
      for (int i = 0; i < kScores; ++i) {
        const MatrixPlace place = PlaceInD(lane, i % 4);
        const int row = first_row + i / 4 / kColumns * 16 + place.row;
        const int column = first_column + i / 4 % kColumns * 8 + place.column;
        if (column > row) scores(lane, i) = -__builtin_huge_valf();
      }
    });
  }

  // Raw scores become exponentials; what was summed under smaller maxima is
  // rescaled.
  HF_BLOCK_CODE static void Exponentiate(Warp& warp, float scale,
                                         PerLane<float, kScores>& scores,
                                         State& state) {
    PerLane<float, kLaneRows> max;
    warp.ForEachLane([&](int lane) {
      HF_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        max(lane, i) = -__builtin_huge_valf();
      }
      HF_UNROLL
      for (int i = 0; i < kScores; ++i) {
        float& of_row = max(lane, LaneRow(i));
        of_row = LargerNumber(of_row, scores(lane, i));
      }
    });
    warp.template MaxOverLanes<4>(max);
    warp.ForEachLane([&](int lane) {
      HF_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        const float before = state.max(lane, i);
        const float now = LargerNumber(before, max(lane, i) * scale);
        const float rescale = Exp2(before - now);
        state.max(lane, i) = now;
        state.sum(lane, i) *= rescale;
        max(lane, i) = rescale;
      }
      HF_UNROLL
      for (int i = 0; i < kScores; ++i) {
        const int row = LaneRow(i);
        const float p = Exp2(scores(lane, i) * scale - state.max(lane, row));
        scores(lane, i) = p;
        state.sum(lane, row) += p;
      }
      HF_UNROLL
      for (int i = 0; i < kSums; ++i) {
        state.out(lane, i) *=
            max(lane, i / 4 / (Tiles::kHeadDim / 8) * 2 + i / 2 % 2);
      }
    });
  }
  // Which of a lane's rows score i belongs to.
  HF_BLOCK_CODE static constexpr int LaneRow(int i) {
    return i / 4 / kColumns * 2 + i / 2 % 2;
  }

  HF_BLOCK_CODE void Finish(Warp& warp, const Place& place,
                            State& state) const {
    const int first_row = place.first_row + warp.index() * Tiles::kWarpRows;
    warp.template SumOverLanes<4>(state.sum);
    warp.ForEachLane([&](int lane) {
      HF_UNROLL
      for (int i = 0; i < kLaneRows; ++i) {
        const int row = first_row + i / 2 * 16 + PlaceInD(lane, i % 2 * 2).row;
        if (lane % 4 == 0 && row < place.positions) {
          args.lse[place.lse_at + row] =
              (state.max(lane, i) + Log2(state.sum(lane, i))) *
              attention::kLogOf2;
        }
        state.sum(lane, i) = 1.0f / state.sum(lane, i);
      }
      HF_UNROLL
      for (int i = 0; i < kSums; ++i) {
        state.out(lane, i) *=
            state.sum(lane, i / 4 / (Tiles::kHeadDim / 8) * 2 + i / 2 % 2);
      }
    });
    attention::StoreRows<Tiles>(
        warp, state.out,
        kQueries + warp.index() * Tiles::kWarpRows * Tiles::kRowBytes,
        args.out + (place.row_of_sequence + first_row) * args.out_stride +
            place.head * place.head_dim,
        args.out_stride, place.positions - first_row, place.head_dim);
  }
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_ATTENTION_FORWARD_H_
