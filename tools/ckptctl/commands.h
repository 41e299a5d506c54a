// tools/ckptctl/commands.h: the commands of `ckptctl`, as plain options.
//
// main.cc fills the structs from the command line and is the only file that
// knows how options are spelled. Results go to stdout, messages to stderr; each
// returns an exit code (trainer/fault/exit_codes.h). Only prune changes a run
// that is there, when told so.

#ifndef HOLDFAST_TOOLS_CKPTCTL_COMMANDS_H_
#define HOLDFAST_TOOLS_CKPTCTL_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/convert/memory_share.h"

namespace holdfast::tools {

struct LsOptions {
  std::string what;  // a run: all of it; a checkpoint: that one
  bool json = false;
};
int RunLs(const LsOptions& options);

// `checkpoint` below: RUN, RUN@STEP, RUN@ID or a checkpoint's own directory.
struct ShowOptions {
  std::string checkpoint;
  bool hash = false;
  bool config = false;               // the configuration's text alone
  std::vector<std::string> tensors;  // names or patterns; empty: all
  bool json = false;
};
int RunShow(const ShowOptions& options);

struct VerifyOptions {
  std::string checkpoint;
  bool hash = false;
  bool json = false;
  bool raw_speed = true;  // measure the disk too, to compare with
  int threads = 0;        // 0: as many as there are processors, at most 8
  int readers = 8;        // reads in flight
};
int RunVerify(const VerifyOptions& options);

struct DiffOptions {
  std::string a;
  std::string b;
  std::vector<std::string> kinds;  // empty: all
  bool no_attributes = false;
  bool json = false;
  int readers = 8;
  uint64_t batch_bytes = uint64_t{32} << 20;  // of each side in memory
};
int RunDiff(const DiffOptions& options);

// `format`: a row of tools/convert/formats.h.
struct ImportOptions {
  std::string format;
  std::string from;
  std::string out;
  int tp = 1, pp = 1, dp = 1;
  std::vector<int> stages;       // layers of each; empty: even
  std::string compute = "bf16";  // or "f32"
  std::string model_file;        // empty: the source says what it is
  std::vector<std::string> ignore;
  std::string codec = "none";  // "zstd", "zstd:LEVEL"
  uint64_t memory_limit = kMemoryLimitDefault;
  int threads = 0;  // 0: by the processors and the limit
  bool json = false;
};
int RunImport(const ImportOptions& options);

struct ExportOptions {
  std::string checkpoint;
  std::string format;
  std::string out;
  std::string dtype;  // empty: what the format prefers
  uint64_t shard_bytes_max = 5'000'000'000;
  uint64_t memory_limit = kMemoryLimitDefault;
  int threads = 0;  // 0: by the processors and the limit
  bool json = false;
};
int RunExport(const ExportOptions& options);

struct PruneCommandOptions {
  std::string what;  // a run, or one checkpoint of it
  int keep_last = 3;
  int64_t keep_every = 0;
  int64_t keep_older_s = 0;
  bool yes = false;            // remove; else list
  bool owner_is_gone = false;  // a person says so
  bool verify = true;          // the newest, before anything goes
  bool json = false;
};
int RunPrune(const PruneCommandOptions& options);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CKPTCTL_COMMANDS_H_
