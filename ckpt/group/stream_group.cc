// ckpt/group/stream_group.cc: see stream_group.h.

#include "ckpt/group/stream_group.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"

namespace holdfast::ckpt {
namespace {

constexpr uint32_t kMagic = 0x31474648;  // "HFG1"
// What one connection may deliver in one Poll, so that no peer holds the
// caller.
constexpr size_t kReadBytes = size_t{256} << 10;
// The destructor gives sends this long to leave, in steps of one millisecond.
constexpr int kFarewellMs = 1000;
// Connections that have not said who they are, besides one for each rank; when
// there are more, the oldest go. Ranks say it with their first bytes, and all
// of them may connect at once.
constexpr size_t kStrangersMax = 256;

// Says who is sending; the first bytes of a connection, the secret after them.
struct Hello {
  uint32_t magic = kMagic;
  uint32_t rank = 0;
};

// Before each body.
struct FrameHeader {
  MessageTag tag;
  uint32_t bytes = 0;
};
static_assert(kMessageBytesMax <= UINT32_MAX);

// In a time that does not tell where they differ.
bool SameBytes(const std::byte* a, const std::string& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference |= static_cast<unsigned>(a[i]) ^ static_cast<uint8_t>(b[i]);
  }
  return difference == 0;
}

class StreamGroup final : public Group {
 public:
  StreamGroup(int rank, int size, std::string secret, int listener,
              std::unique_ptr<StreamEndpoints> endpoints)
      : rank_(rank),
        secret_(std::move(secret)),
        out_(size),
        listener_(listener),
        endpoints_(std::move(endpoints)) {}

  ~StreamGroup() override {
    for (int ms = 0; ms < kFarewellMs; ++ms) {
      Advance();
      const bool empty = std::all_of(
          out_.begin(), out_.end(),
          [](const Out& out) { return out.fd < 0 || out.frames.empty(); });
      if (empty) break;
      usleep(1000);
    }
    for (const Out& out : out_) {
      if (out.fd >= 0) close(out.fd);
    }
    for (const In& in : in_) close(in.fd);
    close(listener_);
  }

  Rank rank() const override { return Rank{rank_}; }
  int size() const override { return static_cast<int>(out_.size()); }
  std::string HostOf(Rank rank) const override {
    return endpoints_->HostOf(Index(rank));
  }

  void Send(Rank to, const MessageTag& tag,
            std::span<const std::byte> body) override {
    HF_CHECK(Index(to) >= 0 && Index(to) < size(), "send to rank %d of %d",
             Index(to), size());
    HF_CHECK(body.size() <= kMessageBytesMax, "a message of %d bytes",
             body.size());
    if (Index(to) == rank_) {
      ready_.push_back({to, tag, {body.begin(), body.end()}});
      return;
    }
    Out& out = out_[Index(to)];
    if (out.gone) return;
    const FrameHeader header{tag, static_cast<uint32_t>(body.size())};
    std::vector<std::byte>& frame = out.frames.emplace_back();
    frame.resize(sizeof(header) + body.size());
    std::memcpy(frame.data(), &header, sizeof(header));
    if (!body.empty()) {
      std::memcpy(frame.data() + sizeof(header), body.data(), body.size());
    }
    Advance(Index(to));
  }

  std::optional<Message> Poll() override {
    Advance();
    if (ready_.empty()) Receive();
    if (ready_.empty()) return std::nullopt;
    std::optional<Message> message(std::move(ready_.front()));
    ready_.pop_front();
    return message;
  }

 private:
  struct Out {
    int fd = -1;
    bool gone = false;  // it was there, and is not any more
    size_t sent = 0;    // of the first frame
    std::deque<std::vector<std::byte>> frames = {};
  };
  struct In {
    int fd = -1;
    bool greeted = false;
    Rank peer{};
    std::vector<std::byte> bytes = {};  // received, not yet a whole frame
  };

  void Advance() {
    for (int r = 0; r < size(); ++r) Advance(r);
  }

  void Advance(int to) {
    Out& out = out_[to];
    if (out.frames.empty()) return;
    if (out.fd < 0 && !Connect(to)) return;
    while (!out.frames.empty()) {
      const std::vector<std::byte>& frame = out.frames.front();
      const ssize_t moved =
          send(out.fd, frame.data() + out.sent, frame.size() - out.sent,
               MSG_NOSIGNAL | MSG_DONTWAIT);
      if (moved < 0) {
        const int error = errno;
        if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) return;
        // To the caller the same as silence: the deadline finds out.
        HF_LOG_WARNING(
            "checkpoint group: rank %d at %s is gone: %s; nothing more is sent "
            "to it. Look at its log and at the network in between; saves fail "
            "until the job is started again",
            to, endpoints_->PlaceOf(to),
            std::generic_category().message(error));
        close(out.fd);
        out = {.gone = true};
        return;
      }
      out.sent += static_cast<size_t>(moved);
      if (out.sent < frame.size()) continue;
      out.frames.pop_front();
      out.sent = 0;
    }
  }

  // False: it is not there yet.
  bool Connect(int to) {
    const int fd = endpoints_->Connect(to);
    if (fd < 0) return false;
    const Hello hello{.rank = static_cast<uint32_t>(rank_)};
    std::vector<std::byte> frame(sizeof(hello) + secret_.size());
    std::memcpy(frame.data(), &hello, sizeof(hello));
    std::memcpy(frame.data() + sizeof(hello), secret_.data(), secret_.size());
    out_[to].frames.push_front(std::move(frame));
    out_[to].fd = fd;
    return true;
  }

  void Receive() {
    while (true) {
      const int fd =
          accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) break;
      if (!endpoints_->Trusts(fd)) {
        close(fd);
        continue;
      }
      in_.push_back({.fd = fd});
    }
    // Whoever has spoken is no stranger: those go last.
    std::erase_if(in_, [this](In& in) {
      if (Read(&in)) return false;
      close(in.fd);
      return true;
    });
    DropStrangers();
  }

  void DropStrangers() {
    size_t strangers = 0;
    for (const In& in : in_) strangers += !in.greeted;
    const size_t most = kStrangersMax + out_.size();
    std::erase_if(in_, [&strangers, most](const In& in) {
      if (in.greeted || strangers <= most) return false;
      --strangers;
      close(in.fd);
      return true;
    });
  }

  // False: nothing more will come.
  bool Read(In* in) {
    const ssize_t moved =
        recv(in->fd, scratch_.data(), scratch_.size(), MSG_DONTWAIT);
    if (moved == 0) return false;
    if (moved < 0) {
      const int error = errno;
      if (error == EAGAIN || error == EWOULDBLOCK || error == EINTR) {
        return true;
      }
      if (in->greeted) {
        HF_LOG_WARNING(
            "checkpoint group: the stream of rank %d at %s broke: %s; nothing "
            "more is heard of it. Look at its log and at the network in "
            "between; saves fail until the job is started again",
            Index(in->peer), endpoints_->PlaceOf(Index(in->peer)),
            std::generic_category().message(error));
      }
      return false;
    }
    in->bytes.insert(in->bytes.end(), scratch_.begin(),
                     scratch_.begin() + moved);
    return TakeFrames(in);
  }

  // False: it does not speak our language.
  bool TakeFrames(In* in) {
    size_t at = 0;
    const auto left = [&] { return in->bytes.size() - at; };
    if (!in->greeted) {
      Hello hello;
      if (left() < sizeof(hello) + secret_.size()) return true;
      std::memcpy(&hello, in->bytes.data(), sizeof(hello));
      if (hello.magic != kMagic || hello.rank >= out_.size() ||
          !SameBytes(in->bytes.data() + sizeof(hello), secret_)) {
        HF_LOG_WARNING("checkpoint group: a stranger at %s",
                       endpoints_->place());
        return false;
      }
      in->peer = Rank{static_cast<int32_t>(hello.rank)};
      in->greeted = true;
      at += sizeof(hello) + secret_.size();
    }
    FrameHeader header;
    while (left() >= sizeof(header)) {
      std::memcpy(&header, in->bytes.data() + at, sizeof(header));
      if (header.bytes > kMessageBytesMax) {
        HF_LOG_WARNING("checkpoint group: %d bytes from rank %d are no message",
                       header.bytes, Index(in->peer));
        return false;
      }
      if (left() < sizeof(header) + header.bytes) break;
      const auto body =
          in->bytes.begin() + static_cast<std::ptrdiff_t>(at + sizeof(header));
      ready_.push_back({in->peer, header.tag, {body, body + header.bytes}});
      at += sizeof(header) + header.bytes;
    }
    in->bytes.erase(in->bytes.begin(),
                    in->bytes.begin() + static_cast<std::ptrdiff_t>(at));
    return true;
  }

  const int rank_;
  const std::string secret_;
  std::vector<Out> out_;  // by rank
  std::vector<In> in_;
  const int listener_;
  const std::unique_ptr<StreamEndpoints> endpoints_;
  std::deque<Message> ready_;
  std::vector<std::byte> scratch_ = std::vector<std::byte>(kReadBytes);
};

}  // namespace

std::unique_ptr<Group> MakeStreamGroup(
    int rank, int size, std::string secret, int listener,
    std::unique_ptr<StreamEndpoints> endpoints) {
  HF_CHECK(rank >= 0 && rank < size, "rank %d of %d", rank, size);
  HF_CHECK(secret.size() <= kStreamSecretMax, "a secret of %d bytes",
           secret.size());
  return std::make_unique<StreamGroup>(rank, size, std::move(secret), listener,
                                       std::move(endpoints));
}

}  // namespace holdfast::ckpt
