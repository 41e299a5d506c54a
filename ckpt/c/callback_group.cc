// ckpt/c/callback_group.cc: see callback_group.h.

#include "ckpt/c/callback_group.h"

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"

namespace holdfast::ckpt {
namespace {

class CallbackGroup final : public Group {
 public:
  explicit CallbackGroup(const hf_ckpt_transport& transport)
      : transport_(transport) {}
  ~CallbackGroup() override {
    if (transport_.close != nullptr) transport_.close(transport_.user);
  }

  Rank rank() const override { return Rank{transport_.rank}; }
  int size() const override { return transport_.size; }

  std::string HostOf(Rank rank) const override {
    if (transport_.host != nullptr) {
      const char* const host = transport_.host(transport_.user, Index(rank));
      if (host != nullptr && host[0] != '\0') return host;
    }
    return "a host without a name";
  }

  void Send(Rank to, const MessageTag& tag,
            std::span<const std::byte> body) override {
    HF_CHECK(Index(to) >= 0 && Index(to) < size(), "send to rank %d of %d",
             Index(to), size());
    HF_CHECK(body.size() <= kMessageBytesMax, "a message of %d bytes",
             body.size());
    frame_.resize(sizeof(tag) + body.size());
    std::memcpy(frame_.data(), &tag, sizeof(tag));
    if (!body.empty()) {
      std::memcpy(frame_.data() + sizeof(tag), body.data(), body.size());
    }
    transport_.send(transport_.user, Index(to), frame_.data(), frame_.size());
    if (frame_.size() > kFrameKept) frame_ = {};
  }

  std::optional<Message> Poll() override {
    int32_t from = -1;
    const void* bytes = nullptr;
    uint64_t size_got = 0;
    if (transport_.poll(transport_.user, &from, &bytes, &size_got) != 1) {
      return std::nullopt;
    }
    Message message;
    if (bytes == nullptr || from < 0 || from >= size() ||
        size_got < sizeof(message.tag) ||
        size_got - sizeof(message.tag) > kMessageBytesMax) {
      HF_LOG_WARNING("checkpoint group: %d bytes from rank %d are no message",
                     size_got, from);
      return std::nullopt;
    }
    message.from = Rank{from};
    std::memcpy(&message.tag, bytes, sizeof(message.tag));
    const auto* const body =
        static_cast<const std::byte*>(bytes) + sizeof(message.tag);
    message.body.assign(body, body + (size_got - sizeof(message.tag)));
    return message;
  }

 private:
  // A manifest is rare and large; its buffer is not kept.
  static constexpr size_t kFrameKept = size_t{64} << 10;

  const hf_ckpt_transport transport_;
  std::vector<std::byte> frame_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> MakeCallbackGroup(
    const hf_ckpt_transport& transport) {
  if (transport.size < 1 || transport.rank < 0 ||
      transport.rank >= transport.size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("hf_ckpt_group_transport: rank %d of %d",
                        transport.rank, transport.size));
  }
  if (transport.send == nullptr || transport.poll == nullptr) {
    return absl::InvalidArgumentError(
        "hf_ckpt_group_transport: send or poll is null");
  }
  return std::make_unique<CallbackGroup>(transport);
}

}  // namespace holdfast::ckpt
