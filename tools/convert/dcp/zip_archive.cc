// tools/convert/dcp/zip_archive.cc: from the end record back to the directory.

#include "tools/convert/dcp/zip_archive.h"

#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/checksum.h"

namespace holdfast::tools {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50;
constexpr uint32_t kLocator64 = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kEntryBytes = 46, kEndBytes = 22,
                   kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr uint16_t kExtra64 = 1;
constexpr uint64_t kDirectoryMax = uint64_t{64} << 20;

template <typename Integer>
Integer At(std::string_view bytes, size_t offset) {
  Integer value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

absl::Status Bad(const ByteSource& source, uint64_t at, std::string_view what) {
  return absl::DataLossError(absl::StrFormat("%s, zip archive at byte %d: %s",
                                             source.name(), at, what));
}

struct Directory {
  uint64_t offset = 0, size = 0, count = 0;  // offset: from the archive's start
};

absl::StatusOr<Directory> FindDirectory(ByteSource& source, uint64_t begin,
                                        uint64_t length) {
  if (length < kEndBytes) return Bad(source, begin, "it is too short");
  const uint64_t tail_size =
      std::min(length, kEnd64Bytes + kLocatorBytes + kEndBytes);
  HF_ASSIGN_OR_RETURN(const std::string tail,
                      ReadAll(source, begin + length - tail_size, tail_size));
  const std::string_view end =
      std::string_view(tail).substr(tail_size - kEndBytes);
  if (At<uint32_t>(end, 0) != kEnd || At<uint16_t>(end, 20) != 0) {
    return Bad(source, begin, "it has no end record at its end");
  }
  Directory found{At<uint32_t>(end, 16), At<uint32_t>(end, 12),
                  At<uint16_t>(end, 10)};
  uint64_t directory_end = length - kEndBytes;
  if (length >= kEndBytes + kLocatorBytes + kEnd64Bytes) {
    const std::string_view locator =
        std::string_view(tail).substr(kEnd64Bytes, kLocatorBytes);
    if (At<uint32_t>(locator, 0) == kLocator64) {
      if (At<uint32_t>(tail, 0) != kEnd64 ||
          At<uint64_t>(locator, 8) != length - tail_size) {
        return Bad(source, begin, "its zip64 end record is not where it says");
      }
      found = {At<uint64_t>(tail, 48), At<uint64_t>(tail, 40),
               At<uint64_t>(tail, 32)};
      directory_end = length - tail_size;
    }
  }
  if (found.size > kDirectoryMax) {
    return Bad(source, begin,
               absl::StrFormat("its directory has %d bytes, %d are the most",
                               found.size, kDirectoryMax));
  }
  if (found.offset > directory_end ||
      found.size != directory_end - found.offset) {
    return Bad(source, begin,
               absl::StrFormat("its directory of %d bytes at %d does not end "
                               "where the end record begins (%d)",
                               found.size, found.offset, directory_end));
  }
  return found;
}

// The 64-bit values of an entry's zip64 field, in the fixed order, each present
// only where its 32-bit field is all ones.
bool Widen(std::string_view extra, uint64_t* size, uint64_t* stored,
           uint64_t* header) {
  constexpr uint64_t kWide = 0xffffffff;
  if (*size != kWide && *stored != kWide && *header != kWide) return true;
  while (extra.size() >= 4) {
    const auto id = At<uint16_t>(extra, 0);
    const auto bytes = At<uint16_t>(extra, 2);
    extra.remove_prefix(4);
    if (bytes > extra.size()) return false;
    if (id != kExtra64) {
      extra.remove_prefix(bytes);
      continue;
    }
    std::string_view field = extra.substr(0, bytes);
    for (uint64_t* const value : {size, stored, header}) {
      if (*value != kWide) continue;
      if (field.size() < 8) return false;
      *value = At<uint64_t>(field, 0);
      field.remove_prefix(8);
    }
    return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<ZipArchive> ZipArchive::Open(ByteSource* source, uint64_t offset,
                                            uint64_t length) {
  if (offset > source->size() || length > source->size() - offset) {
    return absl::DataLossError(absl::StrFormat(
        "%s has %d bytes; an entry of %d bytes at byte %d is not inside it",
        source->name(), source->size(), length, offset));
  }
  HF_ASSIGN_OR_RETURN(const Directory place,
                      FindDirectory(*source, offset, length));
  HF_ASSIGN_OR_RETURN(const std::string bytes,
                      ReadAll(*source, offset + place.offset, place.size));
  if (place.count > bytes.size() / kEntryBytes) {
    return Bad(*source, offset,
               absl::StrFormat("%d records in a directory of %d bytes",
                               place.count, bytes.size()));
  }
  ZipArchive archive;
  archive.source_ = source;
  archive.begin_ = offset;
  archive.end_ = offset + length;
  archive.directory_ = offset + place.offset;
  std::string_view rest = bytes;
  std::optional<std::string> folder;
  for (uint64_t i = 0; i < place.count; ++i) {
    if (rest.size() < kEntryBytes || At<uint32_t>(rest, 0) != kDirectoryEntry) {
      return Bad(*source, offset, absl::StrFormat("record %d is damaged", i));
    }
    const uint64_t name_bytes = At<uint16_t>(rest, 28);
    const uint64_t extra_bytes = At<uint16_t>(rest, 30);
    const uint64_t note_bytes = At<uint16_t>(rest, 32);
    if (rest.size() - kEntryBytes < name_bytes + extra_bytes + note_bytes) {
      return Bad(*source, offset, absl::StrFormat("record %d is cut short", i));
    }
    const std::string_view name = rest.substr(kEntryBytes, name_bytes);
    uint64_t stored = At<uint32_t>(rest, 20);
    ZipRecord record{At<uint32_t>(rest, 42), At<uint32_t>(rest, 24),
                     At<uint32_t>(rest, 16)};
    if (!Widen(rest.substr(kEntryBytes + name_bytes, extra_bytes), &record.size,
               &stored, &record.header)) {
      return Bad(*source, offset,
                 absl::StrFormat("record '%s' lacks its 64-bit sizes", name));
    }
    if ((At<uint16_t>(rest, 8) & 1) != 0 || At<uint16_t>(rest, 10) != 0 ||
        stored != record.size) {
      return Bad(*source, offset,
                 absl::StrFormat("record '%s' is compressed or encrypted; "
                                 "torch.save stores records as they are",
                                 name));
    }
    if (record.header > place.offset || record.size > place.offset) {
      return Bad(*source, offset,
                 absl::StrFormat("record '%s' (%d bytes at %d) lies outside",
                                 name, record.size, record.header));
    }
    record.header += offset;
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos ||
        (folder.has_value() && name.substr(0, slash) != *folder)) {
      return Bad(*source, offset,
                 absl::StrFormat("record '%s' is not in the one folder of a "
                                 "torch archive",
                                 name));
    }
    folder = name.substr(0, slash);
    if (!archive.records_.emplace(name.substr(slash + 1), record).second) {
      return Bad(*source, offset,
                 absl::StrFormat("record '%s' is there twice", name));
    }
    rest.remove_prefix(kEntryBytes + name_bytes + extra_bytes + note_bytes);
  }
  if (!rest.empty()) {
    return Bad(*source, offset, "its directory goes on after the last record");
  }
  return archive;
}

const ZipRecord* ZipArchive::Find(std::string_view name) const {
  const auto it = records_.find(name);
  return it == records_.end() ? nullptr : &it->second;
}

absl::StatusOr<uint64_t> ZipArchive::DataOffset(const ZipRecord& record) const {
  HF_ASSIGN_OR_RETURN(const std::string header,
                      ReadAll(*source_, record.header, kLocalBytes));
  if (At<uint32_t>(header, 0) != kLocalHeader || At<uint16_t>(header, 8) != 0) {
    return Bad(*source_, begin_,
               absl::StrFormat("no header of a stored record at byte %d",
                               record.header));
  }
  const uint64_t data = record.header + kLocalBytes + At<uint16_t>(header, 26) +
                        At<uint16_t>(header, 28);
  if (data > directory_ || record.size > directory_ - data) {
    return Bad(*source_, begin_,
               absl::StrFormat("a record of %d bytes at byte %d reaches into "
                               "the directory",
                               record.size, data));
  }
  return data;
}

absl::StatusOr<std::string> ZipArchive::Read(const ZipRecord& record,
                                             uint64_t bytes_max) const {
  if (record.size > bytes_max) {
    return Bad(*source_, begin_,
               absl::StrFormat("a record of %d bytes, %d are the most here",
                               record.size, bytes_max));
  }
  HF_ASSIGN_OR_RETURN(const uint64_t offset, DataOffset(record));
  HF_ASSIGN_OR_RETURN(std::string bytes,
                      ReadAll(*source_, offset, record.size));
  HF_RETURN_IF_ERROR(
      CheckZipCrc32(record, ckpt::Crc32Zip(std::as_bytes(std::span(bytes))),
                    *source_, offset));
  return bytes;
}

absl::Status CheckZipCrc32(const ZipRecord& record, uint32_t found,
                           const ByteSource& source, uint64_t offset) {
  if (found == record.crc32 || !record.has_crc32()) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s, record of %d bytes at byte %d: crc32 is %08x, its directory "
      "records %08x",
      source.name(), record.size, offset, found, record.crc32));
}

}  // namespace holdfast::tools
