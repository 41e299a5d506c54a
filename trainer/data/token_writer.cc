// trainer/data/token_writer.cc: buffered writes, syncs and three renames.

#include "trainer/data/token_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/base/sync_dir.h"
#include "trainer/data/little_endian.h"
#include "trainer/data/mask_format.h"

namespace holdfast::trainer {
namespace {

constexpr size_t kBufferBytes = 1 << 20;

absl::Status Failed(const char* doing, const std::string& path, int error) {
  const std::string message =
      absl::StrFormat("%s %s: %s", doing, path, std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(message);
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case EISDIR:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status SyncDirectory(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Failed("opening directory", directory, errno);
  const int error = ckpt::SyncDirFd(fd);
  close(fd);
  return error == 0 ? absl::OkStatus()
                    : Failed("syncing directory", directory, error);
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  return Failed("renaming a temporary file to", to, errno);
}

absl::Status RemoveIfThere(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return Failed("removing", path, errno);
}

}  // namespace

TokenWriter::TokenWriter(std::string prefix, const TokenWriterOptions& options)
    : prefix_(std::move(prefix)),
      options_(options),
      type_(TokenTypeFor(options.vocab)) {}

absl::StatusOr<std::unique_ptr<TokenWriter>> TokenWriter::Create(
    const std::string& prefix, const TokenWriterOptions& options) {
  if (!options.replace && access((prefix + ".idx").c_str(), F_OK) == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "writing token set %s: %s.idx exists; choose another name or ask for "
        "it to be replaced",
        prefix, prefix));
  }
  std::unique_ptr<TokenWriter> writer(new TokenWriter(prefix, options));
  HF_RETURN_IF_ERROR(writer->Open(writer->bin_, ".bin"));
  HF_RETURN_IF_ERROR(writer->Open(writer->idx_, ".idx"));
  if (options.masked) {
    HF_RETURN_IF_ERROR(writer->Open(writer->mask_, ".mask"));
    // The header is known at the end only; its room is made now.
    writer->mask_.buffer.resize(kMaskHeaderBytes);
  }
  return writer;
}

TokenWriter::~TokenWriter() {
  for (OutFile* file : {&bin_, &idx_, &mask_}) {
    if (file->fd >= 0) close(file->fd);
    if (!file->temp_path.empty()) unlink(file->temp_path.c_str());
  }
}

absl::Status TokenWriter::Open(OutFile& file, const char* suffix) {
  const std::string path =
      absl::StrFormat("%s%s.tmp-%d", prefix_, suffix, getpid());
  file.fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file.fd < 0) return Failed("creating", path, errno);
  file.temp_path = path;
  file.buffer.reserve(kBufferBytes + sizeof(int32_t));
  return absl::OkStatus();
}

absl::Status TokenWriter::Flush(OutFile& file) {
  size_t done = 0;
  while (done < file.buffer.size()) {
    const ssize_t wrote =
        write(file.fd, file.buffer.data() + done, file.buffer.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Failed("writing", file.temp_path, errno);
    done += static_cast<size_t>(wrote);
  }
  file.buffer.clear();
  return absl::OkStatus();
}

absl::Status TokenWriter::SyncAndClose(OutFile& file) {
  HF_RETURN_IF_ERROR(Flush(file));
  if (fsync(file.fd) != 0) return Failed("syncing", file.temp_path, errno);
  if (close(std::exchange(file.fd, -1)) != 0) {
    return Failed("closing", file.temp_path, errno);
  }
  return absl::OkStatus();
}

void TokenWriter::AppendMaskBit(bool counts) {
  mask_byte_ |= static_cast<uint8_t>(counts) << (tokens_ % 8);
  if (tokens_ % 8 == 7) {
    mask_.buffer.push_back(
        static_cast<std::byte>(std::exchange(mask_byte_, 0)));
  }
}

absl::Status TokenWriter::Append(std::span<const int32_t> tokens, bool counts) {
  HF_CHECK(counts || options_.masked, "a set without a mask counts all tokens");
  for (const int32_t token : tokens) {
    HF_CHECK(token >= 0 && token < options_.vocab, "token %d of %d", token,
             options_.vocab);
    if (type_ == TokenType::kU16) {
      AppendInt(bin_.buffer, static_cast<uint16_t>(token));
    } else {
      AppendInt(bin_.buffer, token);
    }
    if (options_.masked) AppendMaskBit(counts);
    ++tokens_;
    if (++sequence_tokens_ == options_.sequence_tokens_max) EndSequence();
    if (bin_.buffer.size() >= kBufferBytes) HF_RETURN_IF_ERROR(Flush(bin_));
  }
  if (counts) counting_ += tokens.size();
  if (mask_.buffer.size() >= kBufferBytes) HF_RETURN_IF_ERROR(Flush(mask_));
  return absl::OkStatus();
}

void TokenWriter::EndSequence() {
  lengths_.push_back(static_cast<int32_t>(sequence_tokens_));
  sequence_tokens_ = 0;
}

void TokenWriter::EndDocument() {
  if (sequence_tokens_ > 0) EndSequence();
  const auto sequences = static_cast<int64_t>(lengths_.size());
  if (documents_.back() != sequences) documents_.push_back(sequences);
}

absl::Status TokenWriter::Finish() {
  EndDocument();
  idx_.buffer = EncodeIndex(type_, lengths_, documents_);
  HF_RETURN_IF_ERROR(SyncAndClose(bin_));
  HF_RETURN_IF_ERROR(SyncAndClose(idx_));
  if (options_.masked) {
    if (tokens_ % 8 != 0) {
      mask_.buffer.push_back(static_cast<std::byte>(mask_byte_));
    }
    HF_RETURN_IF_ERROR(Flush(mask_));
    const auto header = EncodeMaskHeader(tokens_, counting_);
    if (pwrite(mask_.fd, header.data(), header.size(), 0) !=
        static_cast<ssize_t>(header.size())) {
      return Failed("writing", mask_.temp_path, errno);
    }
    HF_RETURN_IF_ERROR(SyncAndClose(mask_));
  }
  // A set that is replaced stops existing before its files change.
  HF_RETURN_IF_ERROR(RemoveIfThere(prefix_ + ".idx"));
  HF_RETURN_IF_ERROR(RemoveIfThere(prefix_ + ".mask"));
  HF_RETURN_IF_ERROR(SyncDirectory(DirectoryOf(prefix_)));
  HF_RETURN_IF_ERROR(Rename(bin_.temp_path, prefix_ + ".bin"));
  bin_.temp_path.clear();
  if (options_.masked) {
    HF_RETURN_IF_ERROR(Rename(mask_.temp_path, prefix_ + ".mask"));
    mask_.temp_path.clear();
  }
  HF_RETURN_IF_ERROR(SyncDirectory(DirectoryOf(prefix_)));
  HF_RETURN_IF_ERROR(Rename(idx_.temp_path, prefix_ + ".idx"));
  idx_.temp_path.clear();
  return SyncDirectory(DirectoryOf(prefix_));
}

}  // namespace holdfast::trainer
