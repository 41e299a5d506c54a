// tools/common/command_line.h: what the command lines of all programs share.
//
// The door to CLI11, which takes seconds to compile: only a program's main.cc
// includes this. A program is
//
//   int Main(int argc, char** argv) {
//     CLI::App app("name: what it is.", "name");
//     return RunCommandLine(app, {AddThis(app), AddThat(app)}, argc, argv);
//   }
//   int main(int argc, char** argv) {
//     return holdfast::tools::RunProgram("name", holdfast::tools::Main, argc,
//                                        argv);
//   }

#ifndef HOLDFAST_TOOLS_COMMON_COMMAND_LINE_H_
#define HOLDFAST_TOOLS_COMMON_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace holdfast::tools {

struct Command {
  CLI::App* parser;
  std::function<int()> run;  // the exit code
};

// A subcommand whose options live as long as its `run`.
template <typename Options>
Command MakeCommand(CLI::App* parser, std::shared_ptr<Options> options,
                    int (*run)(const Options&)) {
  return {parser,
          [options = std::move(options), run] { return run(*options); }};
}

// Of an option that names a checkpoint: RUN, RUN@STEP, RUN@ID or a directory
// (ckpt/session/catalog_locate.h); what follows the '@' must be one of these.
CLI::Validator CheckpointName();

// --json
void AddJson(CLI::App* parser, bool& json);

// Parses, runs the command that is named and returns its exit code. Adds
// --help and --version; a mistake is one line on stderr and 64.
int RunCommandLine(CLI::App& app, const std::vector<Command>& commands,
                   int argc, char** argv);

// The same for a program that is one command: `app` has its options.
int RunPlainCommandLine(CLI::App& app, const std::function<int()>& run,
                        int argc, char** argv);

// Around all of a program: output that could not be written is an error, and
// no exception gets out.
int RunProgram(const char* program, int (*run)(int argc, char** argv), int argc,
               char** argv);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_COMMON_COMMAND_LINE_H_
