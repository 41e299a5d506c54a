// tests/bench/kernels_bench.cc: the speed of a linear layer's three products,
// as one JSON line.
//
// The figure to compare with is the library's own speed on one warm tile per
// thread, measured between the repetitions of each product: `share` is what
// cutting into tiles, K blocks and rounding leave of it. Best of the
// repetitions, wall time.

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/matmul.h"
#include "kernels/matmul_tile.h"

namespace holdfast::kernels {
namespace {

struct Options {
  int64_t rows = 1024;
  int64_t in = 768;
  int64_t out = 3072;
  int repetitions = 30;
  std::vector<int> threads = {1, 2};
};

template <typename T>
std::vector<T> Ramp(int64_t count) {
  std::vector<T> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[i] = FromFloat<T>(static_cast<float>(i * 7919 % 2003) / 1001 - 1);
  }
  return values;
}

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

// 10^9 multiplications and additions a second.
struct Rates {
  double forward = 0, dinput = 0, dweight = 0, tile = 0;
};

template <typename T>
Rates Measure(const Options& o, int threads) {
  omp_set_num_threads(threads);
  const auto x = Ramp<T>(o.rows * o.in);
  const auto w = Ramp<T>(o.out * o.in);
  const auto dy = Ramp<T>(o.rows * o.out);
  std::vector<T> y(dy.size()), dx(x.size());
  std::vector<float> dw(w.size());
  const MatmulArgs<T, T> forward = {.a = x.data(),
                                    .lda = o.in,
                                    .b = w.data(),
                                    .ldb = o.in,
                                    .transpose_b = true,
                                    .c = y.data(),
                                    .ldc = o.out,
                                    .m = o.rows,
                                    .n = o.out,
                                    .k = o.in};
  const MatmulArgs<T, T> dinput = {.a = dy.data(),
                                   .lda = o.out,
                                   .b = w.data(),
                                   .ldb = o.in,
                                   .c = dx.data(),
                                   .ldc = o.in,
                                   .m = o.rows,
                                   .n = o.in,
                                   .k = o.out};
  const MatmulArgs<T, float> dweight = {.a = dy.data(),
                                        .lda = o.out,
                                        .transpose_a = true,
                                        .b = x.data(),
                                        .ldb = o.in,
                                        .c = dw.data(),
                                        .ldc = o.in,
                                        .m = o.out,
                                        .n = o.in,
                                        .k = o.rows,
                                        .accumulate = true};
  // One tile per thread, its operands in the cache: 256 x 384 x 1,024.
  constexpr int64_t kM = 256, kN = 384, kK = 1024;
  const auto a = Ramp<T>(kM * kK);
  const auto b = Ramp<T>(kN * kK);
  std::vector<std::vector<float>> c(threads, std::vector<float>(kM * kN));
  constexpr int kTilesEach = 8;
  const auto tiles = [&] {
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < kTilesEach; ++i) {
      TileProduct(MatmulArgs<T, float>{.a = a.data(),
                                       .lda = kK,
                                       .b = b.data(),
                                       .ldb = kK,
                                       .transpose_b = true,
                                       .c = c[omp_get_thread_num()].data(),
                                       .ldc = kN,
                                       .m = kM,
                                       .n = kN,
                                       .k = kK});
    }
  };
  const double product = 2e-9 * o.rows * o.in * o.out;
  const double tile = 2e-9 * kM * kN * kK * kTilesEach * threads;
  Rates best;
  for (int i = 0; i < o.repetitions; ++i) {
    const auto keep = [](double* rate, double work, double seconds) {
      *rate = std::max(*rate, work / seconds);
    };
    keep(&best.forward, product,
         Seconds([&] { Matmul(CpuStream(), forward); }));
    keep(&best.tile, tile, Seconds(tiles));
    keep(&best.dinput, product, Seconds([&] { Matmul(CpuStream(), dinput); }));
    keep(&best.tile, tile, Seconds(tiles));
    keep(&best.dweight, product,
         Seconds([&] { Matmul(CpuStream(), dweight); }));
  }
  return best;
}

template <typename T>
void AppendRates(const Options& options, const char* type, std::string* json) {
  for (int threads : options.threads) {
    const Rates r = Measure<T>(options, threads);
    // The three products have equal work: their mean speed is harmonic.
    const double mean =
        3.0 / (1.0 / r.forward + 1.0 / r.dinput + 1.0 / r.dweight);
    absl::StrAppendFormat(
        json,
        "%s{\"type\":\"%s\",\"threads\":%d,\"forward_gflops\":%.1f,"
        "\"dinput_gflops\":%.1f,\"dweight_gflops\":%.1f,"
        "\"library_tile_gflops\":%.1f,\"share\":%.3f}",
        json->empty() ? "" : ",", type, threads, r.forward, r.dinput, r.dweight,
        r.tile, mean / r.tile);
  }
}

}  // namespace
}  // namespace holdfast::kernels

int main(int argc, char** argv) {
  namespace kernels = holdfast::kernels;
  kernels::Options options;
  CLI::App app("The speed of a linear layer's three products.");
  app.add_option("--rows", options.rows, "rows of the input")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--in", options.in, "columns of the input")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--out", options.out, "columns of the output")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--repetitions", options.repetitions, "the best counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", options.threads, "thread counts to try")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);

  std::string rates;
  kernels::AppendRates<kernels::Bf16>(options, "bf16", &rates);
  kernels::AppendRates<float>(options, "f32", &rates);
  std::printf(
      "{\"bench\":\"kernels\",\"library\":\"%s\",\"rows\":%lld,\"in\":%lld,"
      "\"out\":%lld,\"products\":[%s]}\n",
      kernels::MatmulDescription().c_str(),
      static_cast<long long>(options.rows), static_cast<long long>(options.in),
      static_cast<long long>(options.out), rates.c_str());
  return 0;
}
