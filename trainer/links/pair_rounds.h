// trainer/links/pair_rounds.h: who talks to whom when every link of a group is
// to be measured: rounds in which each member has at most one partner. Pure.

#ifndef HOLDFAST_TRAINER_LINKS_PAIR_ROUNDS_H_
#define HOLDFAST_TRAINER_LINKS_PAIR_ROUNDS_H_

#include <vector>

namespace holdfast::trainer {

inline constexpr int kNoPartner = -1;

// One round: the partner of each member, or kNoPartner. partner[partner[i]] ==
// i.
using PairRound = std::vector<int>;

// Every pair of `members` once, by the circle method of round-robin
// tournaments: members - 1 rounds when their number is even, else members, with
// one member idle in each.
std::vector<PairRound> AllPairRounds(int members);

// The pairs (i, i + 1) alone: what a pipeline uses. Two rounds, one for two
// members.
std::vector<PairRound> NeighbourRounds(int members);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_LINKS_PAIR_ROUNDS_H_
