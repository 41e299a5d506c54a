// tests/bench/save_bench.cc: does a save write as fast as the disk allows, and
// what does it cost the step beside it?
//
// One rank with --mib MiB of state (14 bytes a parameter, as the trainer holds
// them) saves it --rounds times through the whole stack, in turn with a raw
// io_uring loop over the same memory, the file's sync included in both. While
// it is saved a fake optimizer goes through the state once, through the fence.
// One JSON line: the median GB/s of each, the median over the rounds of the
// save's share of the raw loop beside it, from first write to data synced and
// from BeginSave to the commit; the fence's costs; the thread's CPU seconds.
//
//   bench_save --dir DIR [--mib 512] [--rounds 5] [--optimizer-ms 0]

#include <fcntl.h>
#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/checkpointer.h"
#include "ckpt/group/inproc_group.h"
#include "ckpt/layout/train_layout.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/raw_transfer.h"

namespace holdfast::ckpt {
namespace {

constexpr int64_t kColumns = 4096;
constexpr int64_t kBytesPerParameter = 14;
constexpr size_t kBlock = size_t{1} << 20;
constexpr uint32_t kDepth = 64;

double Now() { return absl::ToDoubleSeconds(RealClock().Monotonic()); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::shared_ptr<const JobLayout> Layout(int64_t mib) {
  TensorSpec tensor;
  tensor.name = "w";
  tensor.shape = {
      std::max<int64_t>(1, (mib << 20) / kBytesPerParameter / kColumns),
      kColumns};
  tensor.layer = 0;
  TrainLayoutOptions options;
  options.stages = {{{0, 1}}};
  auto layout = TrainLayout::Create({tensor}, options);
  HF_CHECK(layout.ok(), "%s", layout.status().ToString());
  return *std::move(layout);
}

// Writes the whole MiB of the regions one after the other, as one file. Bytes a
// second.
double RawLoop(const std::string& dir,
               std::span<const std::span<std::byte>> regions) {
  const std::string path = dir + "/bench.raw";
  uint64_t bytes = 0;
  for (const auto& region : regions) bytes += region.size() / kBlock * kBlock;
  const double begin = Now();
  const Fd fd(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT, 0600));
  HF_CHECK(fd.valid(), "cannot create %s", path);
  HF_CHECK(::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)) == 0,
           "cannot reserve %d bytes", bytes);
  uint64_t offset = 0;
  for (const auto& region : regions) {
    const uint64_t size = region.size() / kBlock * kBlock;
    const absl::Status status =
        RawUringTransfer(fd.get(), /*is_write=*/true, region.first(size),
                         offset, size, kBlock, kDepth);
    HF_CHECK(status.ok(), "%s", status.ToString());
    offset += size;
  }
  HF_CHECK(::fsync(fd.get()) == 0, "sync");
  const double seconds = Now() - begin;
  ::unlink(path.c_str());
  return bytes / seconds;
}

int Main(int argc, char** argv) {
  std::string dir;
  int64_t mib = 512;
  int rounds = 5;
  int64_t optimizer_ms = 0;
  const option options[] = {{"dir", required_argument, nullptr, 'd'},
                            {"mib", required_argument, nullptr, 'm'},
                            {"rounds", required_argument, nullptr, 'r'},
                            {"optimizer-ms", required_argument, nullptr, 'o'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    bool good = true;
    if (c == 'd') dir = optarg;
    if (c == 'm') good = absl::SimpleAtoi(optarg, &mib);
    if (c == 'r') good = absl::SimpleAtoi(optarg, &rounds);
    if (c == 'o') good = absl::SimpleAtoi(optarg, &optimizer_ms);
    if (c == '?' || !good) return 64;
  }
  if (dir.empty() || mib < 1 || rounds < 1) return 64;
  const absl::Status quiet = InitLog(LogLevel::kWarning, "", "");
  HF_CHECK(quiet.ok(), "%s", quiet.ToString());

  const auto layout = Layout(mib);
  const Holding holding = layout->StoredBy(Rank{0});
  std::vector<AlignedBuffer> memory;
  std::vector<std::span<std::byte>> regions;
  for (const uint64_t bytes : holding.region_bytes) {
    memory.emplace_back(bytes);
    uint64_t x = 1;
    for (uint64_t i = 0; i + 8 <= bytes; i += 8) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      std::copy_n(reinterpret_cast<const std::byte*>(&x), 8,
                  memory.back().data() + i);
    }
    regions.push_back(memory.back().span());
  }

  const std::string run = dir + "/bench.run";
  std::filesystem::create_directory(run);
  CheckpointerOptions checkpoint;
  checkpoint.run_dir = run;
  checkpoint.keep_last = 1;
  auto opened =
      Checkpointer::Open(checkpoint, std::move(MakeInprocGroups(1)[0]), layout,
                         regions, RealClock());
  HF_CHECK(opened.ok(), "%s", opened.status().ToString());
  Checkpointer& checkpointer = **opened;
  LoadRequest fresh;
  fresh.resume = LoadRequest::Resume::kNever;
  const auto claimed = checkpointer.ClaimAndLoad(fresh);
  HF_CHECK(claimed.ok(), "%s", claimed.status().ToString());

  std::vector<double> raw, save, write, share_write, share_total, cpu, wait,
      copied;
  for (int round = 0; round <= rounds; ++round) {
    const double raw_speed = RawLoop(dir, regions);
    const double begin = Now();
    const absl::Status begun = checkpointer.BeginSave({round + 1, {}});
    HF_CHECK(begun.ok(), "%s", begun.ToString());
    // The optimizer: slices of 1/256 of every region side by side, spread over
    // the time that the step has for it.
    constexpr int kSlices = 256;
    for (int slice = 0; slice < kSlices && optimizer_ms > 0; ++slice) {
      for (uint32_t region = 0; region < regions.size(); ++region) {
        const uint64_t size = regions[region].size();
        const uint64_t from = size * slice / kSlices;
        const uint64_t to = size * (slice + 1) / kSlices;
        checkpointer.FenceWrite(region, from, to - from);
        regions[region][from] ^= std::byte{1};
      }
      RealClock().Sleep(absl::Milliseconds(optimizer_ms) / kSlices);
    }
    const auto report = checkpointer.WaitForSave(absl::Minutes(10));
    const double save_seconds = Now() - begin;
    HF_CHECK(report.has_value() && report->status.ok(), "%s",
             report.has_value() ? report->status.ToString() : "no report");
    if (round == 0) continue;  // faults pages in, plans
    raw.push_back(raw_speed / 1e9);
    save.push_back(report->bytes / save_seconds / 1e9);
    write.push_back(report->bytes_per_s / 1e9);
    share_write.push_back(report->bytes_per_s / raw_speed);
    share_total.push_back(report->bytes / save_seconds / raw_speed);
    cpu.push_back(report->thread_cpu_seconds);
    wait.push_back(report->fence_wait_ms);
    copied.push_back(report->bytes_copied / 1048576.0);
  }
  const absl::Status closed = checkpointer.Close();
  HF_CHECK(closed.ok(), "%s", closed.ToString());
  std::filesystem::remove_all(run);
  std::printf(
      "{\"bench\":\"save\",\"mib\":%d,\"rounds\":%d,\"raw_gb_s\":%.3f,"
      "\"write_gb_s\":%.3f,\"save_gb_s\":%.3f,\"write_share\":%.3f,"
      "\"save_share\":%.3f,\"cpu_s\":%.3f,\"fence_wait_ms\":%.1f,"
      "\"arena_mib\":%.1f}\n",
      static_cast<int>(mib), rounds, Median(raw), Median(write), Median(save),
      Median(share_write), Median(share_total), Median(cpu), Median(wait),
      Median(copied));
  return 0;
}

}  // namespace
}  // namespace holdfast::ckpt

int main(int argc, char** argv) { return holdfast::ckpt::Main(argc, argv); }
