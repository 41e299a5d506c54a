// ckpt/c/declared_layout.cc: items merged, owners chosen, every element
// counted.

#include "ckpt/c/declared_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::ckpt {
namespace {

// As manifests bound them (ckpt/format/manifest_rules.cc).
constexpr size_t kNameBytesMax = 4096;
constexpr int64_t kItemElementsMax = int64_t{1} << 56;

std::string ItemText(const ItemSpec& item) {
  return absl::StrFormat("item '%s' (%s)", item.name, item.kind);
}

std::string TypeText(const ItemSpec& item) {
  return absl::StrFormat("%s[%s]", std::string(NameOf(item.dtype)),
                         absl::StrJoin(item.shape, ","));
}

// A fragment and who holds it.
struct Held {
  int rank = 0;
  const Fragment* fragment = nullptr;
};

std::string RunText(const Fragment& f) {
  if (f.first == 0 && f.count == f.part.elements()) return ToString(f.part);
  return absl::StrFormat("elements %d to %d of %s", f.first,
                         f.first + f.count - 1, ToString(f.part));
}

auto RunKey(const Fragment& f) {
  return std::tie(f.item, f.part.first, f.part.count, f.first, f.count);
}

// A box of an item that is stored, and the fragment that it is of.
struct StoredBox {
  Box box;
  Held held;
};

// What is left of `from` without `taken`, which meets it.
void AppendRest(const Box& from, const Box& taken, std::vector<Box>* rest) {
  Box left = from;
  for (int d = 0; d < from.dimensions; ++d) {
    const int64_t end = left.first[d] + left.count[d];
    const int64_t taken_end = taken.first[d] + taken.count[d];
    if (left.first[d] < taken.first[d]) {
      Box before = left;
      before.count[d] = taken.first[d] - left.first[d];
      rest->push_back(before);
    }
    if (taken_end < end) {
      Box after = left;
      after.first[d] = taken_end;
      after.count[d] = end - taken_end;
      rest->push_back(after);
    }
    left.first[d] = taken.first[d];
    left.count[d] = taken.count[d];
  }
}

// A box that nobody holds, of an item that is not covered; for the message.
Box FirstHole(const ItemSpec& item, const std::vector<StoredBox>& boxes) {
  std::vector<Box> holes = {WholeBox(item.shape)};
  for (const StoredBox& stored : boxes) {
    std::vector<Box> rest;
    for (const Box& hole : holes) {
      const std::optional<Box> both = Intersect(hole, stored.box);
      if (both.has_value()) {
        AppendRest(hole, *both, &rest);
      } else {
        rest.push_back(hole);
      }
    }
    holes = std::move(rest);
  }
  return *std::min_element(
      holes.begin(), holes.end(),
      [](const Box& a, const Box& b) { return a.first < b.first; });
}

// The dimension in which most boxes begin at different places: sorted by that,
// few neighbours need to be compared.
int DimensionOfCut(const std::vector<StoredBox>& boxes, int dimensions) {
  int best = 0;
  size_t most = 0;
  for (int d = 0; d < dimensions; ++d) {
    std::set<int64_t> places;
    for (const StoredBox& stored : boxes) places.insert(stored.box.first[d]);
    if (places.size() > most) {
      most = places.size();
      best = d;
    }
  }
  return best;
}

absl::Status CheckApart(const ItemSpec& item, std::vector<StoredBox>* boxes) {
  const auto overlap = [&](const StoredBox& a, const StoredBox& b) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: rank %d holds %s and rank %d holds %s, which overlap; boxes must "
        "be the same or apart",
        ItemText(item), a.held.rank, RunText(*a.held.fragment), b.held.rank,
        RunText(*b.held.fragment)));
  };
  if (item.shape.empty()) {  // a scalar: one box
    return boxes->size() < 2 ? absl::OkStatus()
                             : overlap((*boxes)[0], (*boxes)[1]);
  }
  const int d = DimensionOfCut(*boxes, static_cast<int>(item.shape.size()));
  std::sort(boxes->begin(), boxes->end(),
            [d](const StoredBox& a, const StoredBox& b) {
              return a.box.first[d] < b.box.first[d];
            });
  for (size_t i = 0; i < boxes->size(); ++i) {
    const Box& box = (*boxes)[i].box;
    for (size_t j = i + 1; j < boxes->size(); ++j) {
      if ((*boxes)[j].box.first[d] >= box.first[d] + box.count[d]) break;
      if (Intersect(box, (*boxes)[j].box).has_value()) {
        return (*boxes)[i].held.rank <= (*boxes)[j].held.rank
                   ? overlap((*boxes)[i], (*boxes)[j])
                   : overlap((*boxes)[j], (*boxes)[i]);
      }
    }
  }
  return absl::OkStatus();
}

// `runs`: all stored fragments of `item`. Every element is in exactly one.
absl::Status CheckCovered(const ItemSpec& item, std::span<const Held> runs) {
  std::vector<StoredBox> boxes;
  int64_t held = 0;
  for (const Held& run : runs) {
    const Fragment& f = *run.fragment;
    for (const Box& box : BoxesOfRun(f.part, f.first, f.count)) {
      boxes.push_back({box, run});
    }
    held += f.count;
  }
  HF_RETURN_IF_ERROR(CheckApart(item, &boxes));
  const int64_t elements = WholeBox(item.shape).elements();
  if (held == elements) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s %s: no rank holds %s; all ranks together hold %d of %d elements",
      ItemText(item), TypeText(item), ToString(FirstHole(item, boxes)), held,
      elements));
}

}  // namespace

absl::Status CheckDeclaredItem(const ItemSpec& item) {
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s", ItemText(item), what));
  };
  for (const std::string* text : {&item.name, &item.kind}) {
    if (text->empty() || text->size() > kNameBytesMax ||
        text->find('\0') != std::string::npos) {
      return wrong(absl::StrFormat(
          "a name or kind is empty or longer than %d bytes", kNameBytesMax));
    }
  }
  if (item.dtype < DType::kBf16 || item.dtype > DType::kU8) {
    return wrong(
        absl::StrFormat("there is no dtype %d", static_cast<int>(item.dtype)));
  }
  if (item.shape.size() > kDimensionsMax) {
    return wrong(absl::StrFormat(
        "%d dimensions; at most %d are possible, so join some of them",
        item.shape.size(), kDimensionsMax));
  }
  int64_t elements = 1;
  for (const int64_t length : item.shape) {
    if (length < 1 || length > kItemElementsMax / elements) {
      return wrong(absl::StrFormat(
          "a dimension of %d elements; each has at least one, the whole at "
          "most 2^56",
          length));
    }
    elements *= length;
  }
  return absl::OkStatus();
}

absl::Status CheckDeclaredRun(const ItemSpec& item, const Box& part,
                              int64_t first, int64_t count) {
  bool inside = part.dimensions == static_cast<int>(item.shape.size());
  for (int d = 0; inside && d < part.dimensions; ++d) {
    inside = part.first[d] >= 0 && part.count[d] >= 1 &&
             part.count[d] <= item.shape[d] &&
             part.first[d] <= item.shape[d] - part.count[d];
  }
  if (!inside) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: the box %s is not inside of %s", ItemText(item),
                        ToString(part), ToString(WholeBox(item.shape))));
  }
  const int64_t elements = part.elements();
  if (first < 0 || count < 1 || count > elements || first > elements - count) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d elements from element %d on are not inside of %s, which has %d",
        ItemText(item), count, first, ToString(part), elements));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const DeclaredLayout>> DeclaredLayout::Make(
    std::vector<Declaration> declarations) {
  for (size_t rank = 0; rank < declarations.size(); ++rank) {
    const absl::Status& status = declarations[rank].status;
    if (status.ok()) continue;
    return absl::Status(
        status.code(),
        absl::StrFormat("rank %d: %s", rank, std::string(status.message())));
  }
  const std::shared_ptr<DeclaredLayout> layout(new DeclaredLayout);
  layout->description_ = declarations[0].layout;
  if (layout->description_.empty()) {
    layout->description_ = absl::StrFormat("ranks%d", declarations.size());
  }
  HF_RETURN_IF_ERROR(layout->MergeItems(&declarations));
  HF_RETURN_IF_ERROR(layout->ChooseStored());
  return layout;
}

absl::Status DeclaredLayout::MergeItems(
    std::vector<Declaration>* declarations) {
  struct First {
    const ItemSpec* item;
    size_t rank;
    ItemIndex index;
  };
  std::map<std::pair<std::string, std::string>, First> merged;
  for (size_t rank = 0; rank < declarations->size(); ++rank) {
    for (const ItemSpec& item : (*declarations)[rank].items) {
      const auto [place, is_new] =
          merged.try_emplace({item.name, item.kind}, First{&item, rank, 0});
      const First& first = place->second;
      if (!is_new && *first.item != item) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s: rank %d says that it is %s, rank %d that it is %s",
            ItemText(item), first.rank, TypeText(*first.item), rank,
            TypeText(item)));
      }
    }
  }
  for (auto& [key, first] : merged) {
    first.index = static_cast<ItemIndex>(items_.size());
    items_.push_back(*first.item);
  }
  for (Declaration& declaration : *declarations) {
    Holding& holding = declaration.holding;
    for (Fragment& f : holding.fragments) {
      const ItemSpec& item = declaration.items[f.item];
      f.item = merged.at({item.name, item.kind}).index;
    }
    wanted_.push_back(std::move(holding));
  }
  return absl::OkStatus();
}

absl::Status DeclaredLayout::ChooseStored() {
  std::vector<Held> all;
  for (size_t rank = 0; rank < wanted_.size(); ++rank) {
    for (const Fragment& f : wanted_[rank].fragments) {
      all.push_back({static_cast<int>(rank), &f});
    }
    stored_.emplace_back(wanted_[rank].fragments.size(), false);
  }
  // Stable: of the same runs the one of the lowest rank comes first.
  std::stable_sort(all.begin(), all.end(), [](const Held& a, const Held& b) {
    return RunKey(*a.fragment) < RunKey(*b.fragment);
  });
  const auto same = [](const Held& a, const Held& b) {
    return RunKey(*a.fragment) == RunKey(*b.fragment);
  };
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  for (const Held& held : all) {
    stored_[held.rank][held.fragment - wanted_[held.rank].fragments.data()] =
        true;
  }
  auto begin = all.begin();
  for (ItemIndex i = 0; i < items_.size(); ++i) {
    const auto end = std::find_if(
        begin, all.end(), [i](const Held& h) { return h.fragment->item != i; });
    HF_RETURN_IF_ERROR(CheckCovered(items_[i], {begin, end}));
    begin = end;
  }
  return absl::OkStatus();
}

Holding DeclaredLayout::StoredBy(Rank rank) const {
  const Holding& wanted = wanted_[Index(rank)];
  Holding stored{wanted.region_bytes, {}};
  for (size_t i = 0; i < wanted.fragments.size(); ++i) {
    if (stored_[Index(rank)][i])
      stored.fragments.push_back(wanted.fragments[i]);
  }
  return stored;
}

Holding DeclaredLayout::WantedBy(Rank rank) const {
  return wanted_[Index(rank)];
}

}  // namespace holdfast::ckpt
