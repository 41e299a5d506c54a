// tools/common/command_line.cc: parsing, usage errors, exits.

#include "tools/common/command_line.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "ckpt/session/catalog_locate.h"
#include "tools/common/text.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

// "holdfast data: --out is required", and where to read on.
int UsageError(const CLI::App& app, const std::string& what) {
  std::string who = app.get_name();
  for (const CLI::App* parser : app.get_subcommands()) {
    who += " " + parser->get_name();
  }
  std::fprintf(stderr, "%s: %s\nSee '%s --help'.\n", who.c_str(), what.c_str(),
               who.c_str());
  return trainer::kExitUsage;
}

}  // namespace

CLI::Validator CheckpointName() {
  return CLI::Validator(
      [](std::string& text) {
        return std::string(ckpt::CheckCheckpointName(text).message());
      },
      "");
}

void AddJson(CLI::App* parser, bool& json) {
  parser->add_flag("--json", json,
                   "JSON on stdout, one object a line; messages stay on "
                   "stderr");
}

int RunCommandLine(CLI::App& app, const std::vector<Command>& commands,
                   int argc, char** argv) {
  app.require_subcommand(1);
  if (argc > 1 && argv[1][0] != '-' &&
      std::none_of(commands.begin(), commands.end(),
                   [&](const Command& command) {
                     return command.parser->get_name() == argv[1];
                   })) {
    return UsageError(app,
                      std::string("no command is named '") + argv[1] + "'");
  }
  return RunPlainCommandLine(
      app,
      [&] {
        for (const Command& command : commands) {
          if (command.parser->parsed()) return command.run();
        }
        return UsageError(app, "a command is required");
      },
      argc, argv);
}

int RunPlainCommandLine(CLI::App& app, const std::function<int()>& run,
                        int argc, char** argv) {
  app.set_help_flag("-h,--help", "prints this");
  app.set_version_flag("--version", app.get_name() + " " HOLDFAST_VERSION,
                       "prints the version");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return UsageError(app, error.what());
    // --help and --version arrive here too.
    app.exit(error, std::cout, std::cerr);
    std::cout.flush();
    return trainer::kExitFinished;
  }
  return run();
}

int RunProgram(const char* program, int (*run)(int argc, char** argv), int argc,
               char** argv) {
  try {
    return FinishOutput(program, run(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: unexpected error: %s; this is a bug\n", program,
                 error.what());
    return trainer::kExitBug;
  }
}

}  // namespace holdfast::tools
