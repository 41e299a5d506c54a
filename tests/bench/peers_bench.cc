// tests/bench/peers_bench.cc: one of our ranks in tests/bench/peers, which
// saves and loads what the harness says, beside other checkpoint libraries.
//
// The state is the one of tests/bench/peers/state.py to the byte: a GPT's
// matrices cut by rows over the ranks, four items each. Everything is on:
// checksums, digests, sync, vote, commit, retention. Commands come by a named
// pipe, words separated by tabs, each answered by a line of JSON with times of
// CLOCK_MONOTONIC:
//
//   save _ _ RUN STEP_MS    load _ _ RUN    raw_write FILE    raw_read FILE
//   quit
//
//   bench_peers --table FILE --pipes DIR     started by peers/world.py, mpirun

#include <fcntl.h>
#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/checkpointer.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/raw_transfer.h"
#include "trainer/parallel/job.h"

namespace holdfast::ckpt {
namespace {

constexpr size_t kPage = 4096;
constexpr int kKinds = 4;
constexpr const char* kKindNames[kKinds] = {"exp_avg", "exp_avg_sq", "master",
                                            "weight"};
constexpr DType kKindTypes[kKinds] = {DType::kF32, DType::kF32, DType::kF32,
                                      DType::kBf16};

double Now() { return absl::ToDoubleSeconds(RealClock().Monotonic()); }

struct Matrix {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;  // 0: a vector

  int64_t elements() const { return rows * std::max<int64_t>(1, columns); }
  std::vector<int64_t> shape() const {
    return columns == 0 ? std::vector<int64_t>{rows}
                        : std::vector<int64_t>{rows, columns};
  }
};

// Every item cut into equal runs of rows; a region for each kind.
class RowsLayout final : public JobLayout {
 public:
  RowsLayout(const std::vector<Matrix>& matrices, int world) : world_(world) {
    for (const Matrix& matrix : matrices) {  // sorted by name
      HF_CHECK(matrix.rows % world == 0, "rows of %s", matrix.name);
      for (int kind = 0; kind < kKinds; ++kind) {
        items_.push_back(
            {matrix.name, kKindNames[kind], kKindTypes[kind], matrix.shape()});
      }
    }
  }
  int world() const override { return world_; }
  const std::vector<ItemSpec>& items() const override { return items_; }
  Holding StoredBy(Rank rank) const override {
    Holding holding;
    holding.region_bytes.resize(kKinds);
    for (ItemIndex i = 0; i < items_.size(); ++i) {
      const uint32_t kind = i % kKinds;
      Box part = WholeBox(items_[i].shape);
      part.count[0] /= world_;
      part.first[0] = part.count[0] * Index(rank);
      uint64_t& bytes = holding.region_bytes[kind];
      holding.fragments.push_back({i, part, 0, part.elements(), kind, bytes});
      bytes = RoundUp(bytes + part.elements() * SizeOf(items_[i].dtype), kPage);
    }
    return holding;
  }
  Holding WantedBy(Rank rank) const override { return StoredBy(rank); }
  std::string description() const override {
    return absl::StrFormat("rows%d", world_);
  }

 private:
  const int world_;
  std::vector<ItemSpec> items_;
};

// Word `i` of item number `item`, as fill() in state.py makes it.
uint64_t Word(uint64_t item, uint64_t i) {
  uint64_t z = (item << 40) + (i + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (z ^ (z >> 31)) & 0xBFFFBFFFBFFFBFFFu;
}

class Bench {
 public:
  Bench(trainer::Job& job, const std::vector<Matrix>& matrices)
      : job_(job),
        layout_(std::make_shared<RowsLayout>(matrices, job.size())),
        holding_(layout_->StoredBy(Rank{job.rank()})) {
    for (const Matrix& matrix : matrices) {
      bytes_total_ += matrix.elements() * 14;
    }
    for (const uint64_t bytes : holding_.region_bytes) {
      memory_.emplace_back(bytes);
      regions_.push_back(memory_.back().span());
    }
    EachWord([](uint64_t& word, uint64_t expected) { word = expected; });
    std::vector<double> passes;
    for (int i = 0; i < 4; ++i) {
      const double begin = Now();
      Optimizer(/*fenced=*/false);
      passes.push_back(Now() - begin);
    }
    std::sort(passes.begin(), passes.end());
    pass_s_ = (passes[1] + passes[2]) / 2;
  }

  std::string Describe() const {
    return absl::StrFormat(
        R"({"bytes":%d,"asynchronous":true,"save_options":[{}],)"
        R"("load_options":[{}],"integrity":"CRC32C a unit and digests, )"
        R"(compared at every load"})",
        bytes_total_);
  }

  absl::StatusOr<std::string> Run(const std::vector<std::string>& words) {
    if (words[0] == "save" && words.size() == 5) {
      int64_t step_ms = 0;
      HF_CHECK(absl::SimpleAtoi(words[4], &step_ms), "step: %s", words[4]);
      return Save(words[3], step_ms);
    }
    if (words[0] == "load" && words.size() == 4) return Load(words[3]);
    if (words[0] == "raw_write" && words.size() == 2) return RawWrite(words[1]);
    if (words[0] == "raw_read" && words.size() == 2) return RawRead(words[1]);
    return absl::InvalidArgumentError("no such command: " + words[0]);
  }

  absl::Status Close() {
    if (checkpointer_ == nullptr) return absl::OkStatus();
    const absl::Status closed = checkpointer_->Close();
    checkpointer_.reset();
    return closed;
  }

 private:
  template <typename F>
  void EachWord(const F& action) {
    for (const Fragment& fragment : holding_.fragments) {
      const int64_t size = SizeOf(layout_->items()[fragment.item].dtype);
      const uint64_t words = fragment.count * size / 8;
      auto* data = reinterpret_cast<uint64_t*>(
          regions_[fragment.region].data() + fragment.offset);
      for (uint64_t i = 0; i < words; ++i) {
        action(data[i], Word(fragment.item, words * job_.rank() + i));
      }
    }
  }

  // Goes through all regions side by side and stores into every page. Twice is
  // never.
  void Optimizer(bool fenced) {
    constexpr uint64_t kSlices = 256;
    for (uint64_t slice = 0; slice < kSlices; ++slice) {
      for (uint32_t region = 0; region < regions_.size(); ++region) {
        const uint64_t pages = regions_[region].size() / kPage;
        const uint64_t from = pages * slice / kSlices * kPage;
        const uint64_t to = pages * (slice + 1) / kSlices * kPage;
        if (fenced && to > from) {
          checkpointer_->FenceWrite(region, from, to - from);
        }
        for (uint64_t at = from; at < to; at += kPage) {
          regions_[region][at] ^= std::byte{1};
        }
      }
    }
  }

  absl::Status Open(const std::string& run) {
    CheckpointerOptions options;
    options.run_dir = run;
    options.keep_last = 1;
    HF_ASSIGN_OR_RETURN(std::unique_ptr<Group> group,
                        job_.OpenCheckpointGroup());
    HF_ASSIGN_OR_RETURN(checkpointer_,
                        Checkpointer::Open(options, std::move(group), layout_,
                                           regions_, RealClock()));
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Save(const std::string& run, int64_t step_ms) {
    if (checkpointer_ == nullptr) {
      HF_RETURN_IF_ERROR(Open(run));
      HF_RETURN_IF_ERROR(checkpointer_->ClaimAndLoad({}).status());
    }
    HF_RETURN_IF_ERROR(job_.world().Barrier());
    const double begin = Now();
    HF_RETURN_IF_ERROR(checkpointer_->BeginSave({++step_, {}}));
    const double called = Now();
    RealClock().Sleep(absl::Milliseconds(step_ms));
    const double asked = Now();
    Optimizer(/*fenced=*/true);
    const double stored = Now();
    const auto report = checkpointer_->WaitForSave(absl::Minutes(5));
    if (!report.has_value()) {
      return absl::DeadlineExceededError(
          "the save takes longer than 5 minutes");
    }
    HF_RETURN_IF_ERROR(report->status);
    Optimizer(/*fenced=*/false);
    HF_RETURN_IF_ERROR(WaitForRetention(run));
    const double stall =
        called - begin + std::max(0.0, stored - asked - pass_s_);
    return absl::StrFormat(
        R"({"begin":%.6f,"returned":%.6f,"durable":%.6f,"stall_s":%.6f})",
        begin, begin + report->seconds, begin + report->seconds, stall);
  }

  // The checkpoint before is deleted beside the next step; the harness wants
  // nobody's deletions in the times of others.
  absl::Status WaitForRetention(const std::string& run) {
    const double deadline = Now() + 60;
    while (Now() < deadline) {
      int left = 0;
      for (const auto& entry :
           std::filesystem::directory_iterator(run + "/checkpoints")) {
        left += entry.is_directory();
      }
      if (left <= 1) return absl::OkStatus();
      RealClock().Sleep(absl::Milliseconds(5));
    }
    return absl::DeadlineExceededError("retention takes longer than a minute");
  }

  // As a job that is started again: opens, claims the run, loads.
  absl::StatusOr<std::string> Load(const std::string& run) {
    HF_RETURN_IF_ERROR(Close());
    for (const auto& region : regions_) {
      std::memset(region.data(), 0, region.size());
    }
    HF_RETURN_IF_ERROR(job_.world().Barrier());
    const double begin = Now();
    HF_RETURN_IF_ERROR(Open(run));
    HF_ASSIGN_OR_RETURN(const LoadReport report,
                        checkpointer_->ClaimAndLoad({}));
    const double end = Now();
    if (!report.loaded) return absl::NotFoundError("nothing was loaded");
    uint64_t wrong = 0;
    EachWord(
        [&](uint64_t word, uint64_t expected) { wrong += word != expected; });
    if (wrong > 0) {
      return absl::DataLossError(
          absl::StrFormat("%d words are not what was saved", wrong));
    }
    return Times(begin, end);
  }

  static std::string Times(double begin, double end) {
    return absl::StrFormat(R"({"begin":%.6f,"end":%.6f})", begin, end);
  }

  // What the disk gives to a loop that does nothing else: the bytes of the
  // whole job in one new file, with its sync and the folder's.
  absl::StatusOr<std::string> RawWrite(const std::string& path) {
    const double begin = Now();
    if (job_.rank() > 0) return Times(begin, begin);
    const Fd fd(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_DIRECT, 0600));
    if (!fd.valid()) return absl::UnavailableError("cannot create " + path);
    const uint64_t size = bytes_total_ / kRawBlock * kRawBlock;
    if (::posix_fallocate(fd.get(), 0, static_cast<off_t>(size)) != 0) {
      return absl::ResourceExhaustedError("cannot reserve " + path);
    }
    // From memory at least as large as a rank's part, so from no cache.
    const std::span<std::byte> largest = regions_[2];
    HF_RETURN_IF_ERROR(
        RawUringTransfer(fd.get(), /*is_write=*/true,
                         largest.first(largest.size() / kRawBlock * kRawBlock),
                         0, size, kRawBlock, kRawDepth));
    const Fd folder(
        ::open(std::filesystem::path(path).parent_path().c_str(), O_RDONLY));
    if (::fsync(fd.get()) != 0 || ::fsync(folder.get()) != 0) {
      return absl::UnavailableError("cannot sync " + path);
    }
    return Times(begin, Now());
  }

  absl::StatusOr<std::string> RawRead(const std::string& path) {
    if (raw_memory_.size() == 0) raw_memory_ = AlignedBuffer(kRawMemory);
    const double begin = Now();
    if (job_.rank() > 0) return Times(begin, begin);
    const Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECT));
    if (!fd.valid()) return absl::UnavailableError("cannot open " + path);
    HF_RETURN_IF_ERROR(RawUringTransfer(
        fd.get(), /*is_write=*/false, raw_memory_.span(), 0,
        bytes_total_ / kRawBlock * kRawBlock, kRawBlock, kRawDepth));
    return Times(begin, Now());
  }

  static constexpr size_t kRawBlock = size_t{1} << 20;
  static constexpr uint32_t kRawDepth = 32;
  static constexpr size_t kRawMemory = size_t{64} << 20;

  trainer::Job& job_;
  const std::shared_ptr<const RowsLayout> layout_;
  const Holding holding_;
  uint64_t bytes_total_ = 0;
  std::vector<AlignedBuffer> memory_;
  std::vector<std::span<std::byte>> regions_;
  AlignedBuffer raw_memory_;
  double pass_s_ = 0;  // Optimizer() without a save
  int64_t step_ = 0;
  std::unique_ptr<Checkpointer> checkpointer_;
};

std::vector<Matrix> ReadTable(const std::string& path) {
  std::ifstream file(path);
  HF_CHECK(file.good(), "cannot read %s", path);
  std::vector<Matrix> matrices;
  Matrix matrix;
  while (file >> matrix.name >> matrix.rows >> matrix.columns) {
    matrices.push_back(matrix);
  }
  std::sort(matrices.begin(), matrices.end(),
            [](const Matrix& a, const Matrix& b) { return a.name < b.name; });
  return matrices;
}

int Main(int argc, char** argv) {
  std::string table, pipes;
  const option options[] = {{"table", required_argument, nullptr, 't'},
                            {"pipes", required_argument, nullptr, 'p'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    if (c == 't') table = optarg;
    if (c == 'p') pipes = optarg;
    if (c == '?') return 64;
  }
  if (table.empty() || pipes.empty()) return 64;
  const absl::Status quiet = InitLog(LogLevel::kWarning, "", "");
  HF_CHECK(quiet.ok(), "%s", quiet.ToString());
  auto job = trainer::OpenJob(nullptr);
  HF_CHECK(job.ok(), "%s", job.status().ToString());

  const std::string number = absl::StrFormat("%d", (*job)->rank());
  std::ifstream commands(pipes + "/commands." + number);
  std::ofstream answers(pipes + "/answers." + number);
  HF_CHECK(commands.good() && answers.good(), "no pipes in %s", pipes);
  Bench bench(**job, ReadTable(table));
  answers << bench.Describe() << std::endl;
  for (std::string line; std::getline(commands, line) && line != "quit";) {
    const absl::StatusOr<std::string> answer =
        bench.Run(absl::StrSplit(line, '\t'));
    if (answer.ok()) {
      answers << *answer << std::endl;
    } else {
      std::string text = answer.status().ToString();
      for (char& c : text) {
        if (c == '"' || c == '\\' || c < ' ') c = ' ';
      }
      answers << "{\"error\":\"" << text << "\"}" << std::endl;
    }
  }
  const absl::Status closed = bench.Close();
  HF_CHECK(closed.ok(), "%s", closed.ToString());
  const absl::Status finalized = (*job)->Finalize();
  HF_CHECK(finalized.ok(), "%s", finalized.ToString());
  return 0;
}

}  // namespace
}  // namespace holdfast::ckpt

int main(int argc, char** argv) { return holdfast::ckpt::Main(argc, argv); }
