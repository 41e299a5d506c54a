// kernels/cuda_warp_host.h: WarpBlock, Warp and PerLane on the host, for tests.
// Included by cuda_warp.h alone.
//
// Stricter than a GPU where that finds mistakes. Shared memory starts as NaN.
// The bytes of a background copy are NaN from its start until its own warp
// waits. Offsets outside the block's memory end the program. Warps run one
// after the other between barriers, in either order, by choice of the test:
// what depends on the order is missing a barrier.
//
// Banks. Shared memory has 32 banks of 4 bytes. An access of 4 bytes per lane
// is one pass over all lanes, one of 16 bytes four passes of 8 lanes (a matrix
// row is such an access). A pass takes as many turns as the busiest bank has
// different words; turns beyond the first are counted as conflicts.

#ifndef HOLDFAST_KERNELS_CUDA_WARP_HOST_H_
#define HOLDFAST_KERNELS_CUDA_WARP_HOST_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/check.h"

namespace holdfast::kernels {

template <typename T, int kCount>
class PerLane {
 public:
  T& operator()(int lane, int i) { return values_[lane][i]; }
  const T& operator()(int lane, int i) const { return values_[lane][i]; }

 private:
  T values_[kWarpLanes][kCount];
};

inline uint32_t PackBf16(float low, float high) {
  return static_cast<uint32_t>(RoundToBf16(low).bits) |
         static_cast<uint32_t>(RoundToBf16(high).bits) << 16;
}
inline float Exp2(float x) { return std::exp2(x); }
inline float Log2(float x) { return std::log2(x); }
inline float LargerNumber(float x, float y) { return std::fmax(x, y); }

// A block's shared memory, and what happened in it.
class SharedMemoryOnHost {
 public:
  explicit SharedMemoryOnHost(int64_t bytes)
      : bytes_(static_cast<size_t>(bytes), kPoison) {}

  int64_t accesses() const { return accesses_; }    // Passes.
  int64_t conflicts() const { return conflicts_; }  // Turns beyond the first.
  int64_t products() const { return products_; }    // Of 16 x 8 x 16.

  std::byte* At(SharedOffset offset, int64_t count) {
    KERNEL_CHECK(offset + static_cast<uint64_t>(count) <= bytes_.size() &&
                     offset % static_cast<uint64_t>(count) == 0,
                 "shared memory: %d bytes at %d of %d", count, offset,
                 bytes_.size());
    return bytes_.data() + offset;
  }

  // `width` bytes per lane.
  void CountTurns(const std::array<SharedOffset, kWarpLanes>& offsets,
                  int width) {
    const int lanes = std::min(kWarpLanes, 128 / width);
    for (int first = 0; first < kWarpLanes; first += lanes) {
      SharedOffset words[32][32];  // Of each bank, the different ones.
      int count[32] = {};
      int turns = 1;
      for (int i = 0; i < lanes * (width / 4); ++i) {
        const SharedOffset word =
            offsets[first + i / (width / 4)] / 4 + i % (width / 4);
        const int bank = word % 32;
        SharedOffset* const end = words[bank] + count[bank];
        if (std::find(words[bank], end, word) != end) continue;
        *end = word;
        turns = std::max(turns, ++count[bank]);
      }
      ++accesses_;
      conflicts_ += turns - 1;
    }
  }
  void CountProduct() { ++products_; }

  static constexpr std::byte kPoison{0xff};  // NaN, as Bf16 and as float.

 private:
  std::vector<std::byte> bytes_;
  int64_t accesses_ = 0;
  int64_t conflicts_ = 0;
  int64_t products_ = 0;
};

class Warp {
 public:
  Warp(SharedMemoryOnHost* shared, int index)
      : shared_(shared), index_(index) {}

  int index() const { return index_; }

  template <typename Body>
  void ForEachLane(const Body& body) const {
    for (int lane = 0; lane < kWarpLanes; ++lane) body(lane);
  }

  void Sync() const {}
  int Forget(int value) const { return value; }
  void ForgetLane() {}

  // D += A B; `*_at` is the first of a lane's values that take part.
  template <int kD, int kA, int kB>
  void Multiply(PerLane<float, kD>& d, int d_at, const PerLane<uint32_t, kA>& a,
                int a_at, const PerLane<uint32_t, kB>& b, int b_at) const {
    float a_matrix[16][16];
    float b_matrix[16][8];
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < 8; ++i) {
        const MatrixPlace place = PlaceInA(lane, i);
        a_matrix[place.row][place.column] = Half(a(lane, a_at + i / 2), i % 2);
      }
      for (int i = 0; i < 4; ++i) {
        const MatrixPlace place = PlaceInB(lane, i);
        b_matrix[place.row][place.column] = Half(b(lane, b_at + i / 2), i % 2);
      }
    }
    float product[16][8] = {};
    for (int row = 0; row < 16; ++row) {
      for (int k = 0; k < 16; ++k) {
        for (int column = 0; column < 8; ++column) {
          product[row][column] += a_matrix[row][k] * b_matrix[k][column];
        }
      }
    }
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const MatrixPlace place = PlaceInD(lane, i);
        d(lane, d_at + i) += product[place.row][place.column];
      }
    }
    shared_->CountProduct();
  }

  // ldmatrix.x4: four matrices of 8 x 8 Bf16. Lane 8 m + r says where row r of
  // matrix m lies; lane l gets elements 2 (l % 4) and the next of row l / 4, or
  // of column l / 4 if transposed.
  template <bool kTranspose, int kTo, typename RowOfLane>
  void LoadMatrices(PerLane<uint32_t, kTo>& to, int at,
                    const RowOfLane& row_of_lane) const {
    std::array<SharedOffset, kWarpLanes> offsets;
    Bf16 matrices[4][8][8];
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      offsets[lane] = row_of_lane(lane);
      std::memcpy(matrices[lane / 8][lane % 8], shared_->At(offsets[lane], 16),
                  16);
    }
    shared_->CountTurns(offsets, 16);
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int matrix = 0; matrix < 4; ++matrix) {
        const int line = lane / 4;
        const int first = lane % 4 * 2;
        const Bf16 low = kTranspose ? matrices[matrix][first][line]
                                    : matrices[matrix][line][first];
        const Bf16 high = kTranspose ? matrices[matrix][first + 1][line]
                                     : matrices[matrix][line][first + 1];
        to(lane, at + matrix) = static_cast<uint32_t>(low.bits) |
                                static_cast<uint32_t>(high.bits) << 16;
      }
    }
  }

  // cp.async by each lane.
  template <typename CopyOfLane>
  void CopyInBackground(const CopyOfLane& copy_of_lane) {
    Start<16>(copy_of_lane);
  }
  template <typename CopyOfLane>
  void CopyWordsInBackground(const CopyOfLane& copy_of_lane) {
    Start<4>(copy_of_lane);
  }

  void WaitForCopies() {
    for (const auto& [copy, bytes] : copies_) {
      std::byte* to = shared_->At(copy.to, bytes);
      if (copy.valid) {
        std::memcpy(to, copy.from, static_cast<size_t>(bytes));
      } else {
        std::fill_n(to, bytes, std::byte{0});
      }
    }
    copies_.clear();
  }

  // Plain stores and loads of shared memory, 4, 8 or 16 bytes per lane.
  template <typename Value, typename OffsetOfLane, typename ValueOfLane>
  void Store(const OffsetOfLane& offset_of_lane,
             const ValueOfLane& value_of_lane) const {
    std::array<SharedOffset, kWarpLanes> offsets;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      offsets[lane] = offset_of_lane(lane);
      const Value value = value_of_lane(lane);
      std::memcpy(shared_->At(offsets[lane], sizeof(Value)), &value,
                  sizeof(Value));
    }
    shared_->CountTurns(offsets, sizeof(Value));
  }

  template <typename Value, typename OffsetOfLane, typename Use>
  void Load(const OffsetOfLane& offset_of_lane, const Use& use) const {
    std::array<SharedOffset, kWarpLanes> offsets;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      offsets[lane] = offset_of_lane(lane);
      Value value;
      std::memcpy(&value, shared_->At(offsets[lane], sizeof(Value)),
                  sizeof(Value));
      use(lane, value);
    }
    shared_->CountTurns(offsets, sizeof(Value));
  }

  template <int kLanes, int kCount>
  void SumOverLanes(PerLane<float, kCount>& values) const {
    OverLanes<kLanes>(values, [](float x, float y) { return x + y; });
  }

  template <int kLanes, int kCount>
  void MaxOverLanes(PerLane<float, kCount>& values) const {
    OverLanes<kLanes>(values, LargerNumber);
  }

 private:
  template <int kBytes, typename CopyOfLane>
  void Start(const CopyOfLane& copy_of_lane) {
    std::array<SharedOffset, kWarpLanes> offsets;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const SharedCopy copy = copy_of_lane(lane);
      KERNEL_CHECK(
          !copy.valid || reinterpret_cast<uintptr_t>(copy.from) % kBytes == 0,
          "a copy from %p", copy.from);
      offsets[lane] = copy.to;
      std::fill_n(shared_->At(copy.to, kBytes), kBytes,
                  SharedMemoryOnHost::kPoison);
      copies_.emplace_back(copy, kBytes);
    }
    shared_->CountTurns(offsets, kBytes);
  }

  static float Half(uint32_t word, int which) {
    return ToFloat(Bf16{static_cast<uint16_t>(word >> (16 * which))});
  }

  // The butterfly of shuffles: with lane ^ 1, then ^ 2 and so on.
  template <int kLanes, int kCount, typename Join>
  static void OverLanes(PerLane<float, kCount>& values, const Join& join) {
    for (int i = 0; i < kCount; ++i) {
      for (int step = 1; step < kLanes; step *= 2) {
        float before[kWarpLanes];
        for (int lane = 0; lane < kWarpLanes; ++lane) {
          before[lane] = values(lane, i);
        }
        for (int lane = 0; lane < kWarpLanes; ++lane) {
          values(lane, i) = join(before[lane], before[lane ^ step]);
        }
      }
    }
  }

  SharedMemoryOnHost* shared_;
  int index_;
  std::vector<std::pair<SharedCopy, int>> copies_;  // And bytes.
};

template <typename State, int kWarps>
class PerWarp {
 public:
  State& Of(const Warp& warp) { return (*states_)[warp.index()]; }

 private:
  std::unique_ptr<std::array<State, kWarps>> states_ =
      std::make_unique<std::array<State, kWarps>>();
};

class WarpBlock {
 public:
  WarpBlock(SharedMemoryOnHost* shared, int warps, bool last_warp_first)
      : last_warp_first_(last_warp_first) {
    for (int i = 0; i < warps; ++i) warps_.emplace_back(shared, i);
  }

  template <typename State, int kWarps, typename Body>
  void Phase(PerWarp<State, kWarps>& states, const Body& body) {
    Part(states, body);
  }

  template <typename State, int kWarps, typename Body>
  void Part(PerWarp<State, kWarps>& states, const Body& body) {
    KERNEL_CHECK(warps_.size() == kWarps, "%d warps", warps_.size());
    for (size_t i = 0; i < warps_.size(); ++i) {
      Warp& warp = warps_[last_warp_first_ ? warps_.size() - 1 - i : i];
      body(warp, states.Of(warp));
    }
  }

 private:
  std::vector<Warp> warps_;
  const bool last_warp_first_;
};

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_WARP_HOST_H_
