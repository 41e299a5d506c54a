// tests/bench/mpi_allreduce.cc: what our ordered all-reduce costs beside Open
// MPI's own, interleaved in one run, over pairs of ranks and over all of them.
// One JSON line each on rank 0. Started by tests/e2e/mpirun.sh.
//
//   tests/e2e/mpirun.sh 8 build/release/bin/bench_mpi_allreduce

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "ckpt/base/status_macros.h"
#include "trainer/parallel/job.h"

#define OMPI_SKIP_MPICXX 1
#include "mpi.h"

namespace holdfast::trainer {
namespace {

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

absl::Status Measure(Collectives& world, const char* axis, int group_size,
                     size_t count, int rounds) {
  HF_ASSIGN_OR_RETURN(
      const std::unique_ptr<Collectives> group,
      world.Split(world.rank() / group_size, world.rank(), axis));
  MPI_Comm library = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world.rank() / group_size, world.rank(),
                 &library);
  std::vector<float> data(count, 1e-6f);
  std::vector<double> ours, theirs;
  for (int round = 0; round < rounds; ++round) {
    HF_RETURN_IF_ERROR(world.Barrier());
    double start = Now();
    constexpr int kInARow = 5;
    for (int i = 0; i < kInARow; ++i) {
      HF_RETURN_IF_ERROR(group->AllReduceSum(std::span<float>(data)));
    }
    ours.push_back((Now() - start) / kInARow);
    HF_RETURN_IF_ERROR(world.Barrier());
    start = Now();
    for (int i = 0; i < kInARow; ++i) {
      MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(count),
                    MPI_FLOAT, MPI_SUM, library);
    }
    theirs.push_back((Now() - start) / kInARow);
    std::fill(data.begin(), data.end(), 1e-6f);
  }
  MPI_Comm_free(&library);
  if (world.rank() == 0) {
    std::printf(
        "{\"bench\": \"allreduce\", \"ranks\": %d, \"group\": %d, \"floats\": "
        "%zu, \"ours_us\": %.1f, \"library_us\": %.1f}\n",
        world.size(), group_size, count, 1e6 * Median(ours),
        1e6 * Median(theirs));
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

absl::Status Run(Collectives& world) {
  for (const int group_size : {2, world.size()}) {
    HF_RETURN_IF_ERROR(Measure(world, "group", group_size, 256, 60));
    HF_RETURN_IF_ERROR(Measure(world, "group", group_size, 16'384, 40));
    HF_RETURN_IF_ERROR(Measure(world, "group", group_size, 1'048'576, 6));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace holdfast::trainer

int main() {
  auto job = holdfast::trainer::OpenJob(nullptr);
  if (!job.ok()) {
    std::fprintf(stderr, "%s\n", job.status().ToString().c_str());
    return 1;
  }
  const absl::Status status = holdfast::trainer::Run((*job)->world());
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    (*job)->Abort(1);
  }
  return (*job)->Finalize().ok() ? 0 : 1;
}
