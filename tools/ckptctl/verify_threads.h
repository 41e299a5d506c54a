// tools/ckptctl/verify_threads.h: verification on several cores.
//
// Each thread has a storage of its own and takes parts of the checkpoint until
// there are no more (ckpt/session/verify_session.h). The calling thread waits
// and shows the progress.
//
// Memory: 4 MiB a read in flight, and with `hash` 32 bytes an item and thread.

#ifndef HOLDFAST_TOOLS_CKPTCTL_VERIFY_THREADS_H_
#define HOLDFAST_TOOLS_CKPTCTL_VERIFY_THREADS_H_

#include "ckpt/session/verify_session.h"
#include "tools/ckptctl/opened.h"
#include "tools/common/progress.h"

namespace holdfast::tools {

struct VerifyThreads {
  int threads = 0;  // 0: the processors that this process may use, at most 8
  int readers = 8;  // reads in flight, all threads together; each has two
};

// The threads that `wanted` means for this checkpoint.
int ThreadsFor(const VerifyThreads& wanted, const ckpt::Manifest& manifest);

ckpt::VerifyOutcome VerifyOnThreads(const Opened& opened, bool hash,
                                    const VerifyThreads& wanted,
                                    Progress* progress);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CKPTCTL_VERIFY_THREADS_H_
