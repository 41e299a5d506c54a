// kernels/cuda_rmsnorm.h: RMSNorm forward and backward for a GPU.
//
// Against the CPU: the sums of a row run in another order (each thread its own
// elements, then the tree of kernels/cuda_block.h), so rstd is within 2e-6
// relative, y and dx within that and one rounding to T, dweight within 2e-6
// times the sum of its terms' magnitudes. The order depends on the shape alone.
//
// One row is the work of a warp up to 1,024 elements, of two up to 2,048, of a
// block of 256 threads beyond. The threads keep it in registers, 4 packs each;
// what lies beyond 8,192 elements is read again, from a cache. The weight's
// gradient is a pass of its own over x and dy, which stay in the second-level
// cache at usual sizes: slices of rows are summed into scratch, then the slices
// in order.
//
// Bytes moved per element: forward 2 sizeof(T), backward 3 (4 with a residual),
// and 2 more with dweight.

#ifndef HOLDFAST_KERNELS_CUDA_RMSNORM_H_
#define HOLDFAST_KERNELS_CUDA_RMSNORM_H_

#include <algorithm>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda_block.h"
#include "kernels/cuda_math.h"
#include "kernels/cuda_pack.h"
#include "kernels/rmsnorm.h"

namespace holdfast::kernels {

// Which columns of a row a thread has: pack number k of its group's thread
// `lane` starts at this column.
template <int kPack, int kGroup>
struct RowPart {
  static constexpr int kThreads = 256;
  static constexpr int kRows = kThreads / kGroup;  // Of a block, at a time.
  static constexpr int kKept = 4;
  static constexpr int64_t kStep = int64_t{kGroup} * kPack;
  static constexpr int64_t kKeptColumns = kKept * kStep;

  HF_HOST_DEVICE static int64_t Column(int thread, int k) {
    return k * kStep + (thread % kGroup) * kPack;
  }
};

template <typename T, int kPack, int kGroup>
struct RmsNormForwardKernel {
  using Part = RowPart<kPack, kGroup>;
  using P = Pack<T, kPack>;
  static constexpr int kThreads = Part::kThreads;
  static constexpr int kSharedBytes = 0;
  RmsNormArgs<T> args;

  int64_t blocks() const { return CeilDivide(args.rows, Part::kRows); }

  struct Kept {
    P at[Part::kKept];
  };

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    const int64_t hidden = args.hidden;
    for (int64_t first = block.index() * Part::kRows; first < args.rows;
         first += block.count() * Part::kRows) {
      auto kept = block.template PerThread<Kept>();
      auto sums = block.template PerThread<float>();
      block.ForEachOnly([&](int thread) {
        const int64_t row = first + thread / kGroup;
        float sum = 0.0f;
        if (row < args.rows) {
          const T* x = args.x + row * hidden;
          HF_UNROLL
          for (int k = 0; k < Part::kKept; ++k) {
            const int64_t c = Part::Column(thread, k);
            if (c < hidden) kept[thread].at[k] = LoadPack<kPack>(x + c);
          }
          HF_UNROLL
          for (int k = 0; k < Part::kKept; ++k) {
            const int64_t c = Part::Column(thread, k);
            if (c < hidden) sum = AddSquares(kept[thread].at[k], sum);
          }
          for (int64_t c = Part::Column(thread, Part::kKept); c < hidden;
               c += Part::kStep) {
            sum = AddSquares(LoadPack<kPack>(x + c), sum);
          }
        }
        sums[thread] = sum;
      });
      block.template Reduce<kGroup>(sums, Plus{});
      block.ForEachOnly([&](int thread) {
        const int64_t row = first + thread / kGroup;
        if (row >= args.rows) return;
        const float mean = sums[thread] / static_cast<float>(hidden);
        const float rstd = DivRn(1.0f, SqrtRn(mean + args.eps));
        if (thread % kGroup == 0) args.rstd[row] = rstd;
        const T* x = args.x + row * hidden;
        HF_UNROLL
        for (int k = 0; k < Part::kKept; ++k) {
          const int64_t c = Part::Column(thread, k);
          if (c < hidden) Store(kept[thread].at[k], rstd, row, c);
        }
        for (int64_t c = Part::Column(thread, Part::kKept); c < hidden;
             c += Part::kStep) {
          Store(LoadPack<kPack>(x + c), rstd, row, c);
        }
      });
    }
  }

 private:
  HF_HOST_DEVICE static float AddSquares(const P& x, float sum) {
    HF_UNROLL
    for (int i = 0; i < kPack; ++i) sum += ToFloat(x.at[i]) * ToFloat(x.at[i]);
    return sum;
  }

  HF_HOST_DEVICE void Store(const P& x, float rstd, int64_t row,
                            int64_t column) const {
    const auto weight = LoadPack<kPack>(args.weight + column);
    P y;
    HF_UNROLL
    for (int i = 0; i < kPack; ++i) {
      y.at[i] = FromFloat<T>(ToFloat(x.at[i]) * rstd * ToFloat(weight.at[i]));
    }
    StorePack(y, args.y + row * args.hidden + column);
  }
};

// dx = rstd (weight dy - x rstd^2 mean(weight dy x)) (+ residual)
template <typename T, int kPack, int kGroup>
struct RmsNormBackwardKernel {
  using Part = RowPart<kPack, kGroup>;
  using P = Pack<T, kPack>;
  static constexpr int kThreads = Part::kThreads;
  static constexpr int kSharedBytes = 0;
  RmsNormBackwardArgs<T> args;

  int64_t blocks() const { return CeilDivide(args.rows, Part::kRows); }

  struct Kept {
    P x[Part::kKept];
    P dy[Part::kKept];
  };

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    const int64_t hidden = args.hidden;
    for (int64_t first = block.index() * Part::kRows; first < args.rows;
         first += block.count() * Part::kRows) {
      auto kept = block.template PerThread<Kept>();
      auto sums = block.template PerThread<float>();
      block.ForEachOnly([&](int thread) {
        const int64_t row = first + thread / kGroup;
        float sum = 0.0f;
        if (row < args.rows) {
          const T* x = args.x + row * hidden;
          const T* dy = args.dy + row * hidden;
          HF_UNROLL
          for (int k = 0; k < Part::kKept; ++k) {
            const int64_t c = Part::Column(thread, k);
            if (c >= hidden) continue;
            kept[thread].x[k] = LoadPack<kPack>(x + c);
            kept[thread].dy[k] = LoadPack<kPack>(dy + c);
          }
          HF_UNROLL
          for (int k = 0; k < Part::kKept; ++k) {
            const int64_t c = Part::Column(thread, k);
            if (c >= hidden) continue;
            sum = AddProjection(kept[thread].x[k], kept[thread].dy[k], c, sum);
          }
          for (int64_t c = Part::Column(thread, Part::kKept); c < hidden;
               c += Part::kStep) {
            sum = AddProjection(LoadPack<kPack>(x + c), LoadPack<kPack>(dy + c),
                                c, sum);
          }
        }
        sums[thread] = sum;
      });
      block.template Reduce<kGroup>(sums, Plus{});
      block.ForEachOnly([&](int thread) {
        const int64_t row = first + thread / kGroup;
        if (row >= args.rows) return;
        const float rstd = args.rstd[row];
        const float along_x =
            rstd * rstd * (sums[thread] / static_cast<float>(hidden));
        const T* x = args.x + row * hidden;
        const T* dy = args.dy + row * hidden;
        HF_UNROLL
        for (int k = 0; k < Part::kKept; ++k) {
          const int64_t c = Part::Column(thread, k);
          if (c >= hidden) continue;
          Store(kept[thread].x[k], kept[thread].dy[k], rstd, along_x, row, c);
        }
        for (int64_t c = Part::Column(thread, Part::kKept); c < hidden;
             c += Part::kStep) {
          Store(LoadPack<kPack>(x + c), LoadPack<kPack>(dy + c), rstd, along_x,
                row, c);
        }
      });
    }
  }

 private:
  HF_HOST_DEVICE float AddProjection(const P& x, const P& dy, int64_t column,
                                     float sum) const {
    const auto weight = LoadPack<kPack>(args.weight + column);
    HF_UNROLL
    for (int i = 0; i < kPack; ++i) {
      sum += ToFloat(dy.at[i]) * ToFloat(weight.at[i]) * ToFloat(x.at[i]);
    }
    return sum;
  }

  // A thread reads dy and the residual where it writes dx, just before.
  HF_HOST_DEVICE void Store(const P& x, const P& dy, float rstd, float along_x,
                            int64_t row, int64_t column) const {
    const int64_t at = row * args.hidden + column;
    const auto weight = LoadPack<kPack>(args.weight + column);
    float values[kPack];
    HF_UNROLL
    for (int i = 0; i < kPack; ++i) {
      values[i] = rstd * (ToFloat(weight.at[i]) * ToFloat(dy.at[i]) -
                          ToFloat(x.at[i]) * along_x);
    }
    if (args.residual != nullptr) {
      const auto residual = LoadPack<kPack>(args.residual + at);
      HF_UNROLL
      for (int i = 0; i < kPack; ++i) values[i] += ToFloat(residual.at[i]);
    }
    P dx;
    HF_UNROLL
    for (int i = 0; i < kPack; ++i) dx.at[i] = FromFloat<T>(values[i]);
    StorePack(dx, args.dx + at);
  }
};

// The rows that one slice of the weight's gradient adds.
inline constexpr int64_t kNormSliceRows = 128;
inline constexpr int64_t kNormSlicesMax = 512;

inline int64_t NormRowsPerSlice(int64_t rows) {
  return std::max(kNormSliceRows, CeilDivide(rows, kNormSlicesMax));
}
inline int64_t NormSlices(int64_t rows) {
  return CeilDivide(rows, NormRowsPerSlice(rows));
}

// partial [slices, hidden] = the sums of dy x rstd over each slice's rows.
// Threads stand in kDown rows of kAcross packs; each adds every kDown-th row of
// the slice, then the kDown sums of a column are added in order.
template <typename T, int kPack>
struct NormSliceKernel {
  static constexpr int kThreads = 256;
  static constexpr int kAcross = kPack == 1 ? 32 : 8;
  static constexpr int kDown = kThreads / kAcross;
  static constexpr int kColumns = kAcross * kPack;
  static constexpr int kSharedBytes = kDown * kColumns * sizeof(float);
  RmsNormBackwardArgs<T> args;
  float* partial;
  int64_t slices;
  int64_t rows_per_slice;

  int64_t blocks() const { return CeilDivide(args.hidden, kColumns) * slices; }

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    float* sums = block.template shared<float>();  // [kDown, kColumns]
    const int64_t across = CeilDivide(args.hidden, kColumns);
    for (int64_t b = block.index(); b < across * slices; b += block.count()) {
      const int64_t slice = b / across;
      const int64_t column = (b - slice * across) * kColumns;
      const int64_t begin = slice * rows_per_slice;
      const int64_t end = begin + rows_per_slice < args.rows
                              ? begin + rows_per_slice
                              : args.rows;
      block.ForEach([&](int thread) {
        const int lane = thread % kAcross;
        const int64_t c = column + lane * kPack;
        float own[kPack] = {};
        if (c < args.hidden) {
          HF_UNROLL_BY(4)
          for (int64_t row = begin + thread / kAcross; row < end;
               row += kDown) {
            const auto x = LoadPack<kPack>(args.x + row * args.hidden + c);
            const auto dy = LoadPack<kPack>(args.dy + row * args.hidden + c);
            const float rstd = args.rstd[row];
            HF_UNROLL
            for (int i = 0; i < kPack; ++i) {
              own[i] += ToFloat(dy.at[i]) * (ToFloat(x.at[i]) * rstd);
            }
          }
        }
        HF_UNROLL
        for (int i = 0; i < kPack; ++i) {
          sums[thread / kAcross * kColumns + lane * kPack + i] = own[i];
        }
      });
      block.ForEach([&](int thread) {
        if (thread >= kColumns || column + thread >= args.hidden) return;
        float sum = 0.0f;
        HF_UNROLL
        for (int i = 0; i < kDown; ++i) sum += sums[i * kColumns + thread];
        partial[slice * args.hidden + column + thread] = sum;
      });
    }
  }
};

// dweight += the slices, added in order from zero.
struct NormJoinKernel {
  static constexpr int kThreads = 64;  // Columns are few: many small blocks.
  static constexpr int kSharedBytes = 0;
  const float* partial;
  int64_t slices;
  int64_t hidden;
  float* dweight;

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    block.ForEachOnly([&](int thread) {
      for (int64_t c = block.index() * kThreads + thread; c < hidden;
           c += block.count() * kThreads) {
        float sum = 0.0f;
        HF_UNROLL_BY(8)
        for (int64_t s = 0; s < slices; ++s) sum += partial[s * hidden + c];
        dweight[c] += sum;
      }
    });
  }
};

// Calls run with Kernel<T, kPack, kGroup> of the args.
template <template <typename, int, int> typename Kernel, typename T,
          typename Args, typename Runner>
void RunNormRows(const Args& args, bool aligned, const Runner& run) {
  if (args.rows == 0) return;
  const auto go = [&](const auto& kernel) { run(kernel, kernel.blocks()); };
  if (!aligned) {
    go(Kernel<T, 1, 256>{args});
  } else if (args.hidden <= RowPart<8, 32>::kKeptColumns) {
    go(Kernel<T, 8, 32>{args});
  } else if (args.hidden <= RowPart<8, 64>::kKeptColumns) {
    go(Kernel<T, 8, 64>{args});
  } else {
    go(Kernel<T, 8, 256>{args});
  }
}

template <typename T, typename Runner>
void RunRmsNormForward(const RmsNormArgs<T>& args, const Runner& run) {
  const bool aligned = args.hidden % 8 == 0 && PackAligned<8>(args.x) &&
                       PackAligned<8>(args.weight) && PackAligned<8>(args.y);
  RunNormRows<RmsNormForwardKernel, T>(args, aligned, run);
}

// Floats of scratch that the backward needs; 0 without dweight.
template <typename T>
int64_t RmsNormBackwardScratch(const RmsNormBackwardArgs<T>& args) {
  return args.dweight == nullptr ? 0 : NormSlices(args.rows) * args.hidden;
}

template <typename T, typename Runner>
void RunRmsNormBackward(const RmsNormBackwardArgs<T>& args, float* scratch,
                        const Runner& run) {
  if (args.rows == 0) return;
  const bool aligned = args.hidden % 8 == 0 && PackAligned<8>(args.x) &&
                       PackAligned<8>(args.weight) && PackAligned<8>(args.dy) &&
                       PackAligned<8>(args.residual) && PackAligned<8>(args.dx);
  // The weight first: dx may overwrite dy.
  if (args.dweight != nullptr) {
    const int64_t slices = NormSlices(args.rows);
    const auto sum_slices = [&](const auto& kernel) {
      run(kernel, kernel.blocks());
    };
    if (aligned) {
      sum_slices(NormSliceKernel<T, 8>{args, scratch, slices,
                                       NormRowsPerSlice(args.rows)});
    } else {
      sum_slices(NormSliceKernel<T, 1>{args, scratch, slices,
                                       NormRowsPerSlice(args.rows)});
    }
    run(NormJoinKernel{scratch, slices, args.hidden, args.dweight},
        CeilDivide(args.hidden, NormJoinKernel::kThreads));
  }
  RunNormRows<RmsNormBackwardKernel, T>(args, aligned, run);
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_RMSNORM_H_
