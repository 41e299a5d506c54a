// tests/bench/support/raw_file.cc: see raw_file.h.

#include "tests/bench/support/raw_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/raw_transfer.h"

namespace holdfast::bench {
namespace {

void SyncDirectoryOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path();
  const ckpt::Fd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY));
  HF_CHECK(fd.valid() && ::fsync(fd.get()) == 0, "cannot sync %s", parent);
}

}  // namespace

double Now() { return absl::ToDoubleSeconds(ckpt::RealClock().Monotonic()); }

double RawWrite(const std::string& path, std::span<std::byte> memory) {
  const double begin = Now();
  {
    const ckpt::Fd fd(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT, 0600));
    HF_CHECK(fd.valid(), "cannot create %s", path);
    HF_CHECK(
        ::posix_fallocate(fd.get(), 0, static_cast<off_t>(memory.size())) == 0,
        "cannot reserve %d bytes", memory.size());
    const absl::Status status =
        ckpt::RawUringTransfer(fd.get(), /*is_write=*/true, memory, 0,
                               memory.size(), kRawBlock, kRawDepth);
    HF_CHECK(status.ok(), "%s", status.ToString());
    HF_CHECK(::fsync(fd.get()) == 0, "cannot sync %s", path);
  }
  SyncDirectoryOf(path);
  return Now() - begin;
}

double RawRead(const std::string& path, std::span<std::byte> memory) {
  const double begin = Now();
  const ckpt::Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECT));
  HF_CHECK(fd.valid(), "cannot open %s", path);
  const absl::Status status =
      ckpt::RawUringTransfer(fd.get(), /*is_write=*/false, memory, 0,
                             memory.size(), kRawBlock, kRawDepth);
  HF_CHECK(status.ok(), "%s", status.ToString());
  return Now() - begin;
}

void DropFromCache(const std::string& path) {
  const ckpt::Fd fd(::open(path.c_str(), O_RDONLY));
  HF_CHECK(
      fd.valid() && ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) == 0,
      "cannot drop %s from the page cache", path);
}

void RemoveAndSettle(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path();
  std::filesystem::remove_all(path);
  const ckpt::Fd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY));
  HF_CHECK(fd.valid() && ::syncfs(fd.get()) == 0, "cannot sync %s", parent);
}

absl::StatusOr<double> FioWrite(const std::string& dir, int files,
                                uint64_t bytes) {
  if (std::system("command -v fio >/dev/null 2>&1") != 0) {
    return absl::UnimplementedError("fio is not installed");
  }
  const std::string command = absl::StrFormat(
      "fio --name=raw --directory='%s' --ioengine=io_uring --fixedbufs=1 "
      "--direct=1 --rw=write --bs=%d --iodepth=%d --size=%d --numjobs=%d "
      "--end_fsync=1 --group_reporting --output-format=json 2>/dev/null",
      dir, kRawBlock, kRawDepth, bytes, files);
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::UnavailableError("fio does not start");
  std::string text;
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    text.append(buffer, n);
  }
  const int code = ::pclose(pipe);
  const auto json = nlohmann::json::parse(
      text.substr(std::min(text.size(), text.find('{'))), nullptr,
      /*allow_exceptions=*/false);
  if (code != 0 || json.is_discarded() || !json.contains("jobs")) {
    return absl::UnavailableError(
        absl::StrFormat("fio failed (status %d)", code));
  }
  const auto& write = json["jobs"][0]["write"];
  const double milliseconds = write.value("runtime", 0.0);
  if (write.value("io_bytes", uint64_t{0}) != bytes * files ||
      milliseconds <= 0) {
    return absl::UnavailableError("fio did not write what it was asked to");
  }
  return milliseconds / 1e3;
}

}  // namespace holdfast::bench
