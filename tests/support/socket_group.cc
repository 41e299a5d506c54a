// tests/support/socket_group.cc: datagrams over socket pairs.

#include "tests/support/socket_group.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "ckpt/base/check.h"

namespace holdfast::tests {
namespace {

using ckpt::Fd;
using ckpt::Message;
using ckpt::MessageTag;
using ckpt::Rank;

class SocketGroup final : public ckpt::Group {
 public:
  SocketGroup(std::vector<Fd> ends, Rank rank)
      : ends_(std::move(ends)),
        rank_(rank),
        waiting_(ends_.size()),
        buffer_(sizeof(MessageTag) + kSocketMessageBytesMax) {}

  Rank rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ends_.size()); }
  std::string HostOf(Rank) const override { return "localhost"; }

  void Send(Rank to, const MessageTag& tag,
            std::span<const std::byte> body) override {
    HF_CHECK(body.size() <= kSocketMessageBytesMax, "a message of %d bytes",
             body.size());
    if (to == rank_) {
      own_.push_back({rank_, tag, {body.begin(), body.end()}});
      return;
    }
    std::vector<std::byte> datagram(sizeof(tag) + body.size());
    std::memcpy(datagram.data(), &tag, sizeof(tag));
    if (!body.empty()) {
      std::memcpy(datagram.data() + sizeof(tag), body.data(), body.size());
    }
    waiting_[ckpt::Index(to)].push_back(std::move(datagram));
    Drive();
  }

  std::optional<Message> Poll() override {
    Drive();
    if (!own_.empty()) {
      std::optional<Message> message(std::move(own_.front()));
      own_.pop_front();
      return message;
    }
    for (size_t from = 0; from < ends_.size(); ++from) {
      if (!ends_[from].valid()) continue;
      const ssize_t got = ::recv(ends_[from].get(), buffer_.data(),
                                 buffer_.size(), MSG_DONTWAIT);
      if (got < static_cast<ssize_t>(sizeof(MessageTag))) continue;
      Message message;
      message.from = Rank{static_cast<int>(from)};
      std::memcpy(&message.tag, buffer_.data(), sizeof(MessageTag));
      message.body.assign(buffer_.begin() + sizeof(MessageTag),
                          buffer_.begin() + got);
      return message;
    }
    return std::nullopt;
  }

 private:
  void Drive() {
    for (size_t to = 0; to < ends_.size(); ++to) {
      while (!waiting_[to].empty()) {
        const std::vector<std::byte>& datagram = waiting_[to].front();
        if (::send(ends_[to].get(), datagram.data(), datagram.size(),
                   MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
            (errno == EAGAIN || errno == EINTR || errno == ENOBUFS)) {
          break;
        }
        waiting_[to].pop_front();  // sent, or to a dead rank
      }
    }
  }

  std::vector<Fd> ends_;
  const Rank rank_;
  std::vector<std::deque<std::vector<std::byte>>> waiting_;
  std::deque<Message> own_;
  std::vector<std::byte> buffer_;
};

}  // namespace

SocketMesh MakeSocketMesh(int ranks) {
  SocketMesh mesh(ranks);
  for (auto& ends : mesh) ends.resize(ranks);
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) {
      int pair[2];
      HF_CHECK(
          ::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0,
          "cannot make a socket pair: %s", std::strerror(errno));
      mesh[a][b] = Fd(pair[0]);
      mesh[b][a] = Fd(pair[1]);
    }
  }
  return mesh;
}

std::unique_ptr<ckpt::Group> OpenSocketGroup(SocketMesh mesh, Rank rank) {
  return std::make_unique<SocketGroup>(std::move(mesh[ckpt::Index(rank)]),
                                       rank);
}

}  // namespace holdfast::tests
