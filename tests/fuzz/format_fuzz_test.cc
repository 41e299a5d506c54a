// The fuzz targets as ordinary tests: each file of a corpus, and some thousands
// of mutations of it, the same ones in every run.

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/format_properties.h"
#include "tests/support/fuzz_corpus.h"

namespace holdfast::ckpt {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<Bytes> Corpus(const std::string& name) {
  std::vector<Bytes> corpus;
  for (const std::string& text : tests::Corpus(name)) {
    const auto bytes = std::as_bytes(std::span(text));
    corpus.emplace_back(bytes.begin(), bytes.end());
  }
  return corpus;
}

// A few changes of the kinds that find bugs in decoders, drawn by `seed`. Most
// fall on the first `busy` bytes.
Bytes Mutate(const std::vector<Bytes>& corpus, size_t busy, uint64_t seed) {
  tests::Draws draw(seed, 0);
  Bytes bytes = corpus[draw(corpus.size())];
  for (uint64_t changes = 1 + draw(4); changes > 0; --changes) {
    const size_t size = std::min(bytes.size(), draw(8) == 0 ? SIZE_MAX : busy);
    const size_t at = draw(size);
    switch (draw(8)) {
      case 0:
        if (size > 0) bytes[at] ^= std::byte(1 << draw(8));
        break;
      case 1:
        if (size > 0) bytes[at] = std::byte(draw(256));
        break;
      case 2: {  // An extreme value.
        constexpr uint8_t kValues[] = {0, 1, 0x7f, 0x80, 0xff};
        if (size > 0) bytes[at] = std::byte{kValues[draw(5)]};
        break;
      }
      case 3:
        bytes.resize(draw(8) == 0 ? draw(bytes.size()) : bytes.size());
        break;
      case 4:
        bytes.insert(bytes.begin() + at, 1 + draw(9), std::byte(draw(256)));
        break;
      case 5:
        if (size > 0) {
          bytes.erase(bytes.begin() + at,
                      bytes.begin() + std::min(at + 1 + draw(9), bytes.size()));
        }
        break;
      case 6: {  // A piece of it once more.
        const size_t count = std::min<size_t>(draw(40), bytes.size() - at);
        const Bytes piece(bytes.begin() + at, bytes.begin() + at + count);
        bytes.insert(bytes.begin() + draw(size), piece.begin(), piece.end());
        break;
      }
      default: {  // A piece of another file.
        const Bytes& other = corpus[draw(corpus.size())];
        const size_t from = draw(std::min(other.size(), busy));
        const size_t count = std::min<size_t>(draw(40), other.size() - from);
        for (size_t i = 0; i < count && at + i < bytes.size(); ++i) {
          bytes[at + i] = other[from + i];
        }
      }
    }
  }
  return bytes;
}

// Runs the property over the corpus and over mutations. Both accepted and
// refused inputs must occur, or the decoders were hardly tried.
template <typename Property>
void TryAll(const std::string& name, size_t busy, int mutations,
            Property property) {
  const std::vector<Bytes> corpus = Corpus(name);
  ASSERT_GE(corpus.size(), 4u);
  int accepted = 0;
  for (const Bytes& bytes : corpus) accepted += property(bytes) > 0;
  EXPECT_GE(accepted, 3) << "of the corpus itself";
  accepted = 0;
  for (int i = 0; i < mutations; ++i) {
    accepted += property(Mutate(corpus, busy, i)) > 0;
  }
  EXPECT_GT(accepted, mutations / 200);
  EXPECT_LT(accepted, mutations);
}

TEST(FormatFuzzTest, AnyBytesAreRefusedAsAManifestOrComeBackTheSame) {
  TryAll("manifest", /*busy=*/600, /*mutations=*/8000, CheckManifestBytes);
}

TEST(FormatFuzzTest, AnyBytesAreRefusedAsShardBlocksOrComeBackTheSame) {
  TryAll("shard", /*busy=*/100, /*mutations=*/4000, CheckShardBytes);
}

TEST(FormatFuzzTest, AnyBytesAreRefusedAsAFrameOrFillTheUnit) {
  TryAll("frame", /*busy=*/60, /*mutations=*/4000, CheckFrameBytes);
}

}  // namespace
}  // namespace holdfast::ckpt
