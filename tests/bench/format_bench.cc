// tests/bench/format_bench.cc: do checksums and digests keep up with memory?
//
// Passes over --mib MiB of memory, on one core, in turn by a plain sum of
// 64-bit words (what reading alone costs), by Crc32c, and by DigestRun over
// bf16 and f32 elements, --rounds times. One JSON line: the median GB/s of
// each, and the median over the rounds of its share of the plain sum beside it,
// so that a machine whose speed drifts does not decide.
//
//   bench_format [--mib 256] [--rounds 9]

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/philox.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/digest.h"

namespace holdfast::ckpt {
namespace {

constexpr size_t kUnit = size_t{1} << 20;  // as a save reads it

// Results go here, so that no pass can be left out.
volatile uint64_t g_sink;

double Now() { return absl::ToDoubleSeconds(RealClock().Monotonic()); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

uint64_t PlainSum(std::span<const std::byte> bytes) {
  uint64_t sums[8] = {};
  for (size_t at = 0; at < bytes.size(); at += 64) {
    for (int i = 0; i < 8; ++i) {
      uint64_t word;
      std::memcpy(&word, bytes.data() + at + 8 * i, 8);
      sums[i] += word;
    }
  }
  uint64_t sum = 0;
  for (const uint64_t part : sums) sum += part;
  return sum;
}

// GB/s of `pass` over `memory`, a unit at a time.
template <typename Pass>
double Rate(std::span<const std::byte> memory, Pass pass) {
  const double begin = Now();
  uint64_t result = 0;
  for (size_t at = 0; at < memory.size(); at += kUnit) {
    result += pass(at, memory.subspan(at, kUnit));
  }
  const double seconds = Now() - begin;
  g_sink = result;
  return static_cast<double>(memory.size()) / seconds * 1e-9;
}

int Main(int argc, char** argv) {
  CLI::App app{"checksum and digest against the speed of memory"};
  size_t mib = 256;
  int rounds = 9;
  app.add_option("--mib", mib)->check(CLI::Range(1, 65536));
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);

  AlignedBuffer memory(mib << 20);
  for (size_t at = 0; at < memory.size(); at += 8) {
    const uint64_t word = Philox64(1, 0, at);
    std::memcpy(memory.data() + at, &word, 8);
  }
  const auto digest = [&](DType dtype) {
    const int64_t width = 16384;
    const int size = SizeOf(dtype);
    const ItemSpec item{"model.layers.3.mlp.up_proj.weight",
                        "weight",
                        dtype,
                        {int64_t(memory.size()) / size / width, width}};
    return Rate(memory.span(), [&](size_t at, std::span<const std::byte> unit) {
      return DigestRun(item, WholeBox(item.shape), at / size,
                       unit.size() / size, unit)
          .low;
    });
  };
  struct Series {
    std::string name;
    std::vector<double> rates, shares;
  };
  std::vector<Series> all = {{"plain_sum", {}, {}},
                             {"crc32c", {}, {}},
                             {"digest_bf16", {}, {}},
                             {"digest_f32", {}, {}}};
  for (int round = 0; round < rounds; ++round) {
    const double rates[] = {
        Rate(memory.span(), [](size_t, auto unit) { return PlainSum(unit); }),
        Rate(memory.span(), [](size_t, auto unit) { return Crc32c(unit); }),
        digest(DType::kBf16), digest(DType::kF32)};
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].rates.push_back(rates[i]);
      all[i].shares.push_back(rates[i] / rates[0]);
    }
  }
  std::string line = absl::StrFormat(
      "{\"bench\":\"format\",\"mib\":%d,\"rounds\":%d", mib, rounds);
  for (const Series& series : all) {
    absl::StrAppendFormat(&line, ",\"%s_gb_per_s\":%.1f", series.name,
                          Median(series.rates));
    if (&series != &all[0]) {
      absl::StrAppendFormat(&line, ",\"%s_share\":%.2f", series.name,
                            Median(series.shares));
    }
  }
  std::printf("%s}\n", line.c_str());
  return 0;
}

}  // namespace
}  // namespace holdfast::ckpt

int main(int argc, char** argv) { return holdfast::ckpt::Main(argc, argv); }
