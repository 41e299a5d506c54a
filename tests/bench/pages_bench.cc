// tests/bench/pages_bench.cc: what huge pages are worth to a disk: the plain
// loop writes and reads one file from ordinary pages and from huge ones
// (ckpt/base/aligned_buffer.h), in turn.
//
//   bench_pages --dir DIR [--mib 1024] [--rounds 9]
//
// Two lines: the speed of writing and of reading, huge pages beside ordinary
// ones. Nothing of ours is in it; there is no goal.

#include <getopt.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "tests/bench/support/raw_file.h"
#include "tests/bench/support/row.h"

namespace holdfast::bench {
namespace {

// Bytes that no disk can compress.
void Fill(std::span<std::byte> memory) {
  uint64_t x = 1;
  for (size_t i = 0; i + 8 <= memory.size(); i += 8) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(memory.data() + i, &x, 8);
  }
}

int Main(int argc, char** argv) {
  std::string dir;
  int64_t mib = 1024;
  int rounds = 9;
  const option options[] = {{"dir", required_argument, nullptr, 'd'},
                            {"mib", required_argument, nullptr, 'm'},
                            {"rounds", required_argument, nullptr, 'r'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    bool good = c != '?';
    if (c == 'd') dir = optarg;
    if (c == 'm') good = absl::SimpleAtoi(optarg, &mib);
    if (c == 'r') good = absl::SimpleAtoi(optarg, &rounds);
    if (!good) return 64;
  }
  if (dir.empty() || mib < 2 || rounds < 1) return 64;

  ckpt::AlignedBuffer ordinary(static_cast<size_t>(mib) << 20);
  ckpt::AlignedBuffer huge(static_cast<size_t>(mib) << 20);
  HF_CHECK(::madvise(ordinary.data(), ordinary.size(), MADV_NOHUGEPAGE) == 0,
           "the kernel does not know huge pages");
  Fill(ordinary.span());
  Fill(huge.span());

  const std::string path = dir + "/pages.raw";
  std::vector<Pair> writes, reads;
  for (int round = 0; round <= rounds; ++round) {
    Pair write, read;
    for (int turn = 0; turn < 2; ++turn) {
      const bool is_huge = (turn + round) % 2 == 1;
      const auto memory = is_huge ? huge.span() : ordinary.span();
      const double write_seconds = RawWrite(path, memory);
      DropFromCache(path);
      const double read_seconds = RawRead(path, memory);
      (is_huge ? write.seconds : write.raw_seconds) = write_seconds;
      (is_huge ? read.seconds : read.raw_seconds) = read_seconds;
      RemoveAndSettle(path);
    }
    if (round == 0) continue;  // the first touches the disk for the first time
    writes.push_back(write);
    reads.push_back(read);
  }
  for (const bool is_write : {true, false}) {
    Row row(is_write ? "pages-write" : "pages-read",
            is_write ? "plain writes from huge pages"
                     : "plain reads into huge pages");
    row.SetPairs(static_cast<double>(huge.size()), is_write ? writes : reads, 0,
                 "the same from pages of 4 KiB");
    row.json().erase("goal");
    row.json().erase("goal_is");
    row.json().erase("met");
    row.json()["file_system"] = FileSystemOf(dir);
    row.Print();
  }
  return 0;
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
