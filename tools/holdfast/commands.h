// tools/holdfast/commands.h: the commands of `holdfast`, as plain options.
//
// main.cc fills the structs from the command line and is the only file that
// knows how options are spelled. A command lives in X_command.cc, says results
// on stdout and messages on stderr, and returns an exit code
// (trainer/fault/exit_codes.h). `drill` has its options in drill.h.

#ifndef HOLDFAST_TOOLS_HOLDFAST_COMMANDS_H_
#define HOLDFAST_TOOLS_HOLDFAST_COMMANDS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace holdfast::tools {

// Text files to one token set.
struct DataOptions {
  std::vector<std::string> in;
  std::string out;
  std::string tokenizer = "bytes";
  std::string split = "file";  // Or "blank-line".
  std::string mask_lines;      // Lines that start with it do not count.
  bool replace = false;
  bool json = false;
};
int RunData(const DataOptions& options);

// Prints the table of keys, or checks a file.
struct ConfigOptions {
  bool keys = false;
  std::string check;              // A file; empty for none.
  std::vector<std::string> sets;  // KEY=VALUE over that file.
  int64_t world = 0;              // Ranks; 0: one replica.
  bool print = false;             // The resolved configuration as TOML.
  bool json = false;
};
int RunConfig(const ConfigOptions& options);

// One rank of a job.
struct TrainOptions {
  std::string config;
  std::vector<std::string> sets;
  std::string run;
  std::string resume = "auto";  // Or "never", "required", a step.
  std::string init_from;        // RUN or RUN@STEP; empty for none.
  std::string init_only;        // "weights", or empty for everything.
  std::vector<std::string> accept_changes;
  bool dry_run = false;
};
int RunTrain(const TrainOptions& options);

// Ranks on this machine.
struct LaunchOptions {
  int ranks = 1;
  double timeout_s = 0;              // Then they are told to leave; 0: never.
  std::vector<std::string> env;      // KEY=VALUE for the ranks.
  std::vector<std::string> command;  // "train", ...: what follows --.
  std::string rank_dir;              // Set in the wrapper of one rank.
};
int RunLaunch(const LaunchOptions& options);

// What a layout would need and take.
struct PlanOptions {
  std::string config;
  std::vector<std::string> sets;
  int64_t world = 0;  // Ranks; 0: one replica.
  bool json = false;
};
int RunPlan(const PlanOptions& options);

// What a directory is good for.
struct DoctorOptions {
  std::string dir;
  int seconds = 2;          // for both directions together
  uint32_t mib_max = 1024;  // written at most, and given back
  bool json = false;
};
int RunDoctor(const DoctorOptions& options);

// The links of a job, measured before they are relied on; one rank of it.
struct LinksOptions {
  int tp = 1;
  int pp = 1;                     // dp is what is left.
  std::string device = "cpu";     // Whose memory: "cpu", or "cuda" by NCCL.
  std::string message = "16MiB";  // Sizes as ParseBytes reads them.
  std::string sum = "64MiB";
  int repeats = 5;
  double round_timeout_s = 120;
  // What is asked, in GB/s and microseconds; 0: nothing.
  double inside_gb_per_s = 0, across_gb_per_s = 0;
  double inside_us = 0, across_us = 0;
  bool json = false;
};
int RunLinks(const LinksOptions& options);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_HOLDFAST_COMMANDS_H_
