// trainer/parallel/shared_wire.cc: where, when, copy, answer.

#include "trainer/parallel/shared_wire.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

using kernels::Buffer;
using kernels::Device;
using kernels::Event;
using kernels::MemorySpace;
using kernels::Stream;

class SharedWire final : public DeviceWire {
 public:
  SharedWire(Collectives& host, Device& device)
      : host_(host), device_(device) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }

  absl::StatusOr<RequestId> Begin(std::span<const Transfer> transfers, int tag,
                                  Stream& stream) override;
  absl::Status End(RequestId request, Stream& stream) override;

  absl::Status AllGatherV(std::span<std::byte> all,
                          std::span<const int64_t> first,
                          std::span<const int64_t> count,
                          Stream& stream) override;

  absl::Status Sync(Stream& stream) override {
    device_.Sync(stream);
    return device_.status();
  }

 private:
  // What a sender tells, and what it is answered.
  struct Offer {
    std::byte* data = nullptr;
    size_t bytes = 0;
    Event ready = Event::kPassed;
  };
  struct Answer {
    Event taken = Event::kPassed;
  };

  // One transfer under way. Stays where it is until its requests are over.
  struct Side {
    Transfer transfer;
    Offer offer;
    Answer answer;
    RequestId offer_request = {};
    RequestId answer_request = {};
    bool offer_open = false;
    bool answer_open = false;

    bool sends() const { return transfer.kind == Transfer::Kind::kSend; }
  };
  struct Group {
    std::vector<Side> sides;
    int tag = 0;
  };

  static int OfferTag(int tag) { return 2 * (tag + 1); }
  static int AnswerTag(int tag) { return 2 * (tag + 1) + 1; }

  template <typename T>
  static std::span<std::byte> BytesOf(T& value) {
    return std::as_writable_bytes(std::span<T>(&value, 1));
  }

  absl::Status Post(Side& side, int tag);
  absl::Status TakeOffer(Side& side, Stream& stream);
  absl::Status WaitOffer(Side& side) {
    if (!side.offer_open) return absl::OkStatus();
    side.offer_open = false;
    return host_.Wait(side.offer_request);
  }
  absl::Status WaitAnswer(Side& side) {
    if (!side.answer_open) return absl::OkStatus();
    side.answer_open = false;
    return host_.Wait(side.answer_request);
  }

  Collectives& host_;
  Device& device_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<size_t> free_;  // Of groups_.
  std::vector<Transfer> gather_;
};

absl::Status SharedWire::Post(Side& side, int tag) {
  const int peer = side.transfer.peer;
  if (!side.sends()) {
    HF_ASSIGN_OR_RETURN(side.offer_request,
                        host_.Irecv(BytesOf(side.offer), peer, OfferTag(tag)));
    side.offer_open = true;
    return absl::OkStatus();
  }
  // First the answer's place: whoever takes the offer answers at once.
  HF_ASSIGN_OR_RETURN(side.answer_request,
                      host_.Irecv(BytesOf(side.answer), peer, AnswerTag(tag)));
  side.answer_open = true;
  HF_ASSIGN_OR_RETURN(side.offer_request,
                      host_.Isend(BytesOf(side.offer), peer, OfferTag(tag)));
  side.offer_open = true;
  return absl::OkStatus();
}

absl::StatusOr<RequestId> SharedWire::Begin(std::span<const Transfer> transfers,
                                            int tag, Stream& stream) {
  if (free_.empty()) {
    free_.push_back(groups_.size());
    groups_.push_back(std::make_unique<Group>());
  }
  const size_t index = free_.back();
  free_.pop_back();
  Group& group = *groups_[index];
  group.tag = tag;
  group.sides.clear();
  group.sides.resize(transfers.size());
  const Event ready = device_.Record(stream);
  absl::Status status;
  for (size_t i = 0; i < transfers.size() && status.ok(); ++i) {
    Side& side = group.sides[i];
    side.transfer = transfers[i];
    if (side.sends()) {
      side.offer = {side.transfer.data.data(), side.transfer.data.size(),
                    ready};
    }
    status = Post(side, tag);
  }
  if (status.ok()) return RequestId{index};
  for (Side& side : group.sides) {
    WaitOffer(side).IgnoreError();
    WaitAnswer(side).IgnoreError();
  }
  free_.push_back(index);
  return status;
}

absl::Status SharedWire::TakeOffer(Side& side, Stream& stream) {
  HF_RETURN_IF_ERROR(WaitOffer(side));
  const std::span<std::byte> into = side.transfer.data;
  if (side.offer.bytes != into.size()) {
    return absl::InternalError(absl::StrFormat(
        "message from rank %d to rank %d: %d bytes sent, %d expected",
        side.transfer.peer, rank(), side.offer.bytes, into.size()));
  }
  device_.WaitFor(stream, side.offer.ready);
  device_.Copy(Buffer{MemorySpace::kDevice, into.data(), into.size()},
               Buffer{MemorySpace::kDevice, side.offer.data, into.size()},
               stream);
  return absl::OkStatus();
}

absl::Status SharedWire::End(RequestId request, Stream& stream) {
  const auto index = static_cast<size_t>(request);
  HF_CHECK(index < groups_.size(), "group %d is not under way", index);
  Group& group = *groups_[index];
  absl::Status status;
  for (Side& side : group.sides) {
    if (!side.sends()) status.Update(TakeOffer(side, stream));
  }
  const Event taken = device_.Record(stream);
  for (Side& side : group.sides) {
    if (side.sends()) continue;
    side.answer.taken = taken;
    const absl::StatusOr<RequestId> answer = host_.Isend(
        BytesOf(side.answer), side.transfer.peer, AnswerTag(group.tag));
    if (answer.ok()) {
      side.answer_request = *answer;
      side.answer_open = true;
    }
    status.Update(answer.status());
  }
  for (Side& side : group.sides) {
    status.Update(WaitOffer(side));
    const absl::Status answered = WaitAnswer(side);
    status.Update(answered);
    if (side.sends() && answered.ok()) {
      device_.WaitFor(stream, side.answer.taken);
    }
  }
  free_.push_back(index);
  return status;
}

absl::Status SharedWire::AllGatherV(std::span<std::byte> all,
                                    std::span<const int64_t> first,
                                    std::span<const int64_t> count,
                                    Stream& stream) {
  const auto part = [&](int r) {
    return all.subspan(static_cast<size_t>(first[r]),
                       static_cast<size_t>(count[r]));
  };
  gather_.clear();
  for (int distance = 1; distance < size(); ++distance) {
    const int from = (rank() - distance + size()) % size();
    const int to = (rank() + distance) % size();
    if (count[from] > 0) {
      gather_.push_back({Transfer::Kind::kReceive, part(from), from});
    }
    if (count[rank()] > 0) {
      gather_.push_back({Transfer::Kind::kSend, part(rank()), to});
    }
  }
  if (gather_.empty()) return absl::OkStatus();
  HF_ASSIGN_OR_RETURN(const RequestId request, Begin(gather_, kGroup, stream));
  return End(request, stream);
}

}  // namespace

std::unique_ptr<DeviceWire> NewSharedWire(Collectives& host, Device& device) {
  return std::make_unique<SharedWire>(host, device);
}

}  // namespace holdfast::trainer
