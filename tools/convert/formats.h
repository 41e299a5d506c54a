// tools/convert/formats.h: the formats of others that checkpoints come from and
// go to; what `ckptctl import --from NAME` and `ckptctl export --to NAME` mean.
//
// To add one: a row in formats.cc, and functions of these two kinds.

#ifndef HOLDFAST_TOOLS_CONVERT_FORMATS_H_
#define HOLDFAST_TOOLS_CONVERT_FORMATS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/convert/state_source.h"
#include "trainer/model/model_config.h"

namespace holdfast::tools {

struct ImportRequest {
  std::string from;  // what the user names: a directory or a file
  // What the run that starts from the result computes in, and so the type of
  // its weights.
  trainer::ComputeType compute = trainer::ComputeType::kBf16;
  // Width of tensor parallelism etc. is not a matter of the source.
  int readers = 2;  // threads that may call source->Fill at once
  // What may be taken for names, places and attributes while they are read, and
  // what is kept of the files. More than that is refused, in words.
  uint64_t memory_max = uint64_t{1} << 30;
  // A file that says what the model is, for formats that do not: a
  // configuration with [model], or a Hugging Face config.json.
  std::string model_file = {};
  // Keys of the source that the user gives up; a '*' at the end matches any
  // rest. Others that are not understood end the import.
  std::vector<std::string> ignore = {};
};

struct ImportedState {
  std::unique_ptr<ckpt::StateSource> source;
  // That `source` keeps on taking, beside what its reads are given.
  uint64_t memory_bytes = 0;
  int64_t step = 0;
  // The decoder whose state it is; its layout follows from TP, PP and DP. None:
  // a state that the trainer does not know, cut by rows.
  std::optional<trainer::ModelConfig> model = std::nullopt;
  // Where there is none although the state looks like a decoder's: why.
  std::string why_no_model = {};
  // Of the weights in `source`, where the format and not the user decides.
  std::optional<trainer::ComputeType> compute = std::nullopt;
  // For people: what was found, what could not be brought along.
  std::vector<std::string> notes = {};
};

// A file is made so many of its bytes at a time, by each thread; where the type
// changes, as many stored ones are in memory besides.
inline constexpr uint64_t kWindowBytes = uint64_t{16} << 20;

struct ExportRequest {
  std::string out;    // must not exist
  std::string dtype;  // "f32", "bf16", "f16"; empty: what the format prefers
  uint64_t shard_bytes_max = uint64_t{5'000'000'000};
  // That fill and write; not more than the source's fills_at_once.
  int threads = 2;
  // Bytes written, of all. Called by the thread that exports, some times a
  // second.
  std::function<void(uint64_t done, uint64_t total)> on_progress = nullptr;
  // Once it says true the export ends soon with kCancelled and leaves nothing.
  // Any thread.
  std::function<bool()> stop = nullptr;
};

struct ExportReport {
  std::vector<std::string> files = {};  // names, in `out`
  uint64_t tensors = 0;
  uint64_t bytes = 0;  // of the tensors
  // For people: what was left behind.
  std::vector<std::string> notes = {};
};

struct Format {
  std::string_view name;  // "hf"
  std::string_view what;  // one line of help
  // Null where there is no such direction.
  absl::StatusOr<ImportedState> (*open)(const ImportRequest& request);
  absl::StatusOr<ExportReport> (*write)(ckpt::StateSource* source,
                                        const ExportRequest& request);
  // Whether ImportRequest's model_file and ignore mean something to it.
  bool takes_keys = false;
};

std::span<const Format> Formats();
// kInvalidArgument lists the names that there are.
absl::StatusOr<Format> FindImport(std::string_view name);
absl::StatusOr<Format> FindExport(std::string_view name);
// "  hf     Hugging Face ...\n" of the formats with that direction, for help.
std::string ImportHelp();
std::string ExportHelp();

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_FORMATS_H_
