// tools/convert/dcp/zip_archive.h: the directory of a zip archive as torch.save
// writes it: stored records without compression, zip64 or not, no comment, no
// encryption. Format: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3.
//
// The archive may lie anywhere inside a larger file (a .distcp file is many,
// one after the other). Reads its last bytes, the central directory, and one
// local header a record that is asked for.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_ZIP_ARCHIVE_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_ZIP_ARCHIVE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/convert/dcp/byte_source.h"

namespace holdfast::tools {

struct ZipRecord {
  uint64_t header = 0;  // of the local header, in the source
  uint64_t size = 0;    // of the data
  // Of the data, as the directory says. Zero when torch was told to compute
  // none (torch.serialization.set_crc32_options(False)).
  uint32_t crc32 = 0;
  bool has_crc32() const { return crc32 != 0 || size == 0; }
};

class ZipArchive {
 public:
  // kDataLoss or kInvalidArgument name the source, the byte, found and
  // expected. `source` outlives the archive.
  static absl::StatusOr<ZipArchive> Open(ByteSource* source, uint64_t offset,
                                         uint64_t length);

  // By the name without the folder that all records of a torch archive are in:
  // "data.pkl", "data/0", "byteorder".
  const ZipRecord* Find(std::string_view name) const;
  const std::map<std::string, ZipRecord, std::less<>>& records() const {
    return records_;
  }

  // Where in the source the record's data begins: read from its local header,
  // which must agree with the directory.
  absl::StatusOr<uint64_t> DataOffset(const ZipRecord& record) const;
  // All of a record of at most `bytes_max`, its checksum verified if it has
  // one.
  absl::StatusOr<std::string> Read(const ZipRecord& record,
                                   uint64_t bytes_max) const;

 private:
  ByteSource* source_ = nullptr;
  uint64_t begin_ = 0, end_ = 0;  // of the archive, in the source
  uint64_t directory_ = 0;        // where the central directory begins
  std::map<std::string, ZipRecord, std::less<>> records_;
};

// kDataLoss names both when `found` is not the record's checksum.
absl::Status CheckZipCrc32(const ZipRecord& record, uint32_t found,
                           const ByteSource& source, uint64_t offset);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_ZIP_ARCHIVE_H_
