// tools/holdfast/main.cc: the command line of `holdfast`, and its exits.
//
// To add a command: a struct and a Run function in commands.h, an AddX below
// that spells its options, and a line in Main().

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tools/common/command_line.h"
#include "tools/holdfast/commands.h"
#include "tools/holdfast/drill.h"

namespace holdfast::tools {
namespace {

// Each --set takes one KEY=VALUE, so that what follows is never swallowed.
void AddSets(CLI::App* parser, std::vector<std::string>& sets) {
  parser->add_option("--set", sets, "sets a key over the file; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

Command AddData(CLI::App& app) {
  auto options = std::make_shared<DataOptions>();
  CLI::App* parser = app.add_subcommand(
      "data", "makes token files (PREFIX.bin, PREFIX.idx) from text");
  parser->add_option("--in", options->in, "text files, read in order")
      ->type_name("FILE")
      ->required();
  parser->add_option("--out", options->out, "where the token files go")
      ->type_name("PREFIX")
      ->required();
  parser
      ->add_option("--tokenizer", options->tokenizer,
                   "bytes (the default): 256 byte values, <bos>, <eos>")
      ->check(CLI::IsMember({"bytes"}).description(""))
      ->type_name("NAME");
  parser
      ->add_option("--split", options->split,
                   "what ends a document: file (the default) or blank-line")
      ->check(CLI::IsMember({"file", "blank-line"}).description(""))
      ->type_name("WHERE");
  parser
      ->add_option("--mask-lines", options->mask_lines,
                   "lines that start with TEXT do not count in the loss; "
                   "writes PREFIX.mask")
      ->type_name("TEXT");
  parser->add_flag("--replace", options->replace,
                   "take the place of token files of that name");
  AddJson(parser, options->json);
  parser->footer(
      "Examples:\n"
      "  holdfast data --in moby-dick.txt --out build/moby\n"
      "  holdfast data --in chats/*.txt --out build/chats --split blank-line "
      "--mask-lines 'User:'");
  return MakeCommand(parser, options, &RunData);
}

Command AddConfig(CLI::App& app) {
  auto options = std::make_shared<ConfigOptions>();
  CLI::App* parser = app.add_subcommand(
      "config", "lists every configuration key, or checks a file");
  CLI::Option* keys =
      parser->add_flag("--keys", options->keys,
                       "every key: default, type, range, unit, meaning");
  parser
      ->add_option("--check", options->check,
                   "whether FILE is right and fits, before ranks start")
      ->type_name("FILE")
      ->excludes(keys);
  parser
      ->add_option("--world", options->world,
                   "ranks that --check is for; without it, one replica")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description(""))
      ->type_name("N");
  AddSets(parser, options->sets);
  parser->add_flag("--print", options->print,
                   "with --check: the whole configuration, as TOML");
  AddJson(parser, options->json);
  parser->footer(
      "Examples:\n"
      "  holdfast config --keys\n"
      "  holdfast config --check run.toml --world 8 --set parallel.tp=2");
  return MakeCommand(parser, options, &RunConfig);
}

Command AddTrain(CLI::App& app) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* parser = app.add_subcommand(
      "train", "one rank of a job, started by launch, mpirun or srun");
  parser->add_option("--config", options->config, "what to train")
      ->type_name("FILE")
      ->required();
  AddSets(parser, options->sets);
  parser->add_option("--run", options->run, "the run directory, made if new")
      ->type_name("DIR")
      ->required();
  parser
      ->add_option(
          "--resume", options->resume,
          "auto (the default): the newest whole checkpoint, or a fresh "
          "start; never; required; or a step to go back to")
      ->check(CLI::Validator(
          [](const std::string& how) -> std::string {
            const bool is_step =
                !how.empty() && how.size() < 19 &&
                how.find_first_not_of("0123456789") == std::string::npos;
            if (is_step || how == "auto" || how == "never" ||
                how == "required") {
              return "";
            }
            return "expected auto, never, required or a step, found '" + how +
                   "'";
          },
          ""))
      ->type_name("HOW");
  parser
      ->add_option("--init-from", options->init_from,
                   "a fresh run takes its state from RUN, RUN@STEP or a "
                   "checkpoint's directory")
      ->check(CheckpointName())
      ->type_name("RUN[@STEP]");
  parser
      ->add_option("--init-only", options->init_only,
                   "weights: take the weights alone, not the optimizer, step "
                   "and data")
      ->check(CLI::IsMember({"weights"}).description(""))
      ->type_name("WHAT");
  parser
      ->add_option("--accept-change", options->accept_changes,
                   "go on although NAME (a key or group) differs from the "
                   "checkpoint; repeatable")
      ->type_name("NAME")
      ->allow_extra_args(false);
  parser->add_flag("--dry-run", options->dry_run,
                   "says what would run and what it needs, and starts nothing");
  parser->footer(
      "Signals: SIGTERM and SIGINT save and leave with 75, a second one leaves "
      "at\nonce; SIGUSR1 saves and goes on.\n"
      "Examples:\n"
      "  holdfast launch -n 8 -- train --config trainer/configs/tiny.toml \\\n"
      "    --set parallel.tp=2 --set parallel.pp=2 --run runs/r1");
  return MakeCommand(parser, options, &RunTrain);
}

Command AddPlan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* parser = app.add_subcommand(
      "plan", "memory, bytes and bubble of a layout before it runs");
  parser->add_option("--config", options->config, "what would be trained")
      ->type_name("FILE")
      ->required();
  AddSets(parser, options->sets);
  parser
      ->add_option("--world", options->world, "ranks; without it, one replica")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30).description(""))
      ->type_name("N");
  AddJson(parser, options->json);
  return MakeCommand(parser, options, &RunPlan);
}

// What follows "--" is the ranks' own command line and is not looked at here.
Command AddLaunch(CLI::App& app, const std::vector<std::string>& rest) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* parser = app.add_subcommand(
      "launch", "starts ranks on this machine and answers for them");
  parser->add_option("-n,--ranks", options->ranks, "how many; the default is 1")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->type_name("RANKS");
  parser
      ->add_option("--timeout", options->timeout_s,
                   "after S seconds the ranks save and leave")
      ->check(CLI::PositiveNumber.description(""))
      ->type_name("S");
  parser
      ->add_option("--env", options->env,
                   "sets a variable for the ranks; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  parser->add_option("--rank-dir", options->rank_dir)->group("");
  parser->footer(
      "Then -- and what each rank runs: a command of holdfast (train) or a "
      "path "
      "to a program.\n"
      "The ranks get SIGUSR1 (save), and SIGTERM or SIGINT (save and leave; "
      "the "
      "second\none: leave at once). OMP_NUM_THREADS is cores / RANKS unless it "
      "is set.\nThe exit code is the ranks': that of the one that failed "
      "first.\n\n"
      "Examples:\n"
      "  holdfast launch -n 8 -- train --config trainer/configs/tiny.toml "
      "--run "
      "build/run");
  return {parser, [options, rest] {
            options->command = rest;
            return RunLaunch(*options);
          }};
}

Command AddDrill(CLI::App& app) {
  auto options = std::make_shared<DrillOptions>();
  CLI::App* parser = app.add_subcommand(
      "drill", "breaks a run on purpose and proves that it comes back");
  parser->add_option("NAME", options->names, "which ones: kill-mid-save")
      ->type_name("")
      ->required();
  parser
      ->add_option("--run", options->run_dir,
                   "where the drill makes its runs; must not exist")
      ->type_name("DIR")
      ->required();
  parser->add_option("--config", options->config, "what the runs train")
      ->type_name("FILE")
      ->required();
  AddSets(parser, options->sets);
  parser
      ->add_option("--layouts", options->layouts,
                   "of the reference and the broken run, then of each resume; "
                   "the default is tp2-pp2-dp2,tp2-pp2-dp1,tp2-pp1-dp2")
      ->delimiter(',')
      ->type_name("LAYOUT,...");
  parser->add_flag("--require-learning", options->require_learning,
                   "fail unless the loss falls below the text's unigram "
                   "entropy");
  AddJson(parser, options->json);
  return MakeCommand(parser, options, &RunDrills);
}

Command AddDoctor(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* parser = app.add_subcommand(
      "doctor", "what a directory is good for, before anyone relies on it");
  parser
      ->add_option("--dir", options->dir,
                   "an existing directory, where runs would be kept")
      ->type_name("DIR")
      ->required();
  parser
      ->add_option("--seconds", options->seconds,
                   "for measuring its raw speed; the default is 2")
      ->check(CLI::Range(1, 600).description(""))
      ->type_name("S");
  parser
      ->add_option("--mib", options->mib_max,
                   "written at most, and given back; the default is 1024")
      ->check(CLI::Range(32, 1 << 20).description(""))
      ->type_name("N");
  AddJson(parser, options->json);
  parser->footer(
      "Exit: 0 checkpoints can be kept there, 74 it cannot be written to, 78 "
      "something\nthat saves need is missing.\n"
      "Example:\n"
      "  holdfast doctor --dir /scratch/runs");
  return MakeCommand(parser, options, &RunDoctor);
}

Command AddLinks(CLI::App& app) {
  auto options = std::make_shared<LinksOptions>();
  CLI::App* parser = app.add_subcommand(
      "links",
      "bandwidth and latency between the ranks of a layout, and who is slow");
  const auto count = [&](const char* name, int& value, const char* what) {
    parser->add_option(name, value, what)
        ->check(CLI::Range(1, 1 << 20).description(""))
        ->type_name("N");
  };
  count("--tp", options->tp, "ranks that share each layer; the default is 1");
  count("--pp", options->pp,
        "pipeline stages; the default is 1. DP is the rest of the ranks");
  parser
      ->add_option("--device", options->device,
                   "cpu (the default): host memory, by MPI; cuda: the GPUs' "
                   "memory, by NCCL, one rank a GPU")
      ->check(CLI::IsMember({"cpu", "cuda"}).description(""))
      ->type_name("NAME");
  parser
      ->add_option("--message", options->message,
                   "bytes of a message; the default is 16MiB")
      ->type_name("SIZE");
  parser
      ->add_option("--sum", options->sum,
                   "bytes of an all-reduce; the default is 64MiB")
      ->type_name("SIZE");
  count("--repeats", options->repeats,
        "of which the median counts; the default is 5");
  const auto figure = [&](const char* name, double& value, const char* what,
                          const char* unit) {
    parser->add_option(name, value, what)
        ->check(CLI::PositiveNumber.description(""))
        ->type_name(unit);
  };
  figure("--round-timeout", options->round_timeout_s,
         "a round that takes longer ends the job, which names who is waited "
         "for; the default is 120",
         "S");
  figure("--expect-inside", options->inside_gb_per_s, "of a pair on one host",
         "GB/s");
  figure("--expect-across", options->across_gb_per_s, "of a pair on two hosts",
         "GB/s");
  figure("--expect-inside-latency", options->inside_us,
         "at most, of a pair on one host", "US");
  figure("--expect-across-latency", options->across_us,
         "at most, of a pair on two hosts", "US");
  AddJson(parser, options->json);
  parser->footer(
      "Every pair that training would use exchanges messages, as many at a "
      "time as no\nrank is in twice. A pair is slow when it misses what is "
      "expected; where nothing is,\nwhen it has less than half the bandwidth, "
      "or more than twice the latency, of the\nmedian of its kind.\n"
      "Exit: 0 as expected, 1 a pair misses what was expected, 64 usage, 74 a "
      "rank did\nnot answer, 78 the ranks do not fit the layout.\n"
      "Examples:\n"
      "  mpirun -n 64 holdfast links --tp 8 --pp 4 --expect-inside 100 "
      "--expect-across 20\n"
      "  holdfast launch -n 4 -- links --tp 2");
  return MakeCommand(parser, options, &RunLinks);
}

int Main(int argc, char** argv) {
  std::vector<std::string> rest;
  if (argc > 1 && std::string(argv[1]) == "launch") {
    const auto dashes = std::find(argv + 2, argv + argc, std::string("--"));
    if (dashes != argv + argc) {
      rest.assign(dashes + 1, argv + argc);
      argc = static_cast<int>(dashes - argv);
    }
  }
  CLI::App app(
      "holdfast: trains language models that survive failures and come back on "
      "another layout.",
      "holdfast");
  app.footer(
      "Exit: 0 finished, 1 `links` found a slow pair, 64 usage, 65 data loss, "
      "66 no checkpoint, 70 our own "
      "bug,\n74 I/O, 75 saved and asks to be started again, 76 no progress "
      "since the last\nstart, 78 configuration or disagreement, 128 + n by "
      "signal n.");
  return RunCommandLine(app,
                        {
                            AddData(app),
                            AddConfig(app),
                            AddTrain(app),
                            AddPlan(app),
                            AddLaunch(app, rest),
                            AddDrill(app),
                            AddDoctor(app),
                            AddLinks(app),
                        },
                        argc, argv);
}

}  // namespace
}  // namespace holdfast::tools

int main(int argc, char** argv) {
  return holdfast::tools::RunProgram("holdfast", holdfast::tools::Main, argc,
                                     argv);
}
