// tools/common/json_output.cc: dump and newline.

#include "tools/common/json_output.h"

#include <cstdio>
#include <string>

namespace holdfast::tools {

void PrintJson(const Json& json) {
  const std::string line =
      json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fwrite(line.data(), 1, line.size(), stdout);
}

}  // namespace holdfast::tools
