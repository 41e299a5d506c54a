// trainer/config.h: every knob of a run, and the checks before it starts.
//
// A run is configured by one TOML file and any number of KEY=VALUE overrides.
// Each key is stated once, in the table of config_keys.cc: name, type, unit,
// range, default, help. `holdfast config --keys` prints that table.
//
//   HF_ASSIGN_OR_RETURN(Config config, LoadConfig("tiny.toml",
//   {"parallel.tp=2"})); HF_RETURN_IF_ERROR(ResolveConfig(config, world));
//
// Libraries below trainer/ take the small structs of their own folders, never
// this header. Called at start-up from one thread; loading allocates freely.

#ifndef HOLDFAST_TRAINER_CONFIG_H_
#define HOLDFAST_TRAINER_CONFIG_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/data/data_config.h"
#include "trainer/model/model_config.h"
#include "trainer/optim/optim_config.h"
#include "trainer/parallel/parallel_config.h"

namespace holdfast::trainer {

struct BatchConfig {
  int64_t global_seqs = 0;  // Sequences of one update, over all ranks.
  int64_t micro_seqs = 1;   // Sequences of one forward pass.

  friend bool operator==(const BatchConfig&, const BatchConfig&) = default;
};

struct TrainConfig {
  int64_t steps = 0;
  uint64_t seed = 1;
  int64_t eval_interval = 0;  // Steps; 0 never evaluates.
  int64_t eval_seqs = 64;     // Sequences of one evaluation.
  int64_t log_interval = 1;   // Steps between lines on the terminal.

  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

// When a save falls due. At most one of `steps` and `seconds` is not 0; both 0
// saves at the end and on signals only.
struct SaveInterval {
  int64_t steps = 0;
  int64_t seconds = 0;
  bool automatic = false;  // From measured cost and failures.

  friend bool operator==(const SaveInterval&, const SaveInterval&) = default;
};

enum class StorageChoice { kAuto, kUring, kPosix };
enum class CodecChoice { kNone, kZstd };
// Of a checkpoint.
struct FileCount {
  static constexpr int64_t kPerRank = 0;
  static constexpr int64_t kPerNode = -1;
  int64_t count = kPerRank;
  friend bool operator==(const FileCount&, const FileCount&) = default;
};

struct CheckpointConfig {
  SaveInterval interval = {.steps = 500};
  int64_t keep_last = 3;     // Newest checkpoints kept.
  int64_t keep_every = 0;    // Also every checkpoint at a multiple; 0: none.
  int64_t keep_older_s = 0;  // Also one that is at least so old; 0: none.
  int64_t fence_ms = 2000;   // Longest wait of the optimizer for a save.
  int64_t arena_mb = 0;      // MiB; copies of extents not yet written. 0: auto.
  int64_t vote_timeout_ms = 60000;
  StorageChoice storage = StorageChoice::kAuto;
  bool direct_io = true;     // O_DIRECT where the file system allows it.
  int64_t queue_depth = 32;  // Writes in flight on one rank.
  FileCount files;
  int64_t files_per_dir = 1024;  // 0: all in one directory.
  CodecChoice codec = CodecChoice::kNone;
  int64_t codec_level = 0;
  int64_t codec_threads = 0;  // Of each rank; 0: the checkpoint thread.
  int64_t failures_max = 3;   // Failed saves in a row that end a run.

  friend bool operator==(const CheckpointConfig&,
                         const CheckpointConfig&) = default;
};

struct NumericsConfig {
  ComputeType compute = ComputeType::kBf16;
  bool invariant = true;   // Same bits whatever the DP and PP.
  int64_t virtual_dp = 0;  // Leaves of the sum tree; see ResolveConfig.

  friend bool operator==(const NumericsConfig&,
                         const NumericsConfig&) = default;
};

struct FaultConfig {
  int64_t start_timeout_s = 600;  // From start to the first step.
  int64_t step_timeout_s = 300;   // One step, evaluation or load.
  int64_t grace_s = 60;           // From SIGTERM until we are killed.
  int64_t nonfinite_max = 3;      // Steps in a row without an update.

  friend bool operator==(const FaultConfig&, const FaultConfig&) = default;
};

enum class DeviceChoice { kCpu, kFake, kCuda };

struct Config {
  DeviceChoice device = DeviceChoice::kCpu;
  int64_t threads = 0;  // A rank's threads; 0: processors / ranks of the host.
  ModelConfig model;
  ParallelConfig parallel;
  OverlapConfig overlap;
  BatchConfig batch;
  TrainConfig train;
  OptimConfig optim;
  DataConfig data;
  CheckpointConfig checkpoint;
  NumericsConfig numerics;
  FaultConfig fault;

  friend bool operator==(const Config&, const Config&) = default;
};

// Reads `path` and applies `sets`, each "KEY=VALUE", in order. VALUE is TOML; a
// word that is not valid TOML is taken as a string.
//
// kNotFound: no such file. kInvalidArgument: the message starts with
//     file:line (or "--set KEY=VALUE"), and has what was expected and found; an
//     unknown key comes with the nearest known one. A key that was taken back
//     passes with the one value that it had: saved configurations name it.
absl::StatusOr<Config> LoadConfig(const std::string& path,
                                  std::span<const std::string> sets);

// The same, from text. `name` stands for the file in messages.
absl::StatusOr<Config> ParseConfig(std::string_view text, std::string_view name,
                                   std::span<const std::string> sets);

// Fills in what follows from the rest, then checks everything (CheckConfig):
//   parallel.dp          world / (tp x pp x cp)
//   parallel.stages      StageLayers
//   optim.decay_steps    0 becomes train.steps
//   numerics.virtual_dp  0 becomes the largest divisor of global_seqs /
//                        micro_seqs that is at most 8
// Resolving twice changes nothing.
absl::Status ResolveConfig(Config& config, int64_t world);

// Layers of each stage, adding up to model.layers: parallel.stages, or when
// that is empty an even division in which embedding and head count as a layer
// each (ckpt/layout EvenStages). kInvalidArgument with the numbers.
absl::StatusOr<std::vector<int64_t>> StageLayers(const Config& config);

// Refuses numbers that do not fit, saying which. kInvalidArgument.
absl::Status CheckShape(const Config& config, int64_t world);

// Refuses by name the keys of systems that this build lacks. kUnimplemented.
absl::Status CheckBuilt(const Config& config);

// Both of the above: everything that can be known before a run starts.
absl::Status CheckConfig(const Config& config, int64_t world);

// TOML with every key, sorted; equal configurations give equal text, and
// ParseConfig gives the configuration back, to the bit.
std::string CanonicalText(const Config& config);

// What changed between a checkpoint's configuration and this start's, in the
// terms of --accept-change=NAME: NAME is a group or a name.
struct ConfigDifference {
  std::string group;  // "seed", "data", "model", "numerics", "batch", "optim"
  std::string name;   // "model.layers"
  std::string saved;
  std::string now;

  friend bool operator==(const ConfigDifference&,
                         const ConfigDifference&) = default;
};

// Both resolved. Only keys that change what is computed are compared: layout,
// checkpointing and file locations are free (data.paths are compared by the
// data's fingerprint, which the caller adds as a difference of its own).
std::vector<ConfigDifference> CompareForResume(const Config& saved,
                                               const Config& now);

// Ok when each difference is named in `accepted`; else kFailedPrecondition with
// one line for each that is not. A name in `accepted` that no difference and no
// group has is kInvalidArgument: it is a misspelling.
absl::Status RefuseUnaccepted(std::span<const ConfigDifference> differences,
                              std::span<const std::string> accepted);

// One row of `holdfast config --keys`.
struct KeyRow {
  std::string name;
  std::string type;           // "integer", "number", "one of bf16 f32", ...
  std::string unit;           // "" where the number has none
  std::string range;          // ">= 1", "0 to 1", ""
  std::string default_value;  // "required" where there is none
  std::string help;
};

// In the order of the table.
std::vector<KeyRow> KeyRows();

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_CONFIG_H_
