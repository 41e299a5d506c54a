// trainer/parallel/message_collectives.cc: see the header for the algorithms.

#include "trainer/parallel/message_collectives.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

// Broadcasts move in pieces of this, so that a child can pass on the first
// while its parent sends the second.
constexpr size_t kBroadcastChunk = size_t{1} << 20;
// Exchanges an all-gather keeps under way at once.
constexpr int kGatherWindow = 8;
// Requests that are over are dropped from a batch's list when they are this
// many, so that a long operation has a short list.
constexpr size_t kForgetAfter = 64;

// Where slice `index` of `count` begins in `total` elements.
constexpr size_t SliceFirst(size_t total, int index, int count) {
  return total * static_cast<size_t>(index) / static_cast<size_t>(count);
}

}  // namespace

class MessageCollectives::Batch {
 public:
  explicit Batch(MessageCollectives* owner) : owner_(owner) {
    if (!owner_->spare_lists_.empty()) {
      requests_ = std::move(owner_->spare_lists_.back());
      owner_->spare_lists_.pop_back();
    }
  }
  ~Batch() {
    WaitAll().IgnoreError();  // The first error was returned.
    requests_.clear();
    owner_->spare_lists_.push_back(std::move(requests_));
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  absl::Status Send(std::span<const std::byte> data, int to) {
    HF_ASSIGN_OR_RETURN(const RequestId id,
                        owner_->StartSend(data, to, Channel::kCollective, 0));
    requests_.push_back(id);
    return absl::OkStatus();
  }

  absl::Status Receive(std::span<std::byte> data, int from) {
    HF_ASSIGN_OR_RETURN(
        const RequestId id,
        owner_->StartReceive(data, from, Channel::kCollective, 0));
    requests_.push_back(id);
    return absl::OkStatus();
  }

  // Ends the oldest requests until at most `left` remain.
  absl::Status WaitUntil(size_t left) {
    absl::Status first;
    while (requests_.size() - done_ > left) {
      first.Update(owner_->Finish(requests_[done_++]));
    }
    if (done_ == requests_.size() || done_ >= kForgetAfter) {
      requests_.erase(requests_.begin(),
                      requests_.begin() + static_cast<std::ptrdiff_t>(done_));
      done_ = 0;
    }
    return first;
  }

  absl::Status WaitAll() { return WaitUntil(0); }

 private:
  MessageCollectives* owner_;
  std::vector<RequestId> requests_;
  size_t done_ = 0;
};

MessageCollectives::MessageCollectives(int rank, int size, std::string name,
                                       Heartbeat* heartbeat)
    : rank_(rank),
      size_(size),
      name_(std::move(name)),
      heartbeat_(heartbeat),
      wait_operation_("point-to-point " + name_),
      barrier_operation_("barrier " + name_),
      broadcast_operation_("broadcast " + name_),
      sum_operation_("all-reduce sum " + name_),
      max_operation_("all-reduce max " + name_),
      gather_operation_("all-gather " + name_) {
  HF_CHECK(size > 0 && rank >= 0 && rank < size, "rank %d of %d", rank, size);
}

absl::StatusOr<RequestId> MessageCollectives::Isend(
    std::span<const std::byte> data, int to, int tag) {
  HF_CHECK(to >= 0 && to < size_ && tag >= 0, "send to rank %d of %d, tag %d",
           to, size_, tag);
  return StartSend(data, to, Channel::kUser, tag);
}

absl::StatusOr<RequestId> MessageCollectives::Irecv(std::span<std::byte> data,
                                                    int from, int tag) {
  HF_CHECK(from >= 0 && from < size_ && tag >= 0,
           "receive from rank %d of %d, tag %d", from, size_, tag);
  return StartReceive(data, from, Channel::kUser, tag);
}

absl::Status MessageCollectives::Wait(RequestId request) {
  const Operation scope(this, wait_operation_);
  return Finish(request);
}

absl::Status MessageCollectives::Barrier() {
  const Operation scope(this, barrier_operation_);
  for (int distance = 1; distance < size_; distance *= 2) {
    std::byte out{};
    std::byte in{};
    Batch batch(this);
    HF_RETURN_IF_ERROR(
        batch.Receive({&in, 1}, (rank_ - distance % size_ + size_) % size_));
    HF_RETURN_IF_ERROR(batch.Send({&out, 1}, (rank_ + distance) % size_));
    HF_RETURN_IF_ERROR(batch.WaitAll());
  }
  return absl::OkStatus();
}

absl::Status MessageCollectives::Broadcast(std::span<std::byte> data,
                                           int root) {
  HF_CHECK(root >= 0 && root < size_, "broadcast from rank %d of %d", root,
           size_);
  const Operation scope(this, broadcast_operation_);
  return BroadcastInner(data, root);
}

absl::Status MessageCollectives::BroadcastInner(std::span<std::byte> data,
                                                int root) {
  // Ranks count from the root here. The parent of v is v without its lowest set
  // bit; its children add one bit below that.
  const int mine = (rank_ - root + size_) % size_;
  int parent = -1;
  int lowest_bit = 1;
  while (lowest_bit < size_ && (mine & lowest_bit) == 0) lowest_bit *= 2;
  if (mine != 0) parent = (mine - lowest_bit + root) % size_;

  Batch sends(this);
  size_t children = 0;
  for (size_t first = 0; first < data.size(); first += kBroadcastChunk) {
    const std::span<std::byte> chunk =
        data.subspan(first, std::min(kBroadcastChunk, data.size() - first));
    if (parent >= 0) {
      Batch receive(this);
      HF_RETURN_IF_ERROR(receive.Receive(chunk, parent));
      HF_RETURN_IF_ERROR(receive.WaitAll());
    }
    children = 0;
    for (int bit = lowest_bit / 2; bit > 0; bit /= 2) {
      if (mine + bit >= size_) continue;
      HF_RETURN_IF_ERROR(sends.Send(chunk, (mine + bit + root) % size_));
      ++children;
    }
    HF_RETURN_IF_ERROR(sends.WaitUntil(2 * children));
  }
  return sends.WaitAll();
}

absl::Status MessageCollectives::AllGatherV(std::span<std::byte> all,
                                            std::span<const int64_t> first,
                                            std::span<const int64_t> count) {
  HF_CHECK(first.size() == static_cast<size_t>(size_) &&
               count.size() == static_cast<size_t>(size_),
           "all-gather %s: %d ranks, %d firsts, %d counts", name_, size_,
           first.size(), count.size());
  const Operation scope(this, gather_operation_);
  const auto part = [&](int r) {
    const size_t begin = static_cast<size_t>(first[r]);
    const size_t length = static_cast<size_t>(count[r]);
    HF_CHECK(first[r] >= 0 && count[r] >= 0 && begin <= all.size() &&
                 length <= all.size() - begin,
             "all-gather %s: part %d is %d bytes at %d of %d", name_, r,
             count[r], first[r], all.size());
    return all.subspan(begin, length);
  };
  Batch batch(this);
  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ - distance + size_) % size_;
    if (count[from] > 0) HF_RETURN_IF_ERROR(batch.Receive(part(from), from));
    if (count[rank_] > 0) {
      HF_RETURN_IF_ERROR(batch.Send(part(rank_), (rank_ + distance) % size_));
    }
    HF_RETURN_IF_ERROR(batch.WaitUntil(2 * kGatherWindow));
  }
  return batch.WaitAll();
}

template <class T>
std::span<const T*> MessageCollectives::Rows(size_t row_bytes) {
  const size_t ranks = static_cast<size_t>(size_);
  if (scratch_.size() < row_bytes * ranks) scratch_.resize(row_bytes * ranks);
  if constexpr (std::is_same_v<T, float>) {
    float_rows_.resize(ranks);
    return float_rows_;
  } else {
    integer_rows_.resize(ranks);
    return integer_rows_;
  }
}

template <class T>
absl::Status MessageCollectives::AllReduceShort(Combine op, std::span<T> data) {
  const std::span<const T*> rows = Rows<T>(data.size_bytes());
  Batch batch(this);
  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ - distance + size_) % size_;
    const std::span<std::byte> row(scratch_.data() + data.size_bytes() * from,
                                   data.size_bytes());
    rows[from] = reinterpret_cast<const T*>(row.data());
    HF_RETURN_IF_ERROR(batch.Receive(row, from));
  }
  for (int distance = 1; distance < size_; ++distance) {
    HF_RETURN_IF_ERROR(
        batch.Send(std::as_bytes(data), (rank_ + distance) % size_));
  }
  HF_RETURN_IF_ERROR(batch.WaitAll());
  rows[rank_] = data.data();
  CombineInRankOrder(op, std::span<const T* const>(rows), data.size(),
                     data.data());
  return absl::OkStatus();
}

template <class T>
absl::Status MessageCollectives::AllReduceWindow(Combine op,
                                                 std::span<T> data) {
  // Few values over many ranks get few owners: a message costs more than the
  // addition of a thousand numbers.
  constexpr size_t kElementsPerOwnerMin = 1024;
  const int owners = static_cast<int>(std::clamp<size_t>(
      data.size() / kElementsPerOwnerMin, 1, static_cast<size_t>(size_)));
  const auto slice = [&](int owner) {
    const size_t begin = SliceFirst(data.size(), owner, owners);
    return data.subspan(begin,
                        SliceFirst(data.size(), owner + 1, owners) - begin);
  };

  Batch batch(this);
  std::span<const T*> rows;
  if (rank_ < owners) {
    const std::span<T> mine = slice(rank_);
    rows = Rows<T>(mine.size_bytes());
    for (int distance = 1; distance < size_; ++distance) {
      const int from = (rank_ - distance + size_) % size_;
      const std::span<std::byte> row(scratch_.data() + mine.size_bytes() * from,
                                     mine.size_bytes());
      rows[from] = reinterpret_cast<const T*>(row.data());
      HF_RETURN_IF_ERROR(batch.Receive(row, from));
    }
    rows[rank_] = mine.data();
  }
  for (int distance = 1; distance < size_; ++distance) {
    const int to = (rank_ + distance) % size_;
    if (to >= owners) continue;
    HF_RETURN_IF_ERROR(
        batch.Send(std::as_bytes(std::span<const T>(slice(to))), to));
  }
  HF_RETURN_IF_ERROR(batch.WaitAll());
  if (rank_ < owners) {
    const std::span<T> mine = slice(rank_);
    CombineInRankOrder(op, std::span<const T* const>(rows), mine.size(),
                       mine.data());
  }
  if (owners == 1) return BroadcastInner(std::as_writable_bytes(data), 0);

  for (int distance = 1; distance < size_; ++distance) {
    const int from = (rank_ - distance + size_) % size_;
    if (from < owners) {
      HF_RETURN_IF_ERROR(
          batch.Receive(std::as_writable_bytes(slice(from)), from));
    }
    if (rank_ < owners) {
      HF_RETURN_IF_ERROR(
          batch.Send(std::as_bytes(std::span<const T>(slice(rank_))),
                     (rank_ + distance) % size_));
    }
    HF_RETURN_IF_ERROR(batch.WaitUntil(2 * kGatherWindow));
  }
  return batch.WaitAll();
}

template <class T>
absl::Status MessageCollectives::AllReduce(Combine op, std::span<T> data,
                                           const std::string& operation) {
  if (size_ == 1 || data.empty()) return absl::OkStatus();
  const Operation scope(this, operation);
  if (data.size_bytes() <= kShortBytesMax && size_ <= kShortRanksMax) {
    return AllReduceShort(op, data);
  }
  const size_t slice_bytes = std::min(kSliceBytesMax, kScratchBytes / size_);
  const size_t window = std::max<size_t>(1, slice_bytes / sizeof(T)) * size_;
  for (size_t first = 0; first < data.size(); first += window) {
    HF_RETURN_IF_ERROR(AllReduceWindow(
        op, data.subspan(first, std::min(window, data.size() - first))));
  }
  return absl::OkStatus();
}

absl::Status MessageCollectives::AllReduceSum(std::span<float> data) {
  return AllReduce(Combine::kSum, data, sum_operation_);
}
absl::Status MessageCollectives::AllReduceSum(std::span<int64_t> data) {
  return AllReduce(Combine::kSum, data, sum_operation_);
}
absl::Status MessageCollectives::AllReduceMax(std::span<float> data) {
  return AllReduce(Combine::kMax, data, max_operation_);
}
absl::Status MessageCollectives::AllReduceMax(std::span<int64_t> data) {
  return AllReduce(Combine::kMax, data, max_operation_);
}

}  // namespace holdfast::trainer
