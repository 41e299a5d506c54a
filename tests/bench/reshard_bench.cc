// tests/bench/reshard_bench.cc: does ckpt-reshard take as long as a plain copy
// of the files?
//
// A checkpoint of a decoder is made once, --mib MiB of bytes that no disk can
// compress. Then, in turn and --rounds times: `cp -r` of it and a sync of the
// file system, and `ckpt-reshard`, the whole program, which also reads every
// checksum, computes digests and checksums anew and syncs. Nothing of the
// source is in the page cache before either (POSIX_FADV_DONTNEED), and what was
// made before is gone.
//
//   reshard-dp     from TP 2 x PP 2 x DP 2 to TP 2 x PP 1 x DP 3
//   reshard-inner  from TP 1 to TP 8: every row of a matrix that TP cuts by
//                  columns goes to eight files, in runs of 256 bytes and more
//
//   ...-memory     peak resident memory with an eighth of the state allowed
//
//   bench_reshard --dir DIR --bin DIR [--mib 2048] [--rounds 9]

#include <getopt.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/philox.h"
#include "ckpt/convert/checkpoint_writer.h"
#include "tests/bench/support/bench_ranks.h"
#include "tests/bench/support/raw_file.h"
#include "tests/bench/support/row.h"
#include "tests/bench/support/statistics.h"
#include "tools/convert/train_target.h"

namespace holdfast::bench {
namespace {

namespace fs = std::filesystem;

// What a conversion has besides its buffers: the program, the manifest, plans.
constexpr double kMemoryBesideMiB = 64;

struct Options {
  std::string dir;
  std::string bin;
  int64_t mib = 2048;
  int rounds = 9;
};

// Bytes by place, the same in every run, that look like noise.
class NoiseSource final : public ckpt::StateSource {
 public:
  explicit NoiseSource(const trainer::ModelConfig& model)
      : items_(tools::ItemsOf(model, trainer::ComputeType::kBf16)),
        attributes_(tools::ImportedAttributes(
            model, {.origin = "noise", .step = 100, .tokens = 1})),
        noise_(size_t{1} << 20) {
    for (size_t i = 0; i < noise_.size(); ++i) {
      noise_[i] = ckpt::Philox64(1, 2, i);
    }
  }
  const std::vector<ckpt::ItemSpec>& items() const override { return items_; }
  const std::map<std::string, std::string>& attributes() const override {
    return attributes_;
  }
  absl::Status Fill(std::span<const ckpt::WantedRun> wants) override {
    for (const ckpt::WantedRun& want : wants) {
      const uint64_t all = noise_.size() * sizeof(uint64_t);
      const auto* const from =
          reinterpret_cast<const std::byte*>(noise_.data());
      uint64_t at = (want.item * 4096 + want.first * 8) % all;
      for (size_t done = 0; done < want.out.size();) {
        const size_t size = std::min<size_t>(want.out.size() - done, all - at);
        std::memcpy(want.out.data() + done, from + at, size);
        done += size;
        at = 0;
      }
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<ckpt::ItemSpec> items_;
  const std::map<std::string, std::string> attributes_;
  std::vector<uint64_t> noise_;
};

// Runs a command.
struct Ran {
  double seconds = 0;
  double peak_bytes = 0;  // resident
};
Ran Run(const std::vector<std::string>& words) {
  const double begin = Now();
  const pid_t child = ::fork();
  HF_CHECK(child >= 0, "no process for %s", words[0]);
  if (child == 0) {
    std::vector<char*> arguments;
    for (const std::string& word : words) {
      arguments.push_back(const_cast<char*>(word.c_str()));
    }
    arguments.push_back(nullptr);
    // Results are on stdout; rows are what this program says there.
    ::dup2(STDERR_FILENO, STDOUT_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status = 0;
  rusage usage = {};
  HF_CHECK(::wait4(child, &status, 0, &usage) == child, "lost %s", words[0]);
  HF_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s failed",
           words[0]);
  return {Now() - begin, usage.ru_maxrss * 1024.0};
}

struct Case {
  std::string name;
  std::string what;
  tools::TargetShape from, to;
  double goal = 1;
};

class ReshardBench {
 public:
  ReshardBench(const Options& options, const Case& spec)
      : options_(options),
        spec_(spec),
        source_(options.dir + "/reshard.run"),
        out_(options.dir + "/reshard.out") {
    trainer::ModelConfig model;
    model.hidden = 1024;
    model.heads = 16;
    model.kv_heads = 16;
    model.ffn = 4096;
    model.vocab = 8000;
    model.seq_len = 1024;
    model.tied = true;
    // 16 M parameters a layer, 14 bytes each.
    model.layers = std::max<int64_t>(2, options.mib / 224);
    NoiseSource noise(model);
    auto layout =
        tools::MakeTrainTarget(model, trainer::ComputeType::kBf16, spec.from);
    Must(layout.status());
    ckpt::WriteCheckpointOptions write;
    write.out = source_;
    write.step = 100;
    const auto report =
        ckpt::WriteCheckpoint(&noise, **layout, write, ckpt::RealClock());
    Must(report.status());
    bytes_ = report->bytes_stored;
    Copy();
    Reshard();
  }
  ~ReshardBench() { RemoveAndSettle(source_); }

  void Round(int round) {
    double copied = 0;
    double made = 0;
    for (int turn = 0; turn < 2; ++turn) {
      if ((turn + round) % 2 == 0) {
        copied = Copy();
      } else {
        made = Reshard();
      }
    }
    copies_.push_back(copied);
    made_.push_back(made);
    ratios_.push_back(made / copied);
  }

  // Peak memory with an eighth of the state allowed.
  void PrintMemory() const {
    const uint64_t limit = std::max<uint64_t>(bytes_ / 8, uint64_t{64} << 20);
    const Ran ran = Reshard({"--memory-limit", absl::StrFormat("%d", limit)});
    const double over = (ran.peak_bytes - limit) / (1 << 20);
    Row row(spec_.name + "-memory",
            absl::StrFormat("its peak memory beyond --memory-limit %d MiB",
                            limit >> 20));
    row.SetAtMost({over, over, over, 1}, kMemoryBesideMiB,
                  "MiB beyond the limit");
    row.json()["bytes"] = bytes_;
    row.json()["peak_bytes"] = ran.peak_bytes;
    row.json()["limit_bytes"] = limit;
    row.Print();
  }

  void Print() const {
    Row row(spec_.name, spec_.what);
    row.SetAtMost(MedianInterval(ratios_, 0.9), spec_.goal,
                  "of cp -r and sync");
    row.json()["bytes"] = bytes_;
    row.json()["seconds"] = Median(made_);
    row.json()["raw_seconds"] = Median(copies_);
    row.json()["gb_per_s"] = bytes_ / Median(made_) / 1e9;
    row.json()["raw_gb_per_s"] = bytes_ / Median(copies_) / 1e9;
    row.json()["pairs"] = ratios_;
    row.json()["cold"] = "POSIX_FADV_DONTNEED of the source before each";
    row.json()["file_system"] = FileSystemOf(options_.dir);
    row.Print();
  }

 private:
  void Prepare() const {
    RemoveAndSettle(out_);
    for (const auto& entry : fs::recursive_directory_iterator(source_)) {
      if (entry.is_regular_file()) DropFromCache(entry.path());
    }
  }
  double Copy() const {
    Prepare();
    const double copied = Run({"cp", "-r", source_, out_}).seconds;
    const double synced = Run({"sync", "-f", out_}).seconds;
    RemoveAndSettle(out_);
    return copied + synced;
  }
  double Reshard() const { return Reshard({}).seconds; }
  Ran Reshard(const std::vector<std::string>& more) const {
    Prepare();
    std::vector<std::string> words = {options_.bin + "/ckpt-reshard",
                                      source_,
                                      "--tp",
                                      absl::StrFormat("%d", spec_.to.tp),
                                      "--pp",
                                      absl::StrFormat("%d", spec_.to.pp),
                                      "--dp",
                                      absl::StrFormat("%d", spec_.to.dp),
                                      "--out",
                                      out_};
    words.insert(words.end(), more.begin(), more.end());
    const Ran ran = Run(words);
    RemoveAndSettle(out_);
    return ran;
  }

  const Options options_;
  const Case spec_;
  const std::string source_;
  const std::string out_;
  uint64_t bytes_ = 0;
  std::vector<double> copies_, made_, ratios_;
};

int Main(int argc, char** argv) {
  Options parsed;
  const option options[] = {{"dir", required_argument, nullptr, 'd'},
                            {"bin", required_argument, nullptr, 'b'},
                            {"mib", required_argument, nullptr, 'm'},
                            {"rounds", required_argument, nullptr, 'r'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    bool good = c != '?';
    if (c == 'd') parsed.dir = optarg;
    if (c == 'b') parsed.bin = optarg;
    if (c == 'm') good = absl::SimpleAtoi(optarg, &parsed.mib);
    if (c == 'r') good = absl::SimpleAtoi(optarg, &parsed.rounds);
    if (!good) return 64;
  }
  if (parsed.dir.empty() || parsed.bin.empty() || parsed.rounds < 1) return 64;
  const std::vector<Case> cases = {
      {"reshard-dp",
       "ckpt-reshard, TP2 x PP2 x DP2 to TP2 x PP1 x DP3",
       {.tp = 2, .pp = 2, .dp = 2},
       {.tp = 2, .pp = 1, .dp = 3},
       1.0},
      {"reshard-inner",
       "ckpt-reshard, TP1 to TP8: columns to eight files",
       {.tp = 1, .pp = 1, .dp = 1},
       {.tp = 8, .pp = 1, .dp = 1},
       1.5}};
  for (const Case& spec : cases) {
    ReshardBench bench(parsed, spec);
    for (int round = 0; round < parsed.rounds; ++round) bench.Round(round);
    bench.Print();
    bench.PrintMemory();
  }
  return 0;
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) { return holdfast::bench::Main(argc, argv); }
