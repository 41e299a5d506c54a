// trainer/parallel/communication_memory.h: the memory that a rank's device
// communicators take, before any is opened. Pure.
//
// Scratch of our sums is what NewWireCollectives is given. NCCL's buffers are
// an estimate from above, by the sizes of its 2.28 to 2.30 (src/init.cc,
// computeBuffSizes; src/transport/p2p.cc and net.cc): a channel to a peer has a
// FIFO for each protocol, in units of 2 MiB. Eight H100 that all send to all
// take 14.6 MB a peer and channel (NVIDIA/nccl issue 1685); this says 14.7.

#ifndef HOLDFAST_TRAINER_PARALLEL_COMMUNICATION_MEMORY_H_
#define HOLDFAST_TRAINER_PARALLEL_COMMUNICATION_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "ckpt/layout/mesh.h"

namespace holdfast::trainer {

// Thread blocks that one operation of a group and of a lane (a message between
// neighbour stages) may take. NCCL has a channel, with its buffers, for each.
// Powers of two: it rounds the channels of messages up to one. Together the
// operations that can wait at once, one for each communicator, take 3 x 32 + 4
// x 4 = 112: they should fit on the 132 multiprocessors of an H100 SXM side by
// side (trainer/DESIGN.md).
inline constexpr int kNcclGroupCtas = 32;
inline constexpr int kNcclLaneCtas = 4;
// Multiprocessors with which they are taken to do so.
inline constexpr int kNcclMultiprocessors = 132;

// Scratch of a DP and of a PP group, whose sums are few and short.
inline constexpr size_t kLittleScratchBytes = size_t{1} << 20;

// What `holdfast plan` takes a host to have.
inline constexpr int kGpusPerHost = 8;

struct CommunicationMemory {
  int64_t scratch = 0;  // Of the device, as allocated.
  int64_t library = 0;  // Of the device, NCCL's.

  int64_t device() const { return scratch + library; }
};

// Of a rank that has a GPU to itself (gpu_mesh.h), ranks being numbered as in
// ckpt/layout/mesh.h and `ranks_per_host` consecutive ones on a host.
CommunicationMemory PlanNcclMemory(const ckpt::Mesh& mesh, ckpt::Rank rank,
                                   int ranks_per_host);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_COMMUNICATION_MEMORY_H_
