// trainer/parallel/inproc_hub.cc: see the header.

#include "trainer/parallel/inproc_hub.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::trainer {

InprocHub::InprocHub(int ranks) : active_(ranks) {
  HF_CHECK(ranks > 0, "a job of %d ranks", ranks);
  InprocMembers world{.id = 0, .name = "world", .world_ranks = {}};
  for (int r = 0; r < ranks; ++r) {
    waiters_.push_back(std::make_unique<Waiter>());
    world.world_ranks.push_back(r);
  }
  world_ = std::make_shared<const InprocMembers>(std::move(world));
}

void InprocHub::Post(Request* request) {
  Request* partner = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& queue = posted_[request->key];
    if (queue.empty() || queue.front()->is_send == request->is_send) {
      queue.push_back(request);
      return;
    }
    partner = queue.front();
    queue.pop_front();
    partner->state = State::kCopying;
    request->state = State::kCopying;
  }
  Request* const send = request->is_send ? request : partner;
  Request* const receive = request->is_send ? partner : request;
  absl::Status status;
  if (send->size == receive->size) {
    if (send->size > 0) std::memcpy(receive->target, send->source, send->size);
  } else {
    status = absl::InternalError(absl::StrFormat(
        "message from rank %d to rank %d (ranks of the world, tag %d): %d "
        "bytes sent, %d expected",
        send->owner, receive->owner, send->key.tag, send->size, receive->size));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  send->status = status;
  receive->status = status;
  Complete(send);
  Complete(receive);
}

void InprocHub::Complete(Request* request) {
  request->state = State::kDone;
  Waiter& waiter = *waiters_[request->owner];
  if (waiter.request == request) {
    waiter.request = nullptr;
    --blocked_;
    waiter.wake.notify_all();
  }
}

absl::Status InprocHub::WhyHopeless(const Request& request) const {
  if (!abort_.ok()) return abort_;
  const int peer = request.is_send ? request.key.to : request.key.from;
  if (left_.contains({request.key.communicator, peer})) {
    return absl::AbortedError(
        absl::StrFormat("rank %d waits for rank %d, which has left",
                        request.owner, request.peer));
  }
  return absl::OkStatus();
}

absl::Status InprocHub::Finish(Request* request, const std::string& operation) {
  std::unique_lock<std::mutex> lock(mutex_);
  Waiter& waiter = *waiters_[request->owner];
  while (request->state != State::kDone) {
    if (request->state == State::kPosted) {
      if (absl::Status why = WhyHopeless(*request); !why.ok()) {
        Remove(request);
        return why;
      }
    }
    waiter.request = request;
    waiter.operation = operation;
    ++blocked_;
    FailIfAllWait();
    // Whoever wakes this thread has cleared waiter.request and counted it out.
    waiter.wake.wait(lock, [&] { return waiter.request == nullptr; });
  }
  return request->status;
}

void InprocHub::Withdraw(Request* request) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (request->state == State::kPosted) {
    Remove(request);
    return;
  }
  Waiter& waiter = *waiters_[request->owner];
  while (request->state != State::kDone) {
    waiter.request = request;
    ++blocked_;
    waiter.wake.wait(lock, [&] { return waiter.request == nullptr; });
  }
}

void InprocHub::Remove(Request* request) {
  auto& queue = posted_[request->key];
  queue.erase(std::find(queue.begin(), queue.end(), request));
}

void InprocHub::Abort(const absl::Status& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  AbortLocked(why);
}

void InprocHub::AbortLocked(const absl::Status& why) {
  HF_CHECK(!why.ok(), "aborting a job without a reason");
  if (!abort_.ok()) return;
  abort_ = why;
  for (auto& waiter : waiters_) {
    if (waiter->request == nullptr) continue;
    waiter->request = nullptr;
    --blocked_;
    waiter->wake.notify_all();
  }
}

void InprocHub::FailIfAllWait() {
  if (blocked_ < active_ || !abort_.ok()) return;
  std::string who;
  for (size_t r = 0; r < waiters_.size(); ++r) {
    const Waiter& waiter = *waiters_[r];
    if (waiter.request == nullptr) continue;
    // This one is about to be woken, or is being copied for.
    if (waiter.request->state != State::kPosted) return;
    if (!WhyHopeless(*waiter.request).ok()) return;
    absl::StrAppend(
        &who, who.empty() ? "" : "; ",
        absl::StrFormat("rank %d in %s, to %s rank %d, tag %d", r,
                        waiter.operation,
                        waiter.request->is_send ? "send to" : "receive from",
                        waiter.request->peer, waiter.request->key.tag));
  }
  AbortLocked(absl::InternalError(
      absl::StrFormat("deadlock: every rank waits: %s", who)));
}

std::shared_ptr<const InprocMembers> InprocHub::FindOrCreate(
    int parent, int split, int color, const std::string& name,
    std::vector<int> world_ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto& members = splits_[{parent, split, color}];
  if (members == nullptr) {
    members = std::make_shared<const InprocMembers>(
        InprocMembers{communicators_++, name, std::move(world_ranks)});
  }
  return members;
}

void InprocHub::Leave(const InprocMembers& members, int rank) {
  const std::lock_guard<std::mutex> lock(mutex_);
  left_.insert({members.id, rank});
  if (members.id == 0) --active_;
  // Everyone looks again whether it waits for the one that left.
  for (auto& waiter : waiters_) {
    if (waiter->request == nullptr || WhyHopeless(*waiter->request).ok()) {
      continue;
    }
    waiter->request = nullptr;
    --blocked_;
    waiter->wake.notify_all();
  }
  if (active_ > 0) FailIfAllWait();
}

}  // namespace holdfast::trainer
