// tests/support/sim_faults.h: when something goes wrong on the simulated disk.
//
// Counts the storage operations of all simulated processes and decides what
// becomes of each: it happens, it fails, the process that asked dies first, or
// the power goes first. Deterministic.

#ifndef HOLDFAST_TESTS_SUPPORT_SIM_FAULTS_H_
#define HOLDFAST_TESTS_SUPPORT_SIM_FAULTS_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/base/philox.h"

namespace holdfast::tests {

// What happens on a disk. Those up to kPut change it and are counted as
// storage operations; PutIfAbsent is six of them (create, write, sync, link,
// remove, sync directory), or one kPut on an object store.
enum class SimOp : uint8_t {
  kCreate,
  kWrite,
  kSync,
  kMakeDir,
  kSyncDir,
  kRename,
  kLink,
  kRemove,
  kPut,
  kOpen,
  kRead,
  kList,
  kGet,
  kFreeSpace,
  kClose,
};
constexpr bool IsCounted(SimOp op) { return op <= SimOp::kPut; }
std::string_view Name(SimOp op);

// Seeded numbers; one generator per (seed, stream).
class SimRandom {
 public:
  SimRandom(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}
  // 0 to n - 1.
  uint64_t Below(uint64_t n) {
    return ckpt::Philox64(seed_, stream_, index_++) % n;
  }
  bool Coin() { return Below(2) == 0; }

 private:
  uint64_t seed_;
  uint64_t stream_;
  uint64_t index_ = 0;
};

// An error that some operations answer instead of happening.
struct SimFault {
  int process = -1;                // -1: of any process.
  std::optional<SimOp> op = {};    // Empty: any operation, reads included.
  std::string name_contains = {};  // Empty: on any name.
  int64_t nth = 1;                 // The n-th match from now on, from 1...
  bool from_then_on = false;       // ...and each one after it.
  absl::Status status = {};
};

class SimFaults {
 public:
  enum class Verdict { kHappens, kFails, kProcessIsDead, kPowerIsOff };
  struct Decision {
    Verdict verdict = Verdict::kHappens;
    absl::Status status;  // Of kFails.
  };

  // `ops` more operations happen; the one after them does not, since the power
  // goes first.
  void CutPowerAfter(int64_t ops) { cut_after_ = ops; }
  // The same for the operations of one process: it dies instead of the next.
  void KillAfter(int process, int64_t ops) { kill_after_[process] = ops; }
  void Kill(int process) { dead_.insert(process); }
  void Inject(SimFault fault) { faults_.push_back({std::move(fault), 0}); }
  void ClearFaults() { faults_.clear(); }

  // A process begins (again): it lives.
  void Start(int process);
  // Power is back: nobody is to be cut or killed any more; faults stay.
  void PowerIsBack();

  Decision Decide(int process, SimOp op, std::string_view name);

  bool power_is_off() const { return power_is_off_; }
  bool is_dead(int process) const { return dead_.contains(process); }
  // Counted operations that happened or failed.
  int64_t ops() const { return ops_; }
  int64_t ops_of(int process) const;
  // The last `lines` operations, oldest first, for the message of a failure.
  std::string Log(size_t lines) const;

 private:
  struct Armed {
    SimFault fault;
    int64_t matches = 0;
  };

  std::optional<int64_t> cut_after_;
  std::map<int, int64_t> kill_after_;
  std::vector<Armed> faults_;
  bool power_is_off_ = false;
  std::set<int> dead_;
  int64_t ops_ = 0;
  std::map<int, int64_t> ops_of_;
  std::deque<std::string> log_;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SIM_FAULTS_H_
