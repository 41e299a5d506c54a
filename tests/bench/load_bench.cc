// tests/bench/load_bench.cc: does a load read as fast as the disk allows?
//
// The ranks save --mib MiB of state once, through the whole stack. Then, in
// turn and --rounds times: a plain io_uring loop on each rank reads that rank's
// shard file, and a new job starts and loads it, every checksum compared.
// Nothing of the files is in the page cache: both sides read past it
// (O_DIRECT), and what might be there is dropped before each. The time of a
// load is that of the rank that took longest; what a whole start takes beside
// it (claim, adoption, seal) is told as start_seconds.
//
// On one rank also `ckptctl verify`'s reading with and without digests.
//
//   bench_load --dir DIR [--mib 2048] [--rounds 9]
//   holdfast launch -n 4 -- bench_load --dir DIR ...

#include <getopt.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/checkpointer.h"
#include "ckpt/format/manifest.h"
#include "ckpt/session/catalog_locate.h"
#include "ckpt/session/io.h"
#include "ckpt/session/verify_session.h"
#include "ckpt/storage/blocking.h"
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
};

class LoadBench {
 public:
  LoadBench(const Options& options, BenchRanks& ranks)
      : options_(options),
        ranks_(ranks),
        layout_(BenchLayout(options.mib, ranks.size())),
        memory_(*layout_, ckpt::Rank{ranks.rank()}, ranks.rank()),
        room_(memory_.Stored(*layout_, ckpt::Rank{ranks.rank()}, kRawBlock)),
        checksum_(memory_.Checksum()),
        run_(options.dir + "/load.run") {
    if (ranks_.is_zero()) {
      HF_CHECK(std::filesystem::create_directories(run_), "%s is there", run_);
    }
    ranks_.Barrier();
    const auto checkpointer = Open();
    Must(checkpointer->ClaimAndLoad({}).status());
    Must(checkpointer->BeginSave({1, {}}));
    const auto saved = checkpointer->WaitForSave(absl::Minutes(10));
    HF_CHECK(saved.has_value(), "the save takes longer than 10 minutes");
    Must(saved->status);
    Must(checkpointer->Close());
    ranks_.Barrier();
    // The first start fills memory that was cleared, so that a load that did
    // nothing would be seen.
    memory_.Clear();
    Load();
    HF_CHECK(memory_.Checksum() == checksum_, "rank %d loaded other bytes",
             ranks_.rank());
    starts_.clear();
    Raw();
    Verify(/*hash=*/false);
  }

  void Round(int round) {
    Pair pair;
    for (int turn = 0; turn < 2; ++turn) {
      ((turn + round) % 2 == 0 ? pair.raw_seconds : pair.seconds) =
          (turn + round) % 2 == 0 ? Raw() : Load();
    }
    // As if as many bytes had been read.
    pair.raw_seconds *= bytes_loaded_ / raw_bytes_;
    pairs_.push_back(pair);
    if (ranks_.size() > 1) return;
    verify_pairs_.push_back({Verify(false), pair.raw_seconds});
    hash_pairs_.push_back({Verify(true), pair.raw_seconds});
  }

  void Print() {
    ranks_.Barrier();
    if (!ranks_.is_zero()) return;
    RemoveAndSettle(run_);
    Row row(absl::StrFormat("load-%d", ranks_.size()),
            absl::StrFormat("load, cold cache, %d rank%s, checksums on",
                            ranks_.size(), ranks_.size() == 1 ? "" : "s"));
    row.SetPairs(bytes_loaded_, pairs_, kGoal,
                 "own io_uring loop, O_DIRECT, 1 MiB x 32 a rank");
    row.json()["start_seconds"] = Median(starts_);
    AddCommon(row);
    row.Print();
    if (ranks_.size() > 1) return;
    for (const bool hash : {false, true}) {
      Row verify(hash ? "verify-hash" : "verify",
                 hash ? "ckptctl verify --hash, one thread" : "ckptctl verify");
      // No goal of its own: told for what it is.
      verify.SetPairs(bytes_loaded_, hash ? hash_pairs_ : verify_pairs_, 0,
                      "own io_uring loop, O_DIRECT, 1 MiB x 32");
      verify.json().erase("goal");
      verify.json().erase("goal_is");
      verify.json().erase("met");
      AddCommon(verify);
      verify.Print();
    }
  }

 private:
  void AddCommon(Row& row) {
    row.json()["ranks"] = ranks_.size();
    row.json()["cold"] = "O_DIRECT, and POSIX_FADV_DONTNEED before each";
    row.json()["file_system"] = FileSystemOf(options_.dir);
  }

  std::unique_ptr<ckpt::Checkpointer> Open() {
    ckpt::CheckpointerOptions options;
    options.run_dir = run_;
    auto opened = ckpt::Checkpointer::Open(options, ranks_.OpenGroup(), layout_,
                                           memory_.spans(), ckpt::RealClock());
    Must(opened.status());
    return *std::move(opened);
  }

  // Where the checkpoint is now: every start moves it to a name of its own.
  ckpt::LocatedCheckpoint Locate() {
    auto located = ckpt::LocateCheckpoint(run_, {}, ckpt::RealClock());
    Must(located.status());
    return *std::move(located);
  }

  // The shard file of this rank.
  std::string Shard() {
    return absl::StrFormat("%s/shard-%05d.hf", Locate().path(), ranks_.rank());
  }

  double Raw() {
    const std::string path = Shard();
    DropFromCache(path);
    const double seconds =
        ranks_.Together([&] { RawRead(path, room_.span()); });
    raw_bytes_ = static_cast<double>(room_.size()) * ranks_.size();
    return seconds;
  }

  double Load() {
    DropFromCache(Shard());
    ranks_.Barrier();
    const auto checkpointer = Open();
    ckpt::LoadRequest request;
    request.resume = ckpt::LoadRequest::Resume::kRequired;
    ckpt::LoadReport report;
    starts_.push_back(ranks_.Together([&] {
      const auto loaded = checkpointer->ClaimAndLoad(request);
      Must(loaded.status());
      report = *loaded;
    }));
    Must(checkpointer->Close());
    bytes_loaded_ = static_cast<double>(report.bytes_read) * ranks_.size();
    return ranks_.Max(report.seconds);
  }

  double Verify(bool hash) {
    const ckpt::LocatedCheckpoint place = Locate();
    const auto bytes = ckpt::Blocking(*place.storage)
                           .Get(place.dir + "/" + ckpt::kManifestName,
                                ckpt::kManifestBytesMax);
    Must(bytes.status());
    const auto manifest = ckpt::DecodeManifest(*bytes);
    Must(manifest.status());
    ckpt::SessionEnv env;
    env.storage = place.storage.get();
    env.clock = &ckpt::RealClock();
    env.space = 1;
    env.ops_max = place.storage->queue_depth();
    ckpt::VerifySession session(env, place.dir, &*manifest, hash);
    ckpt::RunAlone(place.storage.get(), &ckpt::RealClock(), &session);
    Must(session.outcome().status);
    return session.outcome().seconds;
  }

  const Options options_;
  BenchRanks& ranks_;
  const std::shared_ptr<const ckpt::JobLayout> layout_;
  BenchMemory memory_;
  ckpt::AlignedBuffer room_;  // for the plain loop
  const uint32_t checksum_;
  const std::string run_;
  double bytes_loaded_ = 1;
  double raw_bytes_ = 1;
  std::vector<Pair> pairs_, verify_pairs_, hash_pairs_;
  std::vector<double> starts_;
};

int Main(int argc, char** argv) {
  Options parsed;
  const option options[] = {{"dir", required_argument, nullptr, 'd'},
                            {"mib", required_argument, nullptr, 'm'},
                            {"rounds", required_argument, nullptr, 'r'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    bool good = c != '?';
    if (c == 'd') parsed.dir = optarg;
    if (c == 'm') good = absl::SimpleAtoi(optarg, &parsed.mib);
    if (c == 'r') good = absl::SimpleAtoi(optarg, &parsed.rounds);
    if (!good) return 64;
  }
  if (parsed.dir.empty() || parsed.mib < 16 || parsed.rounds < 1) return 64;
  BenchRanks ranks;
  {
    LoadBench bench(parsed, ranks);
    for (int round = 0; round < parsed.rounds; ++round) bench.Round(round);
    bench.Print();
  }
  return ranks.Finish();
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
