// trainer/parallel/hosted_collectives.cc: in place, or by way of pinned memory.

#include "trainer/parallel/hosted_collectives.h"

#include <algorithm>
#include <vector>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "trainer/parallel/pinned_pool.h"

namespace holdfast::trainer {
namespace {

using kernels::Buffer;
using kernels::Device;
using kernels::MemorySpace;
using kernels::Stream;

// Apart from the tags of Isend and Irecv.
constexpr int kExchangeTag = 1000;

// The device's memory is the host's.
class OpenCollectives final : public DeviceCollectives {
 public:
  OpenCollectives(Collectives& host, Device& device)
      : host_(host), device_(device) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  absl::Status AllReduceSum(std::span<float> values, Stream&) override {
    return host_.AllReduceSum(values);
  }
  absl::Status AllReduceMax(std::span<float> values, Stream&) override {
    return host_.AllReduceMax(values);
  }
  absl::Status AllGatherV(std::span<std::byte> all,
                          std::span<const int64_t> first,
                          std::span<const int64_t> count, Stream&) override {
    return host_.AllGatherV(all, first, count);
  }

  absl::Status Exchange(std::span<const Transfer> transfers, Stream&) override {
    absl::Status first_error;
    for (const Transfer& transfer : transfers) {
      const absl::StatusOr<RequestId> request =
          transfer.kind == Transfer::Kind::kSend
              ? host_.Isend(transfer.data, transfer.peer, kExchangeTag)
              : host_.Irecv(transfer.data, transfer.peer, kExchangeTag);
      if (!request.ok()) {
        first_error = request.status();
        break;
      }
      requests_.push_back(*request);
    }
    for (const RequestId request : requests_) {
      first_error.Update(host_.Wait(request));
    }
    requests_.clear();
    return first_error;
  }

  absl::StatusOr<RequestId> Isend(std::span<const std::byte> data, int to,
                                  int tag, Stream&) override {
    return host_.Isend(data, to, tag);
  }
  absl::StatusOr<RequestId> Irecv(std::span<std::byte> data, int from, int tag,
                                  Stream&) override {
    return host_.Irecv(data, from, tag);
  }
  absl::Status Wait(RequestId request, Stream&) override {
    return host_.Wait(request);
  }
  void Abandon(RequestId request, Stream&) override { host_.Abandon(request); }
  absl::Status Sync(Stream&) override { return device_.status(); }

 private:
  Collectives& host_;
  Device& device_;
  std::vector<RequestId> requests_;
};

// The device's memory is closed to the host.
class StagedCollectives final : public DeviceCollectives {
 public:
  // Bytes of a reduction or gather that are on the host at once.
  static constexpr size_t kWindowBytes = kHostedWindowBytes;

  StagedCollectives(Collectives& host, Device& device)
      : host_(host), device_(device), pool_(device) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  absl::Status AllReduceSum(std::span<float> values, Stream& stream) override {
    return AllReduce(values, stream, [this](std::span<float> window) {
      return host_.AllReduceSum(window);
    });
  }
  absl::Status AllReduceMax(std::span<float> values, Stream& stream) override {
    return AllReduce(values, stream, [this](std::span<float> window) {
      return host_.AllReduceMax(window);
    });
  }

  absl::Status AllGatherV(std::span<std::byte> all,
                          std::span<const int64_t> first,
                          std::span<const int64_t> count,
                          Stream& stream) override;
  absl::Status Exchange(std::span<const Transfer> transfers,
                        Stream& stream) override;

  absl::StatusOr<RequestId> Isend(std::span<const std::byte> data, int to,
                                  int tag, Stream& stream) override {
    const std::span<std::byte> bytes(const_cast<std::byte*>(data.data()),
                                     data.size());
    HF_ASSIGN_OR_RETURN(const size_t message,
                        Take({Transfer::Kind::kSend, bytes, to}, tag, stream));
    absl::Status status = Sync(stream);
    if (status.ok()) status = Start(message);
    if (!status.ok()) return Drop(message, status);
    return RequestId{message};
  }

  absl::StatusOr<RequestId> Irecv(std::span<std::byte> data, int from, int tag,
                                  Stream& stream) override {
    HF_ASSIGN_OR_RETURN(
        const size_t message,
        Take({Transfer::Kind::kReceive, data, from}, tag, stream));
    if (absl::Status status = Start(message); !status.ok()) {
      return Drop(message, status);
    }
    return RequestId{message};
  }

  absl::Status Wait(RequestId request, Stream& stream) override {
    return Finish(static_cast<size_t>(request), stream);
  }
  // A sender's bytes have come, and a receiver's have not left.
  void Abandon(RequestId request, Stream&) override {
    const auto message = static_cast<size_t>(request);
    host_.Abandon(messages_[message].request);
    Release(message);
  }

  absl::Status Sync(Stream& stream) override {
    device_.Sync(stream);
    return device_.status();
  }

 private:
  // A transfer under way, and its bytes on the host.
  struct Message {
    Transfer transfer;
    int tag = 0;
    PinnedPool::Piece* pinned = nullptr;
    RequestId request = {};
  };

  static Buffer OnDevice(std::span<std::byte> bytes) {
    return {MemorySpace::kDevice, bytes.data(), bytes.size()};
  }

  template <typename Reduce>
  absl::Status AllReduce(std::span<float> values, Stream& stream,
                         const Reduce& reduce) {
    if (size() == 1) return absl::OkStatus();
    constexpr size_t kWindow = kWindowBytes / sizeof(float);
    for (size_t at = 0; at < values.size(); at += kWindow) {
      const std::span<float> window =
          values.subspan(at, std::min(kWindow, values.size() - at));
      HF_ASSIGN_OR_RETURN(PinnedPool::Piece* const piece,
                          pool_.Take(window.size_bytes()));
      const Buffer pinned = piece->Part(window.size_bytes());
      const Buffer device = OnDevice(std::as_writable_bytes(window));
      device_.Copy(pinned, device, stream);
      absl::Status status = Sync(stream);
      if (status.ok()) {
        status = reduce(std::span(pinned.as<float>(), window.size()));
      }
      if (status.ok()) device_.Copy(device, pinned, stream);
      pool_.Return(piece, device_.Record(stream));
      HF_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  // Makes room on the host; a sender's bytes are on their way there afterwards.
  absl::StatusOr<size_t> Take(const Transfer& transfer, int tag,
                              Stream& stream);
  // Gives the message to the host's collectives; a sender's bytes have come.
  absl::Status Start(size_t message);
  // Waits for it; a receiver's bytes are on their way to the device afterwards.
  absl::Status Finish(size_t message, Stream& stream);
  // Forgets a message that was not started.
  absl::Status Drop(size_t message, absl::Status why) {
    Release(message);
    return why;
  }
  // The device is through with its pinned memory.
  void Release(size_t message) {
    pool_.Return(messages_[message].pinned, kernels::Event::kPassed);
    free_.push_back(message);
  }

  Collectives& host_;
  Device& device_;
  PinnedPool pool_;
  std::vector<Message> messages_;
  std::vector<size_t> free_;  // Of messages_.
  std::vector<size_t> group_;
  std::vector<int64_t> row_first_, row_count_;  // Of a gather's window.
};

absl::StatusOr<size_t> StagedCollectives::Take(const Transfer& transfer,
                                               int tag, Stream& stream) {
  HF_ASSIGN_OR_RETURN(PinnedPool::Piece* const piece,
                      pool_.Take(transfer.data.size()));
  if (free_.empty()) {
    free_.push_back(messages_.size());
    messages_.emplace_back();
  }
  const size_t message = free_.back();
  free_.pop_back();
  messages_[message] = {transfer, tag, piece, {}};
  if (transfer.kind == Transfer::Kind::kSend) {
    device_.Copy(piece->Part(transfer.data.size()), OnDevice(transfer.data),
                 stream);
  }
  return message;
}

absl::Status StagedCollectives::Start(size_t message) {
  Message& under_way = messages_[message];
  const Transfer& transfer = under_way.transfer;
  const std::span<std::byte> bytes(
      under_way.pinned->Part(transfer.data.size()).data, transfer.data.size());
  const bool sends = transfer.kind == Transfer::Kind::kSend;
  HF_ASSIGN_OR_RETURN(under_way.request,
                      sends ? host_.Isend(bytes, transfer.peer, under_way.tag)
                            : host_.Irecv(bytes, transfer.peer, under_way.tag));
  return absl::OkStatus();
}

absl::Status StagedCollectives::Finish(size_t message, Stream& stream) {
  const Message& under_way = messages_[message];
  const std::span<std::byte> data = under_way.transfer.data;
  const absl::Status status = host_.Wait(under_way.request);
  kernels::Event used = kernels::Event::kPassed;
  if (status.ok() && under_way.transfer.kind == Transfer::Kind::kReceive) {
    device_.Copy(OnDevice(data), under_way.pinned->Part(data.size()), stream);
    used = device_.Record(stream);
  }
  pool_.Return(under_way.pinned, used);
  free_.push_back(message);
  return status;
}

absl::Status StagedCollectives::Exchange(std::span<const Transfer> transfers,
                                         Stream& stream) {
  absl::Status status;
  size_t started = 0;
  group_.clear();
  for (const Transfer& transfer : transfers) {
    const absl::StatusOr<size_t> message = Take(transfer, kExchangeTag, stream);
    if (!message.ok()) {
      status = message.status();
      break;
    }
    group_.push_back(*message);
  }
  status.Update(Sync(stream));
  while (status.ok() && started < group_.size()) {
    status = Start(group_[started]);
    if (status.ok()) ++started;
  }
  for (size_t i = 0; i < group_.size(); ++i) {
    status.Update(i < started ? Finish(group_[i], stream)
                              : Drop(group_[i], status));
  }
  return status;
}

absl::Status StagedCollectives::AllGatherV(std::span<std::byte> all,
                                           std::span<const int64_t> first,
                                           std::span<const int64_t> count,
                                           Stream& stream) {
  if (size() == 1) return absl::OkStatus();
  const int64_t row = static_cast<int64_t>(kWindowBytes) / size();
  row_first_.resize(static_cast<size_t>(size()));
  row_count_.resize(static_cast<size_t>(size()));
  const int64_t longest = *std::max_element(count.begin(), count.end());
  for (int64_t at = 0; at < longest; at += row) {
    HF_ASSIGN_OR_RETURN(PinnedPool::Piece* const piece,
                        pool_.Take(static_cast<size_t>(row * size())));
    const auto part = [&](int r) {
      return OnDevice(all.subspan(static_cast<size_t>(first[r] + at),
                                  static_cast<size_t>(row_count_[r])));
    };
    const auto on_host = [&](int r) {
      return Buffer{MemorySpace::kPinned,
                    piece->memory.buffer().data + row_first_[r],
                    static_cast<size_t>(row_count_[r])};
    };
    for (int r = 0; r < size(); ++r) {
      row_first_[r] = r * row;
      row_count_[r] = std::clamp<int64_t>(count[r] - at, 0, row);
    }
    if (row_count_[rank()] > 0)
      device_.Copy(on_host(rank()), part(rank()), stream);
    absl::Status status = Sync(stream);
    if (status.ok()) {
      const Buffer rows = piece->Part(static_cast<size_t>(row * size()));
      status =
          host_.AllGatherV({rows.data, rows.bytes}, row_first_, row_count_);
    }
    for (int r = 0; r < size() && status.ok(); ++r) {
      if (r == rank() || row_count_[r] == 0) continue;
      device_.Copy(part(r), on_host(r), stream);
    }
    pool_.Return(piece, device_.Record(stream));
    HF_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<DeviceCollectives> NewHostedCollectives(Collectives& host,
                                                        Device& device) {
  if (device.NewStream()->immediate()) {
    return std::make_unique<OpenCollectives>(host, device);
  }
  return std::make_unique<StagedCollectives>(host, device);
}

}  // namespace holdfast::trainer
