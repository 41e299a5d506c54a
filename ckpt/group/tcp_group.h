// ckpt/group/tcp_group.h: a Group whose ranks are processes of several
// machines, over TCP, for jobs without MPI.
//
//   every rank   TcpListener::Open(host) -> address()
//   the caller   brings all addresses, and a secret, to all ranks
//   every rank   OpenTcpGroup(listener, rank, addresses, secret)
//
// A connection that does not begin with the secret is closed. Nothing is
// encrypted: for the network inside a cluster, as MPI's and NCCL's messages
// are.
//
// Thread: the owner's. Memory: each message under way is held once.

#ifndef HOLDFAST_CKPT_GROUP_TCP_GROUP_H_
#define HOLDFAST_CKPT_GROUP_TCP_GROUP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/group/group.h"

namespace holdfast::ckpt {

// A socket that others can connect to already.
class TcpListener {
 public:
  // `host`: a numeric address of this machine, that the others reach
  // ("10.0.0.3", "fd00::3"); not "0.0.0.0" or "::", which nobody reaches. The
  // port is the system's choice.
  static absl::StatusOr<TcpListener> Open(const std::string& host);

  TcpListener(TcpListener&& other) noexcept;
  TcpListener& operator=(TcpListener&&) = delete;
  ~TcpListener();

  // "10.0.0.3:40123", "[fd00::3]:40123".
  const std::string& address() const { return address_; }
  int Release();  // the socket, which is the caller's from now on

 private:
  TcpListener(int fd, std::string address);

  int fd_;
  std::string address_;
};

// `addresses`: of all ranks, by rank; the listener's own is among them. A
// secret of 16 to 256 bytes. kInvalidArgument: what is wrong with them; the
// listener stays the caller's.
absl::StatusOr<std::unique_ptr<Group>> OpenTcpGroup(
    TcpListener* listener, int rank, const std::vector<std::string>& addresses,
    std::string secret);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_GROUP_TCP_GROUP_H_
