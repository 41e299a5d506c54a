// trainer/parallel/message_collectives.h: every collective of Collectives,
// built from point-to-point messages, once for all transports.
//
// The order of additions is ours, so no library is asked to reduce anything. A
// transport gives Start* and Finish, and gets the rest:
//
//   barrier      dissemination, log2(p) rounds
//   broadcast    binomial tree, in chunks that overlap down the tree
//   all-gather   every rank sends its part to every other, a few at a time
//   all-reduce   short: everybody sends everything to everybody, one round;
//                long: rank r adds up slice r of all contributions in rank
//                order, then the slices are gathered; window by window, so the
//                scratch is bounded
//
// Both all-reduces add in rank order and give the same bits.
//
// Thread: the step thread. Memory: scratch grows to at most kScratchBytes (or
// 16 KiB a rank for short reductions) and stays, as do the lists of requests:
// an operation like an earlier one allocates nothing. Waiting is published to
// the heartbeat with the rank that is waited for.

#ifndef HOLDFAST_TRAINER_PARALLEL_MESSAGE_COLLECTIVES_H_
#define HOLDFAST_TRAINER_PARALLEL_MESSAGE_COLLECTIVES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trainer/fault/heartbeat.h"
#include "trainer/parallel/collectives.h"
#include "trainer/parallel/ordered_sum.h"

namespace holdfast::trainer {

class MessageCollectives : public Collectives {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }

  absl::StatusOr<RequestId> Isend(std::span<const std::byte> data, int to,
                                  int tag) final;
  absl::StatusOr<RequestId> Irecv(std::span<std::byte> data, int from,
                                  int tag) final;
  absl::Status Wait(RequestId request) final;

  absl::Status Barrier() final;
  absl::Status Broadcast(std::span<std::byte> data, int root) final;
  absl::Status AllReduceSum(std::span<float> data) final;
  absl::Status AllReduceSum(std::span<int64_t> data) final;
  absl::Status AllReduceMax(std::span<float> data) final;
  absl::Status AllReduceMax(std::span<int64_t> data) final;
  absl::Status AllGatherV(std::span<std::byte> all,
                          std::span<const int64_t> first,
                          std::span<const int64_t> count) final;

  const std::string& name() const { return name_; }

 protected:
  // Collectives and users must not receive each other's messages.
  enum class Channel : int { kUser = 0, kCollective = 1 };

  static constexpr size_t kScratchBytes = size_t{8} << 20;
  static constexpr size_t kSliceBytesMax = size_t{256} << 10;
  static constexpr size_t kShortBytesMax = size_t{16} << 10;
  static constexpr int kShortRanksMax = 16;

  // `heartbeat` may be null and outlives this.
  MessageCollectives(int rank, int size, std::string name,
                     Heartbeat* heartbeat);

  virtual absl::StatusOr<RequestId> StartSend(std::span<const std::byte> data,
                                              int to, Channel channel,
                                              int tag) = 0;
  virtual absl::StatusOr<RequestId> StartReceive(std::span<std::byte> data,
                                                 int from, Channel channel,
                                                 int tag) = 0;
  // Blocks until the request is over, and forgets it, error or not.
  virtual absl::Status Finish(RequestId request) = 0;

  Heartbeat* heartbeat() const { return heartbeat_; }

  // What the step thread is in, "all-reduce sum dp"; for error messages.
  const std::string& operation() const { return *operation_; }

 private:
  // Names the operation under way, for operation() and the heartbeat.
  class Operation {
   public:
    Operation(MessageCollectives* owner, const std::string& name)
        : owner_(owner), scope_(owner->heartbeat_, name) {
      owner_->operation_ = &name;
    }
    ~Operation() { owner_->operation_ = &owner_->name_; }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    MessageCollectives* owner_;
    Heartbeat::Scope scope_;
  };

  // Requests of one collective under way. Ends them all, whatever happens: a
  // request that is left behind would write into memory that is gone.
  class Batch;

  template <class T>
  absl::Status AllReduce(Combine op, std::span<T> data,
                         const std::string& operation);
  // A pointer for each rank's contribution, and scratch for all of them.
  template <class T>
  std::span<const T*> Rows(size_t row_bytes);
  template <class T>
  absl::Status AllReduceShort(Combine op, std::span<T> data);
  template <class T>
  absl::Status AllReduceWindow(Combine op, std::span<T> data);

  absl::Status BroadcastInner(std::span<std::byte> data, int root);

  const int rank_;
  const int size_;
  const std::string name_;
  Heartbeat* const heartbeat_;
  const std::string* operation_ = &name_;
  std::vector<std::byte> scratch_;
  std::vector<const float*> float_rows_;
  std::vector<const int64_t*> integer_rows_;
  // The memory of batches that are over; at most two are open at once.
  std::vector<std::vector<RequestId>> spare_lists_;

  // Operation names with the communicator's, made once.
  const std::string wait_operation_;
  const std::string barrier_operation_;
  const std::string broadcast_operation_;
  const std::string sum_operation_;
  const std::string max_operation_;
  const std::string gather_operation_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_MESSAGE_COLLECTIVES_H_
