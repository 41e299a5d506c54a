// tools/convert/dcp/dcp_directory.h: a checkpoint of
// torch.distributed.checkpoint, read without Python.
//
//   DIR/.metadata           which chunk of which tensor lies where
//   DIR/__RANK_FILE.distcp  entries of torch.save, one behind the other
//
// Every record's CRC-32 is compared before a byte of it is handed out. A record
// of at most a quarter of `kept_bytes_max` is read whole, once, and kept until
// others push it out; a larger one is read once to compare and again in the
// pieces that are asked for, mostly from the page cache. Records that torch
// wrote without checksums are taken as they are.
//
// Not read: what FileSystemWriter writes with SerializationFormat.SAFETENSORS
// (its places in .metadata are not those of the bytes, and torch 2.15 does not
// read them back either), and entries that went through an extension.
//
// Memory: kept_bytes_max, 4 MiB, and some 100 bytes a chunk, when it is opened
// 900 (dcp_metadata.h): at most 4 GiB for a .metadata of at most 1 GiB.
// Threads: any, one at a time.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_DCP_DIRECTORY_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_DCP_DIRECTORY_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/layout/box.h"
#include "tools/convert/dcp/byte_source.h"
#include "tools/convert/dcp/dcp_metadata.h"

namespace holdfast::tools {

struct DcpOptions {
  uint64_t kept_bytes_max = uint64_t{256} << 20;
  // Of .metadata: its own bytes while it is read.
  uint64_t metadata_bytes_max = uint64_t{1} << 30;
  PickleLimits limits;
};

class DcpDirectory {
 public:
  // kNotFound: no such directory, or no .metadata in it (a save that has not
  // finished). kInvalidArgument, kDataLoss: what is wrong where.
  static absl::StatusOr<std::unique_ptr<DcpDirectory>> Open(
      const std::string& path, const DcpOptions& options = {});

  const std::string& path() const { return path_; }
  const DcpMetadata& metadata() const { return metadata_; }
  // Index of a tensor by its name; -1 when there is none.
  int64_t FindTensor(std::string_view name) const;
  const DcpBlob* FindBlob(std::string_view name) const;

  // Elements [first, first + count) of the row-major order of `part`, a box of
  // tensor `tensor` (of at most ckpt::kDimensionsMax dimensions), into `out`.
  absl::Status Read(size_t tensor, const ckpt::Box& part, int64_t first,
                    int64_t count, std::span<std::byte> out);
  // The value of a blob, as an inert pickle.
  absl::StatusOr<TorchValue> ReadBlob(const DcpBlob& blob);
  // Bytes [first, first + out.size()) of a blob as it is stored, which is a
  // whole zip archive; every record of it is compared before the first of them.
  absl::Status ReadBlobBytes(const DcpBlob& blob, uint64_t first,
                             std::span<std::byte> out);
  // The value in a file of the directory that .metadata does not list.
  // kNotFound.
  absl::StatusOr<TorchValue> ReadFile(const std::string& name) const;

  uint64_t bytes_read() const;
  // Whether the first tensor's record has a checksum: torch writes all of them
  // or, when it was told so, none.
  absl::StatusOr<bool> HasChecksums();
  // Names, sizes and times of the files, in one line: the same directory again.
  std::string identity() const { return identity_; }

 private:
  // One chunk whose entry has been looked at.
  struct Opened {
    TorchTensor tensor;
    bool verified = false;
    std::string bytes;  // of the whole record, when it is kept
    std::list<const DcpChunk*>::iterator use;
    bool kept = false;
  };

  DcpDirectory() = default;

  absl::StatusOr<Opened*> OpenChunk(const DcpTensor& tensor,
                                    const DcpChunk& chunk);
  absl::Status Load(Opened& opened, const DcpChunk& chunk);
  // Bytes [offset, offset + size) of the record.
  absl::Status ReadRecord(Opened& opened, const DcpChunk& chunk,
                          uint64_t offset, std::span<std::byte> out);
  absl::Status ReadBox(const DcpTensor& tensor, const ckpt::Box& box,
                       std::span<std::byte> out);
  absl::Status CopyChunk(const DcpTensor& tensor, const DcpChunk& chunk,
                         const ckpt::Box& box, const ckpt::Box& shared,
                         std::span<std::byte> out);

  std::string path_;
  std::string identity_;
  DcpOptions options_;
  DcpMetadata metadata_;
  std::vector<std::unique_ptr<FileSource>> files_;
  mutable std::mutex mutex_;
  std::map<const DcpChunk*, Opened> opened_;
  std::set<std::string> compared_blobs_;
  std::list<const DcpChunk*> uses_;  // of kept records, the latest first
  uint64_t kept_bytes_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_DCP_DIRECTORY_H_
