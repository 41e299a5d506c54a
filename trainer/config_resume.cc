// trainer/config_resume.cc: does this start continue the run it found?

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "trainer/config.h"
#include "trainer/config_keys.h"

namespace holdfast::trainer {

std::vector<ConfigDifference> CompareForResume(const Config& saved,
                                               const Config& now) {
  std::vector<ConfigDifference> differences;
  for (const Key& key : Keys()) {
    if (key.group.empty()) continue;
    std::string before = ValueText(key, saved);
    std::string after = ValueText(key, now);
    if (before == after) continue;
    differences.push_back({.group = std::string(key.group),
                           .name = std::string(key.name),
                           .saved = std::move(before),
                           .now = std::move(after)});
  }
  return differences;
}

absl::Status RefuseUnaccepted(std::span<const ConfigDifference> differences,
                              std::span<const std::string> accepted) {
  for (const std::string& name : accepted) {
    const auto names = [&](const auto& has) {
      return has.name == name || has.group == name;
    };
    // A name that could differ but does not is fine: scripts pass it always.
    if (std::any_of(differences.begin(), differences.end(), names) ||
        std::any_of(Keys().begin(), Keys().end(), [&](const Key& key) {
          // The caller's own differences are fingerprints of a whole group.
          return !key.group.empty() &&
                 (names(key) ||
                  name == std::string(key.group) + ".fingerprint");
        })) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "--accept-change=%s: no such key or group; groups are seed, data, "
        "model, numerics, batch and optim",
        name));
  }
  std::vector<std::string> lines;
  for (const ConfigDifference& difference : differences) {
    const bool named = std::any_of(
        accepted.begin(), accepted.end(), [&](const std::string& name) {
          return name == difference.name || name == difference.group;
        });
    if (named) continue;
    lines.push_back(
        absl::StrFormat("  %s: checkpoint has %s, this start wants %s",
                        difference.name, difference.saved, difference.now));
  }
  if (lines.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "the checkpoint belongs to another run than this configuration:\n%s\n"
      "set them back, or take each on purpose with --accept-change=NAME (a key "
      "above or its group)",
      absl::StrJoin(lines, "\n")));
}

}  // namespace holdfast::trainer
