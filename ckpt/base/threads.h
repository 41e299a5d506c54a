// ckpt/base/threads.h: work on several threads where the system may refuse
// some.
//
// Fewer threads do the same work; what needs a thread of its own starts it by
// start_thread.h, which says so.
//
// Any thread may call. Cost: of a thread, and of a wake-up every `every`.

#ifndef HOLDFAST_CKPT_BASE_THREADS_H_
#define HOLDFAST_CKPT_BASE_THREADS_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <string_view>

namespace holdfast::ckpt {

struct Workers {
  std::string_view purpose;  // in the warning when there are fewer than wanted
  size_t wanted = 1;
  // The calling thread calls `tick` so often and at the end; it may be null.
  std::chrono::milliseconds every{100};
  std::function<void()> tick = nullptr;
};

// To be called by a worker between two pieces of its work, under no lock. Does
// something only where the calling thread is the worker: it ticks when it is
// time.
using WorkerTurn = std::function<void()>;

// Calls `work` once for each worker [0, n), each in a thread of its own, and
// waits for all of them. n is `wanted`, or less where the system refuses
// threads; one at least, which is the calling thread itself when there is no
// other. So workers share what is to be done: no part of it may belong to a
// certain worker, and none may wait for one that has not begun.
void RunWorkers(
    const Workers& how,
    const std::function<void(size_t worker, const WorkerTurn& turn)>& work);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BASE_THREADS_H_
