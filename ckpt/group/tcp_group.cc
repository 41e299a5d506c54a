// ckpt/group/tcp_group.cc: see tcp_group.h.

#include "ckpt/group/tcp_group.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/group/stream_group.h"

namespace holdfast::ckpt {
namespace {

constexpr size_t kSecretMin = 16;
constexpr int kBacklog = 4096;

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;
  std::string host;
};

// Of every interface, and so of none that others could connect to.
bool IsUnspecified(const Endpoint& endpoint) {
  if (endpoint.address.ss_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(&endpoint.address);
    return in->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&endpoint.address);
  if (IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr)) return true;
  in_addr mapped{};
  std::memcpy(&mapped, in6->sin6_addr.s6_addr + 12, sizeof(mapped));
  return IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr) &&
         mapped.s_addr == htonl(INADDR_ANY);
}

// A numeric host and port; no name is looked up.
absl::StatusOr<Endpoint> Parse(const std::string& host,
                               const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint group: '%s' port '%s' is no numeric address, such as "
        "10.0.0.3 or fd00::3 (%s)",
        host, port, gai_strerror(error)));
  }
  Endpoint endpoint;
  endpoint.length = found->ai_addrlen;
  std::memcpy(&endpoint.address, found->ai_addr, found->ai_addrlen);
  endpoint.host = host;
  freeaddrinfo(found);
  if (IsUnspecified(endpoint)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint group: '%s' stands for all addresses of this machine; the "
        "other ranks need one that they can connect to, such as the one that "
        "`hostname -I` names first",
        host));
  }
  return endpoint;
}

// "10.0.0.3:40123" or "[fd00::3]:40123".
absl::StatusOr<Endpoint> ParseAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint group: '%s' is no address; expected is HOST:PORT",
        address));
  }
  std::string host = address.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return Parse(host, address.substr(colon + 1));
}

const sockaddr* AddressIn(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr*>(&endpoint.address);
}

int NewSocket(const Endpoint& endpoint) {
  return socket(endpoint.address.ss_family,
                SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

class TcpEndpoints final : public StreamEndpoints {
 public:
  TcpEndpoints(std::vector<Endpoint> endpoints, std::vector<std::string> places,
               int rank)
      : endpoints_(std::move(endpoints)),
        places_(std::move(places)),
        rank_(rank) {}

  int Connect(int to) override {
    const Endpoint& endpoint = endpoints_[to];
    const int fd = NewSocket(endpoint);
    if (fd < 0) return -1;
    // Votes are small, and somebody waits for them.
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    // Whoever listens does so already: the first send tells how it went.
    if (connect(fd, AddressIn(endpoint), endpoint.length) == 0 ||
        errno == EINPROGRESS) {
      return fd;
    }
    close(fd);
    return -1;
  }

  bool Trusts(int) const override { return true; }  // the secret decides
  std::string HostOf(int rank) const override { return endpoints_[rank].host; }
  std::string PlaceOf(int rank) const override { return places_[rank]; }
  const std::string& place() const override { return places_[rank_]; }

 private:
  const std::vector<Endpoint> endpoints_;
  const std::vector<std::string> places_;  // "10.0.0.3:40123", by rank
  const int rank_;
};

}  // namespace

TcpListener::TcpListener(int fd, std::string address)
    : fd_(fd), address_(std::move(address)) {}

TcpListener::TcpListener(TcpListener&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), address_(std::move(other.address_)) {}

TcpListener::~TcpListener() {
  if (fd_ >= 0) close(fd_);
}

int TcpListener::Release() { return std::exchange(fd_, -1); }

absl::StatusOr<TcpListener> TcpListener::Open(const std::string& host) {
  HF_ASSIGN_OR_RETURN(Endpoint endpoint, Parse(host, "0"));
  const auto failed = [&](const char* doing) {
    return absl::ErrnoToStatus(
        errno, absl::StrFormat("checkpoint group: %s %s", doing, host));
  };
  const int fd = NewSocket(endpoint);
  if (fd < 0) return failed("opening a socket at");
  TcpListener listener(fd, "");
  if (bind(fd, AddressIn(endpoint), endpoint.length) != 0 ||
      listen(fd, kBacklog) != 0) {
    return failed("listening at");
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  char port[16] = "";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&bound), length, nullptr, 0, port,
                  sizeof(port), NI_NUMERICSERV) != 0) {
    return failed("asking for the port at");
  }
  const bool has_colons = host.find(':') != std::string::npos;
  listener.address_ =
      absl::StrFormat(has_colons ? "[%s]:%s" : "%s:%s", host, port);
  return listener;
}

absl::StatusOr<std::unique_ptr<Group>> OpenTcpGroup(
    TcpListener* listener, int rank, const std::vector<std::string>& addresses,
    std::string secret) {
  const int size = static_cast<int>(addresses.size());
  if (rank < 0 || rank >= size) {
    return absl::InvalidArgumentError(
        absl::StrFormat("checkpoint group at %s: rank %d of %d",
                        listener->address(), rank, size));
  }
  if (addresses[rank] != listener->address()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint group: rank %d listens at %s, the list of addresses says "
        "%s",
        rank, listener->address(), addresses[rank]));
  }
  if (secret.size() < kSecretMin || secret.size() > kStreamSecretMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint group at %s: a secret of %d bytes; %d to %d are expected",
        listener->address(), secret.size(), kSecretMin, kStreamSecretMax));
  }
  std::vector<Endpoint> endpoints;
  for (const std::string& address : addresses) {
    HF_ASSIGN_OR_RETURN(Endpoint endpoint, ParseAddress(address));
    endpoints.push_back(std::move(endpoint));
  }
  return MakeStreamGroup(
      rank, size, std::move(secret), listener->Release(),
      std::make_unique<TcpEndpoints>(std::move(endpoints), addresses, rank));
}

}  // namespace holdfast::ckpt
