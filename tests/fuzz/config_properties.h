// tests/fuzz/config_properties.h: what must hold for any text at all that is
// offered as a configuration: refused with a status that names the file, or
// accepted, and then the canonical text of what was read is read back as the
// same. It never crashes, whatever the TOML.
//
// Called by the fuzz target config and, with its corpus and with mutations of
// it, by an ordinary test. Aborts when the property is broken.

#ifndef HOLDFAST_TESTS_FUZZ_CONFIG_PROPERTIES_H_
#define HOLDFAST_TESTS_FUZZ_CONFIG_PROPERTIES_H_

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "trainer/config.h"

namespace holdfast::trainer {

inline void ConfigMust(bool holds, const char* what, std::string_view text) {
  if (holds) return;
  std::fprintf(stderr, "%s:\n%s\n", what, std::string(text).c_str());
  std::abort();
}

// Returns how often something was accepted.
inline int CheckConfigText(std::string_view text) {
  // A first line that begins with "--set " is an override, not a part of the
  // file.
  std::vector<std::string> sets;
  constexpr std::string_view kSet = "--set ";
  while (text.starts_with(kSet)) {
    const size_t end = std::min(text.find('\n'), text.size());
    sets.emplace_back(text.substr(kSet.size(), end - kSet.size()));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  const auto config = ParseConfig(text, "fuzz.toml", sets);
  if (!config.ok()) {
    const std::string message(config.status().message());
    ConfigMust(absl::StrContains(message, "fuzz.toml") ||
                   absl::StrContains(message, "--set"),
               "a refusal names nothing", message);
    return 0;
  }
  const std::string canonical = CanonicalText(*config);
  const auto again = ParseConfig(canonical, "again.toml", {});
  ConfigMust(again.ok(), "the canonical text is refused", canonical);
  ConfigMust(CanonicalText(*again) == canonical,
             "the canonical text is read as another", canonical);
  return 1;
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TESTS_FUZZ_CONFIG_PROPERTIES_H_
