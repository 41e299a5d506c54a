// Rounds: every pair once, nobody twice at a time.

#include "trainer/links/pair_rounds.h"

#include <set>
#include <utility>

#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

using Pairs = std::multiset<std::pair<int, int>>;

Pairs PairsOf(const std::vector<PairRound>& rounds) {
  Pairs pairs;
  for (const PairRound& round : rounds) {
    for (int i = 0; i < static_cast<int>(round.size()); ++i) {
      const int partner = round[i];
      if (partner == kNoPartner) continue;
      EXPECT_NE(partner, i);
      EXPECT_EQ(round[partner], i) << "one-sided";
      if (i < partner) pairs.insert({i, partner});
    }
  }
  return pairs;
}

TEST(PairRoundsTest, EveryPairMeetsOnceAndNobodyTwiceInARound) {
  for (const int members : {2, 3, 4, 7, 8, 80, 81}) {
    const std::vector<PairRound> rounds = AllPairRounds(members);
    EXPECT_EQ(rounds.size(),
              static_cast<size_t>(members % 2 == 0 ? members - 1 : members));
    Pairs all;
    for (int a = 0; a < members; ++a) {
      for (int b = a + 1; b < members; ++b) all.insert({a, b});
    }
    EXPECT_EQ(PairsOf(rounds), all) << members;
  }
}

TEST(PairRoundsTest, NeighboursMeetInTwoRounds) {
  EXPECT_EQ(PairsOf(NeighbourRounds(5)),
            (Pairs{{0, 1}, {1, 2}, {2, 3}, {3, 4}}));
  EXPECT_EQ(NeighbourRounds(5).size(), 2u);
  EXPECT_EQ(NeighbourRounds(2).size(), 1u);
}

TEST(PairRoundsTest, OneMemberHasNoLinks) {
  EXPECT_TRUE(AllPairRounds(1).empty());
  EXPECT_TRUE(NeighbourRounds(1).empty());
}

}  // namespace
}  // namespace holdfast::trainer
