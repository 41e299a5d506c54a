// tools/reshard/reshard_line.h: how the options of a reshard are spelled, for
// the two programs that have it. Included by their main.cc alone, as
// tools/common/command_line.h is.

#ifndef HOLDFAST_TOOLS_RESHARD_RESHARD_LINE_H_
#define HOLDFAST_TOOLS_RESHARD_RESHARD_LINE_H_

#include <string>

#include "tools/common/command_line.h"
#include "tools/common/text.h"
#include "tools/convert/codec_option.h"
#include "tools/reshard/reshard_command.h"

namespace holdfast::tools {

// Sizes as people write them.
inline CLI::Option* AddBytes(CLI::App* parser, const char* name,
                             uint64_t& bytes, const std::string& help) {
  return parser
      ->add_option_function<std::string>(
          name,
          [&bytes, name](const std::string& text) {
            const auto parsed = ParseBytes(text);
            if (!parsed.ok()) {
              throw CLI::ValidationError(
                  name, std::string(parsed.status().message()));
            }
            bytes = *parsed;
          },
          help)
      ->type_name("BYTES");
}

inline void AddMemoryLimit(CLI::App* parser, uint64_t& bytes) {
  AddBytes(parser, "--memory-limit", bytes,
           "buffers of this process take at most so much [default: 1GiB]");
}

inline void AddCodec(CLI::App* parser, std::string& codec,
                     const std::string& besides) {
  parser
      ->add_option("--codec", codec,
                   "of the new files: none, zstd or zstd:LEVEL" + besides +
                       " [default: none]")
      ->check(CLI::Validator([](std::string& text) { return CheckCodec(text); },
                             ""))
      ->type_name("CODEC");
}

inline void AddReshardOptions(CLI::App* parser, ReshardOptions& options) {
  parser
      ->add_option("CHECKPOINT", options.checkpoint,
                   "RUN (its newest), RUN@STEP, RUN@ID, or a checkpoint's own "
                   "directory")
      ->check(CheckpointName())
      ->type_name("")
      ->required();
  const auto add_count = [parser](const char* name, int& value,
                                  const char* help) {
    parser->add_option(name, value, help)
        ->check(CLI::Range(1, 1 << 20).description(""))
        ->type_name("N")
        ->required();
  };
  add_count("--tp", options.tp, "ranks that share each layer");
  add_count("--pp", options.pp, "stages");
  add_count("--dp", options.dp, "replicas that share the optimizer's state");
  parser
      ->add_option("--stages", options.stages,
                   "layers of each stage, such as 13,14,14,13 [default: even, "
                   "embedding and head count as a layer each]")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 1 << 20).description(""))
      ->type_name("N,N,...");
  parser
      ->add_option("--out", options.out,
                   "the run directory to make; absent, empty, or begun by the "
                   "same command, which then goes on")
      ->type_name("DIR")
      ->required();
  parser->add_flag("--bare", options.bare,
                   "make the checkpoint's directory alone, not a run");
  parser->add_flag("--plan-only", options.plan_only,
                   "say what would be done and how long it may take; write "
                   "nothing into OUT");
  AddMemoryLimit(parser, options.memory_limit);
  parser
      ->add_option("--threads", options.threads,
                   "that read and write [default: by processors and memory]")
      ->check(CLI::Range(1, 1024).description(""))
      ->type_name("N");
  AddCodec(parser, options.codec, "; not with several ranks");
  parser->add_flag("--probe,!--no-probe", options.probe,
                   "with --plan-only: measure the disks for a second or two; "
                   "one disk is measured in turns and both ways at once, and "
                   "the shorter estimate is taken (the default)");
  AddJson(parser, options.json);
}

inline constexpr char kReshardFooter[] =
    "The source is only read. The result appears whole or not at all: stopped "
    "or\nkilled, the same command verifies the rounds (of 4 GiB) that are "
    "finished and goes\non; a second one at the same time is refused. The "
    "result's logical digest is\ncomputed from the new bytes and compared with "
    "the source's.\n"
    "\n"
    "Under mpirun or srun all ranks take part, without a codec: with one, "
    "where a\n"
    "piece is stored depends on how small those before it became, and one "
    "process\n"
    "codes them, with threads.\n"
    "\n"
    "Exit: 0 fine, 64 bad usage, 65 damaged source, 66 no checkpoint, 70 our "
    "own bug,\n74 I/O error or no space, 78 OUT is something else, or the "
    "model cannot be cut so,\n128 + n stopped by signal n.\n"
    "\n"
    "Examples:\n"
    "  ckpt-reshard /scratch/run7 --tp 4 --pp 1 --dp 3 --out "
    "/scratch/run7-tp4\n"
    "  ckpt-reshard run7@1200 --tp 8 --pp 4 --stages 13,14,14,13 --dp 20 --out "
    "X --plan-only\n"
    "  holdfast train --config FILE --run /scratch/run7-tp4";

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_RESHARD_RESHARD_LINE_H_
