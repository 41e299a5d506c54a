// tests/e2e/mpi_contract.cc: the contracts of Collectives and Group over Open
// MPI, and a message that needs more than one MPI count. Started by
// tests/e2e/mpirun.sh; every rank runs every case; exit code 1 and a line on
// stderr at the first that fails.
//
//   mpi_contract          the suites
//   mpi_contract --large  one message of 2 GiB and some (6 GiB of memory)

#include <sched.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/contract/collectives_suite.h"
#include "tests/contract/group_suite.h"
#include "trainer/parallel/job.h"

namespace {
thread_local int64_t allocations = 0;
}  // namespace

void* operator new(size_t size) {
  ++allocations;
  if (void* const memory = std::malloc(size)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace holdfast {
namespace {

using trainer::Bytes;
using trainer::Collectives;
using trainer::ConstBytes;
using trainer::RequestId;

absl::Status RunCollectives(Collectives& world) {
  for (const auto& contract : trainer::kCollectivesCases) {
    if (absl::Status status = contract.run(world); !status.ok()) {
      return absl::FailedPreconditionError(
          absl::StrFormat("%s: %s", contract.name, status.ToString()));
    }
  }
  return absl::OkStatus();
}

// The group is polled by a thread of its own, as in a training job, while the
// step thread reduces.
absl::Status RunGroup(Collectives& world, ckpt::Group& group) {
  for (const auto& contract : ckpt::kGroupCases) {
    absl::Status status;
    std::thread checkpoint_thread([&] {
      ckpt::Party party{group, [] { sched_yield(); }};
      status = contract.run(party);
    });
    std::vector<float> ones(2'000, 1.0f);
    absl::Status reduced = world.AllReduceSum(std::span<float>(ones));
    checkpoint_thread.join();
    if (!status.ok()) {
      return absl::FailedPreconditionError(
          absl::StrFormat("%s: %s", contract.name, status.ToString()));
    }
    HF_RETURN_IF_ERROR(reduced);
    HF_RETURN_IF_ERROR(world.Barrier());
  }
  return absl::OkStatus();
}

absl::Status UnequalSizesAreAnInternalError(Collectives& world) {
  if (world.size() < 2 || world.rank() > 1) return world.Barrier();
  for (const size_t sent : {4, 16}) {
    std::vector<std::byte> data(world.rank() == 0 ? sent : 8);
    HF_ASSIGN_OR_RETURN(const RequestId request, world.rank() == 0
                                                     ? world.Isend(data, 1, 0)
                                                     : world.Irecv(data, 0, 0));
    const absl::Status status = world.Wait(request);
    if (world.rank() == 1) {
      CONTRACT_REQUIRE(absl::IsInternal(status), "%d bytes for 8: %s", sent,
                       status.ToString());
    }
  }
  return world.Barrier();
}

// MPI allocates by malloc, so what new is asked for is ours.
absl::Status TheSameOperationsAgainAllocateNothing(Collectives& world) {
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  std::vector<float> values(300'000, 1.0f);
  std::vector<float> few(256, 1.0f);
  std::vector<int64_t> integers(70, 1);
  std::vector<int64_t> first(world.size()), count(world.size());
  for (int r = 0; r < world.size(); ++r) {
    count[r] = 40'000;
    first[r] = r * count[r];
  }
  const auto operations = [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<float>(values)));
    HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<float>(few)));
    HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<int64_t>(integers)));
    HF_RETURN_IF_ERROR(
        world.AllGatherV(Bytes(std::span<float>(values)), first, count));
    HF_RETURN_IF_ERROR(world.Broadcast(Bytes(std::span<float>(values)), 0));
    HF_ASSIGN_OR_RETURN(const RequestId in,
                        world.Irecv(Bytes(std::span<float>(few)), previous, 1));
    HF_ASSIGN_OR_RETURN(
        const RequestId out,
        world.Isend(ConstBytes(std::span<const float>(values.data(), 256)),
                    next, 1));
    HF_RETURN_IF_ERROR(world.Wait(out));
    HF_RETURN_IF_ERROR(world.Wait(in));
    return world.Barrier();
  };
  HF_RETURN_IF_ERROR(operations());
  HF_RETURN_IF_ERROR(operations());
  const int64_t before = allocations;
  for (int i = 0; i < 5; ++i) HF_RETURN_IF_ERROR(operations());
  CONTRACT_REQUIRE(allocations == before, "%d allocations",
                   allocations - before);
  return absl::OkStatus();
}

absl::Status RunLarge(Collectives& world) {
  const size_t size = (size_t{2} << 30) + 12'345;
  std::vector<std::byte> data(size);
  HF_RETURN_IF_ERROR(world.Barrier());
  if (world.rank() == 0) {
    for (size_t i = 0; i < size; i += 4096) data[i] = std::byte(i >> 12);
    data.back() = std::byte{0x5A};
    HF_ASSIGN_OR_RETURN(const RequestId id, world.Isend(data, 1, 0));
    return world.Wait(id);
  }
  if (world.rank() == 1) {
    HF_ASSIGN_OR_RETURN(const RequestId id, world.Irecv(data, 0, 0));
    HF_RETURN_IF_ERROR(world.Wait(id));
    CONTRACT_REQUIRE(data.back() == std::byte{0x5A}, "the last byte");
    for (size_t i = 0; i < size - 1; i += 4096) {
      CONTRACT_REQUIRE(data[i] == std::byte(i >> 12), "byte %d", i);
    }
  }
  return absl::OkStatus();
}

absl::Status Run(trainer::Job& job, const std::string& mode) {
  if (mode == "--large") return RunLarge(job.world());
  HF_ASSIGN_OR_RETURN(std::unique_ptr<ckpt::Group> group,
                      job.OpenCheckpointGroup());
  HF_RETURN_IF_ERROR(RunCollectives(job.world()));
  HF_RETURN_IF_ERROR(UnequalSizesAreAnInternalError(job.world()));
  HF_RETURN_IF_ERROR(TheSameOperationsAgainAllocateNothing(job.world()));
  return RunGroup(job.world(), *group);
}

}  // namespace
}  // namespace holdfast

int main(int argc, char** argv) {
  holdfast::trainer::Heartbeat heartbeat;
  auto job = holdfast::trainer::OpenJob(&heartbeat);
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", job.status().ToString().c_str());
    return 1;
  }
  const absl::Status status = holdfast::Run(**job, argc > 1 ? argv[1] : "");
  if (!status.ok()) {
    std::fprintf(stderr, "rank %d: %s\n", (*job)->rank(),
                 status.ToString().c_str());
    (*job)->Abort(1);
  }
  if ((*job)->rank() == 0) {
    std::printf("contract kept by %d ranks\n", (*job)->size());
  }
  return (*job)->Finalize().ok() ? 0 : 1;
}
