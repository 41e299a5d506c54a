// trainer/run_records.h: what a run writes about itself, for people and
// scripts.
//
//   RUN/incarnations/003/config.toml   the resolved configuration of this start
//   RUN/incarnations/003/env.json      command, host, world, versions
//   RUN/incarnations/003/logs/rank-00000.log
//   RUN/metrics.jsonl                  one line a step (MetricsLine)
//   RUN/journal.jsonl                  one line an event: start, save, stop,
//   ... RUN/status.json                    the state now; replaced whole,
//   atomically
//
// None of this decides anything about checkpoints: a run directory without
// these files resumes just the same. Rank 0 writes, from the step thread; a
// line is handed to the kernel whole, so a crash leaves at most one torn last
// line, which readers skip.

#ifndef HOLDFAST_TRAINER_RUN_RECORDS_H_
#define HOLDFAST_TRAINER_RUN_RECORDS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::trainer {

// One finished step. A step may repeat after a rewind: the line of the highest
// incarnation wins.
struct MetricsLine {
  double time = 0;  // seconds since 1970
  int64_t step = 0;
  double loss = 0;
  uint32_t loss_bits = 0;  // of the loss as a float
  double grad_norm = 0;
  uint64_t grad_norm_bits = 0;  // of the norm as a double
  double lr = 0;
  int64_t tokens = 0;       // counting tokens of this step
  double tokens_per_s = 0;  // all tokens, masked ones included
  double step_ms = 0;
  double mfu = 0;  // share of the matrix-product speed measured at start
  int64_t peak_bytes = 0;  // largest resident memory of any rank so far
  std::vector<double> fwd_ms, bwd_ms, wait_ms;  // one a stage
  uint64_t sample_digest = 0;
  double save_stall_ms = 0;  // of the save that this step or the last one began
  int64_t last_durable_step = -1;
  std::string layout;  // "tp2-pp2-dp2"
  uint32_t incarnation = 0;
  std::optional<double> eval_loss;
  bool skipped = false;  // the gradient was not finite: no update was made
};

// One event of the journal: a kind and facts. Values keep their JSON type.
struct JournalValue {
  enum class Kind { kText, kInteger, kNumber, kBool } kind = Kind::kText;
  std::string text;
  int64_t integer = 0;
  double number = 0;

  JournalValue(const char* value) : text(value) {}  // NOLINT: meant to convert
  JournalValue(std::string value) : text(std::move(value)) {}  // NOLINT
  JournalValue(int64_t value)
      : kind(Kind::kInteger), integer(value) {}                       // NOLINT
  JournalValue(int value) : kind(Kind::kInteger), integer(value) {}   // NOLINT
  JournalValue(double value) : kind(Kind::kNumber), number(value) {}  // NOLINT
  JournalValue(bool value) : kind(Kind::kBool), integer(value) {}     // NOLINT
};
struct JournalEvent {
  double time = 0;
  std::string event;  // "start", "save", "stop", "skip_save", "step_back", ...
  std::map<std::string, JournalValue> facts;
};

class RunRecords {
 public:
  // Opens (and makes) the files of `run_dir` for appending. kUnavailable or
  // kPermissionDenied name the path.
  static absl::StatusOr<std::unique_ptr<RunRecords>> Open(
      const std::string& run_dir, uint32_t incarnation);
  ~RunRecords();

  absl::Status WriteMetrics(const MetricsLine& line);
  absl::Status WriteJournal(const std::string& event,
                            std::map<std::string, JournalValue> facts);
  // The whole of status.json: `state` is "starting", "running", "finished",
  // "stopped", "failed"; exit_code is written when the process is about to end.
  absl::Status WriteStatus(const std::string& state, int64_t step,
                           std::optional<int> exit_code,
                           const std::string& message);
  absl::Status WriteConfig(const std::string& canonical_toml);
  absl::Status WriteEnvironment(std::map<std::string, JournalValue> facts);

 private:
  struct Data;
  explicit RunRecords(std::unique_ptr<Data> data);
  std::unique_ptr<Data> data_;
};

// "RUN/incarnations/003"
std::string IncarnationDir(const std::string& run_dir, uint32_t incarnation);
// "RUN/incarnations/003/logs/rank-00000.log"
std::string RankLogPath(const std::string& run_dir, uint32_t incarnation,
                        int rank);
// Makes RUN/incarnations/NNN/logs. Every rank may call it.
absl::Status MakeIncarnationDirs(const std::string& run_dir,
                                 uint32_t incarnation);

// For a rank other than 0 that fails, and for launchers: replaces status.json,
// unless a newer incarnation wrote it. A process that outlived the loss of its
// node must not have the last word about a run that went on elsewhere. What is
// not known stays as the file has it.
inline constexpr int64_t kUnknownStep = -1;
inline constexpr uint32_t kUnknownIncarnation = 0;
absl::Status WriteStatusFile(const std::string& run_dir,
                             const std::string& state, int64_t step,
                             uint32_t incarnation, std::optional<int> exit_code,
                             const std::string& message);

// The steps of a run in order, the highest incarnation's line for each. Torn
// and foreign lines are skipped and counted in `*skipped` when given. kNotFound
// when there is no metrics.jsonl.
absl::StatusOr<std::vector<MetricsLine>> ReadMetrics(const std::string& run_dir,
                                                     int* skipped = nullptr);
// Every line in file order, repeats included.
absl::StatusOr<std::vector<MetricsLine>> ReadAllMetrics(
    const std::string& run_dir, int* skipped = nullptr);
// Empty when there is no journal.
absl::StatusOr<std::vector<JournalEvent>> ReadJournal(
    const std::string& run_dir);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_RUN_RECORDS_H_
