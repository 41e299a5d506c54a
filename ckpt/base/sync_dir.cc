// ckpt/base/sync_dir.cc: see sync_dir.h.

#include "ckpt/base/sync_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace holdfast::ckpt {

int SyncDirFd(int dir_fd) {
  while (::fsync(dir_fd) != 0) {
    if (errno != EINTR) return errno;
  }
  // Asked after the sync: a shutdown that came later took nothing that had
  // been synced.
  struct stat st = {};
  return ::fstat(dir_fd, &st) == 0 ? 0 : errno;
}

}  // namespace holdfast::ckpt
