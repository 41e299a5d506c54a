// tools/ckptctl/diff_command.cc: `ckptctl diff`: two checkpoints of any
// layouts, tensor by tensor.
//
// Both are read as a job would load them: a batch is a made-up holding of whole
// tensors, of rows of a large one, or of a part of a row that is larger still,
// of at most batch_bytes on each side.

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/session/load_session.h"
#include "tools/ckptctl/commands.h"
#include "tools/ckptctl/compare.h"
#include "tools/ckptctl/opened.h"
#include "tools/common/json_output.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

constexpr char kProgram[] = "ckptctl diff";

using ckpt::ItemIndex;
using ckpt::ItemSpec;

// An item that both have, with the same type.
struct Pair {
  ItemIndex in_a = 0;
  ItemIndex in_b = 0;
  Difference difference;
};

// What only one side has, or has with another type.
struct Unmatched {
  std::string name;
  std::string kind;
  std::string in_a;  // "f32[90,64]", or "" for nothing
  std::string in_b;
};

struct Matching {
  std::vector<Pair> pairs;
  std::vector<Unmatched> unmatched;
};

// A run of a pair's elements that is read and compared at once.
struct Piece {
  size_t pair = 0;
  int64_t first = 0;
  int64_t count = 0;
  uint64_t offset = 0;  // in the batch's region
  uint64_t bytes = 0;
};

Matching Match(const ckpt::Manifest& a, const ckpt::Manifest& b,
               const std::vector<std::string>& kinds) {
  Matching matching;
  const auto is_wanted = [&kinds](const ItemSpec& item) {
    return kinds.empty() ||
           std::find(kinds.begin(), kinds.end(), item.kind) != kinds.end();
  };
  std::map<std::pair<std::string, std::string>, ItemIndex> in_b;
  for (ItemIndex i = 0; i < b.items.size(); ++i) {
    if (is_wanted(b.items[i])) in_b[{b.items[i].name, b.items[i].kind}] = i;
  }
  for (ItemIndex i = 0; i < a.items.size(); ++i) {
    const ItemSpec& item = a.items[i];
    if (!is_wanted(item)) continue;
    const auto found = in_b.extract({item.name, item.kind});
    if (found.empty()) {
      matching.unmatched.push_back({item.name, item.kind, TypeText(item), ""});
    } else if (b.items[found.mapped()] != item) {
      matching.unmatched.push_back({item.name, item.kind, TypeText(item),
                                    TypeText(b.items[found.mapped()])});
    } else {
      matching.pairs.push_back({i, found.mapped(), {}});
    }
  }
  for (const auto& [name, index] : in_b) {
    matching.unmatched.push_back(
        {name.first, name.second, "", TypeText(b.items[index])});
  }
  return matching;
}

// All pairs, cut into batches one after the other: a manifest may say anything
// about sizes, so there is no list of them.
class Batches {
 public:
  Batches(const ckpt::Manifest* a, const std::vector<Pair>* pairs,
          uint64_t batch_bytes)
      : a_(a), pairs_(pairs), batch_bytes_(batch_bytes) {}

  // Empty after the last.
  std::vector<Piece> Next() {
    std::vector<Piece> batch;
    uint64_t used = 0;
    while (pair_ < pairs_->size() && used < batch_bytes_ &&
           batch.size() < kPiecesMax) {
      const ItemSpec& item = a_->items[(*pairs_)[pair_].in_a];
      const ckpt::Box whole = ckpt::WholeBox(item.shape);
      const int64_t elements = whole.elements();
      const int64_t row =
          whole.dimensions > 0 ? elements / whole.count[0] : elements;
      const auto size = static_cast<uint64_t>(ckpt::SizeOf(item.dtype));
      const auto room = static_cast<int64_t>((batch_bytes_ - used) / size);
      int64_t count = std::clamp<int64_t>(room, 1, elements - first_);
      // Whole rows, unless one alone is too large.
      if (count > row) count -= (first_ + count) % row;
      batch.push_back({pair_, first_, count, used, count * size});
      used += ckpt::RoundUp(batch.back().bytes, ckpt::kStorageAlignment);
      first_ += count;
      if (first_ == elements) {
        ++pair_;
        first_ = 0;
      }
    }
    return batch;
  }

 private:
  static constexpr size_t kPiecesMax = 100'000;
  const ckpt::Manifest* const a_;
  const std::vector<Pair>* const pairs_;
  const uint64_t batch_bytes_;
  size_t pair_ = 0;
  int64_t first_ = 0;  // the next element of it
};

// Reads the pieces of one side into `memory`.
absl::Status ReadBatch(const Opened& opened, const std::vector<Piece>& batch,
                       const std::vector<Pair>& pairs, bool is_a, int readers,
                       ckpt::AlignedBuffer* memory) {
  ckpt::Holding wanted;
  for (const Piece& piece : batch) {
    ckpt::Fragment fragment;
    fragment.item = is_a ? pairs[piece.pair].in_a : pairs[piece.pair].in_b;
    fragment.part = ckpt::WholeBox(opened.manifest->items[fragment.item].shape);
    fragment.first = piece.first;
    fragment.count = piece.count;
    fragment.offset = piece.offset;
    wanted.fragments.push_back(fragment);
  }
  const Piece& last = batch.back();
  wanted.region_bytes = {
      ckpt::RoundUp(last.offset + last.bytes, ckpt::kStorageAlignment)};
  if (memory->size() < wanted.region_bytes[0]) {
    *memory = ckpt::AlignedBuffer(wanted.region_bytes[0]);
  }
  const ckpt::LoadTarget target({memory->span()});
  ckpt::LoadSession session(opened.env(), opened.place.dir,
                            opened.manifest.get(), &opened.manifest->items,
                            &wanted, &target, ReaderOptions(readers));
  Drive(opened.place.storage.get(), &session, [] {});
  const absl::Status& status = session.outcome().status;
  return absl::Status(status.code(),
                      absl::StrFormat("%s: %s", opened.place.path(),
                                      std::string(status.message())));
}

absl::Status CompareAll(const Opened& a, const Opened& b,
                        const DiffOptions& options, std::vector<Pair>* pairs) {
  double total = 0;  // of both sides; what they say may be nonsense
  for (const Pair& pair : *pairs) {
    const ItemSpec& item = a.manifest->items[pair.in_a];
    total +=
        2.0 * ckpt::WholeBox(item.shape).elements() * ckpt::SizeOf(item.dtype);
  }
  Progress::Options shown;
  shown.doing = "comparing";
  Progress progress(shown, ckpt::RealClock());
  ckpt::AlignedBuffer memory_a;
  ckpt::AlignedBuffer memory_b;
  uint64_t done = 0;
  Batches batches(a.manifest.get(), pairs, options.batch_bytes);
  for (auto batch = batches.Next(); !batch.empty(); batch = batches.Next()) {
    const absl::Status read_a =
        ReadBatch(a, batch, *pairs, true, options.readers, &memory_a);
    if (!read_a.ok()) return read_a;
    const absl::Status read_b =
        ReadBatch(b, batch, *pairs, false, options.readers, &memory_b);
    if (!read_b.ok()) return read_b;
    for (const Piece& piece : batch) {
      Pair& pair = (*pairs)[piece.pair];
      Compare(a.manifest->items[pair.in_a].dtype,
              memory_a.span().subspan(piece.offset, piece.bytes),
              memory_b.span().subspan(piece.offset, piece.bytes),
              &pair.difference);
      done += 2 * piece.bytes;
    }
    progress.Update(done, static_cast<uint64_t>(std::min(total, 1e18)));
  }
  progress.Finish();
  return absl::OkStatus();
}

// Names of attributes that differ. Those that begin with '.' are facts of the
// save and no part of the state.
std::vector<std::string> AttributesThatDiffer(const ckpt::Manifest& a,
                                              const ckpt::Manifest& b) {
  std::set<std::string> names;
  for (const auto& [name, value] : a.attributes) names.insert(name);
  for (const auto& [name, value] : b.attributes) names.insert(name);
  std::vector<std::string> different;
  for (const std::string& name : names) {
    if (name.starts_with('.')) continue;
    const auto in_a = a.attributes.find(name);
    const auto in_b = b.attributes.find(name);
    if (in_a == a.attributes.end() || in_b == b.attributes.end() ||
        in_a->second != in_b->second) {
      different.push_back(name);
    }
  }
  return different;
}

Json ValueOf(const ckpt::Manifest& manifest, const std::string& name) {
  const auto found = manifest.attributes.find(name);
  return found == manifest.attributes.end() ? Json() : Json(found->second);
}

struct Report {
  const Opened& a;
  const Opened& b;
  const Matching& matching;
  std::vector<std::string> attributes;
  uint64_t elements = 0;
  uint64_t different = 0;
  size_t pairs_different = 0;
  bool equal() const {
    return pairs_different == 0 && matching.unmatched.empty() &&
           attributes.empty();
  }
};

void PrintAsJson(const Report& report) {
  Json json;
  json["a"] = DescribeJson(report.a);
  json["b"] = DescribeJson(report.b);
  json["equal"] = report.equal();
  json["items_compared"] = report.matching.pairs.size();
  json["items_different"] = report.pairs_different;
  json["elements_compared"] = report.elements;
  json["elements_different"] = report.different;
  json["items"] = Json::array();
  for (const Pair& pair : report.matching.pairs) {
    const Difference& difference = pair.difference;
    if (difference.different == 0) continue;
    const ItemSpec& item = report.a.manifest->items[pair.in_a];
    json["items"].push_back({{"name", item.name},
                             {"kind", item.kind},
                             {"type", TypeText(item)},
                             {"elements", difference.elements},
                             {"different", difference.different},
                             {"nan", difference.nan_count},
                             {"abs_max", difference.abs_max},
                             {"rel_max", difference.rel_max}});
  }
  json["unmatched"] = Json::array();
  for (const Unmatched& item : report.matching.unmatched) {
    json["unmatched"].push_back({{"name", item.name},
                                 {"kind", item.kind},
                                 {"a", item.in_a},
                                 {"b", item.in_b}});
  }
  json["attributes"] = Json::object();
  for (const std::string& name : report.attributes) {
    json["attributes"][name] = {{"a", ValueOf(*report.a.manifest, name)},
                                {"b", ValueOf(*report.b.manifest, name)}};
  }
  PrintJson(json);
}

void PrintText(const Report& report) {
  for (const Unmatched& item : report.matching.unmatched) {
    const auto side = [](const std::string& type) {
      return type.empty() ? std::string("nothing") : type;
    };
    std::printf("%s of '%s': a has %s, b has %s\n",
                Printable(item.kind).c_str(), Printable(item.name).c_str(),
                side(item.in_a).c_str(), side(item.in_b).c_str());
  }
  for (const std::string& name : report.attributes) {
    const auto side = [&name](const ckpt::Manifest& manifest) {
      constexpr size_t kWidth = 100;
      const auto found = manifest.attributes.find(name);
      if (found == manifest.attributes.end()) return std::string("nothing");
      const std::string& value = found->second;
      if (value.size() <= kWidth && value.find('\n') == std::string::npos) {
        return "'" + Printable(value) + "'";
      }
      return absl::StrFormat("%d bytes", value.size());
    };
    std::printf("attribute %s: a has %s, b has %s\n", Printable(name).c_str(),
                side(*report.a.manifest).c_str(),
                side(*report.b.manifest).c_str());
  }
  if (report.pairs_different > 0) {
    std::vector<std::vector<std::string>> rows = {
        {"ITEM", "KIND", "TYPE", "DIFFERENT", "MAX ABS", "MAX REL", "NAN"}};
    for (const Pair& pair : report.matching.pairs) {
      const Difference& difference = pair.difference;
      if (difference.different == 0) continue;
      const ItemSpec& item = report.a.manifest->items[pair.in_a];
      rows.push_back({item.name, item.kind, TypeText(item),
                      absl::StrFormat("%d of %d", difference.different,
                                      difference.elements),
                      absl::StrFormat("%.3g", difference.abs_max),
                      absl::StrFormat("%.3g", difference.rel_max),
                      absl::StrFormat("%d", difference.nan_count)});
    }
    std::fputs(TableText(rows, {Align::kLeft, Align::kLeft, Align::kLeft,
                                Align::kRight, Align::kRight, Align::kRight,
                                Align::kRight})
                   .c_str(),
               stdout);
  }
  std::printf(
      "%s: %s (%s) and %s (%s); %s of %s items differ, %s of %s elements\n",
      report.equal() ? "equal" : "DIFFERENT",
      ckpt::ToString(report.a.manifest->id).c_str(),
      Printable(report.a.manifest->layout).c_str(),
      ckpt::ToString(report.b.manifest->id).c_str(),
      Printable(report.b.manifest->layout).c_str(),
      CountText(report.pairs_different).c_str(),
      CountText(report.matching.pairs.size()).c_str(),
      CountText(report.different).c_str(), CountText(report.elements).c_str());
}

}  // namespace

int RunDiff(const DiffOptions& options) {
  const auto a = OpenCheckpoint(options.a, options.readers);
  if (!a.ok()) return ReportFailure(kProgram, a.status());
  const auto b = OpenCheckpoint(options.b, options.readers);
  if (!b.ok()) return ReportFailure(kProgram, b.status());
  Matching matching = Match(*a->manifest, *b->manifest, options.kinds);
  const absl::Status compared = CompareAll(*a, *b, options, &matching.pairs);
  if (!compared.ok()) return ReportFailure(kProgram, compared);

  Report report{*a, *b, matching, {}};
  if (!options.no_attributes) {
    report.attributes = AttributesThatDiffer(*a->manifest, *b->manifest);
  }
  for (const Pair& pair : matching.pairs) {
    report.elements += pair.difference.elements;
    report.different += pair.difference.different;
    report.pairs_different += pair.difference.different > 0;
  }
  if (options.json) {
    PrintAsJson(report);
  } else {
    PrintText(report);
  }
  return report.equal() ? trainer::kExitFinished : trainer::kExitDifferent;
}

}  // namespace holdfast::tools
