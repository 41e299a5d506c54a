// trainer/data/token_writer.h: a token set, written whole or not at all.
//
// Files grow under temporary names beside their final ones. Finish() syncs
// them, renames PREFIX.bin and PREFIX.mask, and PREFIX.idx last: a set exists
// when its index does. One thread; a buffer of 1 MiB.

#ifndef HOLDFAST_TRAINER_DATA_TOKEN_WRITER_H_
#define HOLDFAST_TRAINER_DATA_TOKEN_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/data/indexed_format.h"

namespace holdfast::trainer {

struct TokenWriterOptions {
  int64_t vocab = 0;     // Chooses u16 or i32; larger tokens are a bug.
  bool masked = false;   // Writes PREFIX.mask.
  bool replace = false;  // Takes the place of a set of that name.
  // Longer documents become several sequences: a length is 31 bits in the
  // index.
  int64_t sequence_tokens_max = INT32_MAX;
};

class TokenWriter {
 public:
  // kInvalidArgument: the set exists and `replace` is not set, or the directory
  //     is missing or not writable.
  static absl::StatusOr<std::unique_ptr<TokenWriter>> Create(
      const std::string& prefix, const TokenWriterOptions& options);

  // Removes what was not finished.
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // `counts`: whether these tokens count in the loss; must be true when the set
  // is not masked. kResourceExhausted, kUnavailable: the disk.
  absl::Status Append(std::span<const int32_t> tokens, bool counts);

  // Without effect right after another EndDocument().
  void EndDocument();

  // Ends the last document and makes the set durable. Called once, last.
  absl::Status Finish();

  uint64_t documents() const { return documents_.size() - 1; }
  uint64_t tokens() const { return tokens_; }
  uint64_t counting() const { return counting_; }

 private:
  struct OutFile {
    std::string temp_path;
    int fd = -1;
    std::vector<std::byte> buffer;
  };

  TokenWriter(std::string prefix, const TokenWriterOptions& options);

  absl::Status Open(OutFile& file, const char* suffix);
  absl::Status Flush(OutFile& file);
  absl::Status SyncAndClose(OutFile& file);
  void EndSequence();
  void AppendMaskBit(bool counts);

  const std::string prefix_;
  const TokenWriterOptions options_;
  const TokenType type_;
  OutFile bin_;
  OutFile idx_;
  OutFile mask_;
  std::vector<int32_t> lengths_;
  std::vector<int64_t> documents_ = {0};
  int64_t sequence_tokens_ = 0;
  uint64_t tokens_ = 0;
  uint64_t counting_ = 0;
  uint8_t mask_byte_ = 0;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_TOKEN_WRITER_H_
