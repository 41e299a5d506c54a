// trainer/fault/heartbeat.h: what the step thread is doing right now, readable
// by the watch thread without a lock.
//
// The step thread opens scopes; the watchdog reads them. A scope with a timeout
// of its own suspends the outer one: the time spent inside does not count
// there, so a long save may be waited for inside a step. A scope without a
// timeout only renames the operation; the outer deadline goes on.
//
// Thread: one writer (the step thread), any number of readers. A scope costs
// some twenty relaxed stores and two clock reads, and allocates nothing.

#ifndef HOLDFAST_TRAINER_FAULT_HEARTBEAT_H_
#define HOLDFAST_TRAINER_FAULT_HEARTBEAT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "ckpt/base/clock.h"

namespace holdfast::trainer {

class Heartbeat {
 public:
  // Longer operation names are cut.
  static constexpr size_t kNameBytesMax = 64;
  static constexpr int kNobody = -1;

  // What a reader sees, all of one moment.
  struct Reading {
    std::string operation;      // "" outside every scope.
    absl::Duration running;     // Since the innermost scope began.
    bool has_deadline = false;  // Some scope around has a timeout.
    absl::Duration remaining;   // Until it expires; negative when it has.
    int waiting_for = kNobody;  // World rank whose message is awaited.
  };

  explicit Heartbeat(ckpt::Clock& clock = ckpt::RealClock()) : clock_(&clock) {}
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  class Scope {
   public:
    // `heartbeat` may be null: then nothing happens.
    Scope(Heartbeat* heartbeat, std::string_view operation);
    Scope(Heartbeat* heartbeat, std::string_view operation,
          absl::Duration timeout);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Heartbeat* heartbeat_;
    bool own_timeout_ = false;
    std::array<uint64_t, kNameBytesMax / 8> outer_name_{};
    int64_t outer_since_ns_ = 0;
    int64_t outer_expires_ns_ = 0;
    int64_t began_ns_ = 0;
  };

  // Whose message the step thread waits for, in ranks of the world; kNobody
  // when it no longer does.
  void SetWaitingFor(int world_rank) {
    waiting_for_.store(world_rank, std::memory_order_relaxed);
  }

  Reading Read() const;

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  void Publish(const std::array<uint64_t, kNameBytesMax / 8>& name,
               int64_t since_ns, int64_t expires_ns);
  int64_t NowNs() const;

  ckpt::Clock* clock_;
  // A sequence lock: odd while the writer is at it.
  std::atomic<uint32_t> version_{0};
  std::array<std::atomic<uint64_t>, kNameBytesMax / 8> name_{};
  std::atomic<int64_t> since_ns_{0};
  std::atomic<int64_t> expires_ns_{kNever};
  std::atomic<int> waiting_for_{kNobody};
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_FAULT_HEARTBEAT_H_
