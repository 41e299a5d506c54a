// tests/bench/support/bench_state.cc: see bench_state.h.

#include "tests/bench/support/bench_state.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/format/checksum.h"
#include "ckpt/layout/train_layout.h"

namespace holdfast::bench {
namespace {

constexpr int64_t kHidden = 1024;
constexpr int64_t kBytesPerParameter = 14;

// Parameters of a layer whose feed-forward width is `ffn`.
int64_t LayerParameters(int64_t ffn) {
  return 4 * kHidden * kHidden + 3 * kHidden * ffn + 2 * kHidden;
}

}  // namespace

std::shared_ptr<const ckpt::JobLayout> BenchLayout(int64_t mib, int dp) {
  constexpr int64_t kFfn = 2816;
  const int64_t parameters = (mib << 20) / kBytesPerParameter;
  const int layers = static_cast<int>((parameters + LayerParameters(kFfn) - 1) /
                                      LayerParameters(kFfn));
  std::vector<ckpt::TensorSpec> tensors;
  for (int layer = 0; layer < layers; ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      ckpt::TensorSpec tensor;
      tensor.name = absl::StrFormat("model.layers.%d.%s.weight", layer, name);
      tensor.shape = std::move(shape);
      tensor.layer = layer;
      tensors.push_back(std::move(tensor));
    };
    add("input_layernorm", {kHidden});
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      add(absl::StrFormat("self_attn.%s", name).c_str(), {kHidden, kHidden});
    }
    add("post_attention_layernorm", {kHidden});
    add("mlp.gate_proj", {kFfn, kHidden});
    add("mlp.up_proj", {kFfn, kHidden});
    add("mlp.down_proj", {kHidden, kFfn});
  }
  ckpt::TrainLayoutOptions options;
  options.mesh.dp = dp;
  options.stages = {{{0, layers}}};
  auto layout = ckpt::TrainLayout::Create(tensors, options);
  HF_CHECK(layout.ok(), "%s", layout.status().ToString());
  return *std::move(layout);
}

BenchMemory::BenchMemory(const ckpt::JobLayout& layout, ckpt::Rank rank,
                         uint64_t seed) {
  const ckpt::Holding holding = layout.StoredBy(rank);
  for (const uint64_t bytes : holding.region_bytes) {
    buffers_.emplace_back(bytes);
    spans_.push_back(buffers_.back().span());
  }
  uint64_t x = seed * 2654435761u + 1;
  for (const ckpt::Fragment& fragment : holding.fragments) {
    const uint64_t bytes =
        fragment.count * ckpt::SizeOf(layout.items()[fragment.item].dtype);
    std::byte* const data = spans_[fragment.region].data() + fragment.offset;
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      std::memcpy(data + i, &x, 8);
    }
  }
}

ckpt::AlignedBuffer BenchMemory::Stored(const ckpt::JobLayout& layout,
                                        ckpt::Rank rank, size_t block) const {
  const ckpt::Holding holding = layout.StoredBy(rank);
  const auto bytes_of = [&](const ckpt::Fragment& fragment) {
    return static_cast<size_t>(fragment.count) *
           ckpt::SizeOf(layout.items()[fragment.item].dtype);
  };
  size_t total = 0;
  for (const auto& fragment : holding.fragments) total += bytes_of(fragment);
  ckpt::AlignedBuffer stored(total / block * block);
  size_t at = 0;
  for (const ckpt::Fragment& fragment : holding.fragments) {
    const size_t bytes = std::min(bytes_of(fragment), stored.size() - at);
    std::memcpy(stored.data() + at,
                spans_[fragment.region].data() + fragment.offset, bytes);
    at += bytes;
  }
  return stored;
}

uint64_t BenchMemory::bytes() const {
  uint64_t bytes = 0;
  for (const auto& span : spans_) bytes += span.size();
  return bytes;
}

uint32_t BenchMemory::Checksum() const {
  uint32_t sum = 0;
  for (const auto& span : spans_) {
    sum = sum * 2654435761u + ckpt::Crc32c(span);
  }
  return sum;
}

void BenchMemory::Clear() {
  for (const auto& span : spans_) std::memset(span.data(), 0, span.size());
}

}  // namespace holdfast::bench
