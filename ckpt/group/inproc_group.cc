// ckpt/group/inproc_group.cc: mailboxes in memory.

#include "ckpt/group/inproc_group.h"

#include <unistd.h>

#include <deque>
#include <mutex>
#include <utility>

#include "ckpt/base/check.h"

namespace holdfast::ckpt {
namespace {

struct Mailbox {
  std::mutex mutex;
  bool open = true;
  std::deque<Message> messages;
};

using Mailboxes = std::vector<std::unique_ptr<Mailbox>>;

class InprocGroup final : public Group {
 public:
  InprocGroup(std::shared_ptr<Mailboxes> boxes, Rank rank)
      : boxes_(std::move(boxes)), rank_(rank) {
    char name[256] = "";
    if (gethostname(name, sizeof(name) - 1) == 0) host_ = name;
    if (host_.empty()) host_ = "localhost";
  }

  ~InprocGroup() override {
    Mailbox& box = BoxOf(rank_);
    const std::lock_guard<std::mutex> lock(box.mutex);
    box.open = false;
    box.messages.clear();
  }

  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(boxes_->size()); }
  std::string HostOf(Rank) const override { return host_; }

  void Send(Rank to, const MessageTag& tag,
            std::span<const std::byte> body) override {
    HF_CHECK(Index(to) >= 0 && Index(to) < size(), "send to rank %d of %d",
             Index(to), size());
    HF_CHECK(body.size() <= kMessageBytesMax, "a message of %d bytes",
             body.size());
    Message message{rank_, tag, {body.begin(), body.end()}};
    Mailbox& box = BoxOf(to);
    const std::lock_guard<std::mutex> lock(box.mutex);
    if (box.open) box.messages.push_back(std::move(message));
  }

  std::optional<Message> Poll() override {
    Mailbox& box = BoxOf(rank_);
    const std::lock_guard<std::mutex> lock(box.mutex);
    if (box.messages.empty()) return std::nullopt;
    std::optional<Message> message(std::move(box.messages.front()));
    box.messages.pop_front();
    return message;
  }

 private:
  Mailbox& BoxOf(Rank rank) { return *(*boxes_)[Index(rank)]; }

  std::shared_ptr<Mailboxes> boxes_;
  Rank rank_;
  std::string host_;
};

}  // namespace

std::vector<std::unique_ptr<Group>> MakeInprocGroups(int ranks) {
  HF_CHECK(ranks > 0, "a group of %d ranks", ranks);
  auto boxes = std::make_shared<Mailboxes>();
  for (int r = 0; r < ranks; ++r) boxes->push_back(std::make_unique<Mailbox>());
  std::vector<std::unique_ptr<Group>> groups;
  for (int r = 0; r < ranks; ++r) {
    groups.push_back(std::make_unique<InprocGroup>(boxes, Rank{r}));
  }
  return groups;
}

}  // namespace holdfast::ckpt
