// trainer/data/token_set.h: one token set, opened for reading.
//
// PREFIX.bin, PREFIX.idx and, where there is one, PREFIX.mask are mapped and
// checked whole at Open(), so that later calls cannot fail. Any thread may
// read; nothing is allocated after Open().

#ifndef HOLDFAST_TRAINER_DATA_TOKEN_SET_H_
#define HOLDFAST_TRAINER_DATA_TOKEN_SET_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/data/indexed_format.h"
#include "trainer/data/mapped_file.h"

namespace holdfast::trainer {

class TokenSet {
 public:
  // kInvalidArgument: a file is missing, cut off, of another format, or does
  //     not fit the others; the message names it with offset, expected and
  //     found. Costs a pass over the index and the mask, not over the tokens.
  static absl::StatusOr<TokenSet> Open(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  uint64_t tokens() const { return index_.tokens; }
  uint64_t documents() const { return index_.documents; }
  TokenType type() const { return index_.type; }
  bool masked() const { return !mask_bits_.empty(); }

  // Looks for tokens outside 0 to vocab - 1. kInvalidArgument with the file and
  // the offset of the first one. Reads every token: about 2 GB/s from memory,
  // the disk's speed when cold. Call it on one rank of a host.
  absl::Status CheckTokens(int64_t vocab) const;

  // Tokens from `first` on. The caller stays within tokens(), and has checked
  // that tokens fit in 31 bits (CheckTokens).
  void Read(uint64_t first, std::span<int32_t> out) const;

  // 1 where the token counts in the loss, from `first` on.
  void ReadMask(uint64_t first, std::span<uint8_t> out) const;

  // How many of `count` tokens from `first` on count in the loss. Costs an
  // eighth of a byte a token; nothing for a set without mask.
  uint64_t Counting(uint64_t first, uint64_t count) const;

  // Adds to `counts`, which has an entry for every token of the vocabulary, the
  // occurrences of each token that counts in the loss among `count` from
  // `first` on.
  void AddCounts(uint64_t first, uint64_t count,
                 std::span<uint64_t> counts) const;

  // 64 bits that change when the files do: sizes, all of the index, up to 64
  // pieces of 4 KiB of the tokens at even distances, and all of the mask. Names
  // and times do not matter. Finds accidents; an edit between the pieces that
  // keeps all sizes is not seen. Costs a pass over index and mask.
  uint64_t Fingerprint() const;

 private:
  std::string prefix_;
  MappedFile bin_;
  MappedFile idx_;
  MappedFile mask_;
  IndexSummary index_;
  std::span<const std::byte> mask_bits_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_TOKEN_SET_H_
