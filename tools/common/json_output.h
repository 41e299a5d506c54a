// tools/common/json_output.h: results as JSON, one object per line on stdout.

#ifndef HOLDFAST_TOOLS_COMMON_JSON_OUTPUT_H_
#define HOLDFAST_TOOLS_COMMON_JSON_OUTPUT_H_

#include <nlohmann/json.hpp>

namespace holdfast::tools {

// Keys keep the order in which they were set.
using Json = nlohmann::ordered_json;

// One line. Bytes that are not UTF-8, as file names may have, become U+FFFD.
void PrintJson(const Json& json);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_COMMON_JSON_OUTPUT_H_
