// tests/bench/support/bench_ranks.cc: see bench_ranks.h.

#include "tests/bench/support/bench_ranks.h"

#include <cstdlib>
#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "tests/bench/support/raw_file.h"

namespace holdfast::bench {

void Must(const absl::Status& status) {
  HF_CHECK(status.ok(), "%s", status.ToString());
}

BenchRanks::BenchRanks() {
  Must(ckpt::InitLog(ckpt::LogLevel::kWarning, "", ""));
  auto job = trainer::OpenJob(nullptr);
  Must(job.status());
  job_ = *std::move(job);
}

void BenchRanks::Barrier() { Must(job_->world().Barrier()); }

double BenchRanks::Max(double value) {
  int64_t nanoseconds = static_cast<int64_t>(value * 1e9);
  Must(job_->world().AllReduceMax(std::span<int64_t>(&nanoseconds, 1)));
  return static_cast<double>(nanoseconds) / 1e9;
}

double BenchRanks::Together(const std::function<void()>& work) {
  Barrier();
  const double begin = Now();
  work();
  Barrier();
  return Now() - begin;
}

std::unique_ptr<ckpt::Group> BenchRanks::OpenGroup() {
  auto group = job_->OpenCheckpointGroup();
  Must(group.status());
  return *std::move(group);
}

int BenchRanks::Finish() {
  return job_->Finalize().ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace holdfast::bench
