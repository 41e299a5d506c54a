// ckpt/c/gather.cc: see gather.h.

#include "ckpt/c/gather.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/c/guard.h"
#include "ckpt/format/wire.h"

namespace holdfast::ckpt {
namespace {

// Apart from those of ckpt/session/messages.h.
constexpr uint32_t kPhaseMine = 0x100;  // rank -> 0
constexpr uint32_t kPhaseAll = 0x101;   // parent -> child
constexpr uint32_t kPhaseHave = 0x102;  // child -> parent

constexpr int kFanOut = 4;
constexpr absl::Duration kNap = absl::Microseconds(200);
// The others wait a little longer, so that they hear from rank 0 who is
// missing.
constexpr absl::Duration kGrace = absl::Seconds(5);
// Ranks that a message names.
constexpr size_t kNamedMax = 8;

// Gives what was stashed first.
class StashedGroup final : public Group {
 public:
  StashedGroup(std::unique_ptr<Group> group, std::deque<Message> stash)
      : group_(std::move(group)), stash_(std::move(stash)) {}

  Rank rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string HostOf(Rank rank) const override { return group_->HostOf(rank); }
  void Send(Rank to, const MessageTag& tag,
            std::span<const std::byte> body) override {
    group_->Send(to, tag, body);
  }
  std::optional<Message> Poll() override {
    if (stash_.empty()) return group_->Poll();
    std::optional<Message> message(std::move(stash_.front()));
    stash_.pop_front();
    return message;
  }

 private:
  const std::unique_ptr<Group> group_;
  std::deque<Message> stash_;
};

class Gathering {
 public:
  Gathering(std::unique_ptr<Group> group, absl::Duration timeout, Clock& clock)
      : group_(std::move(group)),
        clock_(clock),
        timeout_(timeout),
        rank_(Index(group_->rank())),
        size_(group_->size()),
        deadline_(clock.Monotonic() + timeout +
                  (rank_ == 0 ? absl::ZeroDuration() : kGrace)) {}

  absl::StatusOr<Gathered> Run(std::span<const std::byte> mine) {
    std::vector<std::byte> all;
    std::vector<int> receivers;
    if (rank_ == 0) {
      all = Collect(mine, &receivers);
    } else {
      group_->Send(Rank{0}, {.phase = kPhaseMine}, mine);
      HF_ASSIGN_OR_RETURN(all, AwaitAll());
      if (!IsError(all)) receivers = Children();
    }
    // What comes of it is said after it has been passed on.
    const absl::Status passed = PassOn(all, std::move(receivers));
    HF_ASSIGN_OR_RETURN(std::vector<std::vector<std::byte>> bytes, Take(all));
    HF_RETURN_IF_ERROR(passed);
    return Gathered{
        std::move(bytes),
        std::make_unique<StashedGroup>(std::move(group_), std::move(stash_))};
  }

 private:
  using Received = std::vector<std::optional<std::vector<std::byte>>>;

  // The next message of the phase; others are stashed. nullopt: the deadline.
  std::optional<Message> Await(uint32_t phase) {
    while (true) {
      std::optional<Message> message = group_->Poll();
      if (!message.has_value()) {
        if (clock_.Monotonic() >= deadline_) return std::nullopt;
        clock_.Sleep(kNap);
      } else if (message->tag.phase == phase) {
        return message;
      } else {
        stash_.push_back(*std::move(message));
      }
    }
  }

  std::string Named(const std::vector<int>& ranks) const {
    std::vector<std::string> names;
    for (const int rank : ranks) {
      if (names.size() == kNamedMax) {
        names.push_back(absl::StrFormat("%d more", ranks.size() - kNamedMax));
        break;
      }
      names.push_back(
          absl::StrFormat("%d (%s)", rank, group_->HostOf(Rank{rank})));
    }
    return absl::StrJoin(names, ", ");
  }

  static std::vector<std::byte> Wrap(const absl::Status& status) {
    Writer out;
    out.Varint(static_cast<uint64_t>(status.code()));
    out.String(std::string(status.message()));
    return out.Take();
  }

  static bool IsError(std::span<const std::byte> all) {
    return Reader(all).Varint() != 0;
  }

  std::vector<int> Children() const {
    std::vector<int> children;
    for (int i = 1; i <= kFanOut; ++i) {
      const int64_t child = int64_t{rank_} * kFanOut + i;
      if (child < size_) children.push_back(static_cast<int>(child));
    }
    return children;
  }

  // Rank 0: the bytes of all, for its children; or why not, for everybody who
  // has come.
  std::vector<std::byte> Collect(std::span<const std::byte> mine,
                                 std::vector<int>* receivers) {
    Received got(size_);
    got[0].emplace(mine.begin(), mine.end());
    size_t total = mine.size();
    for (int count = 1; count < size_;) {
      std::optional<Message> message = Await(kPhaseMine);
      if (!message.has_value()) {
        *receivers = Others(got, /*came=*/true);
        return Wrap(Missing(got));
      }
      std::optional<std::vector<std::byte>>& place = got[Index(message->from)];
      if (place.has_value()) continue;
      total += message->body.size();
      place = std::move(message->body);
      ++count;
    }
    // Sizes and the like: 16 bytes a rank are ample.
    if (total + 16 * static_cast<size_t>(size_) > kMessageBytesMax) {
      *receivers = Others(got, /*came=*/true);
      return Wrap(absl::ResourceExhaustedError(absl::StrFormat(
          "opening the checkpointer: the %d ranks describe their buffers in %d "
          "bytes, at most %d are possible; declare fewer, larger buffers",
          size_, total, kMessageBytesMax)));
    }
    *receivers = Children();
    Writer out;
    out.Varint(0);
    out.String("");
    out.Varint(got.size());
    for (const auto& bytes : got) {
      out.Varint(bytes->size());
      out.Raw(bytes->data(), bytes->size());
    }
    return out.Take();
  }

  // But rank 0.
  static std::vector<int> Others(const Received& got, bool came) {
    std::vector<int> ranks;
    for (size_t r = 1; r < got.size(); ++r) {
      if (got[r].has_value() == came) ranks.push_back(static_cast<int>(r));
    }
    return ranks;
  }

  absl::Status Missing(const Received& got) const {
    const std::vector<int> missing = Others(got, /*came=*/false);
    return absl::DeadlineExceededError(absl::StrFormat(
        "opening the checkpointer: after %s %d of %d ranks have not come: %s",
        absl::FormatDuration(timeout_), missing.size(), size_, Named(missing)));
  }

  absl::StatusOr<std::vector<std::byte>> AwaitAll() {
    std::optional<Message> message = Await(kPhaseAll);
    if (message.has_value()) return std::move(message->body);
    return absl::DeadlineExceededError(absl::StrFormat(
        "opening the checkpointer: rank %d waited %s for what rank %s gathers",
        rank_, absl::FormatDuration(timeout_ + kGrace), Named({0})));
  }

  // Until they have it.
  absl::Status PassOn(std::span<const std::byte> all,
                      std::vector<int> waiting) {
    // Whoever was just in time does not leave the others without.
    deadline_ = std::max(deadline_, clock_.Monotonic() + kGrace);
    for (const int child : waiting) {
      group_->Send(Rank{child}, {.phase = kPhaseAll}, all);
    }
    while (!waiting.empty()) {
      const std::optional<Message> message = Await(kPhaseHave);
      if (!message.has_value()) {
        return absl::DeadlineExceededError(absl::StrFormat(
            "opening the checkpointer: no word that it has arrived from %s",
            Named(waiting)));
      }
      std::erase(waiting, Index(message->from));
    }
    if (rank_ != 0) {
      const Rank parent{IsError(all) ? 0 : (rank_ - 1) / kFanOut};
      group_->Send(parent, {.phase = kPhaseHave}, {});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::vector<std::byte>>> Take(
      std::span<const std::byte> all) const {
    Reader in(all);
    const absl::StatusCode code =
        CodeOf(static_cast<hf_ckpt_code>(in.Varint32()));
    const std::string text = in.String();
    if (in.ok() && code != absl::StatusCode::kOk) {
      return absl::Status(code, text);
    }
    std::vector<std::vector<std::byte>> bytes;
    const size_t count = in.Count(/*bytes_min=*/1);
    for (size_t r = 0; r < count && in.ok(); ++r) {
      bytes.emplace_back(in.Count(/*bytes_min=*/1));
      in.Raw(bytes.back().data(), bytes.back().size());
    }
    if (!in.ok() || in.left() != 0 ||
        bytes.size() != static_cast<size_t>(size_)) {
      return absl::DataLossError(
          "opening the checkpointer: what rank 0 has sent cannot be read");
    }
    return bytes;
  }

  std::unique_ptr<Group> group_;
  Clock& clock_;
  const absl::Duration timeout_;
  const int rank_;
  const int size_;
  absl::Duration deadline_;
  std::deque<Message> stash_;
};

}  // namespace

absl::StatusOr<Gathered> GatherAll(std::unique_ptr<Group> group,
                                   std::span<const std::byte> mine,
                                   absl::Duration timeout, Clock& clock) {
  if (mine.size() > kMessageBytesMax) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "opening the checkpointer: this rank describes its buffers in %d "
        "bytes; declare fewer, larger ones",
        mine.size()));
  }
  return Gathering(std::move(group), timeout, clock).Run(mine);
}

}  // namespace holdfast::ckpt
