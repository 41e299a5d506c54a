// tests/support/socket_group.h: a Group whose ranks are processes of this
// machine, forked from one that made the sockets between them. For tests that
// kill or stop ranks one by one without mpirun.
//
// A message is one datagram, so it is small: kSocketMessageBytesMax (CHECK). A
// rank that has died is silent, as Group says.
//
// Thread: that of the Group's owner.

#ifndef HOLDFAST_TESTS_SUPPORT_SOCKET_GROUP_H_
#define HOLDFAST_TESTS_SUPPORT_SOCKET_GROUP_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "ckpt/group/group.h"
#include "ckpt/storage/fd.h"

namespace holdfast::tests {

// Below what a socket takes at once by default (212,992 bytes with its books).
inline constexpr size_t kSocketMessageBytesMax = 96 * 1024;

// [a][b]: the end that rank a holds of the socket to rank b. Made before the
// ranks are forked.
using SocketMesh = std::vector<std::vector<ckpt::Fd>>;
SocketMesh MakeSocketMesh(int ranks);

// In the process of `rank`. Closes the ends of the others.
std::unique_ptr<ckpt::Group> OpenSocketGroup(SocketMesh mesh, ckpt::Rank rank);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SOCKET_GROUP_H_
