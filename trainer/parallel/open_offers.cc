// trainer/parallel/open_offers.cc: see the header.

#include "trainer/parallel/open_offers.h"

#include "ckpt/base/check.h"

namespace holdfast::trainer {

using kernels::Event;

OpenOffers& OpenOffers::OfThisProcess() {
  static OpenOffers offers;
  return offers;
}

OpenOffers::Id OpenOffers::Open(const Offer& offer) {
  const std::lock_guard<std::mutex> hold(lock_);
  entries_[next_].offer = offer;
  return next_++;
}

std::optional<OpenOffers::Offer> OpenOffers::Take(Id id) {
  const std::lock_guard<std::mutex> hold(lock_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return std::nullopt;
  HF_CHECK(!found->second.in_use, "offer %d is taken twice", id);
  found->second.in_use = true;
  return found->second.offer;
}

void OpenOffers::Taken(Id id, Event copied) {
  {
    const std::lock_guard<std::mutex> hold(lock_);
    Entry& entry = entries_.at(id);
    entry.in_use = false;
    entry.copied = copied;
  }
  taken_.notify_all();
}

Event OpenOffers::Close(Id id) {
  std::unique_lock<std::mutex> hold(lock_);
  const auto open = [&] {
    const auto found = entries_.find(id);
    HF_CHECK(found != entries_.end(), "offer %d is closed twice", id);
    return found;
  };
  taken_.wait(hold, [&] { return !open()->second.in_use; });
  const auto found = open();
  const Event copied = found->second.copied;
  entries_.erase(found);
  return copied;
}

}  // namespace holdfast::trainer
