// ckpt/group/local_group.cc: Unix sockets, one for each rank, in a directory.

#include "ckpt/group/local_group.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/group/stream_group.h"

namespace holdfast::ckpt {
namespace {

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

std::string PathOf(const std::string& dir, int rank) {
  return absl::StrFormat("%s/rank-%05d.sock", dir, rank);
}

class LocalEndpoints final : public StreamEndpoints {
 public:
  LocalEndpoints(std::string dir, int rank)
      : dir_(std::move(dir)), path_(PathOf(dir_, rank)) {
    char name[256] = "";
    if (gethostname(name, sizeof(name) - 1) == 0) host_ = name;
    if (host_.empty()) host_ = "localhost";
  }
  ~LocalEndpoints() override { unlink(path_.c_str()); }

  int Connect(int to) override {
    const int fd = NewSocket();
    if (fd < 0) return -1;
    const sockaddr_un address = AddressOf(PathOf(dir_, to));
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) == 0) {
      return fd;
    }
    close(fd);
    return -1;
  }

  // Only processes of the same user.
  bool Trusts(int fd) const override {
    ucred peer{};
    socklen_t length = sizeof(peer);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
           peer.uid == geteuid();
  }

  std::string HostOf(int) const override { return host_; }
  std::string PlaceOf(int rank) const override { return PathOf(dir_, rank); }
  const std::string& place() const override { return path_; }

 private:
  const std::string dir_;
  const std::string path_;
  std::string host_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> OpenLocalGroup(const std::string& dir,
                                                      int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint group in %s: rank %d of %d", dir, rank, size));
  }
  const std::string path = PathOf(dir, rank);
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
  return MakeStreamGroup(rank, size, /*secret=*/"", listener,
                         std::make_unique<LocalEndpoints>(dir, rank));
}

}  // namespace holdfast::ckpt
