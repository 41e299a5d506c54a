// tools/ckptctl/main.cc: the command line of `ckptctl`, and its exits.
//
// To add a command: a struct and a Run function in commands.h, an AddX below
// that spells its options, and a line in Main().

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/base/log.h"
#include "tools/ckptctl/commands.h"
#include "tools/common/command_line.h"
#include "tools/common/text.h"

namespace holdfast::tools {
namespace {

constexpr char kFooter[] =
    "CHECKPOINT is RUN (its newest), RUN@STEP, RUN@step-000000120.i0003.a01, "
    "or a\ncheckpoint's own directory, wherever it was copied to.\n"
    "\n"
    "No command writes into a run or a checkpoint.\n"
    "\n"
    "Exit: 0 fine, 1 diff found a difference, 64 bad usage, 65 damaged data,\n"
    "66 no checkpoint, 70 our own bug, 74 I/O error, 78 a newer format or "
    "another\ndisagreement.\n"
    "\n"
    "Examples:\n"
    "  ckptctl ls /scratch/run7\n"
    "  ckptctl verify /scratch/run7@1200 --hash\n"
    "  ckptctl diff /scratch/run7 /scratch/run8@1200";

void AddReaders(CLI::App* parser, int& readers) {
  parser->add_option("--readers", readers, "reads in flight [default: 8]")
      ->check(CLI::Range(1, 256).description(""))
      ->type_name("N");
}

Command AddLs(CLI::App& app) {
  auto options = std::make_shared<LsOptions>();
  CLI::App* parser = app.add_subcommand(
      "ls",
      "what is in a run, newest first: step, state, age, size, layout, and why "
      "something is not offered");
  parser->add_option("RUN", options->run, "a run directory")
      ->type_name("")
      ->required();
  AddJson(parser, options->json);
  return MakeCommand(parser, options, &RunLs);
}

Command AddShow(CLI::App& app) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* parser = app.add_subcommand(
      "show", "one manifest: items, attributes, and the layout that wrote it");
  parser->add_option("CHECKPOINT", options->checkpoint, "see ckptctl --help")
      ->type_name("")
      ->required();
  parser->add_flag("--hash", options->hash,
                   "the logical digests that the manifest records");
  AddJson(parser, options->json);
  return MakeCommand(parser, options, &RunShow);
}

Command AddVerify(CLI::App& app) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* parser =
      app.add_subcommand("verify", "reads every byte and compares checksums");
  parser->add_option("CHECKPOINT", options->checkpoint, "see ckptctl --help")
      ->type_name("")
      ->required();
  parser->add_flag("--hash", options->hash,
                   "also compute the logical digests from the bytes and "
                   "compare them with the manifest's");
  parser->add_flag(
      "--raw-speed,!--no-raw-speed", options->raw_speed,
      "first read for half a second of the largest file in a plain "
      "loop, to compare with (the default)");
  AddReaders(parser, options->readers);
  AddJson(parser, options->json);
  return MakeCommand(parser, options, &RunVerify);
}

Command AddDiff(CLI::App& app) {
  auto options = std::make_shared<DiffOptions>();
  CLI::App* parser = app.add_subcommand(
      "diff",
      "compares two checkpoints of any layouts, tensor by tensor, and their "
      "attributes");
  parser->add_option("A", options->a, "a checkpoint, see ckptctl --help")
      ->type_name("")
      ->required();
  parser->add_option("B", options->b, "another")->type_name("")->required();
  parser
      ->add_option("--kind", options->kinds,
                   "only items of this kind, such as weight; repeatable")
      ->type_name("KIND")
      ->allow_extra_args(false);
  parser->add_flag("--no-attributes", options->no_attributes,
                   "compare tensors only");
  AddReaders(parser, options->readers);
  AddJson(parser, options->json);
  return MakeCommand(parser, options, &RunDiff);
}

int Main(int argc, char** argv) {
  // What storage is used and so on is of no interest here; warnings are.
  const absl::Status log =
      ckpt::InitLog(ckpt::LogLevel::kWarning, /*file=*/"", /*prefix=*/"");
  if (!log.ok()) return ReportFailure("ckptctl", log);

  CLI::App app("ckptctl: looks at, checks and compares checkpoints.",
               "ckptctl");
  app.footer(kFooter);
  return RunCommandLine(app,
                        {
                            AddLs(app),
                            AddShow(app),
                            AddVerify(app),
                            AddDiff(app),
                        },
                        argc, argv);
}

}  // namespace
}  // namespace holdfast::tools

int main(int argc, char** argv) {
  return holdfast::tools::RunProgram("ckptctl", holdfast::tools::Main, argc,
                                     argv);
}
