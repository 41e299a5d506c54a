// tools/convert/dcp/dcp_directory.cc: boxes of tensors out of the records of
// chunks.

#include "tools/convert/dcp/dcp_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/checksum.h"
#include "ckpt/storage/errno_status.h"

namespace holdfast::tools {
namespace {

using ckpt::Box;

constexpr uint64_t kPiece = uint64_t{4} << 20;

// `name` in the directory as it is now: a file that changes between two runs of
// one conversion must be noticed.
absl::StatusOr<std::string> Stamp(int dir, const std::string& path,
                                  const std::string& name) {
  struct stat stat;
  if (::fstatat(dir, name.c_str(), &stat, AT_SYMLINK_NOFOLLOW) != 0) {
    return ckpt::ErrnoStatus(errno, "looking at", path + "/" + name);
  }
  return absl::StrFormat(" %s:%d:%d.%09d", name, stat.st_size,
                         stat.st_mtim.tv_sec, stat.st_mtim.tv_nsec);
}

// A job of a thousand ranks has as many files, all of which are open at once,
// and many systems allow a process 1024 unless it asks. What cannot be had
// shows when a file is opened.
void AllowFiles(size_t files) {
  constexpr rlim_t kOthers = 128;
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  if (limit.rlim_cur >= files + kOthers) return;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, files + kOthers);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

Box BoxOf(const DcpChunk& chunk) {
  Box box;
  box.dimensions = static_cast<int>(chunk.first.size());
  for (int i = 0; i < box.dimensions; ++i) {
    box.first[i] = chunk.first[i];
    box.count[i] = chunk.count[i];
  }
  return box;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DcpDirectory>> DcpDirectory::Open(
    const std::string& path, const DcpOptions& options) {
  ckpt::Fd dir(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir.valid()) {
    return ckpt::ErrnoStatus(errno, "opening", path);
  }
  absl::StatusOr<std::unique_ptr<FileSource>> metadata =
      FileSource::OpenIn(dir.get(), path, ".metadata");
  if (absl::IsNotFound(metadata.status())) {
    return absl::NotFoundError(absl::StrFormat(
        "%s has no .metadata: it is no checkpoint of "
        "torch.distributed.checkpoint, or its save has not finished",
        path));
  }
  HF_RETURN_IF_ERROR(metadata.status());
  if ((*metadata)->size() > options.metadata_bytes_max) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has %d bytes; to read it there is memory for %d (--memory-limit)",
        (*metadata)->name(), (*metadata)->size(), options.metadata_bytes_max));
  }
  HF_ASSIGN_OR_RETURN(const std::string bytes,
                      ReadAll(**metadata, 0, (*metadata)->size()));
  std::unique_ptr<DcpDirectory> directory(new DcpDirectory);
  directory->path_ = path;
  directory->options_ = options;
  absl::StatusOr<DcpMetadata> decoded =
      DecodeDcpMetadata(bytes, options.limits);
  if (!decoded.ok()) {
    return absl::Status(decoded.status().code(),
                        absl::StrCat(path, "/", decoded.status().message()));
  }
  directory->metadata_ = *std::move(decoded);
  HF_ASSIGN_OR_RETURN(directory->identity_,
                      Stamp(dir.get(), path, ".metadata"));
  AllowFiles(directory->metadata_.files.size());
  for (const std::string& name : directory->metadata_.files) {
    HF_ASSIGN_OR_RETURN(std::unique_ptr<FileSource> file,
                        FileSource::OpenIn(dir.get(), path, name));
    directory->files_.push_back(std::move(file));
    HF_ASSIGN_OR_RETURN(const std::string stamp, Stamp(dir.get(), path, name));
    directory->identity_ += stamp;
  }
  const auto inside = [&](const std::string& name,
                          const DcpPlace& place) -> absl::Status {
    const FileSource& file = *directory->files_[place.file];
    if (place.offset <= file.size() &&
        place.length <= file.size() - place.offset) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrFormat(
        "%s has %d bytes; '%s' lies at bytes %d to %d", file.name(),
        file.size(), name, place.offset, place.offset + place.length));
  };
  for (const DcpTensor& tensor : directory->metadata_.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) {
      HF_RETURN_IF_ERROR(inside(tensor.name, chunk.place));
    }
  }
  for (const DcpBlob& blob : directory->metadata_.blobs) {
    HF_RETURN_IF_ERROR(inside(blob.name, blob.place));
  }
  return directory;
}

int64_t DcpDirectory::FindTensor(std::string_view name) const {
  const auto it =
      std::lower_bound(metadata_.tensors.begin(), metadata_.tensors.end(), name,
                       [](const DcpTensor& tensor, std::string_view text) {
                         return tensor.name < text;
                       });
  return it == metadata_.tensors.end() || it->name != name
             ? -1
             : it - metadata_.tensors.begin();
}

const DcpBlob* DcpDirectory::FindBlob(std::string_view name) const {
  const auto it =
      std::lower_bound(metadata_.blobs.begin(), metadata_.blobs.end(), name,
                       [](const DcpBlob& blob, std::string_view text) {
                         return blob.name < text;
                       });
  return it == metadata_.blobs.end() || it->name != name ? nullptr : &*it;
}

absl::StatusOr<DcpDirectory::Opened*> DcpDirectory::OpenChunk(
    const DcpTensor& tensor, const DcpChunk& chunk) {
  const auto found = opened_.find(&chunk);
  if (found != opened_.end()) return &found->second;
  FileSource& file = *files_[chunk.place.file];
  HF_ASSIGN_OR_RETURN(
      TorchTensor stored,
      ReadTorchTensor(&file, chunk.place.offset, chunk.place.length));
  if (stored.type != tensor.type ||
      !std::ranges::equal(stored.shape, chunk.count)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s, torch.save entry at byte %d: it is not the chunk of '%s' that "
        ".metadata says it is (another type or shape)",
        file.name(), chunk.place.offset, tensor.name));
  }
  return &opened_
              .emplace(&chunk, Opened{std::move(stored), false, {}, {}, false})
              .first->second;
}

absl::Status DcpDirectory::Load(Opened& opened, const DcpChunk& chunk) {
  FileSource& file = *files_[chunk.place.file];
  const ZipRecord& record = opened.tensor.record;
  if (opened.kept) {
    uses_.splice(uses_.begin(), uses_, opened.use);
    return absl::OkStatus();
  }
  if (record.size > options_.kept_bytes_max / 4) {
    if (opened.verified) return absl::OkStatus();
    if (!opened.tensor.IsRowMajor()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s, torch.save entry at byte %d: %d bytes that are not in row-major "
          "order; at most %d can be turned (--memory-limit)",
          file.name(), chunk.place.offset, record.size,
          options_.kept_bytes_max / 4));
    }
    std::string piece(kPiece, '\0');
    uint32_t crc = 0;
    for (uint64_t at = 0; record.has_crc32() && at < record.size;) {
      const auto bytes = std::as_writable_bytes(std::span(
          piece.data(), std::min<uint64_t>(kPiece, record.size - at)));
      HF_RETURN_IF_ERROR(file.Read(opened.tensor.data + at, bytes));
      crc = ckpt::Crc32Zip(bytes, crc);
      at += bytes.size();
      bytes_read_ += bytes.size();
    }
    HF_RETURN_IF_ERROR(CheckZipCrc32(record, crc, file, opened.tensor.data));
    opened.verified = true;
    return absl::OkStatus();
  }
  while (!uses_.empty() &&
         kept_bytes_ + record.size > options_.kept_bytes_max) {
    Opened& oldest = opened_.at(uses_.back());
    kept_bytes_ -= oldest.bytes.size();
    oldest.bytes = std::string();
    oldest.kept = false;
    uses_.pop_back();
  }
  HF_ASSIGN_OR_RETURN(opened.bytes,
                      ReadAll(file, opened.tensor.data, record.size));
  bytes_read_ += record.size;
  HF_RETURN_IF_ERROR(CheckZipCrc32(
      record, ckpt::Crc32Zip(std::as_bytes(std::span(opened.bytes))), file,
      opened.tensor.data));
  opened.verified = true;
  opened.kept = true;
  kept_bytes_ += record.size;
  uses_.push_front(&chunk);
  opened.use = uses_.begin();
  return absl::OkStatus();
}

absl::Status DcpDirectory::ReadRecord(Opened& opened, const DcpChunk& chunk,
                                      uint64_t offset,
                                      std::span<std::byte> out) {
  if (opened.kept) {
    std::memcpy(out.data(), opened.bytes.data() + offset, out.size());
    return absl::OkStatus();
  }
  bytes_read_ += out.size();
  return files_[chunk.place.file]->Read(opened.tensor.data + offset, out);
}

absl::Status DcpDirectory::CopyChunk(const DcpTensor& tensor,
                                     const DcpChunk& chunk, const Box& box,
                                     const Box& shared,
                                     std::span<std::byte> out) {
  HF_ASSIGN_OR_RETURN(Opened* const opened, OpenChunk(tensor, chunk));
  HF_RETURN_IF_ERROR(Load(*opened, chunk));
  const auto element = static_cast<uint64_t>(tensor.type.bytes);
  const int n = shared.dimensions;
  // The last dimensions that neither the chunk nor the box cuts are one run in
  // both, if the chunk is row-major.
  const bool row_major = opened->tensor.IsRowMajor();
  int tail = n;  // dimensions [tail, n) are inside a run
  int64_t run = 1;
  while (row_major && tail > 0) {
    --tail;
    run *= shared.count[tail];
    if (shared.count[tail] != box.count[tail] ||
        shared.count[tail] != chunk.count[tail]) {
      break;
    }
  }
  std::array<int64_t, ckpt::kDimensionsMax> at{};
  for (;;) {
    uint64_t from = static_cast<uint64_t>(opened->tensor.first);
    uint64_t to = 0;
    for (int i = 0; i < n; ++i) {
      const int64_t coordinate = shared.first[i] + at[i];
      from += static_cast<uint64_t>((coordinate - chunk.first[i]) *
                                    opened->tensor.strides[i]);
      to = to * static_cast<uint64_t>(box.count[i]) +
           static_cast<uint64_t>(coordinate - box.first[i]);
    }
    HF_RETURN_IF_ERROR(ReadRecord(
        *opened, chunk, from * element,
        out.subspan(to * element, static_cast<uint64_t>(run) * element)));
    int i = tail;
    while (i > 0 && ++at[i - 1] == shared.count[i - 1]) at[--i] = 0;
    if (i == 0) return absl::OkStatus();
  }
}

absl::Status DcpDirectory::ReadBox(const DcpTensor& tensor, const Box& box,
                                   std::span<std::byte> out) {
  if (tensor.shape.empty()) {
    return CopyChunk(tensor, tensor.chunks[0], box, box, out);
  }
  for (const DcpChunk& chunk : tensor.chunks) {
    if (chunk.first[0] >= box.first[0] + box.count[0]) break;  // sorted
    if (chunk.first[0] + chunk.count[0] <= box.first[0]) continue;
    const std::optional<Box> shared = ckpt::Intersect(box, BoxOf(chunk));
    if (!shared.has_value() || shared->elements() == 0) continue;
    HF_RETURN_IF_ERROR(CopyChunk(tensor, chunk, box, *shared, out));
  }
  return absl::OkStatus();
}

absl::Status DcpDirectory::Read(size_t index, const Box& part, int64_t first,
                                int64_t count, std::span<std::byte> out) {
  const DcpTensor& tensor = metadata_.tensors[index];
  HF_CHECK(tensor.shape.size() <= ckpt::kDimensionsMax,
           "'%s' has %d dimensions", tensor.name, tensor.shape.size());
  HF_CHECK(out.size() == static_cast<uint64_t>(count * tensor.type.bytes),
           "%d bytes for %d elements of '%s'", out.size(), count, tensor.name);
  if (count == 0) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  for (const Box& box : ckpt::BoxesOfRun(part, first, count)) {
    const auto bytes =
        static_cast<uint64_t>(box.elements() * tensor.type.bytes);
    HF_RETURN_IF_ERROR(ReadBox(tensor, box, out.first(bytes)));
    out = out.subspan(bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<TorchValue> DcpDirectory::ReadBlob(const DcpBlob& blob) {
  return ReadTorchValue(files_[blob.place.file].get(), blob.place.offset,
                        blob.place.length);
}

absl::Status DcpDirectory::ReadBlobBytes(const DcpBlob& blob, uint64_t first,
                                         std::span<std::byte> out) {
  HF_CHECK(first + out.size() <= blob.place.length, "'%s' has %d bytes",
           blob.name, blob.place.length);
  FileSource& file = *files_[blob.place.file];
  const std::lock_guard lock(mutex_);
  if (!compared_blobs_.contains(blob.name)) {
    constexpr uint64_t kRecordMax = uint64_t{1} << 30;
    HF_ASSIGN_OR_RETURN(
        const ZipArchive archive,
        ZipArchive::Open(&file, blob.place.offset, blob.place.length));
    for (const auto& [name, record] : archive.records()) {
      HF_RETURN_IF_ERROR(archive.Read(record, kRecordMax).status());
    }
    compared_blobs_.insert(blob.name);
  }
  bytes_read_ += out.size();
  return file.Read(blob.place.offset + first, out);
}

absl::StatusOr<TorchValue> DcpDirectory::ReadFile(
    const std::string& name) const {
  const ckpt::Fd dir(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir.valid()) {
    return ckpt::ErrnoStatus(errno, "opening", path_);
  }
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<FileSource> file,
                      FileSource::OpenIn(dir.get(), path_, name));
  return ReadTorchValue(file.get(), 0, file->size());
}

uint64_t DcpDirectory::bytes_read() const {
  const std::lock_guard lock(mutex_);
  return bytes_read_;
}

absl::StatusOr<bool> DcpDirectory::HasChecksums() {
  const std::lock_guard lock(mutex_);
  for (const DcpTensor& tensor : metadata_.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) {
      if (chunk.elements() == 0) continue;
      HF_ASSIGN_OR_RETURN(const Opened* const opened, OpenChunk(tensor, chunk));
      return opened->tensor.record.has_crc32();
    }
  }
  return true;
}

}  // namespace holdfast::tools
