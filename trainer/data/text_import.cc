// trainer/data/text_import.cc: bytes of text to documents of tokens.

#include "trainer/data/text_import.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "trainer/data/byte_tokenizer.h"
#include "trainer/data/mapped_file.h"
#include "trainer/data/token_writer.h"
#include "trainer/data/unigram.h"

namespace holdfast::trainer {
namespace {

constexpr size_t kPieceBytes = 1 << 20;

// Cuts a stream of bytes into documents and lines that count or do not. A
// line's fate is decided by its first few bytes, so no line is held whole.
class Importer {
 public:
  Importer(const TextImportOptions& options, TokenWriter& writer)
      : options_(options),
        writer_(writer),
        head_bytes_(
            std::max<size_t>(options.split == DocumentSplit::kBlankLine ? 2 : 0,
                             options.mask_line_prefix.size())) {}

  absl::Status Add(std::string_view piece) {
    while (!piece.empty()) {
      const size_t line_end = piece.find('\n');
      size_t take =
          line_end == std::string_view::npos ? piece.size() : line_end + 1;
      if (head_bytes_ == 0) take = piece.size();  // Lines do not matter.
      if (at_head_) take = std::min(take, head_bytes_ - head_.size());
      const std::string_view part = piece.substr(0, take);
      piece.remove_prefix(take);
      if (at_head_) {
        head_ += part;
        if (head_.size() == head_bytes_ || part.back() == '\n') {
          HF_RETURN_IF_ERROR(DecideHead());
        }
      } else {
        HF_RETURN_IF_ERROR(Emit(part));
        at_head_ = head_bytes_ > 0 && part.back() == '\n';
      }
    }
    return absl::OkStatus();
  }

  absl::Status EndFile() {
    if (!head_.empty()) HF_RETURN_IF_ERROR(DecideHead());
    at_head_ = head_bytes_ > 0;
    return EndDocument();
  }

  double unigram_nats() const { return UnigramEntropy<uint64_t>(counts_); }

 private:
  absl::Status DecideHead() {
    const std::string head = std::exchange(head_, {});
    if (options_.split == DocumentSplit::kBlankLine &&
        (head == "\n" || head == "\r\n")) {
      return EndDocument();  // And the next line starts: at_head_ stays.
    }
    line_counts_ = options_.mask_line_prefix.empty() ||
                   head.compare(0, options_.mask_line_prefix.size(),
                                options_.mask_line_prefix) != 0;
    at_head_ = head.back() == '\n';
    return Emit(head);
  }

  absl::Status Emit(std::string_view text) {
    if (!in_document_) {
      in_document_ = true;
      HF_RETURN_IF_ERROR(Write({&kByteBos, 1}, true));
    }
    std::array<int32_t, 4096> tokens;
    while (!text.empty()) {
      const size_t count = std::min(text.size(), tokens.size());
      for (size_t i = 0; i < count; ++i) {
        tokens[i] = static_cast<unsigned char>(text[i]);
      }
      HF_RETURN_IF_ERROR(Write({tokens.data(), count}, line_counts_));
      text.remove_prefix(count);
    }
    return absl::OkStatus();
  }

  absl::Status EndDocument() {
    if (!std::exchange(in_document_, false)) return absl::OkStatus();
    HF_RETURN_IF_ERROR(Write({&kByteEos, 1}, true));
    writer_.EndDocument();
    return absl::OkStatus();
  }

  absl::Status Write(std::span<const int32_t> tokens, bool counts) {
    if (counts) {
      for (const int32_t token : tokens) ++counts_[token];
    }
    return writer_.Append(tokens, counts);
  }

  const TextImportOptions& options_;
  TokenWriter& writer_;
  // Bytes of a line that are needed to decide; 0 where lines do not matter.
  const size_t head_bytes_;
  std::string head_;
  bool at_head_ = head_bytes_ > 0;
  bool line_counts_ = true;
  bool in_document_ = false;
  std::array<uint64_t, kByteVocab> counts_ = {};
};

}  // namespace

absl::StatusOr<TextImportResult> ImportText(const TextImportOptions& options) {
  std::vector<MappedFile> files;
  TextImportResult result;
  for (const std::string& input : options.inputs) {
    HF_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(input));
    result.bytes += file.bytes().size();
    files.push_back(std::move(file));
  }
  if (result.bytes == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "making token set %s: %s", options.out_prefix,
        files.empty() ? "no input files" : "all input files are empty"));
  }
  HF_ASSIGN_OR_RETURN(
      std::unique_ptr<TokenWriter> writer,
      TokenWriter::Create(options.out_prefix,
                          {.vocab = kByteVocab,
                           .masked = !options.mask_line_prefix.empty(),
                           .replace = options.replace}));
  Importer importer(options, *writer);
  uint64_t done = 0;
  for (const MappedFile& file : files) {
    std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                          file.bytes().size());
    while (!text.empty()) {
      const size_t take = std::min(text.size(), kPieceBytes);
      HF_RETURN_IF_ERROR(importer.Add(text.substr(0, take)));
      text.remove_prefix(take);
      done += take;
      if (options.progress) options.progress(done, result.bytes);
    }
    HF_RETURN_IF_ERROR(importer.EndFile());
  }
  HF_RETURN_IF_ERROR(writer->Finish());
  result.documents = writer->documents();
  result.tokens = writer->tokens();
  result.counting = writer->counting();
  result.unigram_nats = importer.unigram_nats();
  return result;
}

}  // namespace holdfast::trainer
