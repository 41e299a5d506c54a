// ckpt/session/unit_reader_frame.cc: is this file whole, and the one that the
// manifest means? Header, footer and index.

#include <algorithm>

#include "absl/strings/str_format.h"
#include "ckpt/format/checksum.h"
#include "ckpt/session/unit_reader_state.h"

namespace holdfast::ckpt {
namespace {

// No more memory is taken for an index. One of 64 million units, which is 64
// TiB of data in units of the usual 1 MiB; a file with holes may say that it
// has more, and hold nothing.
constexpr uint64_t kIndexBytesMax = uint64_t{1} << 30;

std::string IdentityText(const ShardIdentity& identity) {
  return absl::StrFormat("file %d of %d of %s of run %s", identity.file,
                         identity.file_count, ToString(identity.id),
                         ToHex(identity.run_id));
}

}  // namespace

// Header and footer: whole, and this file's.
Task<absl::Status> UnitReader::State::ReadFrame(uint32_t file) {
  const ShardFile& expected = manifest->files[file];
  const auto header = frame.span().first(kShardBlockBytes);
  const auto footer = frame.span().last(kShardBlockBytes);
  const uint64_t footer_offset = expected.bytes - kShardBlockBytes;
  const Io::Ref head = io->Read(file_id, 0, header);
  const Io::Ref foot = io->Read(file_id, footer_offset, footer);
  co_await UntilDone(head);
  co_await UntilDone(foot);
  absl::Status head_status = head->status;
  absl::Status foot_status = foot->status;
  if (absl::IsUnavailable(head_status)) {
    std::function<Io::Ref()> again = [this, header] {
      return io->Read(file_id, 0, header);
    };
    head_status = co_await Repeat(std::move(again), nullptr);
  }
  if (absl::IsUnavailable(foot_status)) {
    std::function<Io::Ref()> again = [this, footer, footer_offset] {
      return io->Read(file_id, footer_offset, footer);
    };
    foot_status = co_await Repeat(std::move(again), nullptr);
  }
  if (absl::IsUnavailable(head_status) && foot_status.ok()) {
    co_return Unreadable(file, 0, head_status);
  }
  if (absl::IsUnavailable(foot_status) && head_status.ok()) {
    co_return Unreadable(file, footer_offset, foot_status);
  }
  if (!head_status.ok()) co_return head_status;
  if (!foot_status.ok()) co_return foot_status;
  bytes_read += 2 * kShardBlockBytes;

  const ShardIdentity identity = IdentityOf(file);
  const auto found_head = DecodeShardHeader(header);
  if (!found_head.ok()) {
    co_return Damaged(
        file, 0,
        absl::StrFormat("header: %s",
                        std::string(found_head.status().message())));
  }
  if (*found_head != identity) {
    co_return Damaged(
        file, 0,
        absl::StrFormat("is %s, expected %s", IdentityText(*found_head),
                        IdentityText(identity)));
  }
  const auto found_foot = DecodeShardFooter(footer);
  if (!found_foot.ok()) {
    co_return Damaged(
        file, footer_offset,
        absl::StrFormat("footer: %s",
                        std::string(found_foot.status().message())));
  }
  if (found_foot->identity != identity) {
    co_return Damaged(file, footer_offset,
                      absl::StrFormat("footer says it is %s, expected %s",
                                      IdentityText(found_foot->identity),
                                      IdentityText(identity)));
  }
  index_offset = found_foot->index_offset;
  if (found_foot->unit_count != expected.unit_count ||
      found_foot->crc_index != expected.crc_index ||
      found_foot->plain_bytes != expected.plain_bytes ||
      index_offset + expected.index_bytes() != footer_offset) {
    co_return Damaged(
        file, footer_offset,
        absl::StrFormat("footer records %d units, %d bytes decoded, an index "
                        "with crc32c %08x at %d; the manifest records %d "
                        "units, %d bytes, %08x",
                        found_foot->unit_count, found_foot->plain_bytes,
                        found_foot->crc_index, index_offset,
                        expected.unit_count, expected.plain_bytes,
                        expected.crc_index));
  }
  co_return absl::OkStatus();
}

// Where the manifest says that it is; ReadFrame finds out whether the file says
// so too. Beside the frame: a small read waits behind all that other ranks have
// in flight on the same disk.
void UnitReader::State::BeginIndex(uint32_t file) {
  const ShardFile& expected = manifest->files[file];
  index = {};
  if (expected.index_bytes() == 0 || expected.index_bytes() > kIndexBytesMax) {
    return;
  }
  index = AlignedBuffer(expected.index_bytes());
  index_read = io->Read(
      file_id, expected.bytes - kShardBlockBytes - index.size(), index.span());
}

Task<absl::Status> UnitReader::State::ReadIndex(uint32_t file) {
  const ShardFile& expected = manifest->files[file];
  if (expected.index_bytes() > kIndexBytesMax) {
    co_return Damaged(
        file, index_offset,
        absl::StrFormat("its index of %d units has %d bytes; at most %d are "
                        "read",
                        expected.unit_count, expected.index_bytes(),
                        kIndexBytesMax));
  }
  units.clear();
  coded.clear();
  if (index.size() > 0) {
    const auto bytes = index.span();
    absl::Status read = index_read->status;
    if (absl::IsUnavailable(read)) {
      std::function<Io::Ref()> again = [this, bytes] {
        return io->Read(file_id, index_offset, bytes);
      };
      read = co_await Repeat(std::move(again), nullptr);
    }
    if (absl::IsUnavailable(read)) {
      co_return Unreadable(file, index_offset, read);
    }
    if (!read.ok()) co_return read;
    bytes_read += bytes.size();
  }
  const uint32_t crc = Crc32c(index.span());
  if (crc != expected.crc_index) {
    co_return Damaged(file, index_offset,
                      absl::StrFormat("index has crc32c %08x, the manifest "
                                      "records %08x",
                                      crc, expected.crc_index));
  }
  if (expected.coded()) {
    const absl::Status taken = TakeCodedIndex(file);
    if (!taken.ok()) {
      co_return Damaged(
          file, index_offset,
          absl::StrFormat("index: %s", std::string(taken.message())));
    }
    co_return CheckCovered(file);
  }
  auto decoded = DecodeShardIndex(index.span(), expected.unit_count);
  if (!decoded.ok()) {
    co_return Damaged(
        file, index_offset,
        absl::StrFormat("index: %s", std::string(decoded.status().message())));
  }
  units = *std::move(decoded);
  std::sort(units.begin(), units.end(),
            [](const Unit& a, const Unit& b) { return a.offset < b.offset; });
  uint64_t end = kShardBlockBytes;
  for (const Unit& unit : units) {
    if (unit.offset % kShardBlockBytes != 0 || unit.offset < end ||
        unit.bytes == 0 || unit.bytes % kShardBlockBytes != 0 ||
        unit.bytes > kUnitBytesMax || unit.offset > index_offset ||
        unit.bytes > index_offset - unit.offset) {
      co_return Damaged(
          file, index_offset,
          absl::StrFormat("index: unit of %d bytes at %d does "
                          "not fit into %d-%d",
                          unit.bytes, unit.offset, end, index_offset));
    }
    end = unit.offset + unit.bytes;
  }
  co_return CheckCovered(file);
}

// Every byte of every chunk is in a unit. Both are sorted.
absl::Status UnitReader::State::CheckCovered(uint32_t file) {
  auto unit = units.begin();
  for (const Chunk& chunk : manifest->files[file].chunks) {
    const uint64_t chunk_end = chunk.offset + chunk.bytes_stored;
    uint64_t covered = chunk.offset;
    while (covered < chunk_end) {
      while (unit != units.end() && unit->offset + unit->bytes <= covered) {
        ++unit;
      }
      if (unit == units.end() || unit->offset > covered) {
        return Damaged(file, covered,
                       absl::StrFormat("bytes %d-%d are in no unit of its "
                                       "index",
                                       covered, chunk_end - 1));
      }
      covered = unit->offset + unit->bytes;
    }
  }
  return absl::OkStatus();
}

}  // namespace holdfast::ckpt
