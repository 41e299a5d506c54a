// tools/ckptctl/verify_threads.cc: see verify_threads.h.

#include "tools/ckptctl/verify_threads.h"

#include <sched.h>

#include <algorithm>

#include "ckpt/base/clock.h"
#include "ckpt/convert/verify_threads.h"

namespace holdfast::tools {
namespace {

constexpr int kThreadsMax = 8;
constexpr int kReadersMin = 2;  // of a thread: one is hashed, one under way

int Processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace

int ThreadsFor(const VerifyThreads& wanted, const ckpt::Manifest& manifest) {
  if (wanted.threads > 0) return wanted.threads;
  return std::min(
      {kThreadsMax, Processors(), ckpt::VerifyThreadsUseful(manifest)});
}

ckpt::VerifyOutcome VerifyOnThreads(const Opened& opened, bool hash,
                                    const VerifyThreads& wanted,
                                    Progress* progress) {
  const ckpt::Manifest& manifest = *opened.manifest;
  uint64_t total = 0;
  for (const ckpt::ShardFile& file : manifest.files) total += file.bytes;
  ckpt::VerifyThreadsOptions options;
  options.dir = opened.place.dir;
  options.hash = hash;
  options.threads = ThreadsFor(wanted, manifest);
  const int readers = std::max(
      kReadersMin, (wanted.readers + options.threads - 1) / options.threads);
  options.read = ReaderOptions(readers);
  options.open = [&] { return ReopenStorage(opened, readers); };
  options.on_tick = [&](uint64_t done) {
    if (progress != nullptr) progress->Update(std::min(done, total), total);
    return true;
  };
  const ckpt::VerifyOutcome outcome =
      ckpt::VerifyOnThreads(manifest, options, ckpt::RealClock());
  if (progress != nullptr) progress->Update(outcome.bytes_read, total);
  return outcome;
}

}  // namespace holdfast::tools
