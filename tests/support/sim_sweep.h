// tests/support/sim_sweep.h: many seeds of every story of sim_cases.h, with an
// account of what they crossed.
//
// A seed is: a power cut after each storage operation of a save and its
// retention; cuts at a few of those with a second cut at every third operation
// of the restart; the death of one rank at each of its operations; one kind of
// fault at its first to its last occurrence; late messages; a takeover at each
// operation of rank 0. Ranks, retention, the rank that dies and the fault turn
// with the seed.

#ifndef HOLDFAST_TESTS_SUPPORT_SIM_SWEEP_H_
#define HOLDFAST_TESTS_SUPPORT_SIM_SWEEP_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "tests/support/sim_cases.h"

namespace holdfast::tests {

struct SweepFigures {
  int64_t cases = 0;
  int64_t disturbed = 0;  // the cut, death, fault, delay or takeover came
  int64_t old_ones = 0;   // the save that was disturbed was not found
  int64_t new_ones = 0;   // it was, or a later one
  int64_t broken = 0;
  SweepFigures& operator+=(const SweepFigures& other);
};

// By story. `broken` is called with each case that breaks a rule.
std::map<std::string, SweepFigures> SweepSeed(
    uint64_t seed,
    const std::function<void(const SimCase&, const absl::Status&)>& broken);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SIM_SWEEP_H_
