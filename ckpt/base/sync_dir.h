// ckpt/base/sync_dir.h: fsync(2) of a directory whose answer can be believed.
//
// XFS answers OK when it has been shut down meanwhile (an error of the device
// in its journal, or by hand): the names that it forgot are then not pending
// any more (xfs_dir_fsync asks for no shutdown, unlike xfs_file_fsync; seen on
// Linux 6.18). Its stat says EIO from then on.
//
// Thread: any; blocks. Cost: fsync, and a stat.

#ifndef HOLDFAST_CKPT_BASE_SYNC_DIR_H_
#define HOLDFAST_CKPT_BASE_SYNC_DIR_H_

namespace holdfast::ckpt {

// 0 when the names in the directory survive a power cut, else the errno.
int SyncDirFd(int dir_fd);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BASE_SYNC_DIR_H_
