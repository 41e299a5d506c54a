// tests/bench/support/bench_ranks.h: the ranks of a benchmark, alone or under
// `holdfast launch`, and the steps that they take together.
//
// Every rank makes the same calls. A rank that waits sleeps: what is measured
// has the processors.

#ifndef HOLDFAST_TESTS_BENCH_SUPPORT_BENCH_RANKS_H_
#define HOLDFAST_TESTS_BENCH_SUPPORT_BENCH_RANKS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "ckpt/group/group.h"
#include "trainer/parallel/job.h"

namespace holdfast::bench {

// A failure of a benchmark ends it: there is nothing to measure any more.
void Must(const absl::Status& status);

class BenchRanks {
 public:
  BenchRanks();

  int rank() const { return job_->rank(); }
  int size() const { return job_->size(); }
  bool is_zero() const { return rank() == 0; }

  void Barrier();
  // The largest of all ranks' values, on every rank.
  double Max(double value);
  // Seconds from a common start until the last rank has done `work`.
  double Together(const std::function<void()>& work);

  // For one Checkpointer after the other.
  std::unique_ptr<ckpt::Group> OpenGroup();

  // The orderly end; the exit code.
  int Finish();

 private:
  std::unique_ptr<trainer::Job> job_;
};

}  // namespace holdfast::bench

#endif  // HOLDFAST_TESTS_BENCH_SUPPORT_BENCH_RANKS_H_
