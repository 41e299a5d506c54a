// tools/convert/strict_json.h: JSON files of others, refused when they could be
// read in two ways. Any thread.

#ifndef HOLDFAST_TOOLS_CONVERT_STRICT_JSON_H_
#define HOLDFAST_TOOLS_CONVERT_STRICT_JSON_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace holdfast::tools {

// One JSON value and nothing else. kInvalidArgument, with `name` and the place:
// what is no JSON, a key twice in one object (JSON libraries silently keep one
// of them), or more than 64 levels.
absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text,
                                               std::string_view name);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_STRICT_JSON_H_
