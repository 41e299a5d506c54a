// trainer/parallel/inproc_collectives.h: ranks that are threads of one process,
// for tests and sanitizers.
//
//   absl::Status status = RunInprocRanks(8, [](Collectives& world) {
//     return Train(world);
//   });
//
// Stricter than MPI on purpose. Sends are never buffered: a send is over when
// its receiver has taken the bytes, so code that leans on a library's buffering
// is found. When every rank waits, nobody can go on: all get kInternal with the
// list of who waits for whom. When a rank gives up (its object is destroyed or
// Abort is called), those who wait for it get kAborted instead of hanging.
//
// Thread: one thread per rank; Abort from any thread. One mutex guards the
// matching of messages, bytes are copied outside it.

#ifndef HOLDFAST_TRAINER_PARALLEL_INPROC_COLLECTIVES_H_
#define HOLDFAST_TRAINER_PARALLEL_INPROC_COLLECTIVES_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "trainer/fault/heartbeat.h"
#include "trainer/parallel/collectives.h"

namespace holdfast::trainer {

class InprocHub;

// The ranks of one job. Copies stand for the same job.
class InprocWorld {
 public:
  explicit InprocWorld(int ranks);

  int size() const;

  // The communicator of all ranks, for the thread that is to be `rank`. Once a
  // rank. `heartbeat` may be null and outlives the result and what is split
  // from it.
  std::unique_ptr<Collectives> Join(int rank, Heartbeat* heartbeat = nullptr);

  // Everyone who waits or will wait gets kAborted with `why` (which is an
  // error). The first call counts.
  void Abort(const absl::Status& why);

 private:
  std::shared_ptr<InprocHub> hub_;
};

// Runs `body` on `ranks` threads and joins them. A rank that returns an error
// aborts the others; the first error (in time) is returned.
absl::Status RunInprocRanks(
    int ranks, const std::function<absl::Status(Collectives& world)>& body);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_INPROC_COLLECTIVES_H_
