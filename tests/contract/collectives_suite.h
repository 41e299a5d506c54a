// tests/contract/collectives_suite.h: what every Collectives must do.
//
// A case is run by all ranks of a world together, at any world size, and says
// with a status what it found. collectives_test.cc runs the suite over threads,
// tests/e2e over Open MPI.

#ifndef HOLDFAST_TESTS_CONTRACT_COLLECTIVES_SUITE_H_
#define HOLDFAST_TESTS_CONTRACT_COLLECTIVES_SUITE_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/philox.h"
#include "ckpt/base/status_macros.h"
#include "trainer/parallel/collectives.h"

#define CONTRACT_REQUIRE(condition, ...)                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      return absl::FailedPreconditionError(absl::StrFormat(                    \
          "%s:%d: rank %d: %s is false: %s", __FILE__, __LINE__, world.rank(), \
          #condition, absl::StrFormat(__VA_ARGS__)));                          \
    }                                                                          \
  } while (false)

namespace holdfast::trainer {

struct CollectivesCase {
  const char* name;
  absl::Status (*run)(Collectives& world);
};

// A value of rank `rank` whose magnitude varies so much that any other order of
// addition gives other bits.
inline float UnevenValue(int rank, size_t index) {
  // SplitMix64's mixing step: much cheaper than Philox, and millions are made.
  uint64_t bits = (static_cast<uint64_t>(rank) << 40) + index;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  bits ^= bits >> 31;
  const float mantissa = 1.0f + static_cast<float>(bits % 1048576) / 1048576.0f;
  const float magnitude[4] = {0x1p-10f, 0x1p-3f, 0x1p4f, 0x1p10f};
  const float value = mantissa * magnitude[(bits >> 32) % 4];
  return (bits >> 63) != 0 ? -value : value;
}

inline absl::Status SumOf(Collectives& world, size_t count) {
  std::vector<float> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = UnevenValue(world.rank(), i);
  HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<float>(data)));
  for (size_t i = 0; i < count; ++i) {
    float expected = UnevenValue(0, i);
    for (int r = 1; r < world.size(); ++r) expected += UnevenValue(r, i);
    CONTRACT_REQUIRE(std::memcmp(&expected, &data[i], sizeof(float)) == 0,
                     "element %d of %d: %a, expected %a", i, count, data[i],
                     expected);
  }
  return absl::OkStatus();
}

inline absl::Status SumsAreInRankOrder(Collectives& world) {
  for (const size_t count : {0, 1, 7, 255, 4096, 4097, 100'003, 600'001}) {
    HF_RETURN_IF_ERROR(SumOf(world, count));
  }
  return absl::OkStatus();
}

inline absl::Status IntegerSumsAreExactAndWrap(Collectives& world) {
  for (const size_t count : {1, 300, 5'000, 50'000}) {
    std::vector<int64_t> data(count);
    for (size_t i = 0; i < count; ++i) {
      data[i] = static_cast<int64_t>(ckpt::Philox64(3, world.rank(), i));
    }
    HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<int64_t>(data)));
    for (size_t i = 0; i < count; ++i) {
      uint64_t expected = 0;
      for (int r = 0; r < world.size(); ++r) {
        expected += ckpt::Philox64(3, r, i);
      }
      CONTRACT_REQUIRE(static_cast<uint64_t>(data[i]) == expected,
                       "element %d of %d", i, count);
    }
  }
  return absl::OkStatus();
}

inline absl::Status MaximaAreFoundWhereverTheyAre(Collectives& world) {
  for (int holder = 0; holder < world.size(); ++holder) {
    std::vector<float> floats(6000, -1.0f);
    std::vector<int64_t> integers(6000, std::numeric_limits<int64_t>::min());
    if (world.rank() == holder) {
      floats[5999] = 3.5f;
      integers[0] = 9;
    }
    HF_RETURN_IF_ERROR(world.AllReduceMax(std::span<float>(floats)));
    HF_RETURN_IF_ERROR(world.AllReduceMax(std::span<int64_t>(integers)));
    CONTRACT_REQUIRE(floats[5999] == 3.5f && floats[0] == -1.0f,
                     "holder %d: %f", holder, floats[5999]);
    CONTRACT_REQUIRE(
        integers[0] == 9 && integers[1] == std::numeric_limits<int64_t>::min(),
        "holder %d: %d", holder, integers[0]);

    float nan =
        world.rank() == holder ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
    HF_RETURN_IF_ERROR(world.AllReduceMax(std::span<float>(&nan, 1)));
    CONTRACT_REQUIRE(std::isnan(nan), "a NaN of rank %d was lost", holder);
  }
  return absl::OkStatus();
}

inline absl::Status BroadcastReachesEveryoneFromEveryRoot(Collectives& world) {
  for (int root = 0; root < world.size(); ++root) {
    for (const size_t bytes : {0, 1, 4095, 3'000'005}) {
      std::vector<std::byte> data(bytes, std::byte{0xEE});
      for (size_t i = 0; i < bytes && world.rank() == root; ++i) {
        data[i] = static_cast<std::byte>(i * 7 + root);
      }
      HF_RETURN_IF_ERROR(world.Broadcast(data, root));
      for (size_t i = 0; i < bytes; ++i) {
        CONTRACT_REQUIRE(data[i] == static_cast<std::byte>(i * 7 + root),
                         "root %d, byte %d of %d", root, i, bytes);
      }
    }
  }
  return absl::OkStatus();
}

// Rank r gives 1000 * r + 3 bytes, odd ranks nothing; a byte lies between parts
// and belongs to nobody.
inline absl::Status AllGatherTakesUnequalEmptyAndDistantParts(
    Collectives& world) {
  std::vector<int64_t> first, count;
  int64_t total = 0;
  for (int r = 0; r < world.size(); ++r) {
    first.push_back(total);
    count.push_back(r % 2 == 1 ? 0 : 100'000 * r + 3);
    total += count.back() + 1;
  }
  std::vector<std::byte> all(total, std::byte{0xEE});
  for (int64_t i = 0; i < count[world.rank()]; ++i) {
    all[first[world.rank()] + i] = static_cast<std::byte>(world.rank() + i);
  }
  HF_RETURN_IF_ERROR(world.AllGatherV(all, first, count));
  for (int r = 0; r < world.size(); ++r) {
    for (int64_t i = 0; i < count[r]; ++i) {
      CONTRACT_REQUIRE(all[first[r] + i] == static_cast<std::byte>(r + i),
                       "part %d, byte %d", r, i);
    }
    CONTRACT_REQUIRE(all[first[r] + count[r]] == std::byte{0xEE},
                     "the byte after part %d was touched", r);
  }
  return absl::OkStatus();
}

// A ring where everybody sends first: three messages under tag 5, one under tag
// 6, received in the other order of tags.
inline absl::Status MessagesOfOneTagKeepTheirOrder(Collectives& world) {
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  std::vector<int> out = {100 * world.rank(), 100 * world.rank() + 1,
                          100 * world.rank() + 2, 100 * world.rank() + 3};
  std::vector<int> in(4, -1);
  std::vector<RequestId> requests;
  for (int i = 0; i < 4; ++i) {
    HF_ASSIGN_OR_RETURN(
        const RequestId id,
        world.Isend(ConstBytes(std::span<const int>(&out[i], 1)), next,
                    i == 3 ? 6 : 5));
    requests.push_back(id);
  }
  for (const int i : {3, 0, 1, 2}) {
    HF_ASSIGN_OR_RETURN(const RequestId id,
                        world.Irecv(Bytes(std::span<int>(&in[i], 1)), previous,
                                    i == 3 ? 6 : 5));
    requests.push_back(id);
  }
  for (const RequestId id : requests) HF_RETURN_IF_ERROR(world.Wait(id));
  for (int i = 0; i < 4; ++i) {
    CONTRACT_REQUIRE(in[i] == 100 * previous + i, "message %d is %d", i, in[i]);
  }
  return absl::OkStatus();
}

inline absl::Status CollectivesMayRunWhileMessagesAreUnderWay(
    Collectives& world) {
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  std::vector<float> out(300'000, static_cast<float>(world.rank()));
  std::vector<float> in(out.size(), -1.0f);
  HF_ASSIGN_OR_RETURN(const RequestId receive,
                      world.Irecv(Bytes(std::span<float>(in)), previous, 0));
  HF_ASSIGN_OR_RETURN(
      const RequestId send,
      world.Isend(ConstBytes(std::span<const float>(out)), next, 0));
  std::vector<int64_t> ones(10, 1);
  HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<int64_t>(ones)));
  HF_RETURN_IF_ERROR(world.Barrier());
  HF_RETURN_IF_ERROR(world.Wait(receive));
  HF_RETURN_IF_ERROR(world.Wait(send));
  CONTRACT_REQUIRE(ones[9] == world.size(), "sum of ones is %d", ones[9]);
  CONTRACT_REQUIRE(in[0] == static_cast<float>(previous) &&
                       in.back() == static_cast<float>(previous),
                   "received %f", in[0]);
  return absl::OkStatus();
}

// Two rows and as many columns as it takes; the columns count backwards.
inline absl::Status SplitMakesIndependentOrderedGroups(Collectives& world) {
  const int color = world.rank() % 2;
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Collectives> half,
                      world.Split(color, -world.rank(), "half"));
  const int expected_size =
      world.size() / 2 + (color == 0 ? world.size() % 2 : 0);
  CONTRACT_REQUIRE(half->size() == expected_size, "size %d, expected %d",
                   half->size(), expected_size);
  const int expected_rank = expected_size - 1 - world.rank() / 2;
  CONTRACT_REQUIRE(half->rank() == expected_rank, "rank %d, expected %d",
                   half->rank(), expected_rank);

  int64_t sum = world.rank();
  HF_RETURN_IF_ERROR(half->AllReduceSum(std::span<int64_t>(&sum, 1)));
  int64_t expected_sum = 0;
  for (int r = color; r < world.size(); r += 2) expected_sum += r;
  CONTRACT_REQUIRE(sum == expected_sum, "sum %d, expected %d", sum,
                   expected_sum);

  // A group of a group, while the world and the halves go on.
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Collectives> alone,
                      half->Split(half->rank(), 0, "alone"));
  CONTRACT_REQUIRE(alone->size() == 1 && alone->rank() == 0, "size %d",
                   alone->size());
  HF_RETURN_IF_ERROR(alone->Barrier());
  std::vector<float> ones(10'000, 1.0f);
  HF_RETURN_IF_ERROR(half->AllReduceSum(std::span<float>(ones)));
  HF_RETURN_IF_ERROR(world.AllReduceMax(std::span<float>(ones)));
  const float larger = static_cast<float>((world.size() + 1) / 2);
  CONTRACT_REQUIRE(ones[0] == larger, "%f, expected %f", ones[0], larger);
  return absl::OkStatus();
}

inline absl::Status AMessageToOneselfArrives(Collectives& world) {
  const int out = 42 + world.rank();
  int in = 0;
  HF_ASSIGN_OR_RETURN(
      const RequestId send,
      world.Isend(ConstBytes(std::span<const int>(&out, 1)), world.rank(), 3));
  HF_ASSIGN_OR_RETURN(
      const RequestId receive,
      world.Irecv(Bytes(std::span<int>(&in, 1)), world.rank(), 3));
  HF_RETURN_IF_ERROR(world.Wait(send));
  HF_RETURN_IF_ERROR(world.Wait(receive));
  CONTRACT_REQUIRE(in == out, "%d", in);
  return absl::OkStatus();
}

// Nobody sends the one, and nobody receives the other: waiting would not end.
inline absl::Status WhatIsAbandonedNeedsNobody(Collectives& world) {
  const int next = (world.rank() + 1) % world.size();
  auto in = std::make_unique<std::vector<std::byte>>(200'000, std::byte{7});
  auto out = std::make_unique<std::vector<std::byte>>(16);
  HF_ASSIGN_OR_RETURN(const RequestId receive, world.Irecv(*in, next, 90));
  HF_ASSIGN_OR_RETURN(const RequestId send, world.Isend(*out, next, 91));
  HF_RETURN_IF_ERROR(world.Barrier());
  world.Abandon(receive);
  CONTRACT_REQUIRE(in->front() == std::byte{7} && in->back() == std::byte{7},
                   "something came");
  in.reset();
  world.Abandon(send);
  out.reset();
  return world.Barrier();
}

// Repeats quickly, so that a rank which is ahead meets one that is behind.
inline absl::Status ManyShortOperationsInARowDoNotMix(Collectives& world) {
  for (int round = 0; round < 50; ++round) {
    int64_t value = world.rank() == round % world.size() ? round : -1;
    HF_RETURN_IF_ERROR(world.Broadcast(Bytes(std::span<int64_t>(&value, 1)),
                                       round % world.size()));
    CONTRACT_REQUIRE(value == round, "round %d: %d", round, value);
    float one = 1.0f;
    HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<float>(&one, 1)));
    CONTRACT_REQUIRE(one == static_cast<float>(world.size()), "round %d: %f",
                     round, one);
  }
  return world.Barrier();
}

inline constexpr CollectivesCase kCollectivesCases[] = {
    {"SumsAreInRankOrder", SumsAreInRankOrder},
    {"IntegerSumsAreExactAndWrap", IntegerSumsAreExactAndWrap},
    {"MaximaAreFoundWhereverTheyAre", MaximaAreFoundWhereverTheyAre},
    {"BroadcastReachesEveryoneFromEveryRoot",
     BroadcastReachesEveryoneFromEveryRoot},
    {"AllGatherTakesUnequalEmptyAndDistantParts",
     AllGatherTakesUnequalEmptyAndDistantParts},
    {"MessagesOfOneTagKeepTheirOrder", MessagesOfOneTagKeepTheirOrder},
    {"CollectivesMayRunWhileMessagesAreUnderWay",
     CollectivesMayRunWhileMessagesAreUnderWay},
    {"SplitMakesIndependentOrderedGroups", SplitMakesIndependentOrderedGroups},
    {"AMessageToOneselfArrives", AMessageToOneselfArrives},
    {"ManyShortOperationsInARowDoNotMix", ManyShortOperationsInARowDoNotMix},
    {"WhatIsAbandonedNeedsNobody", WhatIsAbandonedNeedsNobody},
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TESTS_CONTRACT_COLLECTIVES_SUITE_H_
