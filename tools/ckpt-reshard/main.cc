// tools/ckpt-reshard/main.cc: the command line of `ckpt-reshard`; the same
// command is `ckptctl reshard`.

#include "ckpt/base/log.h"
#include "tools/common/command_line.h"
#include "tools/reshard/reshard_line.h"

namespace holdfast::tools {
namespace {

int Main(int argc, char** argv) {
  const absl::Status log =
      ckpt::InitLog(ckpt::LogLevel::kWarning, /*file=*/"", /*prefix=*/"");
  if (!log.ok()) return ReportFailure("ckpt-reshard", log);
  CLI::App app(
      "ckpt-reshard: rewrites a checkpoint for another layout, offline.",
      "ckpt-reshard");
  ReshardOptions options;
  AddReshardOptions(&app, options);
  app.footer(kReshardFooter);
  return RunPlainCommandLine(
      app, [&options] { return RunReshard(options); }, argc, argv);
}

}  // namespace
}  // namespace holdfast::tools

int main(int argc, char** argv) {
  return holdfast::tools::RunProgram("ckpt-reshard", holdfast::tools::Main,
                                     argc, argv);
}
