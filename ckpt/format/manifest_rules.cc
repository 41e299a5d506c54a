// ckpt/format/manifest_rules.cc: what must hold for a manifest to be one.

#include "ckpt/format/manifest_rules.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/codec.h"
#include "ckpt/format/mix.h"
#include "ckpt/format/shard.h"

namespace holdfast::ckpt {
namespace {

constexpr size_t kNameBytesMax = 4096;
constexpr size_t kFileNameBytesMax = 255;  // NAME_MAX of every file system used

// A chunk and where it is listed.
struct Listed {
  const ShardFile* file;
  const Chunk* chunk;
};

std::string Where(const Listed& listed) {
  return absl::StrFormat("in %s at %d", listed.file->name,
                         listed.chunk->offset);
}

std::string NameOf(const ItemSpec& item) {
  return absl::StrFormat("item '%s' (%s)", item.name, item.kind);
}

absl::Status StoredTwice(const ItemSpec& item, const Box& box, const Listed& a,
                         const Listed& b) {
  return absl::DataLossError(
      absl::StrFormat("the manifest lists %s of %s twice: %s and %s",
                      ToString(box), NameOf(item), Where(a), Where(b)));
}

absl::Status CheckSortedNames(std::string_view what,
                              const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty() || (i > 0 && names[i - 1] >= names[i])) {
      return absl::DataLossError(
          absl::StrFormat("the manifest's %s are empty or not in order at '%s'",
                          what, names[i]));
    }
  }
  return absl::OkStatus();
}

// The first box that both chunks hold elements of.
std::optional<Box> Overlap(const Chunk& a, const Chunk& b) {
  if (!Intersect(a.part, b.part).has_value()) return std::nullopt;
  const std::vector<Box> boxes = BoxesOfRun(b.part, b.first, b.count);
  for (const Box& box : BoxesOfRun(a.part, a.first, a.count)) {
    for (const Box& other : boxes) {
      const std::optional<Box> both = Intersect(box, other);
      if (both.has_value()) return both;
    }
  }
  return std::nullopt;
}

// A number that adds up: the sum over any boxes that make up a larger one
// without overlap is that one's. It is the sum over the elements of a product
// of numbers drawn for each coordinate, each number the difference of two
// neighbours in a sequence of random ones.
uint64_t WeightOf(const Box& box) {
  uint64_t weight = 1;
  for (int d = 0; d < box.dimensions; ++d) {
    const auto drawn = [d](int64_t coordinate) {
      return Mix64(static_cast<uint64_t>(coordinate) + (d + 1) * kGolden64);
    };
    weight *= drawn(box.first[d] + box.count[d]) - drawn(box.first[d]);
  }
  return weight;
}

// Which element two chunks of different parts both hold, if the search comes to
// it: parts are sorted by their first row, so only those that begin before a
// part ends can meet it. `begins`: where the parts begin, and the end.
std::optional<absl::Status> FindStoredTwice(const ItemSpec& item,
                                            std::span<const Listed> chunks,
                                            const std::vector<size_t>& begins) {
  // Of a manifest that is wrong anyway; about a second.
  constexpr int64_t kComparisonsMax = 50'000'000;
  int64_t comparisons = 0;
  for (size_t i = 0; i + 1 < begins.size() && item.shape.size() > 0; ++i) {
    const Box& part = chunks[begins[i]].chunk->part;
    for (size_t j = i + 1; j + 1 < begins.size(); ++j) {
      const Box& other = chunks[begins[j]].chunk->part;
      if (other.first[0] >= part.first[0] + part.count[0]) break;
      if (++comparisons > kComparisonsMax) return std::nullopt;
      if (!Intersect(part, other).has_value()) continue;
      for (size_t a = begins[i]; a < begins[i + 1]; ++a) {
        for (size_t b = begins[j]; b < begins[j + 1]; ++b) {
          if (++comparisons > kComparisonsMax) return std::nullopt;
          const std::optional<Box> both =
              Overlap(*chunks[a].chunk, *chunks[b].chunk);
          if (both.has_value()) {
            return StoredTwice(item, *both, chunks[a], chunks[b]);
          }
        }
      }
    }
  }
  return std::nullopt;
}

// `chunks`: all of one item, sorted by (part, first). Each element is in
// exactly one of them. Costs no more than the chunks; to say what is wrong may
// cost more.
absl::Status CheckCovered(const ItemSpec& item,
                          std::span<const Listed> chunks) {
  // Runs of the same part: neighbours must not overlap. Where the parts begin:
  std::vector<size_t> begins;
  int64_t stored = 0;
  uint64_t weight = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const Chunk& chunk = *chunks[i].chunk;
    stored += chunk.count;
    for (const Box& box : BoxesOfRun(chunk.part, chunk.first, chunk.count)) {
      weight += WeightOf(box);
    }
    if (i == 0 || chunks[i - 1].chunk->part != chunk.part) {
      begins.push_back(i);
      continue;
    }
    const Chunk& last = *chunks[i - 1].chunk;
    if (last.first + last.count > chunk.first) {
      return StoredTwice(item, *Overlap(last, chunk), chunks[i - 1], chunks[i]);
    }
  }
  begins.push_back(chunks.size());
  const Box whole = WholeBox(item.shape);
  const int64_t elements = whole.elements();
  if (stored == elements && weight == WeightOf(whole)) return absl::OkStatus();
  if (auto twice = FindStoredTwice(item, chunks, begins)) {
    return *std::move(twice);
  }
  if (stored == elements) {
    return absl::DataLossError(absl::StrFormat(
        "the manifest lists some elements of %s twice and others not at all",
        NameOf(item)));
  }
  return absl::DataLossError(
      absl::StrFormat("the manifest lists %d of the %d elements of %s", stored,
                      elements, NameOf(item)));
}

absl::Status CheckChunksApart(const ShardFile& file) {
  uint64_t end = kShardBlockBytes;
  for (const Chunk& chunk : file.chunks) {
    if (chunk.offset < end) {
      return absl::DataLossError(absl::StrFormat(
          "%s: a chunk at %d, inside or before the one that ends at %d",
          file.name, chunk.offset, end));
    }
    end = chunk.offset + chunk.bytes_stored;
  }
  return absl::OkStatus();
}

}  // namespace

bool HasFeature(const Manifest& manifest, std::string_view feature) {
  return std::find(manifest.features_must.begin(), manifest.features_must.end(),
                   feature) != manifest.features_must.end();
}

absl::Status CheckFeaturesKnown(const std::vector<std::string>& features_must) {
  for (const std::string& feature : features_must) {
    if (feature == kZstdName || feature == kFeatureDirectories) continue;
    return absl::FailedPreconditionError(absl::StrFormat(
        "the manifest needs the feature '%s', which this program does not "
        "know; read it with a newer one",
        feature));
  }
  return absl::OkStatus();
}

bool HasCodedFiles(const Manifest& manifest) {
  return HasFeature(manifest, kZstdName);
}

absl::Status CheckItem(const ItemSpec& item) {
  const auto wrong = [&](const std::string& why) {
    return absl::DataLossError(
        absl::StrFormat("the manifest's %s %s", NameOf(item), why));
  };
  for (const std::string* text : {&item.name, &item.kind}) {
    if (text->empty() || text->size() > kNameBytesMax ||
        text->find('\0') != std::string::npos) {
      return wrong(absl::StrFormat(
          "has a name or kind that is empty, longer than %d bytes, or holds a "
          "zero byte",
          kNameBytesMax));
    }
  }
  if (item.dtype < DType::kBf16 || item.dtype > DType::kU8) {
    return wrong(absl::StrFormat("has dtype %d", static_cast<int>(item.dtype)));
  }
  if (item.shape.size() > kDimensionsMax) {
    return wrong(absl::StrFormat("has %d dimensions, at most %d are possible",
                                 item.shape.size(), kDimensionsMax));
  }
  int64_t elements = 1;
  for (const int64_t length : item.shape) {
    if (length < 1 || length > kItemElementsMax / elements) {
      return wrong(absl::StrFormat(
          "has a dimension of %d elements; it must be from 1 up, and the whole "
          "at most 2^56",
          length));
    }
    elements *= length;
  }
  return absl::OkStatus();
}

absl::Status CheckPart(const ItemSpec& item, const Box& part) {
  bool inside = part.dimensions == static_cast<int>(item.shape.size());
  for (int d = 0; inside && d < part.dimensions; ++d) {
    inside = part.first[d] >= 0 && part.count[d] >= 1 &&
             part.count[d] <= item.shape[d] &&
             part.first[d] <= item.shape[d] - part.count[d];
  }
  for (int d = part.dimensions; inside && d < kDimensionsMax; ++d) {
    inside = part.first[d] == 0 && part.count[d] == 0;
  }
  if (inside) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("the manifest lists a part of %s that is empty or lies "
                      "outside of %s",
                      NameOf(item), ToString(WholeBox(item.shape))));
}

std::string ShardDirName(uint32_t number) {
  return absl::StrFormat("d%04d", number);
}

bool IsShardDir(std::string_view part) {
  if (part.size() < 5 || part.size() > 11 || part[0] != 'd') return false;
  uint64_t number = 0;
  for (const char c : part.substr(1)) {
    if (c < '0' || c > '9') return false;
    number = number * 10 + static_cast<uint64_t>(c - '0');
  }
  return number <= UINT32_MAX && part == ShardDirName(number);
}

absl::Status CheckFile(const ShardFile& file) {
  std::string_view name = file.name;
  if (const size_t slash = name.find('/');
      slash != std::string_view::npos && IsShardDir(name.substr(0, slash))) {
    name.remove_prefix(slash + 1);
  }
  if (name.empty() || file.name.size() > kFileNameBytesMax || name[0] == '.' ||
      name == kManifestName || IsShardDir(name) ||
      name.find('/') != std::string_view::npos ||
      name.find('\0') != std::string_view::npos) {
    return absl::DataLossError(absl::StrFormat(
        "the manifest lists a file '%s', which is not one part of a path, at "
        "most behind one 'dNNNN/', or begins with a dot",
        file.name));
  }
  const uint64_t around = 2 * kShardBlockBytes + file.index_bytes();
  const uint64_t units = file.unit_count;
  // A stored unit is never longer than a plain one.
  const uint64_t data_max =
      file.coded() ? file.plain_bytes : units * kUnitBytesMax;
  if (file.bytes % kShardBlockBytes != 0 || file.bytes > kFileBytesMax ||
      file.bytes < around || file.bytes - around < units * kShardBlockBytes ||
      file.bytes - around > data_max ||
      file.plain_bytes % kShardBlockBytes != 0 ||
      file.plain_bytes > units * kUnitBytesMax) {
    return absl::DataLossError(absl::StrFormat(
        "the manifest lists %s with %d bytes in %d units%s, which cannot be",
        file.name, file.bytes, units,
        file.coded() ? absl::StrFormat(" of %d plain bytes", file.plain_bytes)
                     : ""));
  }
  return absl::OkStatus();
}

absl::Status CheckChunk(const std::vector<ItemSpec>& items,
                        const ShardFile& file, const Chunk& chunk) {
  const auto wrong = [&](const std::string& why) {
    return absl::DataLossError(
        absl::StrFormat("%s, offset %d: %s", file.name, chunk.offset, why));
  };
  if (chunk.item >= items.size()) {
    return wrong(absl::StrFormat("item %d of %d", chunk.item, items.size()));
  }
  const ItemSpec& item = items[chunk.item];
  HF_RETURN_IF_ERROR(CheckPart(item, chunk.part));
  if (chunk.first < 0 || chunk.count < 1 ||
      chunk.count > chunk.part.elements() ||
      chunk.first > chunk.part.elements() - chunk.count) {
    return wrong(absl::StrFormat("elements %d + %d of a part %s of %s",
                                 chunk.first, chunk.count, ToString(chunk.part),
                                 NameOf(item)));
  }
  const uint64_t plain =
      static_cast<uint64_t>(chunk.count) * SizeOf(item.dtype);
  if (chunk.bytes_stored != plain) {
    return wrong(absl::StrFormat("%d bytes for %d elements of %s",
                                 chunk.bytes_stored, chunk.count,
                                 NameOf(item)));
  }
  const uint64_t data_end = file.data_end();
  if (chunk.offset % kShardBlockBytes != 0 || chunk.offset < kShardBlockBytes ||
      chunk.offset > data_end || chunk.bytes_stored > data_end - chunk.offset) {
    return wrong(absl::StrFormat(
        "%d bytes of %s; chunks start on multiples of %d and end by %d",
        chunk.bytes_stored, NameOf(item), kShardBlockBytes, data_end));
  }
  return absl::OkStatus();
}

absl::Status ValidateManifest(const Manifest& manifest) {
  if (manifest.reader_version_min < 1 ||
      manifest.format_version < manifest.reader_version_min) {
    return absl::DataLossError(absl::StrFormat(
        "the manifest is of format version %d and wants readers from version "
        "%d",
        manifest.format_version, manifest.reader_version_min));
  }
  if (manifest.id.step < 0 ||
      (manifest.parent.has_value() && manifest.parent->step < 0)) {
    return absl::DataLossError("the manifest has a step below 0");
  }
  HF_RETURN_IF_ERROR(
      CheckSortedNames("features to know", manifest.features_must));
  HF_RETURN_IF_ERROR(
      CheckSortedNames("features to know of", manifest.features_may));
  HF_RETURN_IF_ERROR(CheckFeaturesKnown(manifest.features_must));

  const std::vector<ItemSpec>& items = manifest.items;
  if (manifest.item_digests.size() != items.size()) {
    return absl::DataLossError(
        absl::StrFormat("the manifest has %d items and %d digests",
                        items.size(), manifest.item_digests.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    HF_RETURN_IF_ERROR(CheckItem(items[i]));
    if (i > 0 && std::tie(items[i - 1].name, items[i - 1].kind) >=
                     std::tie(items[i].name, items[i].kind)) {
      return absl::DataLossError(absl::StrFormat(
          "the manifest's items are not in order at %s", NameOf(items[i])));
    }
  }

  const bool any_coded =
      std::any_of(manifest.files.begin(), manifest.files.end(),
                  [](const ShardFile& file) { return file.coded(); });
  if (any_coded != HasCodedFiles(manifest)) {
    return absl::DataLossError(absl::StrFormat(
        "the manifest has %s coded file and %s the feature '%s'",
        any_coded ? "a" : "no", any_coded ? "lacks" : "names", kZstdName));
  }

  std::vector<Listed> listed;
  std::set<std::string_view> names;
  bool in_directories = false;
  for (const ShardFile& file : manifest.files) {
    HF_RETURN_IF_ERROR(CheckFile(file));
    in_directories |= file.name.find('/') != std::string::npos;
    if (!names.insert(file.name).second) {
      return absl::DataLossError(
          absl::StrFormat("the manifest lists %s twice", file.name));
    }
    for (const Chunk& chunk : file.chunks) {
      HF_RETURN_IF_ERROR(CheckChunk(items, file, chunk));
      listed.push_back({&file, &chunk});
    }
    HF_RETURN_IF_ERROR(CheckChunksApart(file));
  }
  if (in_directories != HasFeature(manifest, kFeatureDirectories)) {
    return absl::DataLossError(absl::StrFormat(
        "the manifest %s files in directories, its features say otherwise",
        in_directories ? "lists" : "lists no"));
  }
  std::sort(listed.begin(), listed.end(), [](const Listed& a, const Listed& b) {
    const Chunk &x = *a.chunk, &y = *b.chunk;
    return std::tie(x.item, x.part.first, x.part.count, x.first) <
           std::tie(y.item, y.part.first, y.part.count, y.first);
  });
  auto begin = listed.begin();
  for (ItemIndex item = 0; item < items.size(); ++item) {
    const auto end = std::find_if(begin, listed.end(), [&](const Listed& l) {
      return l.chunk->item != item;
    });
    HF_RETURN_IF_ERROR(CheckCovered(items[item], {begin, end}));
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt
