// What every DeviceCollectives must do, on the processor and on devices that
// finish late: ranks with a device each, and ranks that share one. The fake
// device's memory is closed and its work runs in an order drawn from a seed, so
// a missing wait gives other bytes; the last test makes one on purpose.

#include "trainer/parallel/device_collectives.h"

#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/base/status_macros.h"
#include "gtest/gtest.h"
#include "kernels/elementwise.h"
#include "kernels/fake_device.h"
#include "tests/contract/collectives_suite.h"
#include "trainer/parallel/hosted_collectives.h"
#include "trainer/parallel/inproc_collectives.h"
#include "trainer/parallel/shared_wire.h"
#include "trainer/parallel/wire_collectives.h"

namespace holdfast::trainer {
namespace {

using kernels::Buffer;
using kernels::Device;
using kernels::MemorySpace;
using kernels::Stream;
using Transfer = DeviceCollectives::Transfer;

std::unique_ptr<Device> Fake(uint64_t seed, int eager_max = 3) {
  kernels::FakeDeviceOptions options;
  options.seed = seed;
  options.eager_max = eager_max;
  options.device_bytes = size_t{32} << 20;
  auto device = kernels::NewFakeDevice(options);
  EXPECT_TRUE(device.ok()) << device.status();
  return std::move(device).value();
}

enum class Way { kHostedCpu, kHostedFake, kSharedCpu, kSharedFake };

std::string NameOf(Way way) {
  switch (way) {
    case Way::kHostedCpu:
      return "HostedCpu";
    case Way::kHostedFake:
      return "HostedFake";
    case Way::kSharedCpu:
      return "SharedCpu";
    case Way::kSharedFake:
      return "SharedFake";
  }
  return "";
}

// One rank's view.
struct RankOf {
  DeviceCollectives& collectives;
  Device& device;
  Stream& stream;

  int rank() const { return collectives.rank(); }
  int size() const { return collectives.size(); }

  // Copies that are on their way read it.
  std::deque<std::vector<float>> kept = {};

  // Device memory with these values, by way of the stream.
  absl::StatusOr<kernels::OwnedBuffer> Place(const std::vector<float>& values) {
    HF_ASSIGN_OR_RETURN(kernels::OwnedBuffer memory,
                        kernels::AllocateOwned(device, MemorySpace::kDevice,
                                               values.size() * sizeof(float)));
    device.Copy(memory.buffer(), Host(kept.emplace_back(values)), stream);
    return memory;
  }
  absl::StatusOr<std::vector<float>> Read(const Buffer& memory) {
    std::vector<float> values(memory.bytes / sizeof(float));
    device.Copy(Host(values), memory, stream);
    HF_RETURN_IF_ERROR(collectives.Sync(stream));
    return values;
  }
  static Buffer Host(std::vector<float>& values) {
    return {MemorySpace::kHost, reinterpret_cast<std::byte*>(values.data()),
            values.size() * sizeof(float)};
  }
};

std::span<float> Floats(const kernels::OwnedBuffer& memory) {
  return {memory.as<float>(), memory.buffer().bytes / sizeof(float)};
}
std::span<std::byte> BytesIn(const kernels::OwnedBuffer& memory) {
  return {memory.buffer().data, memory.buffer().bytes};
}

template <typename Body>
absl::Status RunRanks(Way way, int ranks, uint64_t seed, const Body& body,
                      int eager_max = 3, size_t scratch_bytes = 4096) {
  std::unique_ptr<Device> shared;
  if (way == Way::kSharedCpu) shared = kernels::NewCpuDevice();
  if (way == Way::kSharedFake) shared = Fake(seed, eager_max);
  return RunInprocRanks(ranks, [&](Collectives& world) {
    std::unique_ptr<Device> own;
    if (way == Way::kHostedCpu) own = kernels::NewCpuDevice();
    if (way == Way::kHostedFake) {
      own = Fake(seed + static_cast<uint64_t>(world.rank()), eager_max);
    }
    Device& device = shared != nullptr ? *shared : *own;
    std::unique_ptr<DeviceCollectives> collectives;
    if (shared == nullptr) {
      collectives = NewHostedCollectives(world, device);
    } else {
      HF_ASSIGN_OR_RETURN(
          collectives, NewWireCollectives(NewSharedWire(world, device), device,
                                          scratch_bytes));
    }
    const auto stream = device.NewStream();
    RankOf rank{*collectives, device, *stream};
    const absl::Status status = body(rank);
    device.Sync(*stream);
    return status;
  });
}

class DeviceCollectivesTest : public testing::TestWithParam<Way> {
 protected:
  // On fresh seeds of the fake device, with latest completion among them.
  template <typename Body>
  void OnRanks(const Body& body) {
    const bool fake =
        GetParam() == Way::kHostedFake || GetParam() == Way::kSharedFake;
    for (const int ranks : {1, 2, 3, 5}) {
      for (uint64_t seed = 1; seed <= (fake ? 4u : 1u); ++seed) {
        const absl::Status status =
            RunRanks(GetParam(), ranks, 100 * seed, body, seed == 4 ? 0 : 3);
        ASSERT_TRUE(status.ok())
            << ranks << " ranks, seed " << seed << ": " << status;
      }
    }
  }
};

// Work before the call is waited for, work after it finds the result.
TEST_P(DeviceCollectivesTest, SumsHaveRankOrderAndTheStreamsOrder) {
  OnRanks([](RankOf& rank) -> absl::Status {
    for (const size_t count : {1, 33, 700, 70'001}) {
      std::vector<float> values(count);
      for (size_t i = 0; i < count; ++i) {
        values[i] = UnevenValue(rank.rank(), i);
      }
      HF_ASSIGN_OR_RETURN(const auto memory, rank.Place(values));
      const auto elements = static_cast<int64_t>(count);
      kernels::Scale(rank.stream, memory.template as<float>(), 0.5f, elements);
      HF_RETURN_IF_ERROR(
          rank.collectives.AllReduceSum(Floats(memory), rank.stream));
      kernels::Scale(rank.stream, memory.template as<float>(), 4.0f, elements);
      HF_ASSIGN_OR_RETURN(const auto found, rank.Read(memory.buffer()));
      for (size_t i = 0; i < count; ++i) {
        float expected = 0.5f * UnevenValue(0, i);
        for (int r = 1; r < rank.size(); ++r) {
          expected += 0.5f * UnevenValue(r, i);
        }
        if (std::bit_cast<uint32_t>(4.0f * expected) !=
            std::bit_cast<uint32_t>(found[i])) {
          return absl::InternalError(absl::StrFormat(
              "rank %d, element %d of %d: %.9g, not %.9g", rank.rank(), i,
              count, found[i], 4.0f * expected));
        }
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(DeviceCollectivesTest, MaximaPassNan) {
  OnRanks([](RankOf& rank) -> absl::Status {
    constexpr size_t kCount = 1000;
    std::vector<float> values(kCount);
    for (size_t i = 0; i < kCount; ++i) values[i] = UnevenValue(rank.rank(), i);
    if (rank.rank() == rank.size() - 1) values[7] = std::nanf("");
    HF_ASSIGN_OR_RETURN(const auto memory, rank.Place(values));
    HF_RETURN_IF_ERROR(
        rank.collectives.AllReduceMax(Floats(memory), rank.stream));
    HF_ASSIGN_OR_RETURN(const auto found, rank.Read(memory.buffer()));
    for (size_t i = 0; i < kCount; ++i) {
      float expected = UnevenValue(0, i);
      for (int r = 1; r < rank.size(); ++r) {
        expected = std::max(expected, UnevenValue(r, i));
      }
      const bool same = i == 7 ? std::isnan(found[i]) : found[i] == expected;
      if (!same) {
        return absl::InternalError(absl::StrFormat("element %d: %.9g, not %.9g",
                                                   i, found[i], expected));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(DeviceCollectivesTest, GathersPartsOfAnyLength) {
  OnRanks([](RankOf& rank) -> absl::Status {
    // Rank 1 has nothing; between the parts lie bytes that nobody touches.
    std::vector<int64_t> first, count;
    int64_t next = 8;
    for (int r = 0; r < rank.size(); ++r) {
      first.push_back(next);
      count.push_back(r == 1 ? 0 : 4 * (1000 + 500 * r));
      next += count.back() + 8;
    }
    std::vector<float> values(static_cast<size_t>(next) / 4, -1.0f);
    const auto mine = static_cast<size_t>(first[rank.rank()]) / 4;
    const auto length = static_cast<size_t>(count[rank.rank()]) / 4;
    for (size_t i = mine; i < mine + length; ++i) {
      values[i] = static_cast<float>(i);
    }
    HF_ASSIGN_OR_RETURN(const auto memory, rank.Place(values));
    HF_RETURN_IF_ERROR(rank.collectives.AllGatherV(BytesIn(memory), first,
                                                   count, rank.stream));
    // The next call's bytes may not reach into this one's.
    kernels::Scale(rank.stream, memory.template as<float>() + mine, 2.0f,
                   static_cast<int64_t>(length));
    HF_ASSIGN_OR_RETURN(const auto found, rank.Read(memory.buffer()));
    std::vector<float> expected(values.size(), -1.0f);
    for (int r = 0; r < rank.size(); ++r) {
      const auto begin = static_cast<size_t>(first[r]) / 4;
      const auto end = begin + static_cast<size_t>(count[r]) / 4;
      for (size_t i = begin; i < end; ++i) {
        expected[i] = static_cast<float>(r == rank.rank() ? 2 * i : i);
      }
    }
    return found == expected ? absl::OkStatus()
                             : absl::InternalError(absl::StrFormat(
                                   "rank %d of %d gathered other bytes",
                                   rank.rank(), rank.size()));
  });
}

// Everybody sends to everybody, twice at once, and overwrites what it sent.
TEST_P(DeviceCollectivesTest, ExchangesMatchInTheOrderOfTheLists) {
  OnRanks([](RankOf& rank) -> absl::Status {
    constexpr size_t kCount = 300;
    const auto ranks = static_cast<size_t>(rank.size());
    std::vector<float> zeros(2 * ranks * kCount);
    HF_ASSIGN_OR_RETURN(const auto sent, rank.Place(zeros));
    HF_ASSIGN_OR_RETURN(const auto received, rank.Place(zeros));
    const auto part = [&](const kernels::OwnedBuffer& of, int peer, int k) {
      return Floats(of).subspan(
          (2 * static_cast<size_t>(peer) + static_cast<size_t>(k)) * kCount,
          kCount);
    };
    for (int round = 1; round <= 3; ++round) {
      std::vector<float> out(zeros.size());
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = static_cast<float>(1000 * round + 100 * rank.rank()) +
                 static_cast<float>(i / kCount);
      }
      rank.device.Copy(sent.buffer(), RankOf::Host(out), rank.stream);
      std::vector<Transfer> transfers;
      for (int peer = 0; peer < rank.size(); ++peer) {
        if (peer == rank.rank()) continue;
        for (const int k : {0, 1}) {
          transfers.push_back(
              {Transfer::Kind::kReceive, Bytes(part(received, peer, k)), peer});
          transfers.push_back(
              {Transfer::Kind::kSend, Bytes(part(sent, peer, k)), peer});
        }
      }
      HF_RETURN_IF_ERROR(rank.collectives.Exchange(transfers, rank.stream));
      kernels::Zero(rank.stream, sent.template as<float>(),
                    static_cast<int64_t>(zeros.size()));
      HF_ASSIGN_OR_RETURN(const auto found, rank.Read(received.buffer()));
      for (int peer = 0; peer < rank.size(); ++peer) {
        for (const int k : {0, 1}) {
          if (peer == rank.rank()) continue;
          const auto at = static_cast<size_t>(2 * peer + k) * kCount;
          const auto expected = static_cast<float>(1000 * round + 100 * peer) +
                                static_cast<float>(2 * rank.rank() + k);
          for (size_t i = 0; i < kCount; ++i) {
            if (found[at + i] == expected) continue;
            return absl::InternalError(absl::StrFormat(
                "rank %d, round %d, from %d: %.9g, not %.9g", rank.rank(),
                round, peer, found[at + i], expected));
          }
        }
      }
    }
    return absl::OkStatus();
  });
}

// Two buffers in turn, a receive begun one message ahead, as a pipeline does.
TEST_P(DeviceCollectivesTest, MessagesTravelBesideTheStream) {
  OnRanks([](RankOf& rank) -> absl::Status {
    constexpr size_t kCount = 500;
    constexpr int kMessages = 7;
    std::vector<float> zeros(2 * kCount);
    HF_ASSIGN_OR_RETURN(const auto memory, rank.Place(zeros));
    std::vector<float> log_start(kMessages * kCount);
    HF_ASSIGN_OR_RETURN(const auto log, rank.Place(log_start));
    const auto buffer = [&](int i) {
      return Floats(memory).subspan(static_cast<size_t>(i % 2) * kCount,
                                    kCount);
    };
    const int pair = rank.rank() / 2 * 2;
    if (pair + 1 >= rank.size()) return rank.collectives.Sync(rank.stream);
    const bool sends = rank.rank() == pair;
    std::vector<RequestId> requests(kMessages);
    for (int i = 0; i < kMessages; ++i) {
      if (sends) {
        if (i >= 2) {
          HF_RETURN_IF_ERROR(
              rank.collectives.Wait(requests[i - 2], rank.stream));
        }
        std::vector<float> values(kCount, static_cast<float>(i + 1));
        const auto pinned = rank.Place(values);
        HF_RETURN_IF_ERROR(pinned.status());
        rank.device.Copy({MemorySpace::kDevice, Bytes(buffer(i)).data(),
                          kCount * sizeof(float)},
                         pinned->buffer(), rank.stream);
        HF_ASSIGN_OR_RETURN(
            requests[i],
            rank.collectives.Isend(Bytes(buffer(i)), pair + 1, 0, rank.stream));
        rank.device.Sync(rank.stream);  // `pinned` goes.
      } else {
        for (int begin = i == 0 ? 0 : i + 1;
             begin <= i + 1 && begin < kMessages; ++begin) {
          HF_ASSIGN_OR_RETURN(requests[begin],
                              rank.collectives.Irecv(Bytes(buffer(begin)), pair,
                                                     0, rank.stream));
        }
        HF_RETURN_IF_ERROR(rank.collectives.Wait(requests[i], rank.stream));
        kernels::Accumulate(rank.stream, buffer(i).data(),
                            log.template as<float>() + i * kCount, kCount);
      }
    }
    if (sends) {
      for (int i = kMessages - 2; i < kMessages; ++i) {
        HF_RETURN_IF_ERROR(rank.collectives.Wait(requests[i], rank.stream));
      }
      return rank.collectives.Sync(rank.stream);
    }
    HF_ASSIGN_OR_RETURN(const auto found, rank.Read(log.buffer()));
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] != static_cast<float>(i / kCount + 1)) {
        return absl::InternalError(
            absl::StrFormat("message %d: %.9g", i / kCount, found[i]));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(DeviceCollectivesTest, ARankThatGivesUpFreesTheOthers) {
  const absl::Status status =
      RunRanks(GetParam(), 3, 1, [](RankOf& rank) -> absl::Status {
        if (rank.rank() == 2) return absl::UnavailableError("lost");
        std::vector<float> values(100'000, 1.0f);
        HF_ASSIGN_OR_RETURN(const auto memory, rank.Place(values));
        const absl::Status sum =
            rank.collectives.AllReduceSum(Floats(memory), rank.stream);
        EXPECT_TRUE(absl::IsAborted(sum)) << sum;
        rank.device.Sync(rank.stream);
        return sum;
      });
  EXPECT_EQ(status, absl::UnavailableError("lost"));
}

// Its memory is gone before the other rank sends there and receives from there.
TEST_P(DeviceCollectivesTest, WhatARankAbandonsIsTouchedByNobody) {
  std::barrier turn(2);
  const auto leave = [](RankOf& rank) -> absl::Status {
    HF_ASSIGN_OR_RETURN(const auto out,
                        rank.Place(std::vector<float>(5000, 1.0f)));
    HF_ASSIGN_OR_RETURN(const auto in,
                        rank.Place(std::vector<float>(5000, 2.0f)));
    HF_ASSIGN_OR_RETURN(
        const RequestId send,
        rank.collectives.Isend(BytesIn(out), 1, 0, rank.stream));
    HF_ASSIGN_OR_RETURN(const RequestId receive,
                        rank.collectives.Irecv(BytesIn(in), 1, 1, rank.stream));
    rank.collectives.Abandon(send, rank.stream);
    rank.collectives.Abandon(receive, rank.stream);
    rank.device.Sync(rank.stream);
    return absl::OkStatus();
  };
  const auto come_late = [](RankOf& rank) -> absl::Status {
    HF_ASSIGN_OR_RETURN(const auto memory,
                        rank.Place(std::vector<float>(10'000, 3.0f)));
    const std::span<std::byte> bytes = BytesIn(memory);
    HF_ASSIGN_OR_RETURN(
        const RequestId send,
        rank.collectives.Isend(bytes.first(20'000), 0, 1, rank.stream));
    HF_ASSIGN_OR_RETURN(
        const RequestId receive,
        rank.collectives.Irecv(bytes.last(20'000), 0, 0, rank.stream));
    const absl::Status received = rank.collectives.Wait(receive, rank.stream);
    EXPECT_FALSE(received.ok());
    EXPECT_FALSE(rank.collectives.Wait(send, rank.stream).ok());
    HF_ASSIGN_OR_RETURN(const auto left, rank.Read(memory.buffer()));
    EXPECT_EQ(left, std::vector<float>(10'000, 3.0f));
    return absl::OkStatus();
  };
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const absl::Status status =
        RunRanks(GetParam(), 2, seed, [&](RankOf& rank) -> absl::Status {
          if (rank.rank() == 0) {
            const absl::Status left = leave(rank);
            turn.arrive_and_wait();
            return left.ok() ? absl::UnavailableError("lost") : left;
          }
          turn.arrive_and_wait();
          return come_late(rank);
        });
    EXPECT_EQ(status, absl::UnavailableError("lost"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceCollectivesTest,
                         testing::Values(Way::kHostedCpu, Way::kHostedFake,
                                         Way::kSharedCpu, Way::kSharedFake),
                         [](const auto& info) { return NameOf(info.param); });

// The device underneath, but for waits of streams for events: they are lost.
class DeafDevice final : public Device {
 public:
  explicit DeafDevice(Device& device) : device_(device) {}
  std::string_view name() const override { return device_.name(); }
  absl::StatusOr<Buffer> Allocate(MemorySpace space, size_t bytes) override {
    return device_.Allocate(space, bytes);
  }
  void Free(const Buffer& buffer) override { device_.Free(buffer); }
  std::unique_ptr<Stream> NewStream() override { return device_.NewStream(); }
  void Copy(const Buffer& dst, const Buffer& src, Stream& stream) override {
    device_.Copy(dst, src, stream);
  }
  kernels::Event Record(Stream& stream) override {
    return device_.Record(stream);
  }
  void WaitFor(Stream&, kernels::Event) override {}
  bool Query(kernels::Event event) override { return device_.Query(event); }
  void Sync(kernels::Event event) override { device_.Sync(event); }
  void Sync(Stream& stream) override { device_.Sync(stream); }

 private:
  Device& device_;
};

// Whether three ranks on one fake device end with the sum.
bool SumsAreRight(uint64_t seed, bool deaf) {
  // Nothing runs before a Sync, and then one stream or another.
  const auto fake = Fake(seed, /*eager_max=*/0);
  DeafDevice without_waits(*fake);
  Device& device = deaf ? without_waits : *fake;
  std::atomic<bool> right = true;
  const absl::Status status =
      RunInprocRanks(3, [&](Collectives& world) -> absl::Status {
        HF_ASSIGN_OR_RETURN(
            const auto collectives,
            NewWireCollectives(NewSharedWire(world, device), device, 4096));
        const auto stream = device.NewStream();
        RankOf rank{*collectives, device, *stream};
        std::vector<float> values(5000, static_cast<float>(1 + rank.rank()));
        HF_ASSIGN_OR_RETURN(const auto memory, rank.Place(values));
        for (int round = 0; round < 3; ++round) {
          HF_RETURN_IF_ERROR(
              collectives->AllReduceSum(Floats(memory), *stream));
        }
        HF_ASSIGN_OR_RETURN(const auto found, rank.Read(memory.buffer()));
        for (const float value : found) {
          if (value != 54.0f) right = false;
        }
        return world.Barrier();
      });
  EXPECT_TRUE(status.ok()) << status;
  return right;
}

TEST(MissingWaitTest, TheFakeDeviceFindsAWaitThatIsNotThere) {
  int found = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_TRUE(SumsAreRight(seed, /*deaf=*/false)) << seed;
    if (!SumsAreRight(seed, /*deaf=*/true)) ++found;
  }
  EXPECT_GE(found, 5) << "of 10 seeds";
}

}  // namespace
}  // namespace holdfast::trainer
