// tools/holdfast/data_command.cc: `holdfast data`: text to token files.

#include <cstdio>

#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "tools/common/json_output.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"
#include "tools/holdfast/commands.h"
#include "trainer/data/byte_tokenizer.h"
#include "trainer/data/text_import.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {

int RunData(const DataOptions& options) {
  Progress progress({.doing = "reading text"}, ckpt::RealClock());
  const auto result =
      trainer::ImportText({.inputs = options.in,
                           .out_prefix = options.out,
                           .split = options.split == "blank-line"
                                        ? trainer::DocumentSplit::kBlankLine
                                        : trainer::DocumentSplit::kFile,
                           .mask_line_prefix = options.mask_lines,
                           .replace = options.replace,
                           .progress = [&](uint64_t done, uint64_t total) {
                             progress.Update(done, total);
                           }});
  if (!result.ok()) return ReportFailure("holdfast data", result.status());
  progress.Finish();
  if (options.json) {
    PrintJson({{"prefix", options.out},
               {"tokenizer", options.tokenizer},
               {"vocab", trainer::kByteVocab},
               {"files", options.in.size()},
               {"bytes", result->bytes},
               {"documents", result->documents},
               {"tokens", result->tokens},
               {"counting_tokens", result->counting},
               {"unigram_nats", result->unigram_nats}});
    return trainer::kExitFinished;
  }
  const std::string masked =
      options.mask_lines.empty()
          ? ""
          : absl::StrFormat(", %s of them count in the loss",
                            CountText(result->counting));
  std::printf(
      "%s: %s tokens in %s documents from %s of text%s\n"
      "vocabulary %d (bytes, <bos>, <eos>); unigram entropy %.4f nats a "
      "token\n",
      options.out.c_str(), CountText(result->tokens).c_str(),
      CountText(result->documents).c_str(),
      BytesText(static_cast<double>(result->bytes)).c_str(), masked.c_str(),
      static_cast<int>(trainer::kByteVocab), result->unigram_nats);
  return trainer::kExitFinished;
}

}  // namespace holdfast::tools
