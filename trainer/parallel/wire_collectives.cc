// trainer/parallel/wire_collectives.cc: exchange, add in rank order, gather.

#include "trainer/parallel/wire_collectives.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "kernels/elementwise.h"

namespace holdfast::trainer {
namespace {

using kernels::Buffer;
using kernels::Device;
using kernels::MemorySpace;
using kernels::Stream;

// Slices start on multiples of this: 128 bytes.
constexpr size_t kSliceMultiple = 32;
// Up to this many bytes the number of messages decides, not their size.
constexpr size_t kShortBytesMax = size_t{256} << 10;

Buffer OnDevice(std::span<float> values) {
  const std::span<std::byte> bytes = Bytes(values);
  return {MemorySpace::kDevice, bytes.data(), bytes.size()};
}

class WireCollectives final : public DeviceCollectives {
 public:
  WireCollectives(std::unique_ptr<DeviceWire> wire, Device& device,
                  kernels::OwnedBuffer scratch)
      : device_(device), scratch_(std::move(scratch)), wire_(std::move(wire)) {
    rows_.resize(static_cast<size_t>(size()));
    transfers_.reserve(2 * static_cast<size_t>(size()));
  }

  int rank() const override { return wire_->rank(); }
  int size() const override { return wire_->size(); }

  absl::Status AllReduceSum(std::span<float> values, Stream& stream) override {
    return AllReduce(values, stream, &kernels::Accumulate<float>);
  }
  absl::Status AllReduceMax(std::span<float> values, Stream& stream) override {
    return AllReduce(values, stream, &kernels::AccumulateMax);
  }

  absl::Status AllGatherV(std::span<std::byte> all,
                          std::span<const int64_t> first,
                          std::span<const int64_t> count,
                          Stream& stream) override {
    if (size() == 1) return absl::OkStatus();
    return wire_->AllGatherV(all, first, count, stream);
  }

  absl::Status Exchange(std::span<const Transfer> transfers,
                        Stream& stream) override {
    HF_ASSIGN_OR_RETURN(const RequestId request,
                        wire_->Begin(transfers, DeviceWire::kGroup, stream));
    return wire_->End(request, stream);
  }

  absl::StatusOr<RequestId> Isend(std::span<const std::byte> data, int to,
                                  int tag, Stream& stream) override {
    HF_CHECK(tag >= 0, "a message of tag %d", tag);
    const Transfer transfer{Transfer::Kind::kSend,
                            {const_cast<std::byte*>(data.data()), data.size()},
                            to};
    return wire_->Begin({&transfer, 1}, tag, stream);
  }
  absl::StatusOr<RequestId> Irecv(std::span<std::byte> data, int from, int tag,
                                  Stream& stream) override {
    HF_CHECK(tag >= 0, "a message of tag %d", tag);
    const Transfer transfer{Transfer::Kind::kReceive, data, from};
    return wire_->Begin({&transfer, 1}, tag, stream);
  }
  absl::Status Wait(RequestId request, Stream& stream) override {
    return wire_->End(request, stream);
  }
  void Abandon(RequestId request, Stream& stream) override {
    wire_->Abandon(request, stream);
  }

  absl::Status Sync(Stream& stream) override { return wire_->Sync(stream); }

 private:
  using Join = void (*)(Stream&, const float* x, float* y, int64_t count);

  absl::Status AllReduce(std::span<float> values, Stream& stream, Join join);
  absl::Status Short(std::span<float> values, Stream& stream, Join join);
  absl::Status Window(std::span<float> values, Stream& stream, Join join);

  // Places for `count` values of every other rank; own values are `mine`.
  void SetRows(std::span<float> mine);
  // mine = the rows joined in rank order.
  void JoinRows(std::span<float> mine, Stream& stream, Join join);

  void Add(Transfer::Kind kind, std::span<float> values, int peer) {
    if (!values.empty()) transfers_.push_back({kind, Bytes(values), peer});
  }
  absl::Status Run(Stream& stream) {
    return transfers_.empty() ? absl::OkStatus() : Exchange(transfers_, stream);
  }

  size_t scratch_elements() const {
    return scratch_.buffer().bytes / sizeof(float);
  }

  Device& device_;
  kernels::OwnedBuffer scratch_;
  // Before the memory goes that its messages use.
  std::unique_ptr<DeviceWire> wire_;
  std::vector<float*> rows_;  // By rank.
  std::vector<Transfer> transfers_;
};

void WireCollectives::SetRows(std::span<float> mine) {
  float* next = scratch_.as<float>();
  for (int r = 0; r < size(); ++r) {
    rows_[r] = r == rank() ? mine.data() : next;
    if (r != rank()) next += mine.size();
  }
}

void WireCollectives::JoinRows(std::span<float> mine, Stream& stream,
                               Join join) {
  for (int r = 1; r < size(); ++r) {
    join(stream, rows_[r], rows_[0], static_cast<int64_t>(mine.size()));
  }
  if (rank() == 0) return;
  device_.Copy(OnDevice(mine), OnDevice({rows_[0], mine.size()}), stream);
}

absl::Status WireCollectives::Short(std::span<float> values, Stream& stream,
                                    Join join) {
  SetRows(values);
  transfers_.clear();
  for (int distance = 1; distance < size(); ++distance) {
    const int from = (rank() - distance + size()) % size();
    Add(Transfer::Kind::kReceive, {rows_[from], values.size()}, from);
    Add(Transfer::Kind::kSend, values, (rank() + distance) % size());
  }
  HF_RETURN_IF_ERROR(Run(stream));
  JoinRows(values, stream, join);
  return absl::OkStatus();
}

absl::Status WireCollectives::Window(std::span<float> values, Stream& stream,
                                     Join join) {
  const auto ranks = static_cast<size_t>(size());
  const size_t even = (values.size() + ranks - 1) / ranks;
  const size_t length =
      (even + kSliceMultiple - 1) / kSliceMultiple * kSliceMultiple;
  const auto slice = [&](int owner) {
    const size_t first =
        std::min(values.size(), static_cast<size_t>(owner) * length);
    return values.subspan(first, std::min(length, values.size() - first));
  };
  const std::span<float> mine = slice(rank());
  SetRows(mine);
  transfers_.clear();
  for (int distance = 1; distance < size(); ++distance) {
    const int from = (rank() - distance + size()) % size();
    const int to = (rank() + distance) % size();
    Add(Transfer::Kind::kReceive, {rows_[from], mine.size()}, from);
    Add(Transfer::Kind::kSend, slice(to), to);
  }
  HF_RETURN_IF_ERROR(Run(stream));
  if (!mine.empty()) JoinRows(mine, stream, join);

  transfers_.clear();
  for (int distance = 1; distance < size(); ++distance) {
    const int from = (rank() - distance + size()) % size();
    Add(Transfer::Kind::kReceive, slice(from), from);
    Add(Transfer::Kind::kSend, mine, (rank() + distance) % size());
  }
  return Run(stream);
}

absl::Status WireCollectives::AllReduce(std::span<float> values, Stream& stream,
                                        Join join) {
  if (size() == 1 || values.empty()) return absl::OkStatus();
  const auto others = static_cast<size_t>(size() - 1);
  if (values.size_bytes() <= kShortBytesMax &&
      values.size() * others <= scratch_elements()) {
    return Short(values, stream, join);
  }
  const size_t slice =
      scratch_elements() / others / kSliceMultiple * kSliceMultiple;
  const size_t window = slice * static_cast<size_t>(size());
  for (size_t first = 0; first < values.size(); first += window) {
    HF_RETURN_IF_ERROR(
        Window(values.subspan(first, std::min(window, values.size() - first)),
               stream, join));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCollectives>> NewWireCollectives(
    std::unique_ptr<DeviceWire> wire, Device& device, size_t scratch_bytes) {
  kernels::OwnedBuffer scratch;
  if (wire->size() > 1) {
    HF_CHECK(scratch_bytes >= kSliceMultiple * sizeof(float) *
                                  static_cast<size_t>(wire->size() - 1),
             "%d bytes of scratch for %d ranks", scratch_bytes, wire->size());
    HF_ASSIGN_OR_RETURN(
        scratch,
        kernels::AllocateOwned(device, MemorySpace::kDevice, scratch_bytes));
  }
  return std::make_unique<WireCollectives>(std::move(wire), device,
                                           std::move(scratch));
}

}  // namespace holdfast::trainer
