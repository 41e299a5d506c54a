// trainer/links/pair_rounds.cc: the circle method.

#include "trainer/links/pair_rounds.h"

#include <cstddef>
#include <utility>

namespace holdfast::trainer {

std::vector<PairRound> AllPairRounds(int members) {
  std::vector<PairRound> rounds;
  if (members < 2) return rounds;
  // An odd number gets an empty chair, whose partner rests.
  const int chairs = members + members % 2;
  for (int turn = 0; turn < chairs - 1; ++turn) {
    // The last chair stays; the others move on by one in each round.
    const auto sits = [&](int chair) {
      return chair == chairs - 1 ? chair : (chair + turn) % (chairs - 1);
    };
    PairRound round(static_cast<size_t>(members), kNoPartner);
    for (int i = 0; i < chairs / 2; ++i) {
      const int a = sits(i);
      const int b = sits(chairs - 1 - i);
      if (a >= members || b >= members) continue;
      round[a] = b;
      round[b] = a;
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

std::vector<PairRound> NeighbourRounds(int members) {
  std::vector<PairRound> rounds;
  for (int first = 0; first < 2 && first + 1 < members; ++first) {
    PairRound round(static_cast<size_t>(members), kNoPartner);
    for (int i = first; i + 1 < members; i += 2) {
      round[i] = i + 1;
      round[i + 1] = i;
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

}  // namespace holdfast::trainer
