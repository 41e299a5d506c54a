// tests/support/fuzz_corpus.h: the corpus of a fuzz target, and mutations of it
// that are the same ones in every run, for the tests that stand in for the
// fuzzer (tests/fuzz/*_fuzz_test.cc).

#ifndef HOLDFAST_TESTS_SUPPORT_FUZZ_CORPUS_H_
#define HOLDFAST_TESTS_SUPPORT_FUZZ_CORPUS_H_

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "ckpt/base/philox.h"

namespace holdfast::tests {

// By the files' names.
inline std::map<std::string, std::string> NamedCorpus(
    const std::string& target) {
  std::map<std::string, std::string> corpus;
  for (const auto& entry : std::filesystem::directory_iterator(
           HOLDFAST_SOURCE_DIR "/tests/fuzz/corpus/" + target)) {
    std::ifstream in(entry.path(), std::ios::binary);
    corpus[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return corpus;
}

// In the order of the files' names.
inline std::vector<std::string> Corpus(const std::string& target) {
  std::vector<std::string> corpus;
  for (auto& [name, text] : NamedCorpus(target)) {
    corpus.push_back(std::move(text));
  }
  return corpus;
}

// Numbers that follow from a seed alone.
class Draws {
 public:
  // `stream`: another row of numbers of the same seed.
  Draws(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  // Below `below`; 0 where there is none.
  uint64_t operator()(uint64_t below) {
    return ckpt::Philox64(seed_, stream_, next_++) %
           std::max<uint64_t>(1, below);
  }

 private:
  const uint64_t seed_;
  const uint64_t stream_;
  uint64_t next_ = 0;
};

// One of the corpus after a few changes. `words` are what its texts are made
// of.
inline std::string Mutate(const std::vector<std::string>& corpus,
                          const std::vector<std::string>& words,
                          uint64_t seed) {
  Draws draw(seed, 2);
  std::string text = corpus[draw(corpus.size())];
  for (uint64_t changes = 1 + draw(3); changes > 0 && !text.empty();
       --changes) {
    const size_t at = draw(text.size());
    switch (draw(7)) {
      case 0:
        text[at] = static_cast<char>(draw(256));
        break;
      case 1:
        text[at] = static_cast<char>(text[at] ^ 1 << draw(8));
        break;
      case 2:
        text.erase(at, 1 + draw(20));
        break;
      case 3:
        text.insert(at, words[draw(words.size())]);
        break;
      case 4:
        text.replace(at, 1, words[draw(words.size())]);
        break;
      case 5:
        text.insert(draw(text.size()), text.substr(at, draw(80)));
        break;
      default: {  // A piece of another one.
        const std::string& other = corpus[draw(corpus.size())];
        const std::string piece = other.substr(draw(other.size()), draw(60));
        text.replace(at, piece.size(), piece);
      }
    }
  }
  return text;
}

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_FUZZ_CORPUS_H_
