// tools/ckptctl/verify_threads.h: verification on several cores
// (ckpt/convert/verify_threads.h), with a progress line.

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
