// tests/bench/memory_bench.cc: what memory a save takes beside the state.
//
// First row: one rank with --mib MiB saves at the disk's speed and at slow ones
// (each write begins late, by the faults of ckpt/storage/fault_spec.h) while an
// optimizer walks through the state behind the fence. The resident size is
// sampled every 2 ms; what it rises at most over what it was before the
// Checkpointer was there, less the arena, in per cent of the state.
//
// Second row: 100 saves one after the other of a smaller state. Lines through
// resident size, anonymous memory (libraries that others map too are not in
// it), the heap's bytes, open descriptors and files in the run directory must
// not rise.
//
//   bench_memory --dir DIR [--mib 512] [--saves 100]

#include <getopt.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/checkpointer.h"
#include "ckpt/group/inproc_group.h"
#include "tests/bench/support/bench_ranks.h"
#include "tests/bench/support/bench_state.h"
#include "tests/bench/support/raw_file.h"
#include "tests/bench/support/row.h"
#include "tests/bench/support/statistics.h"

namespace holdfast::bench {
namespace {

constexpr double kGoalPercent = 5;

double ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  double total = 0;
  double resident = 0;
  statm >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double AnonymousBytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    double kib = 0;
    if (std::sscanf(line.c_str(), "Pss_Anon: %lf kB", &kib) == 1)
      return kib * 1024;
  }
  return 0;
}

double HeapBytes() {
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<double>(info.uordblks + info.hblkhd);
}

double EntriesBelow(const std::string& path) {
  using std::filesystem::recursive_directory_iterator;
  return static_cast<double>(
      std::distance(recursive_directory_iterator(path), {}));
}

// The largest resident size between its making and its end.
class Peak {
 public:
  Peak() : thread_([this] { Watch(); }) {}
  double End() {
    end_ = true;
    thread_.join();
    return most_;
  }

 private:
  void Watch() {
    while (!end_) {
      most_ = std::max(most_, ResidentBytes());
      ::usleep(2000);
    }
  }
  std::atomic<bool> end_ = false;
  double most_ = 0;
  std::thread thread_;
};

std::unique_ptr<ckpt::Checkpointer> Open(
    const std::string& run,
    const std::shared_ptr<const ckpt::JobLayout>& layout,
    const BenchMemory& memory, const std::string& faults) {
  ckpt::CheckpointerOptions options;
  options.run_dir = run;
  options.keep_last = 1;
  options.fault_spec = faults;
  auto opened =
      ckpt::Checkpointer::Open(options, std::move(ckpt::MakeInprocGroups(1)[0]),
                               layout, memory.spans(), ckpt::RealClock());
  Must(opened.status());
  ckpt::LoadRequest fresh;
  fresh.resume = ckpt::LoadRequest::Resume::kNever;
  Must((*opened)->ClaimAndLoad(fresh).status());
  return *std::move(opened);
}

// A save with an optimizer behind it that takes `optimizer_ms`.
ckpt::SaveReport Save(ckpt::Checkpointer& checkpointer,
                      const BenchMemory& memory, int64_t step,
                      int optimizer_ms) {
  Must(checkpointer.BeginSave({step, {}}));
  constexpr int kSlices = 64;
  for (int slice = 0; slice < kSlices; ++slice) {
    for (uint32_t region = 0; region < memory.spans().size(); ++region) {
      const uint64_t size = memory.spans()[region].size();
      const uint64_t from = size * slice / kSlices;
      const uint64_t to = size * (slice + 1) / kSlices;
      if (from == to) continue;
      checkpointer.FenceWrite(region, from, to - from);
      memory.spans()[region][from] ^= std::byte{1};
    }
    ckpt::RealClock().Sleep(absl::Milliseconds(optimizer_ms) / kSlices);
  }
  const auto report = checkpointer.WaitForSave(absl::Minutes(5));
  HF_CHECK(report.has_value(), "a save took longer than 5 minutes");
  return *report;
}

void MeasureExtra(const std::string& dir, int64_t mib) {
  const auto layout = BenchLayout(mib, 1);
  const BenchMemory memory(*layout, ckpt::Rank{0}, 1);
  const auto state = static_cast<double>(memory.bytes());
  nlohmann::ordered_json speeds = nlohmann::ordered_json::array();
  double worst = -1e9;
  double arena = 0;
  // With 64 units in flight, a write that begins 50 ms late leaves 1.3 GB/s,
  // one of 200 ms 0.3 GB/s, one of a second 64 MB/s.
  for (const int late_ms : {0, 50, 200, 1000}) {
    const std::string run = absl::StrFormat("%s/memory-%d.run", dir, late_ms);
    HF_CHECK(std::filesystem::create_directories(run), "%s is there", run);
    const double before = ResidentBytes();
    Peak peak;
    auto checkpointer = Open(
        run, layout, memory,
        late_ms == 0
            ? ""
            : absl::StrFormat("match=shard,op=write,do=delay,ms=%d", late_ms));
    arena = static_cast<double>(checkpointer->arena_bytes());
    int committed = 0;
    double copied = 0;
    const int saves = late_ms >= 1000 ? 1 : 3;
    for (int i = 1; i <= saves; ++i) {
      const ckpt::SaveReport report = Save(*checkpointer, memory, i, 200);
      committed += report.status.ok();
      copied = std::max(copied, static_cast<double>(report.bytes_copied));
    }
    const double rise = peak.End() - before;
    Must(checkpointer->counters().failed < saves || late_ms >= 1000
             ? absl::OkStatus()
             : absl::InternalError("no save succeeded"));
    // A save that was given up is reported by Close as well.
    checkpointer->Close().IgnoreError();
    checkpointer.reset();
    RemoveAndSettle(run);
    const double percent = 100 * (rise - arena) / state;
    worst = std::max(worst, percent);
    speeds.push_back({{"writes_late_ms", late_ms},
                      {"rise_bytes", rise},
                      {"beyond_arena_percent", percent},
                      {"copied_bytes", copied},
                      {"committed", committed},
                      {"saves", saves}});
  }
  Row row("memory-extra",
          "memory while saving beyond the arena, at four disk speeds");
  row.json()["bytes"] = state;
  row.SetAtMost({worst, worst, worst, 1}, kGoalPercent, "% of the state");
  row.json()["arena_bytes"] = arena;
  row.json()["speeds"] = speeds;
  row.json()["file_system"] = FileSystemOf(dir);
  row.Print();
}

void MeasureSlope(const std::string& dir, int saves) {
  constexpr int64_t kMib = 48;
  constexpr int kWarmUp = 20;  // until keep_last and the allocator are full
  // Less than a page over all saves is no slope: the allocator's caches count
  // as used and fill by chance, a little more each time that threads meet anew.
  const double level_bytes = 4096.0 / saves;
  const auto layout = BenchLayout(kMib, 1);
  const BenchMemory memory(*layout, ckpt::Rank{0}, 1);
  const std::string run = dir + "/slope.run";
  HF_CHECK(std::filesystem::create_directories(run), "%s is there", run);
  auto checkpointer = Open(run, layout, memory, "");
  struct Figure {
    const char* name;
    std::vector<double> values;
  };
  std::vector<Figure> figures = {{"resident_bytes", {}},
                                 {"anonymous_bytes", {}},
                                 {"heap_bytes", {}},
                                 {"descriptors", {}},
                                 {"files", {}}};
  // What this program itself keeps is not to be seen.
  for (Figure& figure : figures) figure.values.reserve(saves);
  for (int i = 1; i <= saves + kWarmUp; ++i) {
    const ckpt::SaveReport report = Save(*checkpointer, memory, i, 0);
    Must(report.status);
    // Until the checkpoint before is gone.
    for (int tries = 0; tries < 1000; ++tries) {
      using std::filesystem::directory_iterator;
      if (std::distance(directory_iterator(run + "/checkpoints"), {}) <= 2) {
        break;  // one checkpoint and run.id
      }
      ::usleep(1000);
    }
    if (i <= kWarmUp) continue;
    const double now[] = {ResidentBytes(), AnonymousBytes(), HeapBytes(),
                          EntriesBelow("/proc/self/fd"), EntriesBelow(run)};
    for (size_t f = 0; f < figures.size(); ++f) {
      figures[f].values.push_back(now[f]);
    }
  }
  Must(checkpointer->Close());
  checkpointer.reset();
  RemoveAndSettle(run);

  Row row("memory-slope",
          absl::StrFormat("%d saves in a row: rise of memory a save", saves));
  row.json()["bytes"] = memory.bytes();
  row.SetAtMost(SlopeInterval(figures[0].values), level_bytes,
                "bytes a save, resident");
  bool level = true;
  for (const Figure& figure : figures) {
    const Interval slope = SlopeInterval(figure.values);
    const bool is_bytes = std::string_view(figure.name).ends_with("_bytes");
    level = level && slope.low <= (is_bytes ? level_bytes : 0);
    row.json()["slopes"][figure.name] = {{"a_save", slope.middle},
                                         {"low", slope.low},
                                         {"high", slope.high},
                                         {"first", figure.values.front()},
                                         {"last", figure.values.back()}};
  }
  row.json()["met"] = level;
  row.json()["saves"] = saves;
  row.Print();
}

int Main(int argc, char** argv) {
  std::string dir;
  int64_t mib = 512;
  int saves = 100;
  const option options[] = {{"dir", required_argument, nullptr, 'd'},
                            {"mib", required_argument, nullptr, 'm'},
                            {"saves", required_argument, nullptr, 's'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    bool good = c != '?';
    if (c == 'd') dir = optarg;
    if (c == 'm') good = absl::SimpleAtoi(optarg, &mib);
    if (c == 's') good = absl::SimpleAtoi(optarg, &saves);
    if (!good) return 64;
  }
  if (dir.empty() || mib < 16 || saves < 3) return 64;
  Must(ckpt::InitLog(ckpt::LogLevel::kError, "", ""));
  MeasureExtra(dir, mib);
  MeasureSlope(dir, saves);
  return 0;
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
