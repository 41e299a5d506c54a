// tests/support/sim_sweep.cc: which cases a seed is.

#include "tests/support/sim_sweep.h"

#include <array>
#include <utility>

namespace holdfast::tests {
namespace {

using Broken = std::function<void(const SimCase&, const absl::Status&)>;

constexpr int64_t kNever = int64_t{1} << 40;
// Occurrences of one operation in a save, at most.
constexpr int64_t kFaultsMax = 12;
constexpr std::array<SimOp, 8> kFaultOps = {
    SimOp::kMakeDir, SimOp::kCreate,  SimOp::kOpen, SimOp::kWrite,
    SimOp::kSync,    SimOp::kSyncDir, SimOp::kLink, SimOp::kList};

class Sweep {
 public:
  Sweep(uint64_t seed, const Broken& broken) : seed_(seed), broken_(broken) {}

  std::map<std::string, SweepFigures> Run() {
    const int ranks = 2 + static_cast<int>(seed_ % 3);
    const int keep_last = 1 + static_cast<int>(seed_ / 3 % 2);
    SimCase cut{
        .story = "cut", .seed = seed_, .ranks = ranks, .keep_last = keep_last};
    EveryOperation(cut, 100, 1);

    SimCase recovery = cut;
    recovery.story = "recovery";
    const int64_t cuts = OpsOf(cut);
    for (recovery.first_cut = static_cast<int64_t>(seed_ % 23);
         recovery.first_cut <= cuts; recovery.first_cut += 23) {
      EveryOperation(recovery, 200, 3);
    }

    SimCase kill = cut;
    kill.story = "kill";
    kill.rank = static_cast<int>(seed_ / 5 % static_cast<uint64_t>(ranks));
    EveryOperation(kill, 100, 1);

    SimCase fault = cut;
    fault.story = "fault";
    fault.op = kFaultOps[seed_ % kFaultOps.size()];
    fault.rank = seed_ / 7 % 2 == 0 ? 0 : ranks - 1;
    fault.from_then_on = seed_ / 14 % 2 == 0;
    fault.code = seed_ / 28 % 2 == 0 ? absl::StatusCode::kResourceExhausted
                                     : absl::StatusCode::kUnavailable;
    for (fault.after = 0; fault.after < kFaultsMax; ++fault.after) {
      if (!One(fault, 100).disturbed) break;
    }

    SimCase late = cut;
    late.story = "late";
    One(late, 100);

    SimCase takeover = cut;
    takeover.story = "takeover";
    for (takeover.after = 0; One(takeover, 100).disturbed;) ++takeover.after;
    return figures_;
  }

 private:
  int64_t OpsOf(SimCase c) {
    c.after = kNever;
    return RunCase(c).ops;
  }

  // From a place of the seed's on, every stride-th operation.
  void EveryOperation(SimCase c, int64_t old_step, int64_t stride) {
    const int64_t ops = OpsOf(c);
    for (c.after = static_cast<int64_t>(seed_) % stride; c.after <= ops;
         c.after += stride) {
      One(c, old_step);
    }
  }

  SimVerdict One(const SimCase& c, int64_t old_step) {
    SimVerdict verdict = RunCase(c);
    SweepFigures& figures = figures_[c.story];
    ++figures.cases;
    figures.disturbed += verdict.disturbed;
    if (!verdict.status.ok()) {
      ++figures.broken;
      broken_(c, verdict.status);
    } else {
      ++(verdict.found > old_step ? figures.new_ones : figures.old_ones);
    }
    return verdict;
  }

  const uint64_t seed_;
  const Broken& broken_;
  std::map<std::string, SweepFigures> figures_;
};

}  // namespace

SweepFigures& SweepFigures::operator+=(const SweepFigures& other) {
  cases += other.cases;
  disturbed += other.disturbed;
  old_ones += other.old_ones;
  new_ones += other.new_ones;
  broken += other.broken;
  return *this;
}

std::map<std::string, SweepFigures> SweepSeed(uint64_t seed,
                                              const Broken& broken) {
  return Sweep(seed, broken).Run();
}

}  // namespace holdfast::tests
