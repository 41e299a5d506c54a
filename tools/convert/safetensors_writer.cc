// tools/convert/safetensors_writer.cc: windows of files, filled and written by
// whoever is free.

#include "tools/convert/safetensors_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/errno_status.h"
#include "tools/convert/out_file.h"
#include "tools/convert/safetensors_directory.h"

namespace holdfast::tools {
namespace {

// One of the files that are made.
struct Planned {
  std::string name;
  std::vector<std::byte> header;
  size_t first_tensor = 0;
  std::vector<uint64_t> begins;  // of its tensors, in the file; then its end
  size_t first_window = 0;       // in the order of all files'
  size_t windows_left = 0;

  // While it is written.
  std::mutex lock;
  ckpt::Fd fd;
  std::optional<OutFile> out;

  uint64_t bytes() const { return begins.back(); }
};

class Writing {
 public:
  Writing(PartialDirectory& directory, const SafetensorsToWrite& what,
          int threads, std::atomic<uint64_t>* done)
      : directory_(directory),
        what_(what),
        done_(done),
        buffers_(static_cast<size_t>(threads)) {
    HF_CHECK(what.window_bytes % ckpt::AlignedBuffer::kAlignment == 0,
             "windows of %d bytes", what.window_bytes);
    const auto files = CutIntoFiles(what.tensors, what.file_bytes_max);
    size_t tensor = 0;
    for (size_t i = 0; i < files.size(); ++i) {
      auto file = std::make_unique<Planned>();
      file->name = SafetensorsFileName(i, files.size());
      file->header = EncodeSafetensorsHeader(files[i], what.metadata);
      file->first_tensor = tensor;
      uint64_t at = file->header.size();
      for (const SafeTensor& written : files[i]) {
        file->begins.push_back(at);
        at += written.bytes;
      }
      file->begins.push_back(at);
      file->first_window = windows_;
      file->windows_left = (at + what.window_bytes - 1) / what.window_bytes;
      windows_ += file->windows_left;
      tensor += files[i].size();
      longest_ = std::max(longest_, at);
      files_.push_back(std::move(file));
    }
  }

  size_t windows() const { return windows_; }
  const std::vector<std::unique_ptr<Planned>>& files() const { return files_; }

  absl::Status Write(size_t window, int worker) {
    Planned& file = **std::prev(std::upper_bound(
        files_.begin(), files_.end(), window,
        [](size_t w, const auto& f) { return w < f->first_window; }));
    HF_RETURN_IF_ERROR(Open(file));
    const uint64_t begin = (window - file.first_window) * what_.window_bytes;
    const uint64_t end = std::min(begin + what_.window_bytes, file.bytes());
    ckpt::AlignedBuffer& buffer = buffers_[static_cast<size_t>(worker)];
    if (buffer.size() == 0) {
      buffer = ckpt::AlignedBuffer(std::min(what_.window_bytes, longest_));
    }
    const std::span<std::byte> bytes = buffer.span().first(end - begin);
    const std::vector<TensorRun> runs = Cut(file, begin, bytes);
    HF_RETURN_IF_ERROR(what_.fill(runs, worker));
    HF_RETURN_IF_ERROR(file.out->WriteAt(begin, bytes));
    for (const TensorRun& run : runs) *done_ += run.out.size();
    return Finish(file);
  }

 private:
  // By whoever comes first.
  absl::Status Open(Planned& file) {
    const std::lock_guard guard(file.lock);
    if (file.out) return absl::OkStatus();
    HF_ASSIGN_OR_RETURN(file.fd, directory_.CreateFile(file.name));
    file.out.emplace(file.fd.get(), directory_.path() + "/" + file.name);
    return file.out->Reserve(file.bytes());
  }

  // By whoever is last.
  absl::Status Finish(Planned& file) const {
    {
      const std::lock_guard guard(file.lock);
      if (--file.windows_left > 0) return absl::OkStatus();
    }
    if (::fsync(file.fd.get()) != 0) {
      return ckpt::ErrnoStatus(errno, "syncing",
                               directory_.path() + "/" + file.name);
    }
    file.out.reset();
    file.fd.Reset();
    return absl::OkStatus();
  }

  // The tensors' parts of the file's bytes from `begin` on, which go to
  // `bytes`; what is of the header is there at once.
  std::vector<TensorRun> Cut(const Planned& file, uint64_t begin,
                             std::span<std::byte> bytes) const {
    const uint64_t end = begin + bytes.size();
    if (begin < file.header.size()) {
      std::memcpy(bytes.data(), file.header.data() + begin,
                  std::min<uint64_t>(bytes.size(), file.header.size() - begin));
    }
    std::vector<TensorRun> runs;
    const auto& begins = file.begins;
    // The first tensor that ends behind `begin`.
    size_t t = static_cast<size_t>(
        std::upper_bound(begins.begin() + 1, begins.end(), begin) -
        (begins.begin() + 1));
    for (; t + 1 < begins.size() && begins[t] < end; ++t) {
      const uint64_t from = std::max(begin, begins[t]);
      const uint64_t to = std::min(end, begins[t + 1]);
      if (from == to) continue;
      runs.push_back({file.first_tensor + t, from - begins[t],
                      bytes.subspan(from - begin, to - from)});
    }
    return runs;
  }

  PartialDirectory& directory_;
  const SafetensorsToWrite& what_;
  std::atomic<uint64_t>* const done_;
  std::vector<std::unique_ptr<Planned>> files_;
  size_t windows_ = 0;
  uint64_t longest_ = 0;
  std::vector<ckpt::AlignedBuffer> buffers_;  // of each worker
};

}  // namespace

std::vector<std::vector<SafeTensor>> CutIntoFiles(
    std::span<const SafeTensor> tensors, uint64_t file_bytes_max) {
  std::vector<std::vector<SafeTensor>> files;
  uint64_t bytes = 0;
  for (const SafeTensor& tensor : tensors) {
    if (files.empty() ||
        (!files.back().empty() &&
         tensor.bytes > file_bytes_max - std::min(bytes, file_bytes_max))) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(tensor);
    bytes += tensor.bytes;
  }
  return files;
}

std::string SafetensorsFileName(size_t index, size_t count) {
  if (count == 1) return kSafetensorsFile;
  return absl::StrFormat("model-%05d-of-%05d.safetensors", index + 1, count);
}

absl::StatusOr<std::vector<std::string>> WriteSafetensors(
    PartialDirectory& directory, const SafetensorsToWrite& what,
    const WorkThreads& how, std::atomic<uint64_t>* done) {
  Writing writing(directory, what, how.threads, done);
  HF_RETURN_IF_ERROR(RunOnThreads(writing.windows(), how,
                                  [&writing](size_t window, int worker) {
                                    return writing.Write(window, worker);
                                  }));
  std::vector<std::string> names;
  nlohmann::ordered_json weight_map;
  uint64_t total = 0;
  for (const auto& file : writing.files()) {
    names.push_back(file->name);
    for (size_t t = 0; t + 1 < file->begins.size(); ++t) {
      const SafeTensor& tensor = what.tensors[file->first_tensor + t];
      weight_map[tensor.name] = file->name;
      total += tensor.bytes;
    }
  }
  if (names.size() > 1) {
    nlohmann::ordered_json index;
    index["metadata"] = {{"total_size", total}};
    index["weight_map"] = std::move(weight_map);
    HF_RETURN_IF_ERROR(
        directory.WriteFile(kSafetensorsIndex, index.dump(2) + "\n"));
    names.emplace_back(kSafetensorsIndex);
  }
  return names;
}

}  // namespace holdfast::tools
