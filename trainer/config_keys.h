// trainer/config_keys.h: the table of keys, for the files of config.h only.
//
// One row a key. Name, unit, range, help and resume group stand in the row; the
// type follows from the field, the default from a default-made Config.

#ifndef HOLDFAST_TRAINER_CONFIG_KEYS_H_
#define HOLDFAST_TRAINER_CONFIG_KEYS_H_

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "trainer/config.h"
#include "trainer/config_toml.h"

namespace holdfast::trainer {

// A field of some enum type, read and written by position in `choices`.
struct EnumField {
  void* target;
  int (*get)(const void* target);
  void (*set)(void* target, int choice);
};

using Field =
    std::variant<int64_t*, uint64_t*, double*, bool*, std::vector<int64_t>*,
                 std::vector<double>*, std::vector<std::string>*, SaveInterval*,
                 FileCount*, EnumField>;

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;   // Excludes `low`.
  bool high_open = false;  // Excludes `high`.
};

struct Key {
  std::string_view name;
  Field (*field)(Config& config);
  std::string_view unit;
  Range range;
  std::string_view help;
  std::string_view group = "";  // Compared at resume under this; "" is free.
  bool required = false;
  std::vector<std::string_view> choices = {};  // Of an EnumField, in order.
};

std::span<const Key> Keys();

// Null where there is none.
const Key* FindKey(std::string_view name);

// The known key that `name` most likely meant, "" if none is near.
std::string_view NearestKey(std::string_view name);

// Checks type and range, then assigns. kInvalidArgument starts with
// `entry.where` and has what was expected and found.
absl::Status AssignKey(const Key& key, const ConfigEntry& entry,
                       Config& config);

// "integer", "number", "true or false", "list of integers", ...
std::string TypeName(const Key& key);

// ">= 1", "0 to 1", "above 0", "" for no bound.
std::string RangeText(const Range& range);

// The field's value as TOML.
std::string ValueText(const Key& key, const Config& config);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_CONFIG_KEYS_H_
