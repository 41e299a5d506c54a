// ckpt/session/task.h: a session's steps, written one after the other, run by
// polling.
//
// A session is a polled state machine. Where its states are "do this, wait, do
// that", the compiler can make the machine: a Task is a C++20 coroutine that
// suspends at `co_await Until(condition)`, and a Fiber is the place where one
// chain of Tasks is resumed from, by Poll() alone. There is no thread and no
// scheduler here; a simulator that polls all ranks in seed order owns every
// interleaving.
//
//   Task<absl::Status> Session::Claim() {
//     const Io::Ref put = io_->PutIfAbsent(name, bytes);
//     co_await UntilDone(put);
//     co_return put->status;
//   }
//
// Keep each co_await in a statement of its own, on named values: g++ 12 is not
// to be trusted with temporaries inside larger expressions.
//
// Thread: the one that polls. Cost: one allocation a Task, one call of the
// condition a Poll.

#ifndef HOLDFAST_CKPT_SESSION_TASK_H_
#define HOLDFAST_CKPT_SESSION_TASK_H_

#include <coroutine>
#include <functional>
#include <optional>
#include <utility>

#include "ckpt/base/check.h"

namespace holdfast::ckpt {

class Fiber;

namespace task_internal {

struct PromiseBase {
  Fiber* fiber = nullptr;
  std::coroutine_handle<> parent;

  std::suspend_always initial_suspend() noexcept { return {}; }

  struct ResumeParent {
    bool await_ready() noexcept { return false; }
    template <typename Promise>
    std::coroutine_handle<> await_suspend(
        std::coroutine_handle<Promise> self) noexcept {
      const std::coroutine_handle<> parent = self.promise().parent;
      return parent ? parent : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };
  ResumeParent final_suspend() noexcept { return {}; }

  void unhandled_exception() {
    HF_CHECK(false, "an exception left a session's task");
  }
};

template <typename T>
struct Promise : PromiseBase {
  std::optional<T> value;
  std::coroutine_handle<Promise> get_return_object() {
    return std::coroutine_handle<Promise>::from_promise(*this);
  }
  template <typename U>
  void return_value(U&& result) {
    value.emplace(std::forward<U>(result));
  }
};

}  // namespace task_internal

// A coroutine that yields one T. Starts when it is awaited. Destroying it
// destroys the steps that it has not taken.
template <typename T>
class [[nodiscard]] Task {
 public:
  using promise_type = task_internal::Promise<T>;

  Task(std::coroutine_handle<promise_type> handle)  // NOLINT: made by compiler
      : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() {
    if (handle_) handle_.destroy();
  }

  // Awaiting from another Task.
  bool await_ready() const noexcept { return false; }
  template <typename Parent>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Parent> parent) {
    handle_.promise().fiber = parent.promise().fiber;
    handle_.promise().parent = parent;
    return handle_;
  }
  T await_resume() { return std::move(*handle_.promise().value); }

 private:
  friend class Fiber;
  std::coroutine_handle<promise_type> handle_;
};

// Runs one Task by polling.
class Fiber {
 public:
  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // `root` yields true; its result is elsewhere. It takes its first step at the
  // first Poll.
  void Start(Task<bool> root) {
    root_.emplace(std::move(root));
    root_->handle_.promise().fiber = this;
    next_ = root_->handle_;
    ready_ = nullptr;
  }

  bool started() const { return root_.has_value(); }
  bool done() const { return root_.has_value() && root_->handle_.done(); }

  // Takes every step that can be taken now.
  void Poll() {
    while (next_ && (!ready_ || ready_())) {
      ready_ = nullptr;
      std::exchange(next_, {}).resume();
    }
  }

  // Called by the awaiter below: resume `step` when `ready` says so.
  void Wait(std::coroutine_handle<> step, std::function<bool()> ready) {
    next_ = step;
    ready_ = std::move(ready);
  }

 private:
  std::optional<Task<bool>> root_;
  std::coroutine_handle<> next_;
  std::function<bool()> ready_;
};

// co_await Until(condition): goes on when a Poll finds the condition true.
class Until {
 public:
  explicit Until(std::function<bool()> ready) : ready_(std::move(ready)) {}
  bool await_ready() { return ready_(); }
  template <typename Promise>
  void await_suspend(std::coroutine_handle<Promise> step) {
    step.promise().fiber->Wait(step, std::move(ready_));
  }
  void await_resume() {}

 private:
  std::function<bool()> ready_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_TASK_H_
