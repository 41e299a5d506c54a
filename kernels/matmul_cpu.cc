// kernels/matmul_cpu.cc: products on oneDNN. The only file that includes
// dnnl.hpp.
//
// The library is used as a serial routine: it plans and runs each tile with one
// thread, and the tiles run in parallel here. Left to itself it divides K
// between threads for some shapes, and then the bits follow the thread count.

#include <omp.h>

#include <algorithm>
#include <dnnl.hpp>
#include <memory>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/kernel_set.h"
#include "kernels/matmul.h"
#include "kernels/matmul_tile.h"
#include "kernels/parallel.h"
#include "kernels/vector.h"

namespace holdfast::kernels {
namespace {

// Rows and columns of a tile. On AVX-512, 512 x 384 is 2 % faster and larger
// ones no better; this size gives a [1024, 768] product eight tiles.
constexpr int64_t kTileRows = 256;
constexpr int64_t kTileColumns = 384;

// All that the library's plan depends on.
struct Shape {
  bool bf16 = false;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;

  friend bool operator==(const Shape&, const Shape&) = default;
};

struct ShapeHash {
  size_t operator()(const Shape& s) const {
    uint64_t hash = (s.bf16 ? 1 : 0) | (s.transpose_a ? 2 : 0) |
                    (s.transpose_b ? 4 : 0) | (s.accumulate ? 8 : 0);
    for (int64_t value : {s.m, s.n, s.k, s.lda, s.ldb, s.ldc}) {
      hash = (hash ^ static_cast<uint64_t>(value)) * 0x9e3779b97f4a7c15u;
      hash ^= hash >> 29;
    }
    return hash;
  }
};

// A plan and the handles through which one thread passes it pointers.
struct Plan {
  dnnl::matmul primitive;
  dnnl::memory a, b, c, scratch;
  size_t scratch_bytes = 0;
};

const dnnl::engine& CpuEngine() {
  static const dnnl::engine* engine =
      new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

// While one exists the library sees a single thread, both when it plans and
// when it runs. The setting belongs to the calling thread's task only.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_;
};

Plan MakePlan(const Shape& s) {
  using dnnl::memory;
  const auto type = s.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc a(
      {s.m, s.k}, type,
      s.transpose_a ? memory::dims{1, s.lda} : memory::dims{s.lda, 1});
  const memory::desc b(
      {s.k, s.n}, type,
      s.transpose_b ? memory::dims{1, s.ldb} : memory::dims{s.ldb, 1});
  const memory::desc c({s.m, s.n}, memory::data_type::f32,
                       memory::dims{s.ldc, 1});
  dnnl::primitive_attr attributes;
  // The library's own scratchpad is not safe between threads.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops add_to_c;
    add_to_c.append_sum(1.0f);
    attributes.set_post_ops(add_to_c);
  }
  const dnnl::engine& engine = CpuEngine();
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c),
                                                 attributes, engine);
  Plan plan;
  plan.primitive = dnnl::matmul(description);
  plan.a = memory(a, engine, nullptr);
  plan.b = memory(b, engine, nullptr);
  plan.c = memory(c, engine, nullptr);
  const memory::desc scratch = description.scratchpad_desc();
  plan.scratch = memory(scratch, engine, nullptr);
  plan.scratch_bytes = scratch.get_size();
  return plan;
}

struct ThreadState {
  dnnl::stream stream{CpuEngine()};
  std::unordered_map<Shape, Plan, ShapeHash> plans;
};

Plan& PlanFor(ThreadState& state, const Shape& shape) {
  const auto found = state.plans.find(shape);
  if (found != state.plans.end()) return found->second;
  try {
    return state.plans.emplace(shape, MakePlan(shape)).first->second;
  } catch (const dnnl::error& error) {
    CheckFailed(__FILE__, __LINE__, "oneDNN plans the product",
                absl::StrCat("[", shape.m, ",", shape.k, "] x [", shape.k, ",",
                             shape.n, "]: ", error.what()));
  }
}

// One block of K, in the library.
template <typename T>
void BlockProduct(const MatmulArgs<T, float>& args) {
  thread_local ThreadState state;
  const Shape shape = {
      .bf16 = std::is_same_v<T, Bf16>,
      .transpose_a = args.transpose_a,
      .transpose_b = args.transpose_b,
      .accumulate = args.accumulate,
      .m = args.m,
      .n = args.n,
      .k = args.k,
      .lda = args.lda,
      .ldb = args.ldb,
      .ldc = args.ldc,
  };
  Plan& plan = PlanFor(state, shape);
  // The library's handles are not const; it only reads a and b.
  dnnl_memory_set_data_handle(plan.a.get(), const_cast<T*>(args.a));
  dnnl_memory_set_data_handle(plan.b.get(), const_cast<T*>(args.b));
  dnnl_memory_set_data_handle(plan.c.get(), args.c);
  if (plan.scratch_bytes > 0) {
    dnnl_memory_set_data_handle(
        plan.scratch.get(),
        ThreadScratch(ScratchSlot::kLibrary,
                      plan.scratch_bytes / sizeof(float) + 1));
  }
  // The C entry point: the C++ one allocates a vector for each call.
  const dnnl_exec_arg_t arguments[] = {
      {DNNL_ARG_SRC, plan.a.get()},
      {DNNL_ARG_WEIGHTS, plan.b.get()},
      {DNNL_ARG_DST, plan.c.get()},
      {DNNL_ARG_SCRATCHPAD, plan.scratch.get()},
  };
  const dnnl_status_t status =
      dnnl_primitive_execute(plan.primitive.get(), state.stream.get(),
                             plan.scratch_bytes > 0 ? 4 : 3, arguments);
  KERNEL_CHECK(status == dnnl_success, "oneDNN runs [%d,%d] x [%d,%d]: %d",
               args.m, args.k, args.k, args.n, static_cast<int>(status));
}

HOLDFAST_VECTOR_CLONES void WidenRows(const Bf16* from, int64_t stride,
                                      int64_t rows, int64_t columns,
                                      float* to) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) {
      to[r * columns + c] = ToFloat(from[r * stride + c]);
    }
  }
}

// The stored block as dense FP32; returns its leading dimension.
int64_t Widen(const Bf16* from, int64_t stride, bool transposed, int64_t rows,
              int64_t columns, float* to) {
  if (transposed) std::swap(rows, columns);
  WidenRows(from, stride, rows, columns, to);
  return columns;
}

void ConvertedBlockProduct(const MatmulArgs<Bf16, float>& args) {
  float* a = ThreadScratch(ScratchSlot::kWidenedA,
                           static_cast<size_t>(args.m * args.k));
  float* b = ThreadScratch(ScratchSlot::kWidenedB,
                           static_cast<size_t>(args.k * args.n));
  const int64_t lda =
      Widen(args.a, args.lda, args.transpose_a, args.m, args.k, a);
  const int64_t ldb =
      Widen(args.b, args.ldb, args.transpose_b, args.k, args.n, b);
  BlockProduct(MatmulArgs<float, float>{
      .a = a,
      .lda = lda,
      .transpose_a = args.transpose_a,
      .b = b,
      .ldb = ldb,
      .transpose_b = args.transpose_b,
      .c = args.c,
      .ldc = args.ldc,
      .m = args.m,
      .n = args.n,
      .k = args.k,
      .accumulate = args.accumulate,
  });
}

template <typename T>
HOLDFAST_VECTOR_CLONES void StoreTile(const float* tile, int64_t rows,
                                      int64_t columns, T* c, int64_t ldc) {
  for (int64_t r = 0; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) {
      c[r * ldc + i] = FromFloat<T>(tile[r * columns + i]);
    }
  }
}

template <typename T, typename Out>
void RunTile(const MatmulArgs<T, Out>& args, Bf16Path path, int64_t row,
             int64_t column) {
  const int64_t rows = std::min(kTileRows, args.m - row);
  const int64_t columns = std::min(kTileColumns, args.n - column);
  MatmulArgs<T, float> tile = {
      .a = args.a + row * (args.transpose_a ? 1 : args.lda),
      .lda = args.lda,
      .transpose_a = args.transpose_a,
      .b = args.b + column * (args.transpose_b ? args.ldb : 1),
      .ldb = args.ldb,
      .transpose_b = args.transpose_b,
      .m = rows,
      .n = columns,
      .k = args.k,
      .accumulate = args.accumulate,
  };
  if constexpr (std::is_same_v<Out, float>) {
    tile.c = args.c + row * args.ldc + column;
    tile.ldc = args.ldc;
    TileProduct(tile, path);
  } else {
    tile.c = ThreadScratch(ScratchSlot::kTile, kTileRows * kTileColumns);
    tile.ldc = columns;
    TileProduct(tile, path);
    StoreTile(tile.c, rows, columns, args.c + row * args.ldc + column,
              args.ldc);
  }
}

template <typename T, typename Out>
void CheckArgs(const MatmulArgs<T, Out>& args) {
  KERNEL_CHECK(args.m >= 0 && args.n >= 0 && args.k >= 0, "m %d, n %d, k %d",
               args.m, args.n, args.k);
  KERNEL_CHECK(args.lda >= (args.transpose_a ? args.m : args.k) &&
                   args.ldb >= (args.transpose_b ? args.k : args.n) &&
                   args.ldc >= args.n,
               "m %d, n %d, k %d with lda %d, ldb %d, ldc %d", args.m, args.n,
               args.k, args.lda, args.ldb, args.ldc);
  KERNEL_CHECK((!args.accumulate || std::is_same_v<Out, float>),
               "a sum of several products is kept in float");
}

const char* IsaName(dnnl::cpu_isa isa) {
  switch (isa) {
    case dnnl::cpu_isa::sse41:
      return "sse41";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    default:
      return "other";
  }
}

}  // namespace

Bf16Path ProcessorBf16Path() {
  // The library's names for instruction sets are bit masks of features.
  static const Bf16Path path = [] {
    const auto have = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto want = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (have & want) == want ? Bf16Path::kNative : Bf16Path::kConverted;
  }();
  return path;
}

template <typename T>
void TileProduct(const MatmulArgs<T, float>& args, Bf16Path path) {
  if (args.m == 0 || args.n == 0) return;
  if (args.k == 0) {
    for (int64_t r = 0; r < args.m && !args.accumulate; ++r) {
      std::fill_n(args.c + r * args.ldc, args.n, 0.0f);
    }
    return;
  }
  const OneThread one_thread;
  MatmulArgs<T, float> block = args;
  for (int64_t k = 0; k < args.k; k += kMatmulKBlock) {
    block.a = args.a + k * (args.transpose_a ? args.lda : 1);
    block.b = args.b + k * (args.transpose_b ? 1 : args.ldb);
    block.k = std::min(kMatmulKBlock, args.k - k);
    block.accumulate = args.accumulate || k > 0;
    if constexpr (std::is_same_v<T, Bf16>) {
      if (path == Bf16Path::kConverted) {
        ConvertedBlockProduct(block);
        continue;
      }
    }
    BlockProduct(block);
  }
}

template <typename T, typename Out>
void MatmulOnPath(Stream& stream, const MatmulArgs<T, Out>& args,
                  Bf16Path path) {
  CheckArgs(args);
  stream.Launch([args, path] {
    const int64_t tile_rows = (args.m + kTileRows - 1) / kTileRows;
    const int64_t tile_columns = (args.n + kTileColumns - 1) / kTileColumns;
    // Down the columns, so that neighbours in time share a tile of B.
    ParallelFor(tile_rows * tile_columns, [&](int64_t i) {
      RunTile(args, path, i % tile_rows * kTileRows,
              i / tile_rows * kTileColumns);
    });
  });
}

template <typename T, typename Out>
void Matmul(Stream& stream, const MatmulArgs<T, Out>& args) {
  if (auto* set = KernelSetOf<T>(stream)) {
    CheckArgs(args);
    if constexpr (std::is_same_v<T, Out>) {
      return set->Matmul(stream, args);
    } else {
      return stream.kernel_set()->Matmul(stream, args);
    }
  }
  MatmulOnPath(stream, args, ProcessorBf16Path());
}

std::string MatmulDescription() {
  const dnnl_version_t* version = dnnl_version();
  return absl::StrCat(
      "onednn ", version->major, ".", version->minor, ".", version->patch, " ",
      IsaName(dnnl::get_effective_cpu_isa()), ", bf16 ",
      ProcessorBf16Path() == Bf16Path::kNative ? "native" : "widened to f32",
      ", k block ", kMatmulKBlock, ", tile ", kTileRows, "x", kTileColumns);
}

template void TileProduct(const MatmulArgs<float, float>&, Bf16Path);
template void TileProduct(const MatmulArgs<Bf16, float>&, Bf16Path);
template void MatmulOnPath(Stream&, const MatmulArgs<float, float>&, Bf16Path);
template void MatmulOnPath(Stream&, const MatmulArgs<Bf16, float>&, Bf16Path);
template void MatmulOnPath(Stream&, const MatmulArgs<Bf16, Bf16>&, Bf16Path);
template void Matmul(Stream&, const MatmulArgs<float, float>&);
template void Matmul(Stream&, const MatmulArgs<Bf16, float>&);
template void Matmul(Stream&, const MatmulArgs<Bf16, Bf16>&);

}  // namespace holdfast::kernels
