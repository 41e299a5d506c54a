// trainer/parallel/inproc_collectives.cc: MessageCollectives over InprocHub.

#include "trainer/parallel/inproc_collectives.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/start_thread.h"
#include "ckpt/base/status_macros.h"
#include "trainer/parallel/inproc_hub.h"
#include "trainer/parallel/message_collectives.h"

namespace holdfast::trainer {
namespace {

class InprocCollectives final : public MessageCollectives {
 public:
  InprocCollectives(std::shared_ptr<InprocHub> hub,
                    std::shared_ptr<const InprocMembers> members, int rank,
                    Heartbeat* heartbeat)
      : MessageCollectives(rank, static_cast<int>(members->world_ranks.size()),
                           members->name, heartbeat),
        hub_(std::move(hub)),
        members_(std::move(members)) {}

  ~InprocCollectives() override {
    for (const auto& request : requests_) {
      if (request != nullptr && request->owner >= 0) {
        hub_->Withdraw(request.get());
      }
    }
    hub_->Leave(*members_, rank());
  }

  absl::StatusOr<std::unique_ptr<Collectives>> Split(
      int color, int key, const std::string& name) override {
    HF_CHECK(color >= 0, "split of %s by color %d", members_->name, color);
    std::vector<int64_t> all(2 * static_cast<size_t>(size()));
    std::vector<int64_t> first(size());
    const std::vector<int64_t> count(size(), 2 * sizeof(int64_t));
    for (int r = 0; r < size(); ++r) first[r] = r * count[0];
    all[2 * rank()] = color;
    all[2 * rank() + 1] = key;
    HF_RETURN_IF_ERROR(
        AllGatherV(Bytes(std::span<int64_t>(all)), first, count));

    std::vector<std::pair<int64_t, int>> chosen;  // (key, rank here)
    for (int r = 0; r < size(); ++r) {
      if (all[2 * r] == color) chosen.emplace_back(all[2 * r + 1], r);
    }
    std::sort(chosen.begin(), chosen.end());
    std::vector<int> world_ranks;
    int mine = -1;
    for (const auto& [unused_key, r] : chosen) {
      if (r == rank()) mine = static_cast<int>(world_ranks.size());
      world_ranks.push_back(members_->world_ranks[r]);
    }
    auto members = hub_->FindOrCreate(members_->id, splits_++, color, name,
                                      std::move(world_ranks));
    return std::make_unique<InprocCollectives>(hub_, std::move(members), mine,
                                               heartbeat());
  }

  void Abandon(RequestId id) override {
    const size_t slot = static_cast<size_t>(id);
    HF_CHECK(slot < requests_.size() && requests_[slot]->owner >= 0,
             "request %d is not under way in %s", slot, members_->name);
    hub_->Withdraw(requests_[slot].get());
    Release(slot);
  }

 protected:
  absl::StatusOr<RequestId> StartSend(std::span<const std::byte> data, int to,
                                      Channel channel, int tag) override {
    const size_t slot = TakeSlot();
    InprocHub::Request& request = *requests_[slot];
    request.is_send = true;
    request.source = data.data();
    request.size = data.size();
    request.key = {members_->id, rank(), to, static_cast<int>(channel), tag};
    request.peer = members_->world_ranks[to];
    hub_->Post(&request);
    return static_cast<RequestId>(slot);
  }

  absl::StatusOr<RequestId> StartReceive(std::span<std::byte> data, int from,
                                         Channel channel, int tag) override {
    const size_t slot = TakeSlot();
    InprocHub::Request& request = *requests_[slot];
    request.target = data.data();
    request.size = data.size();
    request.key = {members_->id, from, rank(), static_cast<int>(channel), tag};
    request.peer = members_->world_ranks[from];
    hub_->Post(&request);
    return static_cast<RequestId>(slot);
  }

  absl::Status Finish(RequestId id) override {
    const size_t slot = static_cast<size_t>(id);
    HF_CHECK(slot < requests_.size() && requests_[slot]->owner >= 0,
             "request %d is not under way in %s", slot, members_->name);
    InprocHub::Request& request = *requests_[slot];
    if (heartbeat() != nullptr) heartbeat()->SetWaitingFor(request.peer);
    absl::Status status = hub_->Finish(&request, operation());
    if (heartbeat() != nullptr) {
      heartbeat()->SetWaitingFor(Heartbeat::kNobody);
    }
    Release(slot);
    return status;
  }

 private:
  void Release(size_t slot) {
    requests_[slot]->owner = -1;
    free_.push_back(slot);
  }

  // Slots keep their address; one with owner -1 is free.
  size_t TakeSlot() {
    if (free_.empty()) {
      free_.push_back(requests_.size());
      requests_.push_back(std::make_unique<InprocHub::Request>());
    }
    const size_t slot = free_.back();
    free_.pop_back();
    *requests_[slot] = InprocHub::Request{};
    requests_[slot]->owner = members_->world_ranks[rank()];
    return slot;
  }

  std::shared_ptr<InprocHub> hub_;
  std::shared_ptr<const InprocMembers> members_;
  std::vector<std::unique_ptr<InprocHub::Request>> requests_;
  std::vector<size_t> free_;
  int splits_ = 0;
};

}  // namespace

InprocWorld::InprocWorld(int ranks)
    : hub_(std::make_shared<InprocHub>(ranks)) {}

int InprocWorld::size() const { return hub_->size(); }

std::unique_ptr<Collectives> InprocWorld::Join(int rank, Heartbeat* heartbeat) {
  return std::make_unique<InprocCollectives>(hub_, hub_->World(), rank,
                                             heartbeat);
}

void InprocWorld::Abort(const absl::Status& why) { hub_->Abort(why); }

absl::Status RunInprocRanks(
    int ranks, const std::function<absl::Status(Collectives& world)>& body) {
  InprocWorld world(ranks);
  std::mutex mutex;
  absl::Status first_error;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    absl::StatusOr<std::thread> started =
        ckpt::StartThread(absl::StrFormat("rank %d", r), [&, r] {
          const std::unique_ptr<Collectives> mine = world.Join(r);
          const absl::Status status = body(*mine);
          if (status.ok()) return;
          {
            const std::lock_guard<std::mutex> lock(mutex);
            // A peer may notice that this rank is gone before this rank gets
            // here. Its kAborted is a consequence, never the cause.
            if (first_error.ok() ||
                (absl::IsAborted(first_error) && !absl::IsAborted(status))) {
              first_error = status;
            }
          }
          world.Abort(absl::AbortedError(
              absl::StrFormat("rank %d gave up: %s", r, status.ToString())));
        });
    if (!started.ok()) {
      // Those that run already wait for it in vain.
      const std::lock_guard<std::mutex> lock(mutex);
      first_error = started.status();
      world.Abort(absl::AbortedError(first_error.message()));
      break;
    }
    threads.push_back(*std::move(started));
  }
  for (std::thread& thread : threads) thread.join();
  return first_error;
}

}  // namespace holdfast::trainer
