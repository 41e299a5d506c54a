// ckpt/group/local_group.cc: one stream of frames from each rank to each other
// one that it has something to say to.

#include "ckpt/group/local_group.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
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
#include "ckpt/base/status_macros.h"

namespace holdfast::ckpt {
namespace {

constexpr uint32_t kMagic = 0x31474648;  // "HFG1"
// What one connection may deliver in one Poll, so that no peer holds the
// caller.
constexpr size_t kReadBytes = size_t{256} << 10;
// The destructor gives sends this long to leave, in steps of one millisecond.
constexpr int kFarewellMs = 1000;

// Says who is sending; the first bytes of a connection.
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

absl::Status Failed(const char* doing, const std::string& path) {
  return absl::ErrnoToStatus(
      errno, absl::StrFormat("checkpoint group: %s %s", doing, path));
}

int NewSocket() {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

class LocalGroup final : public Group {
 public:
  LocalGroup(std::string dir, int rank, int size, int listener)
      : dir_(std::move(dir)), rank_(rank), out_(size), listener_(listener) {
    char name[256] = "";
    if (gethostname(name, sizeof(name) - 1) == 0) host_ = name;
    if (host_.empty()) host_ = "localhost";
  }

  ~LocalGroup() override {
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
    unlink(PathOf(dir_, rank_).c_str());
  }

  static std::string PathOf(const std::string& dir, int rank) {
    return absl::StrFormat("%s/rank-%05d.sock", dir, rank);
  }

  Rank rank() const override { return Rank{rank_}; }
  int size() const override { return static_cast<int>(out_.size()); }
  std::string HostOf(Rank) const override { return host_; }

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
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
        // To the caller the same as silence: the deadline finds out.
        HF_LOG_WARNING("checkpoint group: rank %d is gone: %s", to,
                       std::generic_category().message(errno));
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
    const int fd = NewSocket();
    if (fd < 0) return false;
    const sockaddr_un address = AddressOf(PathOf(dir_, to));
    const Hello hello{.rank = static_cast<uint32_t>(rank_)};
    // A new connection has room for a few bytes.
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0 ||
        send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello)) {
      close(fd);
      return false;
    }
    out_[to].fd = fd;
    return true;
  }

  void Receive() {
    while (true) {
      const int fd =
          accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (fd < 0) break;
      ucred peer{};
      socklen_t length = sizeof(peer);
      if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
          peer.uid != geteuid()) {
        close(fd);
        continue;
      }
      in_.push_back({.fd = fd});
    }
    std::erase_if(in_, [this](In& in) {
      if (Read(&in)) return false;
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
      return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
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
      if (left() < sizeof(hello)) return true;
      std::memcpy(&hello, in->bytes.data(), sizeof(hello));
      if (hello.magic != kMagic || hello.rank >= out_.size()) {
        HF_LOG_WARNING("checkpoint group: a stranger at %s",
                       PathOf(dir_, rank_));
        return false;
      }
      in->peer = Rank{static_cast<int32_t>(hello.rank)};
      in->greeted = true;
      at += sizeof(hello);
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

  const std::string dir_;
  const int rank_;
  std::string host_;
  std::vector<Out> out_;  // by rank
  std::vector<In> in_;
  const int listener_;
  std::deque<Message> ready_;
  std::vector<std::byte> scratch_ = std::vector<std::byte>(kReadBytes);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> OpenLocalGroup(const std::string& dir,
                                                      int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint group in %s: rank %d of %d", dir, rank, size));
  }
  const std::string path = LocalGroup::PathOf(dir, rank);
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint group: '%s' has %d bytes, a socket's path at most %d; use "
        "a directory with a shorter name",
        path, path.size(), sizeof(sockaddr_un::sun_path) - 1));
  }
  const int listener = NewSocket();
  if (listener < 0) return Failed("opening a socket for", path);
  // A process of this rank that was killed has left its socket behind.
  unlink(path.c_str());
  const sockaddr_un address = AddressOf(path);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address),
           sizeof(address)) != 0 ||
      listen(listener, std::max(size, 16)) != 0) {
    absl::Status status = Failed("listening on", path);
    close(listener);
    return status;
  }
  return std::make_unique<LocalGroup>(dir, rank, size, listener);
}

}  // namespace holdfast::ckpt
