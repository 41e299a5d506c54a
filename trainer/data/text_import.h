// trainer/data/text_import.h: text files to one token set (`holdfast data`).
//
// Files are read in order, in pieces of 1 MiB, with the tokenizer `bytes`
// (byte_tokenizer.h): any bytes are allowed, nothing is normalised. Memory does
// not grow with the files but for 20 bytes a document. One thread.

#ifndef HOLDFAST_TRAINER_DATA_TEXT_IMPORT_H_
#define HOLDFAST_TRAINER_DATA_TEXT_IMPORT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::trainer {

enum class DocumentSplit {
  kFile,       // Each file is a document.
  kBlankLine,  // Empty lines end one, and are dropped. So does a file's end.
};

struct TextImportOptions {
  std::vector<std::string> inputs = {};
  std::string out_prefix = {};
  DocumentSplit split = DocumentSplit::kFile;
  // Lines that start with this do not count in the loss, their line end
  // included; such as "User:" in a dialogue of which only the answers are to
  // be learned. Empty: every token counts, and no mask is written.
  std::string mask_line_prefix = {};
  bool replace = false;  // A set of that name.
  // Called about once a MiB with bytes read so far and in all.
  std::function<void(uint64_t done, uint64_t total)> progress = {};
};

struct TextImportResult {
  uint64_t bytes = 0;      // Of text.
  uint64_t documents = 0;  // Empty ones are dropped.
  uint64_t tokens = 0;
  uint64_t counting = 0;    // Tokens that count in the loss.
  double unigram_nats = 0;  // Of those that count; see unigram.h.
};

// kInvalidArgument: an input is missing or no file, all are empty, or
//     `out_prefix` exists or cannot be written. kResourceExhausted: disk full.
//     After any error the set named out_prefix is as it was before.
absl::StatusOr<TextImportResult> ImportText(const TextImportOptions& options);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_TEXT_IMPORT_H_
