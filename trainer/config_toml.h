// trainer/config_toml.h: TOML text to a flat list of keys and values.
//
// config_toml.cc is the only file that includes <toml++/toml.h>, and the only
// one of this folder in which exceptions are thrown and caught.

#ifndef HOLDFAST_TRAINER_CONFIG_TOML_H_
#define HOLDFAST_TRAINER_CONFIG_TOML_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::trainer {

// A value that is no list. Dates and tables have no use here and are refused.
using ConfigScalar = std::variant<int64_t, double, bool, std::string>;

struct ConfigEntry {
  std::string key;    // "model.layers"
  std::string where;  // "tiny.toml:12" or "--set model.layers=2"
  bool is_list = false;
  std::vector<ConfigScalar> values = {};  // One, unless is_list.
};

// kInvalidArgument: not TOML; the message starts with name:line.
absl::StatusOr<std::vector<ConfigEntry>> ReadToml(std::string_view text,
                                                  std::string_view name);

// "KEY=VALUE". A VALUE that is not TOML is taken as a string as it stands, so
// that --set checkpoint.interval=30min needs no quotes from the shell.
absl::StatusOr<ConfigEntry> ReadSet(std::string_view set);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_CONFIG_TOML_H_
