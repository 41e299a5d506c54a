// ckpt/convert/verify_threads.cc: see verify_threads.h.

#include "ckpt/convert/verify_threads.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <vector>

#include "ckpt/base/threads.h"

namespace holdfast::ckpt {
namespace {

constexpr uint16_t kSpace = 1;
constexpr std::chrono::milliseconds kTick(50);
// Large enough that opening a file again costs nothing, small enough that
// threads end together.
constexpr uint64_t kPartBytes = uint64_t{64} << 20;

class Verifying {
 public:
  Verifying(const Manifest& manifest, const VerifyThreadsOptions& options,
            Clock& clock)
      : manifest_(manifest),
        options_(options),
        clock_(clock),
        parts_(&manifest, kPartBytes),
        found_(static_cast<size_t>(options.threads)) {}

  VerifyOutcome Run() {
    const absl::Duration begin = clock_.Monotonic();
    bool is_stopped = false;
    const auto tick = [&] {
      if (options_.on_tick && !options_.on_tick(bytes_done_) && !is_stopped) {
        is_stopped = true;
        parts_.DropAll();
      }
    };
    RunWorkers({.purpose = "verification",
                .wanted = found_.size(),
                .every = kTick,
                .tick = tick},
               [this](size_t worker, const WorkerTurn& turn) {
                 Work(found_[worker], turn);
               });
    VerifyOutcome outcome;
    if (is_stopped) {
      outcome.status = absl::CancelledError("stopped while it was verified");
    } else {
      outcome = MergeVerified(manifest_, options_.hash, found_);
    }
    outcome.seconds = absl::ToDoubleSeconds(clock_.Monotonic() - begin);
    return outcome;
  }

 private:
  void Work(VerifyOutcome& found, const WorkerTurn& turn) {
    auto storage = options_.open();
    if (!storage.ok()) {
      found.status = storage.status();
      parts_.DropAll();
      return;
    }
    SessionEnv env;
    env.storage = storage->get();
    env.clock = &clock_;
    env.space = kSpace;
    env.ops_max = env.storage->queue_depth();
    VerifySession session(env, options_.dir, &manifest_, options_.hash,
                          options_.read, &parts_);
    uint64_t told = 0;
    std::array<Completion, 64> answers;
    while (true) {
      session.Poll();
      if (session.done()) break;
      const size_t count = env.storage->Poll(answers);
      for (size_t i = 0; i < count; ++i) session.OnCompletion(answers[i]);
      if (count == 0) env.storage->WaitForCompletion(/*wait_ms=*/10);
      const uint64_t done = session.progress().bytes_done;
      bytes_done_ += done - told;
      told = done;
      turn();
    }
    found = session.outcome();
  }

  const Manifest& manifest_;
  const VerifyThreadsOptions& options_;
  Clock& clock_;
  VerifyParts parts_;
  std::vector<VerifyOutcome> found_;
  std::atomic<uint64_t> bytes_done_ = 0;
};

}  // namespace

int VerifyThreadsUseful(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const ShardFile& file : manifest.files) bytes += file.bytes;
  constexpr uint64_t kMost = 1024;
  return static_cast<int>(std::clamp<uint64_t>(bytes / kPartBytes, 1, kMost));
}

VerifyOutcome VerifyOnThreads(const Manifest& manifest,
                              const VerifyThreadsOptions& options,
                              Clock& clock) {
  return Verifying(manifest, options, clock).Run();
}

}  // namespace holdfast::ckpt
