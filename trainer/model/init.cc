// trainer/model/init.cc: Philox blocks to normals, four at a time.

#include "trainer/model/init.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ckpt/base/check.h"
#include "ckpt/base/philox.h"

namespace holdfast::trainer {
namespace {

struct FourNormals {
  float value[4];
};

// 32 random bits to (0, 1), never an end point.
double Uniform(uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

FourNormals NormalsAt(uint64_t seed, uint64_t stream, uint64_t block,
                      double deviation) {
  const ckpt::PhiloxCounter bits = ckpt::Philox(
      {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
       static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  FourNormals normals;
  for (int pair = 0; pair < 2; ++pair) {
    const double radius =
        deviation * std::sqrt(-2.0 * std::log(Uniform(bits[2 * pair])));
    const double angle = 2.0 * std::numbers::pi * Uniform(bits[2 * pair + 1]);
    normals.value[2 * pair] = static_cast<float>(radius * std::cos(angle));
    normals.value[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return normals;
}

// Elements [first, first + count) of the tensor's own row-major order.
void FillRun(uint64_t seed, uint64_t stream, double deviation, int64_t first,
             int64_t count, float* out) {
  for (int64_t i = 0; i < count;) {
    const int64_t element = first + i;
    const FourNormals normals =
        NormalsAt(seed, stream, static_cast<uint64_t>(element / 4), deviation);
    for (int64_t lane = element % 4; lane < 4 && i < count; ++lane, ++i) {
      out[i] = normals.value[lane];
    }
  }
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() &&
         text.substr(text.size() - end.size()) == end;
}

double Deviation(const ModelConfig& model, const ckpt::TensorSpec& spec) {
  const bool joins_residual = EndsWith(spec.name, ".o_proj.weight") ||
                              EndsWith(spec.name, ".down_proj.weight");
  return joins_residual ? model.init_std /
                              std::sqrt(2.0 * static_cast<double>(model.layers))
                        : model.init_std;
}

}  // namespace

uint64_t HashName(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  }
  return hash;
}

void InitialValues(const ModelConfig& model, uint64_t seed,
                   const ckpt::TensorSpec& spec, const ckpt::Box& box,
                   float* out) {
  if (spec.shape.size() == 1) {
    std::fill(out, out + box.elements(), 1.0f);
    return;
  }
  HF_CHECK(spec.shape.size() == 2 && box.dimensions == 2,
           "tensor '%s' has %d dimensions", spec.name, spec.shape.size());
  const uint64_t stream = HashName(spec.name);
  const double deviation = Deviation(model, spec);
  const int64_t columns = spec.shape[1];
  // Rows of the box are runs of the tensor; long rows are cut for the threads.
  constexpr int64_t kPiece = 16384;
  const int64_t pieces = (box.count[1] + kPiece - 1) / kPiece;
// ThreadSanitizer cannot see the barriers of libgomp.
#ifndef __SANITIZE_THREAD__
#pragma omp parallel for schedule(static) if (box.elements() > kPiece)
#endif
  for (int64_t task = 0; task < box.count[0] * pieces; ++task) {
    const int64_t row = task / pieces;
    const int64_t begin = task % pieces * kPiece;
    const int64_t count = std::min(kPiece, box.count[1] - begin);
    FillRun(seed, stream, deviation,
            (box.first[0] + row) * columns + box.first[1] + begin, count,
            out + row * box.count[1] + begin);
  }
}

}  // namespace holdfast::trainer
