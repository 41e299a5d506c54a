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
#include "tools/convert/formats.h"
#include "tools/reshard/reshard_line.h"

namespace holdfast::tools {
namespace {

constexpr char kFooter[] =
    "CHECKPOINT is RUN (its newest), RUN@STEP, RUN@step-000000120.i0003.a01, "
    "or a\ncheckpoint's own directory, wherever it was copied to.\n"
    "\n"
    "prune alone changes a run that is there, and only with --yes.\n"
    "\n"
    "Exit: 0 fine, 1 diff found a difference, 64 bad usage, 65 damaged data,\n"
    "66 no checkpoint (or tensor) of that name, 70 our own bug, 74 I/O error,\n"
    "78 a newer format, a job that owns the run, or another disagreement.\n"
    "\n"
    "Examples:\n"
    "  ckptctl ls /scratch/run7\n"
    "  ckptctl verify /scratch/run7@1200 --hash\n"
    "  ckptctl show /scratch/run7 --tensor '*.q_proj.weight'\n"
    "  ckptctl diff /scratch/run7 /scratch/run8@1200\n"
    "  ckptctl import --from hf /models/llama --out /scratch/start --tp 2\n"
    "  ckptctl export /scratch/run7@1200 --to hf --dtype bf16 --out "
    "/models/run7\n"
    "  ckptctl prune /scratch/run7 --keep-last 2 --keep-every 1000";

// Of import and export, whose own footers list their formats.
constexpr char kMovingExits[] =
    "\nExit: 0 fine, 64 bad usage, 65 damaged data, 66 no checkpoint or file "
    "of that name,\n70 our own bug, 74 I/O error or no space, 78 the output is "
    "something else, or PATH\nis of another format or holds what cannot be "
    "taken over.";

void AddReaders(CLI::App* parser, int& readers) {
  parser->add_option("--readers", readers, "reads in flight [default: 8]")
      ->check(CLI::Range(1, 256).description(""))
      ->type_name("N");
}

Command AddLs(CLI::App& app) {
  auto options = std::make_shared<LsOptions>();
  CLI::App* parser = app.add_subcommand(
      "ls",
      "what is in a run, newest first: step, state, age, size, layout, parent, "
      "and why something is not offered");
  parser
      ->add_option("RUN", options->what,
                   "a run directory; or one checkpoint, see ckptctl --help")
      ->check(CheckpointName())
      ->type_name("")
      ->required();
  AddJson(parser, options->json);
  return MakeCommand(parser, options, &RunLs);
}

Command AddShow(CLI::App& app) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* parser = app.add_subcommand(
      "show",
      "one manifest: the layout that wrote it, attributes, tensors and files");
  parser->add_option("CHECKPOINT", options->checkpoint, "see ckptctl --help")
      ->check(CheckpointName())
      ->type_name("")
      ->required();
  parser->add_flag("--hash", options->hash,
                   "the logical digests that the manifest records");
  parser->add_flag("--config", options->config,
                   "the configuration of the job that wrote it, alone");
  parser
      ->add_option("--tensor", options->tensors,
                   "only this tensor, and where its parts are stored; '*' and "
                   "'?' are wild; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  AddJson(parser, options->json);
  return MakeCommand(parser, options, &RunShow);
}

Command AddVerify(CLI::App& app) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* parser =
      app.add_subcommand("verify", "reads every byte and compares checksums");
  parser->add_option("CHECKPOINT", options->checkpoint, "see ckptctl --help")
      ->check(CheckpointName())
      ->type_name("")
      ->required();
  parser->add_flag("--hash", options->hash,
                   "also compute the logical digests from the bytes and "
                   "compare them with the manifest's");
  parser->add_flag(
      "--raw-speed,!--no-raw-speed", options->raw_speed,
      "first read for half a second of the largest file in a plain "
      "loop, to compare with (the default)");
  parser
      ->add_option("--threads", options->threads,
                   "cores that hash [default: all that there are, at most 8]")
      ->check(CLI::Range(1, 64).description(""))
      ->type_name("N");
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
      ->check(CheckpointName())
      ->type_name("")
      ->required();
  parser->add_option("B", options->b, "another")
      ->check(CheckpointName())
      ->type_name("")
      ->required();
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

std::vector<std::string> NamesOf(bool imports) {
  std::vector<std::string> names;
  for (const Format& format : Formats()) {
    if (imports ? format.open != nullptr : format.write != nullptr) {
      names.emplace_back(format.name);
    }
  }
  return names;
}

CLI::Option* AddChoice(CLI::App* parser, const char* name, std::string& value,
                       const std::vector<std::string>& choices,
                       const std::string& help) {
  return parser->add_option(name, value, help)
      ->check(CLI::IsMember(choices).description(""))
      ->type_name("NAME");
}

Command AddImport(CLI::App& app) {
  auto options = std::make_shared<ImportOptions>();
  CLI::App* parser = app.add_subcommand(
      "import",
      "makes a run with one checkpoint of the state that other programs' files "
      "hold");
  parser->add_option("PATH", options->from, "the directory or file to read")
      ->type_name("")
      ->required();
  AddChoice(parser, "--from", options->format, NamesOf(true),
            "the format of PATH; see below")
      ->required();
  parser
      ->add_option("--out", options->out,
                   "the run directory to make; one that an import like this "
                   "began is finished, anything else is refused")
      ->type_name("RUN")
      ->required();
  const auto ranks = [&](const char* name, int& value, const char* help) {
    parser->add_option(name, value, help)
        ->check(CLI::Range(1, 1'000'000).description(""))
        ->type_name("N");
  };
  ranks("--tp", options->tp, "ranks that share each layer [default: 1]");
  ranks("--pp", options->pp, "pipeline stages [default: 1]");
  ranks("--dp", options->dp,
        "replicas over which the optimizer's state is cut [default: 1]; a "
        "training resumes on any layout whatever these say");
  parser
      ->add_option("--stages", options->stages,
                   "layers of each stage, such as 13,14,14,13 [default: even]")
      ->delimiter(',')
      ->type_name("N,N,...");
  parser
      ->add_option(
          "--model", options->model_file,
          "what the model is, where PATH does not say: a configuration "
          "with [model], or a config.json of Hugging Face")
      ->type_name("FILE");
  parser
      ->add_option("--ignore", options->ignore,
                   "a key of PATH to leave behind, such as a name that the "
                   "import has listed; NAME* for all that begin so; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  AddChoice(parser, "--compute", options->compute, {"bf16", "f32"},
            "what the training computes in (numerics.compute), and so the type "
            "of the weights: bf16 or f32 [default: bf16]");
  AddCodec(parser, options->codec, "");
  AddMemoryLimit(parser, options->memory_limit);
  parser
      ->add_option("--threads", options->threads,
                   "that read and write [default: by processors and memory]")
      ->check(CLI::Range(1, 1024).description(""))
      ->type_name("N");
  AddJson(parser, options->json);
  parser->footer("Formats of --from:\n" + ImportHelp() + kMovingExits +
                 "\n128 + n stopped by signal n; the same command goes on.");
  return MakeCommand(parser, options, &RunImport);
}

Command AddExport(CLI::App& app) {
  auto options = std::make_shared<ExportOptions>();
  CLI::App* parser = app.add_subcommand(
      "export", "writes a checkpoint's state as the files of other programs");
  parser->add_option("CHECKPOINT", options->checkpoint, "see ckptctl --help")
      ->check(CheckpointName())
      ->type_name("")
      ->required();
  AddChoice(parser, "--to", options->format, NamesOf(false),
            "the format of OUT; see below")
      ->required();
  parser
      ->add_option("--out", options->out,
                   "what to make; must not exist, and appears whole or not at "
                   "all")
      ->type_name("PATH")
      ->required();
  AddChoice(parser, "--dtype", options->dtype, {"f32", "bf16", "f16"},
            "of the tensors, where the format leaves a choice: f32 is the "
            "masters, bf16 the weights of a run in bf16 [default: f32]");
  AddBytes(parser, "--max-shard-size", options->shard_bytes_max,
           "of a file, where the format has several [default: 5GB]");
  AddMemoryLimit(parser, options->memory_limit);
  parser
      ->add_option("--threads", options->threads,
                   "that read and write [default: by processors and memory]")
      ->check(CLI::Range(1, 1024).description(""))
      ->type_name("N");
  AddJson(parser, options->json);
  parser->footer("Formats of --to:\n" + ExportHelp() + kMovingExits +
                 "\n128 + n stopped by signal n; nothing is left then.");
  return MakeCommand(parser, options, &RunExport);
}

Command AddPrune(CLI::App& app) {
  auto options = std::make_shared<PruneCommandOptions>();
  CLI::App* parser = app.add_subcommand(
      "prune",
      "lists what a run can do without, by the rules of a job's own retention, "
      "and removes it with --yes");
  parser
      ->add_option("RUN", options->what,
                   "a run directory; or RUN@STEP or RUN@ID: that one alone. "
                   "The newest checkpoint is never removed")
      ->check(CheckpointName())
      ->type_name("")
      ->required();
  parser
      ->add_option("--keep-last", options->keep_last,
                   "the newest checkpoints that stay [default: 3]")
      ->check(CLI::Range(1, 1'000'000).description(""))
      ->type_name("N");
  parser
      ->add_option("--keep-every", options->keep_every,
                   "also those at a multiple of this step [default: none]")
      ->check(CLI::Range(int64_t{1}, INT64_MAX).description(""))
      ->type_name("STEP");
  parser
      ->add_option("--keep-older", options->keep_older_s,
                   "also one that is at least so old, and the one that will "
                   "take its place, in seconds [default: none]")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40).description(""))
      ->type_name("SECONDS");
  parser->add_flag("--yes", options->yes,
                   "remove them. This claims the run, as a starting job does: "
                   "no job may own it");
  parser->add_flag("--owner-is-gone", options->owner_is_gone,
                   "you know that the job that claimed the run last has ended, "
                   "though nothing here shows it");
  parser->add_flag("--verify,!--no-verify", options->verify,
                   "with --yes, first read the newest checkpoint and compare "
                   "its checksums: nothing goes if it is damaged (the "
                   "default)");
  AddJson(parser, options->json);
  return MakeCommand(parser, options, &RunPrune);
}

Command AddReshard(CLI::App& app) {
  auto options = std::make_shared<ReshardOptions>();
  CLI::App* parser = app.add_subcommand(
      "reshard", "rewrites a checkpoint for another layout, offline");
  AddReshardOptions(parser, *options);
  parser->footer(kReshardFooter);
  return MakeCommand(parser, options, &RunReshard);
}

int Main(int argc, char** argv) {
  // What storage is used and so on is of no interest here; warnings are.
  const absl::Status log =
      ckpt::InitLog(ckpt::LogLevel::kWarning, /*file=*/"", /*prefix=*/"");
  if (!log.ok()) return ReportFailure("ckptctl", log);

  CLI::App app(
      "ckptctl: looks at, checks, compares, moves and prunes checkpoints.",
      "ckptctl");
  app.footer(kFooter);
  return RunCommandLine(app,
                        {
                            AddLs(app),
                            AddShow(app),
                            AddVerify(app),
                            AddDiff(app),
                            AddImport(app),
                            AddExport(app),
                            AddPrune(app),
                            AddReshard(app),
                        },
                        argc, argv);
}

}  // namespace
}  // namespace holdfast::tools

int main(int argc, char** argv) {
  return holdfast::tools::RunProgram("ckptctl", holdfast::tools::Main, argc,
                                     argv);
}
