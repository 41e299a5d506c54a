// ckpt/convert/convert_group.cc: see convert_group.h.

#include "ckpt/convert/convert_group.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/format/wire.h"

namespace holdfast::ckpt {
namespace {

constexpr uint32_t kOrder = 1;
constexpr uint32_t kAnswer = 2;
constexpr uint32_t kAlive = 3;
constexpr absl::Duration kAlivePeriod = absl::Seconds(1);
constexpr absl::Duration kSilenceMax = absl::Minutes(2);
constexpr absl::Duration kRefusalWait = absl::Seconds(10);
constexpr absl::Duration kNap = absl::Milliseconds(5);

MessageTag TagOf(uint32_t phase) { return {0, 0, phase}; }

void PutStatus(Writer& writer, const absl::Status& status) {
  writer.Varint(static_cast<uint64_t>(status.code()));
  writer.String(std::string(status.message()));
}

absl::Status TakeStatus(Reader& reader) {
  const auto code = static_cast<absl::StatusCode>(reader.Varint());
  const std::string message = reader.String();
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  return absl::Status(code, message);
}

void PutRounds(Writer& writer, const std::vector<uint32_t>& rounds) {
  writer.Varint(rounds.size());
  for (const uint32_t round : rounds) writer.Varint(round);
}

std::vector<uint32_t> TakeRounds(Reader& reader) {
  std::vector<uint32_t> rounds(reader.Count(1));
  for (uint32_t& round : rounds) round = reader.Varint32();
  return rounds;
}

}  // namespace

ConvertGroup::ConvertGroup(Group* group, Clock& clock)
    : group_(group),
      clock_(clock),
      heard_at_(size(), clock.Monotonic()),
      bytes_(size()) {}

std::vector<uint32_t> ConvertGroup::Share(
    const std::vector<uint32_t>& rounds) const {
  std::vector<uint32_t> share;
  for (size_t i = rank(); i < rounds.size(); i += size()) {
    share.push_back(rounds[i]);
  }
  return share;
}

void ConvertGroup::Poll() {
  if (group_ == nullptr) return;
  while (auto message = group_->Poll()) {
    const int from = Index(message->from);
    heard_at_[from] = clock_.Monotonic();
    Reader reader(message->body);
    switch (message->tag.phase) {
      case kAlive:
        bytes_[from] = reader.Varint();
        leader_works_ |= from == 0;
        break;
      case kAnswer: {
        absl::Status status = TakeStatus(reader);
        if (!reader.ok()) status = absl::InternalError("a malformed answer");
        must_stop_ |= !status.ok();
        answers_[from] = std::move(status);
        break;
      }
      case kOrder: {
        Told told;
        told.order = static_cast<Order>(reader.Fixed<uint8_t>());
        told.status = TakeStatus(reader);
        told.record.resize(reader.Count(1));
        reader.Raw(told.record.data(), told.record.size());
        told.rounds = TakeRounds(reader);
        must_stop_ |= told.order == Order::kEnd || !reader.ok();
        told_ = std::move(told);
        break;
      }
      default:
        break;
    }
  }
}

void ConvertGroup::Tick(uint64_t bytes_done) {
  if (group_ == nullptr) return;
  Poll();
  const absl::Duration now = clock_.Monotonic();
  if (now - told_at_ < kAlivePeriod) return;
  told_at_ = now;
  Writer writer;
  writer.Varint(bytes_done);
  for (int to = 0; to < size(); ++to) {
    if (to != rank() && (leads() || to == 0)) {
      group_->Send(Rank{to}, TagOf(kAlive), writer.bytes());
    }
  }
}

uint64_t ConvertGroup::bytes_of_others() const {
  return std::accumulate(bytes_.begin(), bytes_.end(), uint64_t{0});
}

absl::Status ConvertGroup::Silent() const {
  const absl::Duration now = clock_.Monotonic();
  for (int other = 0; other < size(); ++other) {
    const bool counts = leads() ? !answers_.contains(other) : other == 0;
    if (other == rank() || !counts) continue;
    if (now - heard_at_[other] < kSilenceMax) continue;
    return absl::DeadlineExceededError(absl::StrFormat(
        "nothing was heard of rank %d on %s for %s", other,
        group_->HostOf(Rank{other}), absl::FormatDuration(kSilenceMax)));
  }
  return absl::OkStatus();
}

void ConvertGroup::Tell(const Told& told) {
  if (group_ == nullptr) return;
  answers_.clear();
  Writer writer;
  writer.Fixed(static_cast<uint8_t>(told.order));
  PutStatus(writer, told.status);
  writer.Varint(told.record.size());
  writer.Raw(told.record.data(), told.record.size());
  PutRounds(writer, told.rounds);
  for (int to = 1; to < size(); ++to) {
    group_->Send(Rank{to}, TagOf(kOrder), writer.bytes());
  }
}

absl::Status ConvertGroup::Gather(const std::function<void()>& tick,
                                  const std::atomic<bool>& stop) {
  while (static_cast<int>(answers_.size()) < size() - 1) {
    tick();
    const absl::Status silent = Silent();
    if (!silent.ok()) return silent;
    if (const absl::Status failed = FirstError(); !failed.ok()) return failed;
    if (stop) return absl::CancelledError("stopped");
    clock_.Sleep(kNap);
  }
  return FirstError();
}

absl::Status ConvertGroup::FirstError() const {
  absl::Status first;
  for (const auto& [from, status] : answers_) {
    if (status.ok() || !(first.ok() || absl::IsCancelled(first))) continue;
    first = absl::Status(
        status.code(),
        absl::StrFormat("rank %d on %s: %s", from, group_->HostOf(Rank{from}),
                        std::string(status.message())));
  }
  return first;
}

bool ConvertGroup::Refuse(const absl::Status& why) {
  Told told;
  told.order = Order::kEnd;
  told.status = why;
  Tell(told);
  const absl::Duration until = clock_.Monotonic() + kRefusalWait;
  while (static_cast<int>(answers_.size()) < size() - 1) {
    Poll();
    if (clock_.Monotonic() > until) return false;
    clock_.Sleep(kNap);
  }
  return true;
}

bool ConvertGroup::AwaitRefusal() {
  const absl::Duration until = clock_.Monotonic() + kRefusalWait;
  while (!told_.has_value() && !leader_works_) {
    Poll();
    if (clock_.Monotonic() > until) return false;
    clock_.Sleep(kNap);
  }
  if (!told_.has_value() || told_->order != Order::kEnd) return false;
  Answer(absl::OkStatus());
  // On its way as long as somebody polls.
  Poll();
  return !told_->status.ok();
}

absl::StatusOr<ConvertGroup::Told> ConvertGroup::Await(
    const std::function<void()>& tick) {
  while (!told_.has_value()) {
    tick();
    const absl::Status silent = Silent();
    if (!silent.ok()) return silent;
    clock_.Sleep(kNap);
  }
  Told told = *std::move(told_);
  told_.reset();
  return told;
}

void ConvertGroup::Answer(const absl::Status& status) {
  Writer writer;
  PutStatus(writer, status);
  group_->Send(Rank{0}, TagOf(kAnswer), writer.bytes());
}

}  // namespace holdfast::ckpt
