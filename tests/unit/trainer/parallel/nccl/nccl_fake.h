// tests/unit/trainer/parallel/nccl/nccl_fake.h: as much of NCCL as the wire
// uses, within one thread: messages wait for their receiver, copies run when a
// stream does (fake_cudart.h), and errors come when a test asks for them.

#ifndef HOLDFAST_TESTS_UNIT_TRAINER_PARALLEL_NCCL_NCCL_FAKE_H_
#define HOLDFAST_TESTS_UNIT_TRAINER_PARALLEL_NCCL_NCCL_FAKE_H_

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace holdfast::trainer {

struct FakeNccl {
  // How often a communicator answers "in progress" after a call; below 0: for
  // ever.
  int in_progress = 2;
  int async_error = 0;           // An ncclResult_t, of all communicators.
  std::function<void()> on_ask;  // At each question about errors.
  // Of ending: a communicator that is being finalized answers "in progress" for
  // ever; aborting waits until this is taken back.
  bool finalizes = true;
  std::atomic<bool> abort_hangs{false};
  int abort_result = 0;  // An ncclResult_t.

  int opened = 0;
  std::vector<int> max_ctas;  // Of each that was opened.
  std::atomic<int> aborted{0};
  std::atomic<bool> abort_groups_over{false};
  std::vector<int> aborts_in_group;  // How many each group had; 1: outside.
  int destroyed = 0;
  std::vector<std::string> calls;  // "send 1 100": peer, bytes
  std::atomic<int> groups{0};
};

FakeNccl& Nccl();
void ResetNccl();

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TESTS_UNIT_TRAINER_PARALLEL_NCCL_NCCL_FAKE_H_
