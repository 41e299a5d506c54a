// tests/bench/save_bench.cc: does a save write as fast as the disk allows?
//
// Each rank holds its part of --mib MiB of state and saves it through the whole
// stack, from BeginSave to the commit, in turn with a plain io_uring loop and
// with fio, which write as many bytes into as many fresh files. Every side
// syncs its files and their directory; what was written is removed outside the
// timing. The order changes from round to round.
//
//   bench_save --dir DIR [--mib 2048] [--rounds 9] [--optimizer-ms 0]
//              [--queue-depth N]
//   holdfast launch -n 4 -- bench_save --dir DIR ...
//
// With --optimizer-ms something walks through the state once, through the
// fence, while it is saved. Two lines: the share of the plain loop's speed, and
// of fio's.

#include <getopt.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/checkpointer.h"
#include "tests/bench/support/bench_ranks.h"
#include "tests/bench/support/bench_state.h"
#include "tests/bench/support/raw_file.h"
#include "tests/bench/support/row.h"

namespace holdfast::bench {
namespace {

constexpr double kGoal = 0.95;

struct Options {
  std::string dir;
  int64_t mib = 2048;
  int rounds = 9;
  int64_t optimizer_ms = 0;
  int queue_depth = 0;  // 0: what users have
};

class SaveBench {
 public:
  SaveBench(const Options& options, BenchRanks& ranks)
      : options_(options),
        ranks_(ranks),
        layout_(BenchLayout(options.mib, ranks.size())),
        memory_(*layout_, ckpt::Rank{ranks.rank()}, ranks.rank()),
        run_(options.dir + "/save.run"),
        stored_(memory_.Stored(*layout_, ckpt::Rank{ranks.rank()}, kRawBlock)) {
    if (ranks_.is_zero()) {
      HF_CHECK(std::filesystem::create_directories(run_), "%s is there", run_);
    }
    ranks_.Barrier();
    ckpt::CheckpointerOptions checkpoint;
    checkpoint.run_dir = run_;
    // Removal is this program's, outside the timing.
    checkpoint.keep_last = 1 << 20;
    if (options.queue_depth > 0) checkpoint.queue_depth = options.queue_depth;
    auto opened =
        ckpt::Checkpointer::Open(checkpoint, ranks_.OpenGroup(), layout_,
                                 memory_.spans(), ckpt::RealClock());
    Must(opened.status());
    checkpointer_ = *std::move(opened);
    ckpt::LoadRequest fresh;
    fresh.resume = ckpt::LoadRequest::Resume::kNever;
    Must(checkpointer_->ClaimAndLoad(fresh).status());
  }

  void Round(int round, bool counts) {
    double save = 0;
    double raw = 0;
    std::optional<double> fio;
    for (int turn = 0; turn < 3; ++turn) {
      switch ((turn + round) % 3) {
        case 0:
          raw = Raw();
          break;
        case 1:
          save = Save();
          break;
        case 2:
          fio = Fio();
          break;
      }
    }
    if (!counts) return;
    pairs_.push_back({save, raw * bytes_total_ / raw_total_});
    if (fio.has_value()) {
      fio_pairs_.push_back({save, *fio * bytes_total_ / raw_total_});
    }
  }

  void Print() {
    Must(checkpointer_->Close());
    checkpointer_.reset();
    ranks_.Barrier();
    if (!ranks_.is_zero()) return;
    RemoveAndSettle(run_);
    Row row(absl::StrFormat("save-%d", ranks_.size()),
            absl::StrFormat("durable save, %d rank%s, checksums and digests on",
                            ranks_.size(), ranks_.size() == 1 ? "" : "s"));
    row.SetPairs(bytes_total_, pairs_, kGoal,
                 "own io_uring loop, O_DIRECT, 1 MiB x 32 a rank");
    AddCommon(row);
    row.json()["write_seconds"] = Median(write_seconds_);
    row.json()["thread_cpu_seconds"] = Median(cpu_);
    row.json()["fence_wait_ms"] = Median(wait_ms_);
    row.json()["copied_bytes"] = Median(copied_);
    row.Print();

    Row beside(absl::StrFormat("save-%d-fio", ranks_.size()),
               absl::StrFormat("the same saves against fio, %d job%s",
                               ranks_.size(), ranks_.size() == 1 ? "" : "s"));
    if (fio_pairs_.empty()) {
      beside.SetSkipped(fio_missing_);
    } else {
      beside.SetPairs(bytes_total_, fio_pairs_, kGoal,
                      "fio, io_uring, O_DIRECT, fixedbufs, 1 MiB x 32 a job, "
                      "end_fsync");
    }
    AddCommon(beside);
    beside.Print();
  }

 private:
  void AddCommon(Row& row) {
    row.json()["ranks"] = ranks_.size();
    row.json()["file_system"] = FileSystemOf(options_.dir);
  }

  double Raw() {
    const std::string dir = options_.dir + "/save.raw";
    if (ranks_.is_zero()) std::filesystem::create_directory(dir);
    const std::string path = absl::StrFormat("%s/%05d", dir, ranks_.rank());
    const double seconds =
        ranks_.Together([&] { RawWrite(path, stored_.span()); });
    if (ranks_.is_zero()) RemoveAndSettle(dir);
    ranks_.Barrier();
    return seconds;
  }

  // On rank 0 alone; the others sleep.
  std::optional<double> Fio() {
    std::optional<double> seconds;
    if (ranks_.is_zero() && fio_missing_.empty()) {
      const std::string dir = options_.dir + "/save.fio";
      std::filesystem::create_directory(dir);
      const auto wrote = FioWrite(dir, ranks_.size(), stored_.size());
      if (wrote.ok()) {
        seconds = *wrote;
      } else {
        fio_missing_ = std::string(wrote.status().message());
      }
      RemoveAndSettle(dir);
    }
    ranks_.Barrier();
    return seconds;
  }

  double Save() {
    ++step_;
    std::optional<ckpt::SaveReport> report;
    const double seconds = ranks_.Together([&] {
      Must(checkpointer_->BeginSave({step_, {}}));
      if (options_.optimizer_ms > 0) Optimize();
      report = checkpointer_->WaitForSave(absl::Minutes(10));
    });
    HF_CHECK(report.has_value(), "a save took longer than 10 minutes");
    Must(report->status);
    if (ranks_.is_zero()) {
      bytes_total_ = static_cast<double>(report->bytes_total);
      raw_total_ = static_cast<double>(stored_.size()) * ranks_.size();
      write_seconds_.push_back(report->write_seconds);
      cpu_.push_back(report->thread_cpu_seconds);
      wait_ms_.push_back(report->fence_wait_ms);
      copied_.push_back(static_cast<double>(report->bytes_copied));
      const std::string made =
          run_ + "/checkpoints/" + ckpt::ToString(report->id);
      HF_CHECK(std::filesystem::exists(made), "%s is not there", made);
      RemoveAndSettle(made);
    }
    ranks_.Barrier();
    return seconds;
  }

  // Slices of 1/256 of every region side by side, spread over the time that a
  // step has for its update.
  void Optimize() {
    constexpr int kSlices = 256;
    const auto& regions = memory_.spans();
    for (int slice = 0; slice < kSlices; ++slice) {
      for (uint32_t region = 0; region < regions.size(); ++region) {
        const uint64_t size = regions[region].size();
        const uint64_t from = size * slice / kSlices;
        const uint64_t to = size * (slice + 1) / kSlices;
        if (from == to) continue;
        checkpointer_->FenceWrite(region, from, to - from);
        regions[region][from] ^= std::byte{1};
      }
      ckpt::RealClock().Sleep(absl::Milliseconds(options_.optimizer_ms) /
                              kSlices);
    }
  }

  const Options options_;
  BenchRanks& ranks_;
  const std::shared_ptr<const ckpt::JobLayout> layout_;
  const BenchMemory memory_;
  const std::string run_;
  ckpt::AlignedBuffer stored_;  // the bytes of this rank's file
  std::unique_ptr<ckpt::Checkpointer> checkpointer_;
  int64_t step_ = 0;
  double bytes_total_ = 1;
  double raw_total_ = 1;
  std::string fio_missing_;
  std::vector<Pair> pairs_, fio_pairs_;
  std::vector<double> write_seconds_, cpu_, wait_ms_, copied_;
};

int Main(int argc, char** argv) {
  Options parsed;
  const option options[] = {{"dir", required_argument, nullptr, 'd'},
                            {"mib", required_argument, nullptr, 'm'},
                            {"rounds", required_argument, nullptr, 'r'},
                            {"optimizer-ms", required_argument, nullptr, 'o'},
                            {"queue-depth", required_argument, nullptr, 'q'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    bool good = c != '?';
    if (c == 'd') parsed.dir = optarg;
    if (c == 'm') good = absl::SimpleAtoi(optarg, &parsed.mib);
    if (c == 'r') good = absl::SimpleAtoi(optarg, &parsed.rounds);
    if (c == 'o') good = absl::SimpleAtoi(optarg, &parsed.optimizer_ms);
    if (c == 'q') good = absl::SimpleAtoi(optarg, &parsed.queue_depth);
    if (!good) return 64;
  }
  if (parsed.dir.empty() || parsed.mib < 1 || parsed.rounds < 1) return 64;
  BenchRanks ranks;
  {
    SaveBench bench(parsed, ranks);
    // The first touches memory for the first time, and plans.
    for (int round = 0; round <= parsed.rounds; ++round) {
      bench.Round(round, round > 0);
    }
    bench.Print();
  }
  return ranks.Finish();
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
