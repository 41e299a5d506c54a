// tests/bench/storage_bench.cc: does Storage write as fast as the disk allows?
//
// Writes fresh files of --mib MiB in blocks of --block-kib KiB with --depth
// writes in flight, in turn by a raw io_uring loop and by the io_uring Storage
// (registered buffers and ordinary ones) and by the POSIX Storage, --rounds
// times, file sync included in each. One JSON line: the median GB/s of each,
// and the median over the rounds of Storage's share of the raw loop beside it,
// so that a disk whose speed drifts does not decide.
//
//   bench_storage --dir DIR [--mib 1024] [--block-kib 1024] [--depth 32]
//                 [--rounds 7]

#include <fcntl.h>
#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/storage/blocking.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/posix_storage.h"
#include "ckpt/storage/raw_transfer.h"
#include "ckpt/storage/uring_storage.h"

namespace holdfast::ckpt {
namespace {

struct Work {
  std::string dir;
  uint64_t bytes = 0;
  size_t block = 0;
  uint32_t depth = 0;
};

double Now() { return absl::ToDoubleSeconds(RealClock().Monotonic()); }

void Must(const absl::Status& status) {
  HF_CHECK(status.ok(), "%s", status.ToString());
}

// Each returns GB/s.
double RawLoop(const Work& work, std::span<std::byte> memory) {
  const std::string path = work.dir + "/bench.raw";
  const double begin = Now();
  const Fd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT, 0600));
  HF_CHECK(fd.valid(), "cannot create %s", path);
  HF_CHECK(::posix_fallocate(fd.get(), 0, static_cast<off_t>(work.bytes)) == 0,
           "cannot reserve %d bytes", work.bytes);
  Must(RawUringTransfer(fd.get(), /*is_write=*/true, memory, 0, work.bytes,
                        work.block, work.depth));
  HF_CHECK(::fsync(fd.get()) == 0, "sync");
  const double seconds = Now() - begin;
  ::unlink(path.c_str());
  return static_cast<double>(work.bytes) / seconds / 1e9;
}

double ByStorage(const Work& work, Storage& storage,
                 std::span<std::byte> memory) {
  Blocking io(storage);
  const double begin = Now();
  Must(io.Create("bench.storage", FileId{1}, work.bytes));
  uint64_t begun = 0;
  uint64_t ended = 0;
  std::vector<Completion> answers(work.depth);
  while (ended < work.bytes) {
    while (begun < work.bytes && begun - ended < work.depth * work.block) {
      storage.Write(FileId{1}, begun,
                    memory.subspan(begun % memory.size(), work.block),
                    OpTag{begun});
      begun += work.block;
    }
    const size_t polled = storage.Poll(answers);
    for (size_t i = 0; i < polled; ++i) Must(answers[i].status);
    ended += polled * work.block;
    if (polled == 0) storage.WaitForCompletion(100);
  }
  Must(io.Sync(FileId{1}));
  const double seconds = Now() - begin;
  Must(io.Close(FileId{1}));
  Must(io.Remove("bench.storage"));
  return static_cast<double>(work.bytes) / seconds / 1e9;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Run(const Work& work, int rounds) {
  AlignedBuffer memory(work.block * work.depth);
  for (size_t i = 0; i < memory.size(); i += 8) {
    memory.data()[i] = static_cast<std::byte>(i / 8 * 2654435761u >> 13 | 1);
  }
  const UringOptions options = {.root = work.dir, .queue_depth = work.depth};
  auto plain = OpenUringStorage(options);
  auto registered = OpenUringStorage(options);
  auto posix = OpenPosixStorage({.root = work.dir, .queue_depth = work.depth});
  Must(plain.status());
  Must(registered.status());
  Must(posix.status());
  const std::span<std::byte> span = memory.span();
  (*registered)->RegisterBuffers({&span, 1});

  std::vector<double> raw, with_registered, with_plain, with_posix;
  std::vector<double> share_registered, share_plain;
  for (int round = 0; round < rounds; ++round) {
    // In another order each time, so that none always follows the same one.
    for (int turn = 0; turn < 3; ++turn) {
      switch ((turn + round) % 3) {
        case 0:
          raw.push_back(RawLoop(work, span));
          break;
        case 1:
          with_registered.push_back(ByStorage(work, **registered, span));
          break;
        case 2:
          with_plain.push_back(ByStorage(work, **plain, span));
          break;
      }
    }
    if (round % 3 == 0) with_posix.push_back(ByStorage(work, **posix, span));
    share_registered.push_back(with_registered.back() / raw.back());
    share_plain.push_back(with_plain.back() / raw.back());
  }
  std::printf(
      "{\"bench\":\"storage_write\",\"mib\":%d,\"block_kib\":%d,\"depth\":%d,"
      "\"rounds\":%d,\"raw_gbps\":%.3f,\"uring_registered_gbps\":%.3f,"
      "\"uring_gbps\":%.3f,\"posix_gbps\":%.3f,\"share_registered\":%.3f,"
      "\"share\":%.3f,\"registered\":%s}\n",
      static_cast<int>(work.bytes >> 20), static_cast<int>(work.block >> 10),
      static_cast<int>(work.depth), rounds, Median(raw),
      Median(with_registered), Median(with_plain), Median(with_posix),
      Median(share_registered), Median(share_plain),
      (*registered)->traits().registered_buffers ? "true" : "false");
  return 0;
}

}  // namespace
}  // namespace holdfast::ckpt

int main(int argc, char** argv) {
  std::string dir = ".";
  uint64_t mib = 1024;
  size_t block_kib = 1024;
  uint32_t depth = 32;
  int rounds = 7;
  const option options[] = {{"dir", required_argument, nullptr, 'd'},
                            {"mib", required_argument, nullptr, 'm'},
                            {"block-kib", required_argument, nullptr, 'b'},
                            {"depth", required_argument, nullptr, 'q'},
                            {"rounds", required_argument, nullptr, 'r'},
                            {nullptr, 0, nullptr, 0}};
  for (int key; (key = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    const std::string value = key == '?' ? "" : optarg;
    int number = 0;
    if (key != 'd' && (!absl::SimpleAtoi(value, &number) || number < 1)) {
      std::fprintf(stderr,
                   "usage: bench_storage [--dir DIR] [--mib N] [--block-kib N] "
                   "[--depth N] [--rounds N]\n");
      return 64;
    }
    if (key == 'd') dir = value;
    if (key == 'm') mib = static_cast<uint64_t>(number);
    if (key == 'b') block_kib = static_cast<size_t>(number);
    if (key == 'q') depth = static_cast<uint32_t>(number);
    if (key == 'r') rounds = number;
  }
  holdfast::ckpt::Work work = {dir, mib << 20, block_kib << 10, depth};
  work.bytes = work.bytes / work.block * work.block;
  return holdfast::ckpt::Run(work, rounds);
}
