// ckpt/format/manifest.cc: the manifest, to bytes and back, and the digest of
// the state that it describes. The rules that a manifest must keep are in
// ckpt/format/manifest_rules.cc.

#include "ckpt/format/manifest.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/coded_units.h"
#include "ckpt/format/manifest_rules.h"
#include "ckpt/format/shard.h"
#include "ckpt/format/wire.h"

namespace holdfast::ckpt {
namespace {

constexpr uint32_t kFormatVersion = 1;
constexpr std::array<char, 8> kMagic = {'\x89', 'H', 'F', 'M',
                                        'A',    'N', 'I', '\n'};
constexpr size_t kFrameHeadBytes = 24;  // magic, two versions, body length
constexpr size_t kFrameBytes = kFrameHeadBytes + 4;

// What a chunk entry leaves out because it follows from the rest.
constexpr uint8_t kPartIsWhole = 1;
constexpr uint8_t kStartsPart = 2;
constexpr uint8_t kEndsPart = 4;
constexpr uint8_t kFollowsLast = 8;
constexpr uint8_t kAlways = 16;

uint64_t NextBlock(uint64_t offset) {
  return (offset + kShardBlockBytes - 1) / kShardBlockBytes * kShardBlockBytes;
}

uint64_t PlainBytes(const ItemSpec& item, const Chunk& chunk) {
  return static_cast<uint64_t>(chunk.count) * SizeOf(item.dtype);
}

void WriteStrings(const std::vector<std::string>& list, Writer* out) {
  out->Varint(list.size());
  for (const std::string& text : list) out->String(text);
}

void WriteId(const CheckpointId& id, Writer* out) {
  out->Varint(static_cast<uint64_t>(id.step));
  out->Varint(id.incarnation);
  out->Varint(id.attempt);
}

size_t CommonPrefix(std::string_view a, std::string_view b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
         a.begin();
}

void WriteItems(const Manifest& manifest, Writer* out) {
  out->Varint(manifest.items.size());
  std::string_view last;
  for (size_t i = 0; i < manifest.items.size(); ++i) {
    const ItemSpec& item = manifest.items[i];
    const size_t shared = CommonPrefix(last, item.name);
    out->Varint(shared);
    out->String(std::string_view(item.name).substr(shared));
    last = item.name;
    out->String(item.kind);
    out->Fixed(static_cast<uint8_t>(item.dtype));
    out->Varint(item.shape.size());
    for (const int64_t length : item.shape) out->Varint(length);
    out->Fixed(manifest.item_digests[i].low);
    out->Fixed(manifest.item_digests[i].high);
  }
}

void WriteChunks(const std::vector<ItemSpec>& items, const ShardFile& file,
                 Writer* out) {
  out->Varint(file.chunks.size());
  uint64_t next = kShardBlockBytes;
  ItemIndex last = 0;
  for (const Chunk& chunk : file.chunks) {
    const ItemSpec& item = items[chunk.item];
    const bool whole = chunk.part == WholeBox(item.shape);
    const bool starts = chunk.first == 0;
    const bool ends = chunk.count == chunk.part.elements() - chunk.first;
    const bool follows = chunk.offset == next;
    out->Zigzag(int64_t{chunk.item} - last);
    out->Fixed(static_cast<uint8_t>(
        (whole ? kPartIsWhole : 0) | (starts ? kStartsPart : 0) |
        (ends ? kEndsPart : 0) | (follows ? kFollowsLast : 0) | kAlways));
    for (int d = 0; !whole && d < chunk.part.dimensions; ++d) {
      out->Varint(chunk.part.first[d]);
      out->Varint(chunk.part.count[d]);
    }
    if (!starts) out->Varint(chunk.first);
    if (!ends) out->Varint(chunk.count);
    if (!follows) out->Varint(chunk.offset);
    next = NextBlock(chunk.offset + chunk.bytes_stored);
    last = chunk.item;
  }
}

std::vector<std::byte> Encode(const Manifest& manifest) {
  const bool any_coded = HasCodedFiles(manifest);
  Writer body;
  WriteStrings(manifest.features_must, &body);
  WriteStrings(manifest.features_may, &body);
  body.Fixed(manifest.run_id);
  WriteId(manifest.id, &body);
  body.Varint(manifest.commit_number);
  body.Fixed(static_cast<uint8_t>(manifest.parent.has_value()));
  if (manifest.parent.has_value()) WriteId(*manifest.parent, &body);
  body.Zigzag(manifest.time_unix_ms);
  body.Varint(manifest.world);
  body.String(manifest.layout);
  body.Fixed(manifest.plan_hash);
  WriteItems(manifest, &body);
  body.Varint(manifest.files.size());
  for (const ShardFile& file : manifest.files) {
    body.String(file.name);
    body.Varint(file.bytes);
    if (any_coded) body.Varint(file.plain_bytes);
    body.Varint(file.unit_count);
    body.Fixed(file.crc_index);
    WriteChunks(manifest.items, file, &body);
  }
  body.Varint(manifest.attributes.size());
  for (const auto& [name, value] : manifest.attributes) {
    body.String(name);
    body.String(value);
  }

  Writer out;
  out.Fixed(kMagic);
  out.Fixed(manifest.format_version);
  out.Fixed(manifest.reader_version_min);
  out.Fixed(static_cast<uint64_t>(body.bytes().size()));
  out.Raw(body.bytes().data(), body.bytes().size());
  out.Fixed(Crc32c(out.bytes()));
  return out.Take();
}

// Lists grow as they are read, so that a count takes no memory that the bytes
// behind it do not bear out: an entry in memory is many times one on disk.
constexpr size_t kReserveMax = 1024;

// Ascending, none empty.
std::vector<std::string> ReadStrings(Reader* in) {
  std::vector<std::string> list;
  for (size_t n = in->Count(1); n > 0 && in->ok(); --n) {
    std::string text = in->String();
    if (text.empty() || (!list.empty() && list.back() >= text)) in->Fail();
    list.push_back(std::move(text));
  }
  return list;
}

CheckpointId ReadId(Reader* in) {
  CheckpointId id;
  id.step = in->Varint63();
  id.incarnation = in->Varint32();
  id.attempt = in->Varint32();
  return id;
}

absl::Status Malformed(const Reader& in, std::string_view what) {
  return absl::DataLossError(
      absl::StrFormat("the manifest is malformed near byte %d, in %s",
                      kFrameHeadBytes + in.position(), what));
}

absl::Status ReadItems(Reader* in, Manifest* manifest) {
  // Least: shared, suffix, kind, dtype, dimensions, digest.
  const size_t count = in->Count(5 + 16);
  manifest->items.reserve(std::min(count, kReserveMax));
  manifest->item_digests.reserve(std::min(count, kReserveMax));
  std::string last;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t shared = in->Varint();
    if (shared > last.size()) in->Fail();
    if (!in->ok()) return Malformed(*in, "the list of items");
    ItemSpec item;
    item.name = last.substr(0, shared) + in->String();
    item.kind = in->String();
    item.dtype = static_cast<DType>(in->Fixed<uint8_t>());
    const size_t dimensions = in->Count(1);
    if (dimensions > kDimensionsMax) in->Fail();
    if (!in->ok()) return Malformed(*in, "the list of items");
    item.shape.resize(dimensions);
    for (int64_t& length : item.shape) length = in->Varint63();
    Digest128 digest;
    digest.low = in->Fixed<uint64_t>();
    digest.high = in->Fixed<uint64_t>();
    if (!in->ok()) return Malformed(*in, "the list of items");
    HF_RETURN_IF_ERROR(CheckItem(item));
    last = item.name;
    manifest->items.push_back(std::move(item));
    manifest->item_digests.push_back(digest);
  }
  return absl::OkStatus();
}

absl::Status ReadChunk(Reader* in, const std::vector<ItemSpec>& items,
                       const ShardFile& file, ItemIndex last, uint64_t next,
                       Chunk* chunk) {
  const int64_t step = in->Zigzag();
  const uint8_t flags = in->Fixed<uint8_t>();
  if (step < -int64_t{last} ||
      step >= static_cast<int64_t>(items.size()) - last || flags < kAlways ||
      flags >= 2 * kAlways) {
    in->Fail();
  }
  if (!in->ok()) return Malformed(*in, "file " + file.name);
  chunk->item = static_cast<ItemIndex>(last + step);
  const ItemSpec& item = items[chunk->item];
  chunk->part = WholeBox(item.shape);
  if ((flags & kPartIsWhole) == 0) {
    for (int d = 0; d < chunk->part.dimensions; ++d) {
      chunk->part.first[d] = in->Varint63();
      chunk->part.count[d] = in->Varint63();
    }
  }
  if ((flags & kStartsPart) == 0) chunk->first = in->Varint63();
  if ((flags & kEndsPart) == 0) {
    chunk->count = in->Varint63();
  } else if (CheckPart(item, chunk->part).ok()) {
    const int64_t elements = chunk->part.elements();
    if (chunk->first < elements) chunk->count = elements - chunk->first;
  }
  chunk->offset = (flags & kFollowsLast) == 0 ? in->Varint() : next;
  chunk->bytes_stored = PlainBytes(item, *chunk);
  if (!in->ok()) return Malformed(*in, "file " + file.name);
  return CheckChunk(items, file, *chunk);
}

absl::Status ReadFile(Reader* in, const std::vector<ItemSpec>& items,
                      bool any_coded, ShardFile* file) {
  file->name = in->String();
  file->bytes = in->Varint();
  if (any_coded) file->plain_bytes = in->Varint();
  file->unit_count = in->Varint32();
  file->crc_index = in->Fixed<uint32_t>();
  const size_t chunks = in->Count(2);
  if (!in->ok()) return Malformed(*in, "the list of files");
  HF_RETURN_IF_ERROR(CheckFile(*file));
  file->chunks.reserve(std::min(chunks, kReserveMax));
  ItemIndex last = 0;
  uint64_t next = kShardBlockBytes;
  for (size_t i = 0; i < chunks; ++i) {
    Chunk& chunk = file->chunks.emplace_back();
    HF_RETURN_IF_ERROR(ReadChunk(in, items, *file, last, next, &chunk));
    last = chunk.item;
    next = NextBlock(chunk.offset + chunk.bytes_stored);
  }
  return absl::OkStatus();
}

absl::StatusOr<Reader> OpenFrame(std::span<const std::byte> bytes,
                                 Manifest* manifest) {
  if (bytes.size() < kFrameBytes || bytes.size() > kManifestBytesMax) {
    return absl::DataLossError(
        absl::StrFormat("the manifest has %d bytes; it must have from %d to %d",
                        bytes.size(), kFrameBytes, kManifestBytesMax));
  }
  Reader head(bytes);
  if (head.Fixed<std::array<char, 8>>() != kMagic) {
    return absl::DataLossError(
        "this is no manifest (its first 8 bytes are others)");
  }
  manifest->format_version = head.Fixed<uint32_t>();
  manifest->reader_version_min = head.Fixed<uint32_t>();
  const uint64_t body_bytes = head.Fixed<uint64_t>();
  if (body_bytes != bytes.size() - kFrameBytes) {
    return absl::DataLossError(
        absl::StrFormat("the manifest has %d bytes, its head says %d",
                        bytes.size(), body_bytes + kFrameBytes));
  }
  const size_t crc_at = kFrameHeadBytes + body_bytes;
  const uint32_t found = Crc32c(bytes.first(crc_at));
  const uint32_t recorded = Reader(bytes.subspan(crc_at)).Fixed<uint32_t>();
  if (found != recorded) {
    return absl::DataLossError(absl::StrFormat(
        "the manifest is damaged: its crc32c is %08x, it records %08x", found,
        recorded));
  }
  if (manifest->reader_version_min > kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the manifest is of format version %d and needs a reader of version "
        "%d; this program reads version %d",
        manifest->format_version, manifest->reader_version_min,
        kFormatVersion));
  }
  return Reader(bytes.subspan(kFrameHeadBytes, body_bytes));
}

}  // namespace

uint64_t ShardFile::index_bytes() const {
  return coded() ? CodedIndexBytes(unit_count) : ShardIndexBytes(unit_count);
}

uint64_t ShardFile::data_end() const {
  return coded() ? kShardBlockBytes + plain_bytes
                 : bytes - kShardBlockBytes - index_bytes();
}

std::vector<std::byte> EncodeManifest(const Manifest& manifest) {
  const absl::Status valid = ValidateManifest(manifest);
  HF_CHECK(valid.ok(), "encoding a manifest that breaks its rules: %s",
           valid.ToString());
  std::vector<std::byte> bytes = Encode(manifest);
  HF_CHECK(bytes.size() <= kManifestBytesMax,
           "a manifest of %d bytes; readers take at most %d", bytes.size(),
           kManifestBytesMax);
  return bytes;
}

absl::StatusOr<Manifest> DecodeManifest(std::span<const std::byte> bytes) {
  Manifest manifest;
  HF_ASSIGN_OR_RETURN(Reader in, OpenFrame(bytes, &manifest));
  manifest.features_must = ReadStrings(&in);
  if (!in.ok()) return Malformed(in, "the list of features");
  // Before anything else: a feature may change the meaning of all that follows.
  HF_RETURN_IF_ERROR(CheckFeaturesKnown(manifest.features_must));
  manifest.features_may = ReadStrings(&in);
  manifest.run_id = in.Fixed<RunId>();
  manifest.id = ReadId(&in);
  manifest.commit_number = in.Varint();
  const uint8_t has_parent = in.Fixed<uint8_t>();
  if (has_parent > 1) in.Fail();
  if (has_parent == 1) manifest.parent = ReadId(&in);
  manifest.time_unix_ms = in.Zigzag();
  manifest.world = in.Varint32();
  manifest.layout = in.String();
  manifest.plan_hash = in.Fixed<uint64_t>();
  if (!in.ok()) return Malformed(in, "its identity");
  HF_RETURN_IF_ERROR(ReadItems(&in, &manifest));
  // Least: name of one byte, bytes, units, crc, chunks.
  for (size_t n = in.Count(9); n > 0; --n) {
    HF_RETURN_IF_ERROR(ReadFile(&in, manifest.items, HasCodedFiles(manifest),
                                &manifest.files.emplace_back()));
  }
  for (size_t n = in.Count(2); n > 0; --n) {
    std::string name = in.String();
    manifest.attributes[std::move(name)] = in.String();
  }
  if (!in.ok() || in.left() != 0) return Malformed(in, "its attributes");
  HF_RETURN_IF_ERROR(ValidateManifest(manifest));

  const std::vector<std::byte> again = Encode(manifest);
  const auto [a, b] =
      std::mismatch(bytes.begin(), bytes.end(), again.begin(), again.end());
  if (a != bytes.end() || b != again.end()) {
    return absl::DataLossError(
        absl::StrFormat("the manifest is malformed: byte %d of what it says "
                        "would be written otherwise",
                        a - bytes.begin()));
  }
  return manifest;
}

Digest128 LogicalDigest(const Manifest& manifest) {
  Writer out;
  out.Varint(manifest.items.size());
  for (size_t i = 0; i < manifest.items.size(); ++i) {
    const ItemSpec& item = manifest.items[i];
    out.String(item.name);
    out.String(item.kind);
    out.Fixed(static_cast<uint8_t>(item.dtype));
    out.Varint(item.shape.size());
    for (const int64_t length : item.shape) out.Varint(length);
    out.Fixed(manifest.item_digests[i].low);
    out.Fixed(manifest.item_digests[i].high);
  }
  for (const auto& [name, value] : manifest.attributes) {
    if (!name.empty() && name[0] == '.') continue;
    out.String(name);
    out.String(value);
  }
  const std::span<const std::byte> bytes = out.bytes();
  return DigestBytes(
      {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace holdfast::ckpt
