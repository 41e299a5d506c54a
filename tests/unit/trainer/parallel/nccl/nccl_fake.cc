// tests/unit/trainer/parallel/nccl/nccl_fake.cc: mailboxes by id and
// direction.

#include "tests/unit/trainer/parallel/nccl/nccl_fake.h"

#include <nccl.h>

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <tuple>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/unit/kernels/cuda/fake_cudart.h"

struct ncclComm {
  uint64_t id = 0;
  int rank = 0;
  int in_progress = 0;
};

namespace holdfast::trainer {
namespace {

struct Message {
  const void* data;
  size_t bytes;
};
using Box = std::tuple<uint64_t, int, int>;  // id, from, to

std::unique_ptr<FakeNccl> fake_now = std::make_unique<FakeNccl>();
uint64_t last_id = 0;
std::map<Box, std::deque<Message>> boxes;

ncclResult_t Took(ncclComm* comm) {
  comm->in_progress = fake_now->in_progress;
  return comm->in_progress == 0 ? ncclSuccess : ncclInProgress;
}

}  // namespace

FakeNccl& Nccl() { return *fake_now; }
void ResetNccl() {
  EXPECT_EQ(Nccl().opened, Nccl().aborted + Nccl().destroyed);
  fake_now = std::make_unique<FakeNccl>();
  boxes.clear();
}

}  // namespace holdfast::trainer

using holdfast::trainer::boxes;
using holdfast::trainer::Nccl;
using holdfast::trainer::Took;

namespace {
thread_local int aborting = -1;  // In the open group; below 0: none is open.
}

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = 22809;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  ++holdfast::trainer::last_id;
  std::memcpy(id, &holdfast::trainer::last_id, sizeof(uint64_t));
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "an error of the fake"; }
const char* ncclGetLastError(ncclComm_t) { return "its last words"; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId id,
                                    int rank, ncclConfig_t* config) {
  EXPECT_EQ(config->blocking, 0);
  Nccl().max_ctas.push_back(config->maxCTAs);
  *comm = new ncclComm;
  std::memcpy(&(*comm)->id, &id, sizeof(uint64_t));
  (*comm)->rank = rank;
  ++Nccl().opened;
  return Took(*comm);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  if (Nccl().on_ask) Nccl().on_ask();
  *state = static_cast<ncclResult_t>(Nccl().async_error);
  if (*state == ncclSuccess && comm->in_progress != 0) {
    if (comm->in_progress > 0) --comm->in_progress;
    *state = ncclInProgress;
  }
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (Nccl().finalizes) return ncclSuccess;
  comm->in_progress = -1;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  ++Nccl().destroyed;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  while (Nccl().abort_hangs) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  delete comm;
  if (aborting >= 0) {
    ++aborting;
  } else {
    Nccl().aborts_in_group.push_back(1);
  }
  ++Nccl().aborted;
  return static_cast<ncclResult_t>(Nccl().abort_result);
}

namespace {
thread_local ncclComm_t in_group = nullptr;
}
ncclResult_t ncclGroupStart() {
  in_group = nullptr;
  aborting = 0;
  ++Nccl().groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (aborting > 0) {
    Nccl().aborts_in_group.push_back(aborting);
    Nccl().abort_groups_over = true;  // The thread looks here no more.
  }
  aborting = -1;
  return in_group == nullptr ? ncclSuccess : Took(in_group);
}
ncclResult_t ncclSend(const void* data, size_t bytes, ncclDataType_t, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  in_group = comm;
  Nccl().calls.push_back(absl::StrFormat("send %d %d", peer, bytes));
  const auto box = std::make_tuple(comm->id, comm->rank, peer);
  holdfast::kernels::Fake().Enqueue(stream, [=] {
    boxes[box].push_back({data, bytes});
  });
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* data, size_t bytes, ncclDataType_t, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  in_group = comm;
  Nccl().calls.push_back(absl::StrFormat("receive %d %d", peer, bytes));
  const auto box = std::make_tuple(comm->id, peer, comm->rank);
  holdfast::kernels::Fake().Enqueue(stream, [=] {
    ASSERT_FALSE(boxes[box].empty()) << "nothing was sent yet";
    ASSERT_EQ(boxes[box].front().bytes, bytes);
    std::memcpy(data, boxes[box].front().data, bytes);
    boxes[box].pop_front();
  });
  return ncclSuccess;
}
ncclResult_t ncclBroadcast(const void*, void*, size_t bytes, ncclDataType_t,
                           int root, ncclComm_t comm, cudaStream_t) {
  in_group = comm;
  Nccl().calls.push_back(absl::StrFormat("broadcast %d %d", root, bytes));
  return ncclSuccess;
}
ncclResult_t ncclReduceScatter(const void*, void*, size_t count, ncclDataType_t,
                               ncclRedOp_t, ncclComm_t comm, cudaStream_t) {
  in_group = comm;
  Nccl().calls.push_back(absl::StrFormat("reduce-scatter %d", count));
  return ncclSuccess;
}

}  // extern "C"
