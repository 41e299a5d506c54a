// ckpt/convert/plain_layouts.cc: see plain_layouts.h.

#include "ckpt/convert/plain_layouts.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/format/shard.h"

namespace holdfast::ckpt {
namespace {

class RowLayout final : public JobLayout {
 public:
  RowLayout(std::vector<ItemSpec> items, int parts)
      : items_(std::move(items)), parts_(parts) {
    for (const ItemSpec& item : items_) {
      begins_.push_back(blocks_);
      blocks_ += BlocksOf(item);
    }
  }

  int world() const override { return parts_; }
  const std::vector<ItemSpec>& items() const override { return items_; }
  Holding WantedBy(Rank rank) const override { return StoredBy(rank); }
  std::string description() const override {
    return absl::StrFormat("rows%d", parts_);
  }

  Holding StoredBy(Rank rank) const override {
    const uint64_t first = blocks_ * Index(rank) / parts_;
    const uint64_t end = blocks_ * (Index(rank) + 1) / parts_;
    Holding holding;
    holding.region_bytes = {(end - first) * kShardBlockBytes};
    for (size_t i = 0; i < items_.size(); ++i) {
      const ItemSpec& item = items_[i];
      const uint64_t from = std::max(first, begins_[i]);
      const uint64_t to = std::min(end, begins_[i] + BlocksOf(item));
      if (from >= to) continue;
      const int64_t block =
          static_cast<int64_t>(kShardBlockBytes) / SizeOf(item.dtype);
      const Box part = WholeBox(item.shape);
      const int64_t element = static_cast<int64_t>(from - begins_[i]) * block;
      const int64_t element_end = std::min(
          part.elements(), static_cast<int64_t>(to - begins_[i]) * block);
      holding.fragments.push_back(
          {.item = static_cast<ItemIndex>(i),
           .part = part,
           .first = element,
           .count = element_end - element,
           .region = 0,
           .offset = (from - first) * kShardBlockBytes});
    }
    return holding;
  }

 private:
  static uint64_t BlocksOf(const ItemSpec& item) {
    const uint64_t bytes =
        static_cast<uint64_t>(WholeBox(item.shape).elements()) *
        SizeOf(item.dtype);
    return RoundUp(bytes, kShardBlockBytes) / kShardBlockBytes;
  }

  const std::vector<ItemSpec> items_;
  const int parts_;
  std::vector<uint64_t> begins_;  // by item, in blocks
  uint64_t blocks_ = 0;
};

class SubsetLayout final : public JobLayout {
 public:
  SubsetLayout(std::unique_ptr<JobLayout> base, std::vector<ItemSpec> items,
               std::vector<std::optional<ItemIndex>> number)
      : base_(std::move(base)),
        items_(std::move(items)),
        number_(std::move(number)) {}

  int world() const override { return base_->world(); }
  const std::vector<ItemSpec>& items() const override { return items_; }
  Holding StoredBy(Rank rank) const override {
    return Only(base_->StoredBy(rank));
  }
  Holding WantedBy(Rank rank) const override {
    return Only(base_->WantedBy(rank));
  }
  std::string description() const override { return base_->description(); }

 private:
  Holding Only(Holding holding) const {
    std::vector<Fragment> kept;
    for (Fragment& fragment : holding.fragments) {
      if (!number_[fragment.item].has_value()) continue;
      fragment.item = *number_[fragment.item];
      kept.push_back(fragment);
    }
    holding.fragments = std::move(kept);
    return holding;
  }

  const std::unique_ptr<JobLayout> base_;
  const std::vector<ItemSpec> items_;
  const std::vector<std::optional<ItemIndex>> number_;  // by item of base_
};

}  // namespace

std::unique_ptr<JobLayout> MakeRowLayout(std::vector<ItemSpec> items,
                                         int parts) {
  HF_CHECK(parts >= 1, "a layout of %d parts", parts);
  return std::make_unique<RowLayout>(std::move(items), parts);
}

absl::StatusOr<std::unique_ptr<JobLayout>> MakeSubsetLayout(
    std::unique_ptr<JobLayout> base, std::vector<ItemSpec> items) {
  const auto key = [](const ItemSpec& item) {
    return std::tie(item.name, item.kind);
  };
  std::vector<std::optional<ItemIndex>> number(base->items().size());
  size_t at = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    while (at < base->items().size() &&
           key(base->items()[at]) < key(items[i])) {
      ++at;
    }
    if (at == base->items().size() || base->items()[at] != items[i]) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the layout %s has no item '%s' (%s) of this type and shape",
          base->description(), items[i].name, items[i].kind));
    }
    number[at] = static_cast<ItemIndex>(i);
  }
  return std::make_unique<SubsetLayout>(std::move(base), std::move(items),
                                        std::move(number));
}

}  // namespace holdfast::ckpt
