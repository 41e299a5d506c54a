// ckpt/convert/verify_threads.h: verification on several cores.
//
// Each thread has a storage of its own and takes parts of the checkpoint until
// there are no more (ckpt/session/verify_session.h). The calling thread waits
// and ticks.
//
// Memory: of each thread its reads in flight, and with `hash` 32 bytes an item.

#ifndef HOLDFAST_CKPT_CONVERT_VERIFY_THREADS_H_
#define HOLDFAST_CKPT_CONVERT_VERIFY_THREADS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "ckpt/base/clock.h"
#include "ckpt/format/manifest.h"
#include "ckpt/session/verify_session.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

// A thread that gets no part worth its storage is not started: at most this
// many.
int VerifyThreadsUseful(const Manifest& manifest);

struct VerifyThreadsOptions {
  // Of each thread, called by it.
  std::function<absl::StatusOr<std::unique_ptr<Storage>>()> open;
  std::string dir;  // the checkpoint's, in the storage
  bool hash = false;
  int threads = 1;
  UnitReaderOptions read = {};
  // Called by the calling thread, some times a second, with what has been read.
  // False: stop; the outcome is then kCancelled.
  std::function<bool(uint64_t bytes_done)> on_tick;
};

// `seconds` is the time that it took.
VerifyOutcome VerifyOnThreads(const Manifest& manifest,
                              const VerifyThreadsOptions& options,
                              Clock& clock);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_VERIFY_THREADS_H_
