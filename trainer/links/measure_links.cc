// trainer/links/measure_links.cc: rounds of messages, and sums.

#include "trainer/links/measure_links.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "trainer/links/pair_rounds.h"

namespace holdfast::trainer {
namespace {

constexpr int64_t kSmallBytes = 8;
constexpr int kSmallWarmUps = 5;
constexpr int kLargeWarmUps = 1;

// Calls `run` repeats times after `warm_ups` and gives the median of what the
// counted ones took, in seconds.
template <typename Run>
absl::StatusOr<double> MedianSeconds(const ckpt::Clock& clock, int warm_ups,
                                     int repeats, const Run& run) {
  std::vector<double> seconds;
  for (int i = 0; i < warm_ups + repeats; ++i) {
    const absl::Duration start = clock.Monotonic();
    HF_RETURN_IF_ERROR(run());
    if (i >= warm_ups) {
      seconds.push_back(absl::ToDoubleSeconds(clock.Monotonic() - start));
    }
  }
  std::sort(seconds.begin(), seconds.end());
  // A clock of coarse ticks must not make a link infinitely fast.
  return std::max(seconds[seconds.size() / 2], 1e-9);
}

struct Axis {
  LinkAxis axis;
  Collectives* group;
  std::vector<PairRound> rounds;
  bool sums;  // Training sums over this axis.
};

class LinkTest {
 public:
  LinkTest(MeshCollectives& mesh, const LinkTestOptions& options)
      : mesh_(mesh), options_(options), clock_(*options.clock) {}

  absl::StatusOr<LinkMeasurements> Run();

 private:
  absl::Status RunAxis(const Axis& axis);
  absl::Status MeasureSums(const Axis& axis, LinkOps& ops);
  // This rank's part of a round.
  absl::Status MeasurePair(const Axis& axis, int partner, LinkOps& ops);
  absl::StatusOr<double> OneWaySeconds(LinkOps& ops, int partner, bool starts,
                                       int64_t bytes, int warm_ups,
                                       int repeats);
  int WorldRank(LinkAxis axis, int member) const;
  void RoundDone() {
    ++rounds_done_;
    if (options_.progress != nullptr && mesh_.world->rank() == 0) {
      options_.progress(rounds_done_, rounds_total_);
    }
  }

  MeshCollectives& mesh_;
  const LinkTestOptions& options_;
  const ckpt::Clock& clock_;
  int64_t rounds_done_ = 0;
  int64_t rounds_total_ = 0;
  LinkMeasurements mine_;
};

int RankOnAxis(const ckpt::Mesh& mesh, ckpt::Coordinates at, LinkAxis axis,
               int member) {
  switch (axis) {
    case LinkAxis::kTp:
      at.tp = member;
      break;
    case LinkAxis::kPp:
      at.pp = member;
      break;
    case LinkAxis::kDp:
      at.dp = member;
      break;
  }
  return ckpt::Index(ckpt::RankAt(mesh, at));
}

int LinkTest::WorldRank(LinkAxis axis, int member) const {
  return RankOnAxis(mesh_.mesh, mesh_.at, axis, member);
}

// Every rank's records, in rank order.
template <typename Record>
absl::StatusOr<std::vector<Record>> Gather(Collectives& world,
                                           const std::vector<Record>& mine) {
  const auto ranks = static_cast<size_t>(world.size());
  std::vector<int64_t> count(ranks, 0);
  count[static_cast<size_t>(world.rank())] =
      static_cast<int64_t>(mine.size() * sizeof(Record));
  HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<int64_t>(count)));
  std::vector<int64_t> first(ranks, 0);
  for (size_t r = 1; r < ranks; ++r) first[r] = first[r - 1] + count[r - 1];
  const auto bytes = static_cast<size_t>(first.back() + count.back());
  std::vector<Record> all(bytes / sizeof(Record));
  const std::span<std::byte> memory =
      std::as_writable_bytes(std::span<Record>(all));
  if (!mine.empty()) {
    std::memcpy(memory.data() + first[static_cast<size_t>(world.rank())],
                mine.data(), mine.size() * sizeof(Record));
  }
  HF_RETURN_IF_ERROR(world.AllGatherV(memory, first, count));
  return all;
}

absl::StatusOr<LinkMeasurements> LinkTest::Run() {
  const ckpt::Mesh& mesh = mesh_.mesh;
  std::vector<Axis> axes;
  if (mesh.tp > 1) {
    axes.push_back(
        {LinkAxis::kTp, mesh_.tp.get(), AllPairRounds(mesh.tp), true});
  }
  if (mesh.pp > 1) {
    axes.push_back(
        {LinkAxis::kPp, mesh_.pp.get(), NeighbourRounds(mesh.pp), false});
  }
  if (mesh.dp > 1) {
    axes.push_back(
        {LinkAxis::kDp, mesh_.dp.get(), AllPairRounds(mesh.dp), true});
  }
  for (const Axis& axis : axes) {
    rounds_total_ += static_cast<int64_t>(axis.rounds.size()) + axis.sums;
  }
  for (const Axis& axis : axes) HF_RETURN_IF_ERROR(RunAxis(axis));

  const Heartbeat::Scope scope(options_.heartbeat, "links: gathering results",
                               options_.round_timeout);
  LinkMeasurements all;
  HF_ASSIGN_OR_RETURN(all.pairs, Gather(*mesh_.world, mine_.pairs));
  HF_ASSIGN_OR_RETURN(all.groups, Gather(*mesh_.world, mine_.groups));
  return all;
}

absl::Status LinkTest::RunAxis(const Axis& axis) {
  const int64_t bytes_max =
      std::max(options_.message_bytes, axis.sums ? options_.sum_bytes : 0);
  std::unique_ptr<LinkOps> ops;
  if (options_.open_ops == nullptr) {
    ops = NewHostLinkOps(*axis.group, bytes_max);
  } else {
    HF_ASSIGN_OR_RETURN(ops,
                        options_.open_ops(*axis.group, axis.axis, bytes_max));
  }
  if (axis.sums) {
    const Heartbeat::Scope scope(
        options_.heartbeat,
        absl::StrFormat("links: %s all-reduce", ToString(axis.axis)),
        options_.round_timeout);
    HF_RETURN_IF_ERROR(mesh_.world->Barrier());
    HF_RETURN_IF_ERROR(MeasureSums(axis, *ops));
    RoundDone();
  }
  for (size_t i = 0; i < axis.rounds.size(); ++i) {
    const int partner = axis.rounds[i][static_cast<size_t>(axis.group->rank())];
    const Heartbeat::Scope scope(
        options_.heartbeat,
        absl::StrFormat("links: %s pairs, round %d of %d", ToString(axis.axis),
                        i + 1, axis.rounds.size()),
        options_.round_timeout);
    HF_RETURN_IF_ERROR(mesh_.world->Barrier());
    if (partner != kNoPartner) {
      HF_RETURN_IF_ERROR(MeasurePair(axis, partner, *ops));
    }
    RoundDone();
  }
  return absl::OkStatus();
}

absl::Status LinkTest::MeasureSums(const Axis& axis, LinkOps& ops) {
  const auto sum = [&](int64_t bytes, int warm_ups, int repeats) {
    return MedianSeconds(clock_, warm_ups, repeats,
                         [&] { return ops.AllReduce(bytes); });
  };
  HF_ASSIGN_OR_RETURN(const double small, sum(kSmallBytes, kSmallWarmUps,
                                              options_.latency_repeats));
  HF_ASSIGN_OR_RETURN(const double large,
                      sum(options_.sum_bytes, kLargeWarmUps, options_.repeats));
  if (axis.group->rank() != 0) return absl::OkStatus();
  const double members = axis.group->size();
  GroupRecord record;
  record.axis = axis.axis;
  record.first = WorldRank(axis.axis, 0);
  record.members = axis.group->size();
  record.latency_us = small * 1e6;
  record.bus_bytes_per_s = static_cast<double>(options_.sum_bytes) * 2 *
                           (members - 1) / members / large;
  mine_.groups.push_back(record);
  return absl::OkStatus();
}

absl::StatusOr<double> LinkTest::OneWaySeconds(LinkOps& ops, int partner,
                                               bool starts, int64_t bytes,
                                               int warm_ups, int repeats) {
  HF_ASSIGN_OR_RETURN(
      const double there_and_back,
      MedianSeconds(clock_, warm_ups, repeats, [&]() -> absl::Status {
        if (starts) {
          HF_RETURN_IF_ERROR(ops.Send(bytes, partner));
          return ops.Receive(bytes, partner);
        }
        HF_RETURN_IF_ERROR(ops.Receive(bytes, partner));
        return ops.Send(bytes, partner);
      }));
  return there_and_back / 2;
}

absl::Status LinkTest::MeasurePair(const Axis& axis, int partner,
                                   LinkOps& ops) {
  const int me = axis.group->rank();
  const bool starts = me < partner;
  HF_ASSIGN_OR_RETURN(const double small,
                      OneWaySeconds(ops, partner, starts, kSmallBytes,
                                    kSmallWarmUps, options_.latency_repeats));
  HF_ASSIGN_OR_RETURN(
      const double large,
      OneWaySeconds(ops, partner, starts, options_.message_bytes, kLargeWarmUps,
                    options_.repeats));
  if (!starts) return absl::OkStatus();
  const int mine = WorldRank(axis.axis, me);
  const int other = WorldRank(axis.axis, partner);
  PairRecord record;
  record.axis = axis.axis;
  record.a = std::min(mine, other);
  record.b = std::max(mine, other);
  record.latency_us = small * 1e6;
  record.bytes_per_s = static_cast<double>(options_.message_bytes) / large;
  mine_.pairs.push_back(record);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LinkMeasurements> MeasureLinks(MeshCollectives& mesh,
                                              const LinkTestOptions& options) {
  return LinkTest(mesh, options).Run();
}

std::vector<int> RanksOfGroup(const ckpt::Mesh& mesh,
                              const GroupRecord& record) {
  const ckpt::Coordinates at =
      ckpt::CoordinatesOf(mesh, ckpt::Rank{record.first});
  std::vector<int> ranks;
  for (int member = 0; member < record.members; ++member) {
    ranks.push_back(RankOnAxis(mesh, at, record.axis, member));
  }
  return ranks;
}

}  // namespace holdfast::trainer
