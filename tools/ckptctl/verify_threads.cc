// tools/ckptctl/verify_threads.cc: see verify_threads.h.

#include "tools/ckptctl/verify_threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "ckpt/base/clock.h"
#include "ckpt/session/unit_reader.h"

namespace holdfast::tools {
namespace {

constexpr int kThreadsMax = 8;
constexpr int kReadersMin = 2;  // of a thread: one is hashed, one under way
// Large enough that opening a file again costs nothing, small enough that
// threads end together.
constexpr uint64_t kPartBytes = uint64_t{64} << 20;

int Processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

int ThreadsFor(const VerifyThreads& wanted, const ckpt::Manifest& manifest) {
  if (wanted.threads > 0) return wanted.threads;
  uint64_t bytes = 0;
  for (const ckpt::ShardFile& file : manifest.files) bytes += file.bytes;
  // A thread that gets no part worth its storage is not started.
  const uint64_t useful = std::max<uint64_t>(1, bytes / kPartBytes);
  return static_cast<int>(
      std::min<uint64_t>(std::min(kThreadsMax, Processors()), useful));
}

ckpt::VerifyOutcome VerifyOnThreads(const Opened& opened, bool hash,
                                    const VerifyThreads& wanted,
                                    Progress* progress) {
  const ckpt::Manifest& manifest = *opened.manifest;
  const int threads = ThreadsFor(wanted, manifest);
  const int readers =
      std::max(kReadersMin, (wanted.readers + threads - 1) / threads);
  uint64_t total = 0;
  for (const ckpt::ShardFile& file : manifest.files) total += file.bytes;

  ckpt::VerifyParts parts(&manifest, kPartBytes);
  std::vector<ckpt::VerifyOutcome> found(threads);
  std::vector<std::atomic<uint64_t>> read(threads);
  std::mutex mutex;
  std::condition_variable ended;
  int running = threads;

  const auto work = [&](int self) {
    auto storage = ReopenStorage(opened, readers);
    if (!storage.ok()) {
      found[self].status = storage.status();
      parts.DropAll();
    } else {
      ckpt::SessionEnv env = EnvOf(storage->get());
      ckpt::VerifySession session(env, opened.place.dir, &manifest, hash,
                                  ReaderOptions(readers), &parts);
      Drive(storage->get(), &session, [&] {
        read[self].store(session.progress().bytes_done,
                         std::memory_order_relaxed);
      });
      found[self] = session.outcome();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    if (--running == 0) ended.notify_all();
  };

  const absl::Duration begin = ckpt::RealClock().Monotonic();
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) workers.emplace_back(work, i);
  {
    std::unique_lock<std::mutex> lock(mutex);
    while (!ended.wait_for(lock, std::chrono::milliseconds(50),
                           [&] { return running == 0; })) {
      if (progress == nullptr) continue;
      uint64_t done = 0;
      for (const auto& one : read) done += one.load(std::memory_order_relaxed);
      progress->Update(std::min(done, total), total);
    }
  }
  for (std::thread& worker : workers) worker.join();

  ckpt::VerifyOutcome outcome = ckpt::MergeVerified(manifest, hash, found);
  outcome.seconds =
      absl::ToDoubleSeconds(ckpt::RealClock().Monotonic() - begin);
  if (progress != nullptr) progress->Update(outcome.bytes_read, total);
  return outcome;
}

}  // namespace holdfast::tools
