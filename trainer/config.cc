// trainer/config.cc: a file and overrides to a Config, and back to text.

#include "trainer/config.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/status_macros.h"
#include "trainer/config_keys.h"
#include "trainer/config_toml.h"

namespace holdfast::trainer {
namespace {

absl::Status Unknown(const ConfigEntry& entry) {
  const std::string_view near = NearestKey(entry.key);
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: unknown key '%s'%s; `holdfast config --keys` lists them all",
      entry.where, entry.key,
      near.empty() ? "" : absl::StrFormat(", did you mean '%s'?", near)));
}

// Keys that are no more, and stand as false in the configurations that earlier
// programs saved with every checkpoint: nothing else was built then.
bool IsRetired(const ConfigEntry& entry) {
  return (entry.key == "parallel.overlap_grad_reduce" ||
          entry.key == "parallel.overlap_param_gather") &&
         !entry.is_list && entry.values.size() == 1 &&
         entry.values.front() == ConfigScalar(false);
}

}  // namespace

absl::StatusOr<Config> ParseConfig(std::string_view text, std::string_view name,
                                   std::span<const std::string> sets) {
  HF_ASSIGN_OR_RETURN(std::vector<ConfigEntry> entries, ReadToml(text, name));
  for (const std::string& set : sets) {
    HF_ASSIGN_OR_RETURN(ConfigEntry entry, ReadSet(set));
    entries.push_back(std::move(entry));
  }
  Config config;
  std::set<std::string_view> given;
  for (const ConfigEntry& entry : entries) {
    if (IsRetired(entry)) continue;
    const Key* key = FindKey(entry.key);
    if (key == nullptr) return Unknown(entry);
    HF_RETURN_IF_ERROR(AssignKey(*key, entry, config));
    given.insert(key->name);
  }
  std::vector<std::string> missing;
  for (const Key& key : Keys()) {
    if (key.required && !given.contains(key.name))
      missing.emplace_back(key.name);
  }
  if (!missing.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: missing, and without a default: %s", name,
                        absl::StrJoin(missing, ", ")));
  }
  if (config.model.kv_heads == 0) config.model.kv_heads = config.model.heads;
  return config;
}

absl::StatusOr<Config> LoadConfig(const std::string& path,
                                  std::span<const std::string> sets) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad() || text.fail()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("reading configuration %s: %s", path,
                        errno ? std::strerror(errno) : "not a readable file"));
  }
  return ParseConfig(text.str(), path, sets);
}

absl::Status ResolveConfig(Config& config, int64_t world) {
  const int64_t model_ranks =
      config.parallel.tp * config.parallel.pp * config.parallel.cp;
  // A world that does not divide, and a dp that differs, are CheckShape's.
  if (config.parallel.dp == 0) {
    config.parallel.dp = std::max<int64_t>(1, world / model_ranks);
  }
  if (config.optim.decay_steps == 0) {
    config.optim.decay_steps = config.train.steps;
  }
  if (config.numerics.virtual_dp == 0) {
    const int64_t micros = config.batch.global_seqs / config.batch.micro_seqs;
    int64_t leaves = std::clamp<int64_t>(micros, 1, 8);
    while (micros % leaves != 0) --leaves;
    config.numerics.virtual_dp = leaves;
  }
  HF_RETURN_IF_ERROR(CheckConfig(config, world));
  HF_ASSIGN_OR_RETURN(config.parallel.stages, StageLayers(config));
  return absl::OkStatus();
}

std::string CanonicalText(const Config& config) {
  std::vector<std::string> lines;
  for (const Key& key : Keys()) {
    lines.push_back(
        absl::StrFormat("%s = %s\n", key.name, ValueText(key, config)));
  }
  std::sort(lines.begin(), lines.end());
  return absl::StrJoin(lines, "");
}

std::vector<KeyRow> KeyRows() {
  const Config defaults;
  std::vector<KeyRow> rows;
  for (const Key& key : Keys()) {
    rows.push_back(
        {.name = std::string(key.name),
         .type = TypeName(key),
         .unit = std::string(key.unit),
         .range = RangeText(key.range),
         .default_value = key.required ? "required" : ValueText(key, defaults),
         .help = std::string(key.help)});
  }
  return rows;
}

}  // namespace holdfast::trainer
