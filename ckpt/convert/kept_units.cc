// ckpt/convert/kept_units.cc: see kept_units.h.

#include "ckpt/convert/kept_units.h"

#include <algorithm>

namespace holdfast::ckpt {

void KeptUnits::DropIfUsedUp(Entries::iterator entry) {
  const Entry& kept = entry->second;
  if (kept.awaited > 0 || (!kept.bytes && !kept.given_up)) return;
  if (kept.left > 0 && !kept.given_up) return;
  bytes_ -= kept.size;
  entries_.erase(entry);
}

bool KeptUnits::MakeRoom(uint64_t bytes) {
  // The oldest go first, since calls go forward.
  for (size_t looked = order_.size(); looked > 0 && bytes_ + bytes > bytes_max_;
       --looked) {
    const Key key = order_.front();
    order_.pop_front();
    const auto found = entries_.find(key);
    if (found == entries_.end()) continue;
    if (!found->second.bytes || found->second.awaited > 0) {
      order_.push_back(key);
      continue;
    }
    bytes_ -= found->second.size;
    entries_.erase(found);
  }
  return bytes_ + bytes <= bytes_max_;
}

KeptUnits::Found KeptUnits::Find(const Key& key, uint64_t unit_bytes,
                                 uint64_t wants, uint64_t data_bytes,
                                 Bytes* bytes) {
  const std::lock_guard guard(lock_);
  const auto found = entries_.find(key);
  if (found != entries_.end() && !found->second.given_up) {
    Entry& entry = found->second;
    entry.left -= std::min(entry.left, wants);
    if (!entry.bytes) {
      ++entry.awaited;
      return Found::kComing;
    }
    *bytes = entry.bytes;
    DropIfUsedUp(found);
    return Found::kHere;
  }
  if (wants >= data_bytes || found != entries_.end() || !MakeRoom(unit_bytes)) {
    return Found::kNobody;
  }
  entries_[key] = {.bytes = nullptr,
                   .size = unit_bytes,
                   .left = data_bytes - wants,
                   .awaited = 0,
                   .given_up = false};
  bytes_ += unit_bytes;
  order_.push_back(key);
  if (order_.size() > 2 * entries_.size() + 64) {
    std::erase_if(order_,
                  [this](const Key& old) { return !entries_.contains(old); });
  }
  return Found::kMine;
}

void KeptUnits::Put(const Key& key, std::span<const std::byte> bytes) {
  auto copy = std::make_shared<const std::vector<std::byte>>(bytes.begin(),
                                                             bytes.end());
  const std::lock_guard guard(lock_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return;
  found->second.bytes = std::move(copy);
  DropIfUsedUp(found);
  changed_.notify_all();
}

void KeptUnits::GiveUp(const Key& key) {
  const std::lock_guard guard(lock_);
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.bytes) return;
  found->second.given_up = true;
  DropIfUsedUp(found);
  changed_.notify_all();
}

KeptUnits::Bytes KeptUnits::Await(const Key& key) {
  std::unique_lock guard(lock_);
  const auto found = entries_.find(key);
  changed_.wait(guard, [&found] {
    return found->second.bytes || found->second.given_up;
  });
  Bytes bytes = found->second.bytes;
  --found->second.awaited;
  DropIfUsedUp(found);
  return bytes;
}

}  // namespace holdfast::ckpt
