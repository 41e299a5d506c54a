// trainer/parallel/shared_wire.cc: offer, copy, answer, take back.

#include "trainer/parallel/shared_wire.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "trainer/parallel/open_offers.h"

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
  void Abandon(RequestId request, Stream& stream) override;

  absl::Status AllGatherV(std::span<std::byte> all,
                          std::span<const int64_t> first,
                          std::span<const int64_t> count,
                          Stream& stream) override;

  absl::Status Sync(Stream& stream) override {
    device_.Sync(stream);
    return device_.status();
  }

 private:
  // A message of the host, in one direction or the other.
  struct Message {
    OpenOffers::Id offer = 0;
    std::optional<RequestId> request;  // While it is under way.
  };

  // One transfer under way. Stays where it is until its requests are over.
  struct Side {
    Transfer transfer;
    Message offer;   // To the receiver.
    Message answer;  // To the sender: the copy is enqueued.
    // Of a sender: its offer is open. Of a receiver: it has taken it.
    bool holds = false;

    bool sends() const { return transfer.kind == Transfer::Kind::kSend; }
  };
  struct Group {
    std::vector<Side> sides;
    int tag = 0;
  };

  static int OfferTag(int tag) { return 2 * (tag + 1); }
  static int AnswerTag(int tag) { return 2 * (tag + 1) + 1; }

  absl::Status Send(Message& message, int peer, int tag) {
    HF_ASSIGN_OR_RETURN(message.request,
                        host_.Isend(BytesOf(message), peer, tag));
    return absl::OkStatus();
  }
  absl::Status Receive(Message& message, int peer, int tag) {
    HF_ASSIGN_OR_RETURN(message.request,
                        host_.Irecv(BytesOf(message), peer, tag));
    return absl::OkStatus();
  }
  absl::Status Wait(Message& message) {
    if (!message.request.has_value()) return absl::OkStatus();
    const RequestId request = *message.request;
    message.request.reset();
    return host_.Wait(request);
  }
  void Abandon(Message& message) {
    if (message.request.has_value()) host_.Abandon(*message.request);
    message.request.reset();
  }
  static std::span<std::byte> BytesOf(Message& message) {
    return std::as_writable_bytes(std::span(&message.offer, 1));
  }

  absl::Status Post(Side& side, int tag, Event ready);
  absl::Status Copy(Side& side, Stream& stream);
  absl::Status Finish(Group& group, Stream& stream);

  Collectives& host_;
  Device& device_;
  OpenOffers& offers_ = OpenOffers::OfThisProcess();
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<size_t> free_;  // Of groups_.
  std::vector<Transfer> gather_;
};

absl::Status SharedWire::Post(Side& side, int tag, Event ready) {
  const int peer = side.transfer.peer;
  if (!side.sends()) return Receive(side.offer, peer, OfferTag(tag));
  side.offer.offer = offers_.Open(
      {side.transfer.data.data(), side.transfer.data.size(), ready});
  side.holds = true;
  // First the answer's place: whoever takes the offer answers at once.
  HF_RETURN_IF_ERROR(Receive(side.answer, peer, AnswerTag(tag)));
  return Send(side.offer, peer, OfferTag(tag));
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
    group.sides[i].transfer = transfers[i];
    status = Post(group.sides[i], tag, ready);
  }
  if (status.ok()) return RequestId{index};
  Finish(group, stream).IgnoreError();
  free_.push_back(index);
  return status;
}

absl::Status SharedWire::Copy(Side& side, Stream& stream) {
  const std::optional<OpenOffers::Offer> offer = offers_.Take(side.offer.offer);
  if (!offer.has_value()) {
    return absl::AbortedError(
        absl::StrFormat("message from rank %d to rank %d: the sender gave up",
                        side.transfer.peer, rank()));
  }
  side.holds = true;
  const std::span<std::byte> into = side.transfer.data;
  if (offer->bytes != into.size()) {
    return absl::InternalError(absl::StrFormat(
        "message from rank %d to rank %d: %d bytes sent, %d expected",
        side.transfer.peer, rank(), offer->bytes, into.size()));
  }
  device_.WaitFor(stream, offer->ready);
  device_.Copy(Buffer{MemorySpace::kDevice, into.data(), into.size()},
               Buffer{MemorySpace::kDevice, offer->data, into.size()}, stream);
  return absl::OkStatus();
}

absl::Status SharedWire::End(RequestId request, Stream& stream) {
  const auto index = static_cast<size_t>(request);
  HF_CHECK(index < groups_.size(), "group %d is not under way", index);
  Group& group = *groups_[index];
  // All offers have come before the first is taken: a sender that gives up
  // waits for those that are.
  absl::Status status;
  for (Side& side : group.sides) {
    if (!side.sends()) status.Update(Wait(side.offer));
  }
  for (Side& side : group.sides) {
    if (!side.sends() && status.ok()) status = Copy(side, stream);
  }
  const Event copied = device_.Record(stream);
  for (Side& side : group.sides) {
    if (side.sends() || !side.holds) continue;
    offers_.Taken(side.offer.offer, copied);
    status.Update(Send(side.answer, side.transfer.peer, AnswerTag(group.tag)));
  }
  status.Update(Finish(group, stream));
  free_.push_back(index);
  return status;
}

// Waits for all messages of the host, and takes back what is on offer.
absl::Status SharedWire::Finish(Group& group, Stream& stream) {
  absl::Status status;
  for (Side& side : group.sides) {
    status.Update(Wait(side.offer));
    status.Update(Wait(side.answer));
    if (side.sends() && side.holds) {
      device_.WaitFor(stream, offers_.Close(side.offer.offer));
    }
  }
  return status;
}

void SharedWire::Abandon(RequestId request, Stream& stream) {
  const auto index = static_cast<size_t>(request);
  HF_CHECK(index < groups_.size(), "group %d is not under way", index);
  for (Side& side : groups_[index]->sides) {
    Abandon(side.offer);
    Abandon(side.answer);
    if (side.sends() && side.holds) {
      device_.WaitFor(stream, offers_.Close(side.offer.offer));
    }
  }
  free_.push_back(index);
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
