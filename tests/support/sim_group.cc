// tests/support/sim_group.cc: see the header.

#include "tests/support/sim_group.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/philox.h"

namespace holdfast::tests {

using ckpt::Index;
using ckpt::Message;
using ckpt::MessageTag;
using ckpt::Rank;

class SimGroup final : public ckpt::Group {
 public:
  SimGroup(SimNetwork* network, Rank rank) : network_(network), rank_(rank) {}

  Rank rank() const override { return rank_; }
  int size() const override {
    return static_cast<int>(network_->ranks_.size());
  }
  std::string HostOf(Rank rank) const override {
    return absl::StrFormat("sim%d",
                           Index(rank) / network_->options_.ranks_per_host);
  }
  void Send(Rank to, const MessageTag& tag,
            std::span<const std::byte> body) override {
    HF_CHECK(Index(to) >= 0 && Index(to) < size(), "send to rank %d of %d",
             Index(to), size());
    HF_CHECK(body.size() <= ckpt::kMessageBytesMax, "a message of %d bytes",
             body.size());
    network_->Send(Index(rank_), Index(to), tag, body);
  }
  std::optional<Message> Poll() override {
    return network_->Poll(Index(rank_));
  }

 private:
  SimNetwork* network_;
  Rank rank_;
};

SimNetwork::SimNetwork(int ranks, ckpt::Clock& clock,
                       const SimNetworkOptions& options)
    : clock_(clock), options_(options), ranks_(static_cast<size_t>(ranks)) {
  HF_CHECK(ranks > 0 && options.ranks_per_host > 0, "a network of %d ranks",
           ranks);
  for (RankState& state : ranks_) state.inbox.resize(ranks_.size());
}

std::unique_ptr<ckpt::Group> SimNetwork::Open(Rank rank) {
  return std::make_unique<SimGroup>(this, rank);
}

uint64_t SimNetwork::Random() {
  constexpr uint64_t kStream = 0x6e6574;  // "net"
  return ckpt::Philox64(options_.seed, kStream, draws_++);
}

void SimNetwork::Send(int from, int to, const MessageTag& tag,
                      std::span<const std::byte> body) {
  if (!ranks_[from].alive || !ranks_[to].alive || cuts_.contains({from, to})) {
    ++lost_;
    return;
  }
  const int64_t spread_ns =
      absl::ToInt64Nanoseconds(options_.delay_max - options_.delay_min);
  absl::Duration delay = options_.delay_min;
  if (spread_ns > 0) {
    delay += absl::Nanoseconds(
        static_cast<int64_t>(Random() % static_cast<uint64_t>(spread_ns)));
  }
  constexpr uint64_t kMillion = 1'000'000;
  if (Random() % kMillion <
      static_cast<uint64_t>(options_.late_share * kMillion)) {
    delay += options_.late_delay;
    ++late_;
  }
  auto& queue = ranks_[to].inbox[from];
  absl::Duration due = clock_.Monotonic() + delay;
  if (!queue.empty()) due = std::max(due, queue.back().due);
  queue.push_back({Message{Rank{from}, tag, {body.begin(), body.end()}}, due});
}

std::optional<Message> SimNetwork::Poll(int rank) {
  RankState& state = ranks_[rank];
  if (!state.alive) return std::nullopt;
  const absl::Duration now = clock_.Monotonic();
  std::vector<size_t> ready;
  for (size_t from = 0; from < state.inbox.size(); ++from) {
    if (!state.inbox[from].empty() && state.inbox[from].front().due <= now) {
      ready.push_back(from);
    }
  }
  if (ready.empty()) return std::nullopt;
  auto& queue = state.inbox[ready[Random() % ready.size()]];
  std::optional<Message> message(std::move(queue.front().message));
  queue.pop_front();
  ++delivered_;
  return message;
}

void SimNetwork::Kill(Rank rank) {
  RankState& dead = ranks_[Index(rank)];
  if (!dead.alive) return;
  dead.alive = false;
  for (auto& queue : dead.inbox) {
    lost_ += static_cast<int64_t>(queue.size());
    queue.clear();
  }
  for (RankState& state : ranks_) {
    auto& queue = state.inbox[Index(rank)];
    if (queue.empty()) continue;
    const size_t kept = Random() % (queue.size() + 1);
    lost_ += static_cast<int64_t>(queue.size() - kept);
    queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(kept), queue.end());
  }
}

void SimNetwork::Cut(Rank from, Rank to) {
  cuts_.insert({Index(from), Index(to)});
}

void SimNetwork::Heal(Rank from, Rank to) {
  cuts_.erase({Index(from), Index(to)});
}

std::optional<absl::Duration> SimNetwork::NextArrival() const {
  std::optional<absl::Duration> next;
  for (const RankState& state : ranks_) {
    for (const auto& queue : state.inbox) {
      if (queue.empty()) continue;
      if (!next.has_value() || queue.front().due < *next) {
        next = queue.front().due;
      }
    }
  }
  return next;
}

}  // namespace holdfast::tests
