// trainer/resume_state.cc: the attributes' names and spellings.

#include "trainer/resume_state.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

absl::Status Malformed(const char* name, const std::string& found) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "the checkpoint's attribute '%s' is '%s', which this program does not "
      "understand; it was written by another program or a newer version",
      name, found));
}

class Reader {
 public:
  explicit Reader(const std::map<std::string, std::string>& attributes)
      : attributes_(attributes) {}

  absl::StatusOr<std::string> Text(const char* name) const {
    const auto found = attributes_.find(name);
    if (found != attributes_.end()) return found->second;
    return absl::FailedPreconditionError(absl::StrFormat(
        "the checkpoint has no attribute '%s': it was not written by this "
        "trainer; use --init-only=weights to take its weights alone",
        name));
  }

  template <class T>
  absl::StatusOr<T> Number(const char* name) const {
    HF_ASSIGN_OR_RETURN(const std::string text, Text(name));
    T value{};
    if (!absl::SimpleAtoi(text, &value) || value < T{0}) {
      return Malformed(name, text);
    }
    return value;
  }

 private:
  const std::map<std::string, std::string>& attributes_;
};

}  // namespace

std::map<std::string, std::string> ToAttributes(const ResumeState& state) {
  std::map<std::string, std::string> attributes = {
      {"step", absl::StrFormat("%d", state.step)},
      {"tokens", absl::StrFormat("%d", state.tokens)},
      {"skipped_steps", absl::StrFormat("%d", state.skipped_steps)},
      {"data.state", DataStateText(state.data)},
      {"data.fingerprint", state.data_fingerprint},
      {"seed", absl::StrFormat("%d", state.seed)},
      {".config", state.config},
      {".numerics", state.numerics_fingerprint},
  };
  if (!state.imported_from.empty()) {
    attributes[".imported_from"] = state.imported_from;
  }
  return attributes;
}

absl::StatusOr<ResumeState> FromAttributes(
    const std::map<std::string, std::string>& attributes) {
  const Reader reader(attributes);
  ResumeState state;
  HF_ASSIGN_OR_RETURN(state.step, reader.Number<int64_t>("step"));
  HF_ASSIGN_OR_RETURN(state.tokens, reader.Number<uint64_t>("tokens"));
  HF_ASSIGN_OR_RETURN(state.skipped_steps,
                      reader.Number<int64_t>("skipped_steps"));
  HF_ASSIGN_OR_RETURN(const std::string data, reader.Text("data.state"));
  absl::StatusOr<DataState> data_state = ParseDataState(data);
  if (!data_state.ok()) return Malformed("data.state", data);
  state.data = *std::move(data_state);
  HF_ASSIGN_OR_RETURN(state.data_fingerprint, reader.Text("data.fingerprint"));
  HF_ASSIGN_OR_RETURN(state.seed, reader.Number<uint64_t>("seed"));
  HF_ASSIGN_OR_RETURN(state.config, reader.Text(".config"));
  HF_ASSIGN_OR_RETURN(state.numerics_fingerprint, reader.Text(".numerics"));
  const auto imported = attributes.find(".imported_from");
  if (imported != attributes.end()) state.imported_from = imported->second;
  return state;
}

absl::StatusOr<Config> SavedConfig(const ResumeState& saved) {
  // Keys that have no default and that an imported state has not.
  std::vector<std::string> sets;
  if (!saved.imported_from.empty()) {
    sets = {"batch.global_seqs=1", "train.steps=1", "data.paths=[]"};
  }
  absl::StatusOr<Config> config =
      ParseConfig(saved.config, "the checkpoint's configuration", sets);
  if (config.ok()) return config;
  return absl::FailedPreconditionError(std::string(config.status().message()));
}

absl::StatusOr<std::vector<ConfigDifference>> CompareForResume(
    const ResumeState& saved, const Config& now,
    const std::string& data_fingerprint_now,
    const std::string& numerics_fingerprint_now) {
  HF_ASSIGN_OR_RETURN(const Config config, SavedConfig(saved));
  std::vector<ConfigDifference> differences = CompareForResume(config, now);
  if (!saved.imported_from.empty()) {
    std::erase_if(differences, [](const ConfigDifference& difference) {
      return difference.group != "model" || difference.name == "model.seq_len";
    });
    return differences;
  }
  if (saved.data_fingerprint != data_fingerprint_now) {
    differences.push_back({.group = "data",
                           .name = "data.fingerprint",
                           .saved = saved.data_fingerprint,
                           .now = data_fingerprint_now});
  }
  if (saved.numerics_fingerprint != numerics_fingerprint_now) {
    differences.push_back({.group = "numerics",
                           .name = "numerics.fingerprint",
                           .saved = saved.numerics_fingerprint,
                           .now = numerics_fingerprint_now});
  }
  return differences;
}

}  // namespace holdfast::trainer
