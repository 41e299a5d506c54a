// tests/support/sim_layout.cc: see sim_layout.h.

#include "tests/support/sim_layout.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/layout/tensor.h"

namespace holdfast::tests {

using ckpt::Box;
using ckpt::DType;
using ckpt::Fragment;
using ckpt::Holding;
using ckpt::ItemIndex;
using ckpt::ItemSpec;
using ckpt::Rank;

namespace {

constexpr uint64_t kPage = 4096;
// In the order of items(): sorted by kind.
constexpr const char* kKinds[] = {"exp_avg", "exp_avg_sq", "master", "weight"};
constexpr int kKindCount = 4;

uint32_t ValueOf(ItemIndex item, int64_t index, int64_t step) {
  uint64_t x = static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u +
               static_cast<uint64_t>(step) * 0xd1342543de82ef95u + item;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  // Of eight values a byte, so that a codec has something to do.
  return static_cast<uint32_t>(x >> 32) & 0x07070707;
}

// Calls visit(byte offset in the fragment, value) for each element.
template <typename Visit>
void ForEachElement(const Fragment& fragment, int64_t step, Visit&& visit) {
  // The parts are whole tensors, so an element's place is its index.
  for (int64_t i = 0; i < fragment.count; ++i) {
    visit(i, ValueOf(fragment.item, fragment.first + i, step));
  }
}

}  // namespace

SimLayout::SimLayout(int world) : world_(world) {
  for (const char* name : {"a", "b"}) {
    for (const char* kind : kKinds) {
      ItemSpec item;
      item.name = name;
      item.kind = kind;
      item.dtype =
          std::string_view(kind) == "weight" ? DType::kBf16 : DType::kF32;
      item.shape = std::string_view(name) == "a" ? std::vector<int64_t>{40, 96}
                                                 : std::vector<int64_t>{50};
      items_.push_back(std::move(item));
    }
  }
}

Holding SimLayout::StoredBy(Rank rank) const {
  Holding holding;
  holding.region_bytes.assign(kKindCount, 0);
  for (ItemIndex item = 0; item < items_.size(); ++item) {
    const ItemSpec& spec = items_[item];
    const uint32_t region = item % kKindCount;
    Fragment fragment;
    fragment.item = item;
    fragment.part = ckpt::WholeBox(spec.shape);
    const int64_t elements = fragment.part.elements();
    fragment.first = elements * ckpt::Index(rank) / world_;
    fragment.count =
        elements * (ckpt::Index(rank) + 1) / world_ - fragment.first;
    fragment.region = region;
    fragment.offset = holding.region_bytes[region];
    if (fragment.count > 0) holding.fragments.push_back(fragment);
    holding.region_bytes[region] +=
        ckpt::RoundUp(fragment.count * ckpt::SizeOf(spec.dtype), kPage) + kPage;
  }
  return holding;
}

Holding SimLayout::WantedBy(Rank rank) const { return StoredBy(rank); }

std::string SimLayout::description() const {
  return absl::StrFormat("sim%d", world_);
}

void FillFragment(const ckpt::JobLayout& layout, const Fragment& fragment,
                  int64_t step, std::span<const std::span<std::byte>> regions) {
  std::byte* const out = regions[fragment.region].data() + fragment.offset;
  const int size = ckpt::SizeOf(layout.items()[fragment.item].dtype);
  ForEachElement(fragment, step, [&](int64_t i, uint32_t value) {
    std::memcpy(out + i * size, &value, size);
  });
}

std::string CompareFragment(const ckpt::JobLayout& layout,
                            const Fragment& fragment, int64_t step,
                            std::span<const std::span<std::byte>> regions) {
  const std::byte* const in = regions[fragment.region].data() + fragment.offset;
  const ItemSpec& item = layout.items()[fragment.item];
  const int size = ckpt::SizeOf(item.dtype);
  std::string difference;
  ForEachElement(fragment, step, [&](int64_t i, uint32_t value) {
    if (!difference.empty()) return;
    if (std::memcmp(in + i * size, &value, size) == 0) return;
    difference =
        absl::StrFormat("%s/%s, element %d, is not that of step %d", item.name,
                        item.kind, fragment.first + i, step);
  });
  return difference;
}

}  // namespace holdfast::tests
