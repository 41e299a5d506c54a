// ckpt/storage/fault_spec.h: one line that says how storage shall fail, for
// drills and tests. Pure; any thread.
//
//   rank=1,op=write,n=3,do=kill                       SIGKILL at the 3rd write
//   match=step-000000020,op=put,do=kill,when=after    once the manifest stands
//   op=write,n=5,do=fail,error=ENOSPC,lasting=yes     the disk fills
//   op=sync,do=fail                                   one sync says EIO
//   op=write,do=delay,ms=200                          a slow disk
//   op=put,match=MANIFEST,do=stop                     SIGSTOP before the commit
//   do=count                                          only count
//
// Several are separated by ';'. Each counts the operations that it matches, one
// for each call on a Storage, and acts at the n-th.
//
//   rank   of the process; without it any
//   op     create write sync mkdir syncdir rename remove put open read list
//   get,
//          or any (the default): all of them up to put, which change something
//   at     a byte of a file: only writes and reads of it count, such as those
//   of
//          a bad sector
//   match  part of the file's or directory's name; without it all
//   n      from 1, the default
//   do     kill    SIGKILL to this process, before the operation or after its
//                  answer (when=before, the default, or when=after)
//          stop    SIGSTOP to this process, when as for kill; after SIGCONT it
//                  goes on as if nothing had been
//          fail    the operation is not done and answers `error`: EIO
//          (default),
//                  ENOSPC, EDQUOT, EACCES, EROFS, ESTALE; lasting=yes: so do
//                  all later ones
//          delay   it begins `ms` milliseconds late, and so do all later ones
//                  (lasting=no: only this one)
//          count   nothing; the log tells the count when the Storage closes

#ifndef HOLDFAST_CKPT_STORAGE_FAULT_SPEC_H_
#define HOLDFAST_CKPT_STORAGE_FAULT_SPEC_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace holdfast::ckpt {

// In this order; those up to kPut change something.
enum class StorageOp : uint8_t {
  kCreate,
  kWrite,
  kSync,
  kMakeDir,
  kSyncDir,
  kRename,
  kRemove,
  kPut,
  kOpen,
  kRead,
  kList,
  kGet,
};
std::string_view Name(StorageOp op);

struct StorageFault {
  enum class Act : uint8_t { kKill, kStop, kFail, kDelay, kCount };

  int rank = -1;  // -1: any.
  bool any_op = true;
  StorageOp op{};     // Without any_op.
  std::string match;  // "": every name.
  int64_t at = -1;    // -1: any bytes; else kWrite and kRead that cover it.
  int64_t n = 1;
  Act act{};
  bool after = false;  // kKill, kStop: after the answer.
  int error = 0;       // kFail: an errno.
  bool lasting = false;
  int64_t delay_ms = 0;
};

// kInvalidArgument names the piece that is wrong, and what it may be.
absl::StatusOr<std::vector<StorageFault>> ParseStorageFaults(
    std::string_view spec);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_FAULT_SPEC_H_
