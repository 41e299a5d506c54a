// trainer/fault/heartbeat.cc: the sequence lock behind Heartbeat.
//
// TSan does not understand fences, so every field is an atomic of its own and
// the version is checked with acquire loads on both sides of the reads.

#include "trainer/fault/heartbeat.h"

#include <algorithm>
#include <cstring>

namespace holdfast::trainer {
namespace {

using Name = std::array<uint64_t, Heartbeat::kNameBytesMax / 8>;

Name Pack(std::string_view operation) {
  Name name{};
  std::memcpy(name.data(), operation.data(),
              std::min(operation.size(), Heartbeat::kNameBytesMax));
  return name;
}

}  // namespace

int64_t Heartbeat::NowNs() const {
  return absl::ToInt64Nanoseconds(clock_->Monotonic());
}

void Heartbeat::Publish(const Name& name, int64_t since_ns,
                        int64_t expires_ns) {
  // Sequentially consistent stores keep the odd version before the fields and
  // the even one after them.
  const uint32_t version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1);
  for (size_t i = 0; i < name.size(); ++i) name_[i].store(name[i]);
  since_ns_.store(since_ns);
  expires_ns_.store(expires_ns);
  version_.store(version + 2);
}

Heartbeat::Reading Heartbeat::Read() const {
  while (true) {
    const uint32_t before = version_.load();
    if (before % 2 != 0) continue;
    Name name;
    for (size_t i = 0; i < name.size(); ++i) name[i] = name_[i].load();
    const int64_t since_ns = since_ns_.load();
    const int64_t expires_ns = expires_ns_.load();
    if (version_.load() != before) continue;

    Reading reading;
    const char* text = reinterpret_cast<const char*>(name.data());
    reading.operation = std::string(text, strnlen(text, kNameBytesMax));
    const int64_t now_ns = NowNs();
    reading.running = absl::Nanoseconds(now_ns - since_ns);
    reading.has_deadline = expires_ns != kNever;
    reading.remaining = reading.has_deadline
                            ? absl::Nanoseconds(expires_ns - now_ns)
                            : absl::InfiniteDuration();
    reading.waiting_for = waiting_for_.load(std::memory_order_relaxed);
    return reading;
  }
}

Heartbeat::Scope::Scope(Heartbeat* heartbeat, std::string_view operation)
    : heartbeat_(heartbeat) {
  if (heartbeat_ == nullptr) return;
  for (size_t i = 0; i < outer_name_.size(); ++i) {
    outer_name_[i] = heartbeat_->name_[i].load(std::memory_order_relaxed);
  }
  outer_since_ns_ = heartbeat_->since_ns_.load(std::memory_order_relaxed);
  outer_expires_ns_ = heartbeat_->expires_ns_.load(std::memory_order_relaxed);
  began_ns_ = heartbeat_->NowNs();
  heartbeat_->Publish(Pack(operation), began_ns_, outer_expires_ns_);
}

Heartbeat::Scope::Scope(Heartbeat* heartbeat, std::string_view operation,
                        absl::Duration timeout)
    : Scope(heartbeat, operation) {
  if (heartbeat_ == nullptr) return;
  own_timeout_ = true;
  const int64_t timeout_ns = absl::ToInt64Nanoseconds(timeout);
  heartbeat_->Publish(
      Pack(operation), began_ns_,
      timeout_ns > kNever - began_ns_ ? kNever : began_ns_ + timeout_ns);
}

Heartbeat::Scope::~Scope() {
  if (heartbeat_ == nullptr) return;
  int64_t expires_ns = outer_expires_ns_;
  if (own_timeout_ && expires_ns != kNever) {
    expires_ns += heartbeat_->NowNs() - began_ns_;
  }
  heartbeat_->Publish(outer_name_, outer_since_ns_, expires_ns);
}

}  // namespace holdfast::trainer
