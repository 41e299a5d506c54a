// tools/holdfast/config_command.cc: `holdfast config`: the keys, and whether a
// configuration fits a number of ranks.

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/common/json_output.h"
#include "tools/common/text.h"
#include "tools/holdfast/commands.h"
#include "trainer/config.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

constexpr char kProgram[] = "holdfast config";

void PrintKeys(bool json) {
  std::string section;
  for (const trainer::KeyRow& row : trainer::KeyRows()) {
    if (json) {
      PrintJson({{"key", row.name},
                 {"type", row.type},
                 {"unit", row.unit},
                 {"range", row.range},
                 {"default", row.default_value},
                 {"help", row.help}});
      continue;
    }
    const size_t dot = row.name.find('.');
    const std::string own =
        dot == std::string::npos ? "" : row.name.substr(0, dot);
    if (own != section) std::printf("\n");
    section = own;
    // "optim.lr = 3e-04   number, above 0": what it is, then what it does.
    std::string kind = row.type;
    if (!row.range.empty()) kind += ", " + row.range;
    if (!row.unit.empty()) kind += ", in " + row.unit;
    const std::string value = row.default_value == "required"
                                  ? row.name + "   (required)"
                                  : row.name + " = " + row.default_value;
    std::printf("%-36s  %s\n    %s\n", value.c_str(), kind.c_str(),
                WrapText(row.help, 76, 4).c_str());
  }
}

int Check(const ConfigOptions& options) {
  auto config = trainer::LoadConfig(options.check, options.sets);
  if (!config.ok()) return ReportFailure(kProgram, config.status());
  const trainer::ParallelConfig& parallel = config->parallel;
  const int64_t world = options.world > 0
                            ? options.world
                            : parallel.tp * parallel.pp * parallel.cp *
                                  std::max<int64_t>(1, parallel.dp);
  const absl::Status status = trainer::ResolveConfig(*config, world);
  if (!status.ok()) {
    return ReportFailure(
        kProgram,
        absl::Status(status.code(),
                     absl::StrFormat("%s does not fit: %s", options.check,
                                     std::string(status.message()))));
  }
  if (options.print) {
    std::printf("%s", trainer::CanonicalText(*config).c_str());
    return trainer::kExitFinished;
  }
  const int64_t parameters = trainer::ParameterCount(config->model);
  if (options.json) {
    PrintJson({{"config", options.check},
               {"world", world},
               {"tp", parallel.tp},
               {"pp", parallel.pp},
               {"dp", parallel.dp},
               {"stages", parallel.stages},
               {"virtual_dp", config->numerics.virtual_dp},
               {"parameters", parameters}});
    return trainer::kExitFinished;
  }
  std::printf(
      "%s fits %d ranks: tp%d-pp%d-dp%d, layers a stage [%s], %s parameters\n",
      options.check.c_str(), static_cast<int>(world),
      static_cast<int>(parallel.tp), static_cast<int>(parallel.pp),
      static_cast<int>(parallel.dp),
      absl::StrJoin(parallel.stages, ", ").c_str(),
      CountText(static_cast<uint64_t>(parameters)).c_str());
  return trainer::kExitFinished;
}

}  // namespace

int RunConfig(const ConfigOptions& options) {
  if (options.keys) {
    PrintKeys(options.json);
    return trainer::kExitFinished;
  }
  if (options.check.empty()) {
    std::fprintf(stderr,
                 "%s: --keys or --check FILE is required\nSee '%s --help'.\n",
                 kProgram, kProgram);
    return trainer::kExitUsage;
  }
  return Check(options);
}

}  // namespace holdfast::tools
