// tests/support/start_world.cc: see start_world.h.

#include "tests/support/start_world.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::tests {
namespace {

// A storage may draw not to answer; so many empty rounds mean that all wait.
constexpr int kIdleRounds = 20;

SimNetworkOptions Seeded(SimNetworkOptions options, uint64_t seed) {
  options.seed = seed;
  return options;
}

}  // namespace

StartWorld::StartWorld(SimDisk& disk, const ckpt::JobLayout& layout,
                       Options options)
    : layout_(layout),
      network_(layout.world(), clock_, Seeded(options.network, options.seed)),
      random_(options.seed, /*stream=*/77) {
  for (int r = 0; r < layout.world(); ++r) {
    auto rank = std::make_unique<RankState>();
    SimStorageOptions storage;
    storage.process = options.first_process + r;
    storage.clock = &clock_;
    rank->storage = std::make_unique<SimStorage>(disk, storage);
    rank->group = network_.Open(ckpt::Rank{r});
    rank->holding = layout.WantedBy(ckpt::Rank{r});
    rank->memory = std::make_unique<JobMemory>(rank->holding);
    rank->target = std::make_unique<ckpt::LoadTarget>(rank->memory->spans());
    ckpt::SessionEnv env;
    env.storage = rank->storage.get();
    if (options.wrap) {
      rank->wrapped = options.wrap(r, *rank->storage);
      if (rank->wrapped) env.storage = rank->wrapped.get();
    }
    env.group = rank->group.get();
    env.clock = &clock_;
    env.space = 1;
    env.ops_max = 8;
    ckpt::OwnerOptions owner = options.owner;
    owner.run_id_if_new = kTestRun;
    owner.nonce = options.seed << 16 | (options.first_process + 1);
    owner.reader.read_bytes_max = size_t{1} << 20;
    owner.reader.reads_in_flight = 2;
    // The units are small; some are read straight into place all the same.
    owner.reader.placed_in_flight = 2;
    owner.reader.placed_bytes_min = ckpt::kStorageAlignment;
    if (options.init) {
      rank->init = options.init(r);
      ckpt::SessionEnv init_env = env;
      init_env.storage = rank->init.get();
      init_env.space = 2;
      owner.init_env = init_env;
      owner.init_dir = options.init_dir;
    }
    if (options.tweak) options.tweak(r, owner);
    rank->session = std::make_unique<ckpt::OwnerSession>(
        env, &layout, rank->target.get(), std::move(owner));
    ranks_.push_back(std::move(rank));
  }
}

size_t StartWorld::Deliver(ckpt::Storage& storage,
                           ckpt::OwnerSession& session) {
  std::array<ckpt::Completion, 4> answers;
  const size_t count = storage.Poll(answers);
  for (size_t i = 0; i < count; ++i) session.OnCompletion(answers[i]);
  return count;
}

bool StartWorld::Poll() {
  std::vector<int> order;
  for (int r = 0; r < world(); ++r) {
    if (dead(r)) {
      network_.Kill(ckpt::Rank{r});
    } else if (!done(r)) {
      order.push_back(r);
    }
  }
  if (order.empty()) return false;
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random_.Below(i)]);
  }
  bool moved = false;
  for (const int r : order) {
    RankState& rank = *ranks_[r];
    size_t count =
        Deliver(rank.wrapped ? *rank.wrapped : *rank.storage, *rank.session);
    if (rank.init) count += Deliver(*rank.init, *rank.session);
    const auto message = rank.group->Poll();
    if (message) rank.session->OnMessage(*message);
    rank.session->Poll();
    moved |= count > 0 || message.has_value();
  }
  idle_ = moved ? 0 : idle_ + 1;
  if (idle_ >= kIdleRounds) clock_.Sleep(absl::Milliseconds(5) * idle_);
  return true;
}

void StartWorld::Run() {
  while (Poll()) {
    HF_CHECK(clock_.Monotonic() < absl::Hours(24), "a start never ends");
  }
}

std::string StartWorld::LoadedBy(uint64_t seed) const {
  for (int r = 0; r < world(); ++r) {
    if (!done(r)) return absl::StrFormat("rank %d is not done", r);
    const ckpt::OwnerResult& found = result(r);
    if (!found.status.ok()) {
      return absl::StrFormat("rank %d: %s", r, found.status.ToString());
    }
    if (!found.loaded) return absl::StrFormat("rank %d started fresh", r);
    if (found.loaded->id != result(0).loaded->id ||
        found.incarnation != result(0).incarnation ||
        found.run_id != result(0).run_id) {
      return absl::StrFormat("rank %d loaded %s in i%04d, rank 0 %s in i%04d",
                             r, ToString(found.loaded->id), found.incarnation,
                             ToString(result(0).loaded->id),
                             result(0).incarnation);
    }
    const std::string wrong =
        ranks_[r]->memory->Differs(layout_, ranks_[r]->holding, seed);
    if (!wrong.empty()) return absl::StrFormat("rank %d: %s", r, wrong);
  }
  return "";
}

}  // namespace holdfast::tests
