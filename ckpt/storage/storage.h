// ckpt/storage/storage.h: where checkpoint bytes go, and when they are safe.
//
// A Storage is a tree of write-once files under one root. Names are relative
// paths with '/' between parts; "." is the root itself, for SyncDir and List.
// "..", empty parts, absolute paths and last parts that begin with ".tmp."
// (PutIfAbsent's own) are bugs of the caller (CHECK); names read from files are
// checked before they get here.
//
// A shard file passes four gates:
//
//   Create    the name exists, exclusively ours; its contents mean nothing
//   Write     bytes are in flight; a power cut may lose, tear or reorder them
//   Sync      every earlier answered Write to this file survives a power cut,
//             and so does the file's size; its NAME may still be lost
//   SyncDir   the names in that directory survive a power cut
//
// A small file that decides something (an owner's claim, a seal, a manifest) is
// made by PutIfAbsent: it appears whole and durable, or not at all, and of
// several writers exactly one succeeds. It is the only commit point there is. A
// POSIX backend does it with a temporary name, sync, link and directory sync;
// an object store with a conditional put.
//
// Cut the power anywhere and a name made by PutIfAbsent reads as nothing or as
// all of its bytes. tests/contract/storage_test.cc holds every backend to these
// sentences, the simulated disk included.
//
// Calls return at once. Answers come from Poll(), in any order, under the tag
// the caller chose; calls that are unanswered at the same time may also take
// effect in any order, so a call that needs another waits for its answer. One
// thread owns a Storage and makes every call on it. Metadata calls (everything
// but Write, Read and Sync) may do their work inside the call and answer at the
// next Poll.

#ifndef HOLDFAST_CKPT_STORAGE_STORAGE_H_
#define HOLDFAST_CKPT_STORAGE_STORAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace holdfast::ckpt {

// Memory, offsets and sizes of Write and Read are multiples of this.
inline constexpr size_t kStorageAlignment = 4096;

// Chosen by the caller, unique among the files it has open.
enum class FileId : uint32_t {};
// Chosen by the caller, unique among its unanswered calls.
enum class OpTag : uint64_t {};

// The answer to one call. Codes mean, whatever the backend:
//   kAlreadyExists      Create, MakeDir, Rename, PutIfAbsent: the name is taken
//   kNotFound           no such name (a directory on the way included)
//   kFailedPrecondition the name is another kind of thing: a symbolic link, a
//                       special file, a directory for a file, a file for a
//                       directory; Remove: the directory is not empty
//   kResourceExhausted  no space, no inode, quota, no descriptor, no memory
//   kPermissionDenied   not allowed, read-only file system
//   kOutOfRange         Read past the end
//   kUnavailable        the device or server failed; may come back
//   kUnimplemented      the backend cannot do it at all (see StorageTraits)
//   kInvalidArgument    the system refuses the name (too long, for example)
//   kUnknown            PutIfAbsent only: the name may or may not exist, and if
//                       it does, may or may not survive a power cut
// After any other error of PutIfAbsent this call has made nothing.
struct Completion {
  OpTag tag{};
  absl::Status status;
  // Open: the file's size. Write, Read: bytes moved. FreeSpace: bytes free.
  uint64_t bytes = 0;
};

// What a backend can do; ckptctl, doctor and the log tell users.
struct StorageTraits {
  std::string name;        // "io_uring", "posix", "sim"
  bool direct_io = false;  // O_DIRECT is in use
  bool has_rename = true;  // Rename works (object stores: no)
  // Without directories names need no parent, List shows what the names imply
  // (nothing, for a directory that was only made), MakeDir and SyncDir answer
  // OK and do nothing, Remove answers OK where others say kNotFound, and a
  // file's Sync makes its name survive as well.
  bool has_directories = true;
  bool registered_buffers = false;
};

struct DirEntry {
  std::string name;  // Last part only.
  bool is_directory = false;
  friend bool operator==(const DirEntry&, const DirEntry&) = default;
};

class Storage {
 public:
  virtual ~Storage() = default;

  virtual const StorageTraits& traits() const = 0;

  // How many calls may be unanswered at once. A caller that exceeds it has a
  // bug, and the call CHECK-fails.
  virtual size_t queue_depth() const = 0;

  // Memory that later Writes and Reads will use, so that a backend can register
  // it with the kernel. Optional and best effort; call it before the first I/O.
  // The memory must outlive the Storage.
  virtual void RegisterBuffers(
      std::span<const std::span<std::byte>> buffers) = 0;

  // --- Writing a shard -----------------------------------------------------

  // Fails with kAlreadyExists rather than open an existing file. `file` is
  // open, for Write and Sync only, once the answer is OK. `size_expected` lets
  // the backend reserve space (no promise; kResourceExhausted when it already
  // knows that the bytes cannot fit); the reader of an unsynced file may see
  // that size.
  virtual void Create(std::string_view name, FileId file,
                      uint64_t size_expected, OpTag tag) = 0;

  // A file that somebody has created, for Write and Sync only, as for him:
  // several processes then fill one file, each its own bytes. Regular files
  // only, as with Open; nothing is made. A Sync covers the Writes of this
  // `file`, those of others are theirs to sync, and it cuts nothing off.
  // kUnimplemented without directories (objects are written whole).
  virtual void OpenForWrite(std::string_view name, FileId file, OpTag tag) = 0;

  // `data` is not empty, and stays alive and unchanged until its tag is polled.
  // A short write is completed by the backend: the caller sees all of it, or an
  // error.
  virtual void Write(FileId file, uint64_t offset,
                     std::span<const std::byte> data, OpTag tag) = 0;

  // The caller has seen the answers of all Writes it wants covered; a file that
  // it has created then ends where the furthest of them did, so before that
  // nobody else writes further. After an error of Write or Sync
  // the file is poisoned: no later Sync can make its bytes safe, every later
  // call on it fails with the code of the first error. Abandon it and write a
  // new one.
  virtual void Sync(FileId file, OpTag tag) = 0;

  // Releases the id, for files that were created or opened, whatever the
  // answer. No other call on the file is unanswered. Never makes anything
  // durable.
  virtual void Close(FileId file, OpTag tag) = 0;

  // --- Reading ---------------------------------------------------------------

  // Regular files only: symbolic links and special files are refused with
  // kFailedPrecondition. `file` is open, for Read only, once the answer is OK;
  // the completion carries the size, which is taken as fixed from then on.
  virtual void Open(std::string_view name, FileId file, OpTag tag) = 0;

  // Past the end is kOutOfRange, never a short success. `offset` and the size
  // of `out`, which is not empty, are aligned; the last block of a file whose
  // size is not aligned may be read whole, the tail of `out` is then zero and
  // `bytes` says how many are real. An error does not poison.
  virtual void Read(FileId file, uint64_t offset, std::span<std::byte> out,
                    OpTag tag) = 0;

  // --- Names -----------------------------------------------------------------

  // kNotFound without the parent, kAlreadyExists when the name is taken.
  virtual void MakeDir(std::string_view name, OpTag tag) = 0;
  virtual void SyncDir(std::string_view name, OpTag tag) = 0;

  // Atomic, never replaces: kAlreadyExists when `to` is taken. Both parents
  // need a SyncDir to make it durable. kUnimplemented without has_rename.
  virtual void Rename(std::string_view from, std::string_view to,
                      OpTag tag) = 0;

  // `*entries` is filled, sorted by name, before the tag is polled, and must
  // stay alive until then. Temporary names of PutIfAbsent are not listed.
  virtual void List(std::string_view dir, std::vector<DirEntry>* entries,
                    OpTag tag) = 0;

  // How many bytes this user may still write below `dir`, as the file system
  // says: quotas that it does not show there and other writers may leave less.
  // kUnimplemented where nobody knows (object stores).
  virtual void FreeSpace(std::string_view dir, OpTag tag) = 0;

  // A file, or an empty directory; what killed PutIfAbsents left in a directory
  // goes with it and does not count. Durable after a SyncDir of the parent.
  virtual void Remove(std::string_view name, OpTag tag) = 0;

  // --- Small files, whole ----------------------------------------------------

  // See above. `contents` is copied before the call returns.
  virtual void PutIfAbsent(std::string_view name,
                           std::span<const std::byte> contents, OpTag tag) = 0;

  // The whole file into `*contents`, which stays alive until the tag is polled.
  // kResourceExhausted above `size_max` bytes, before any memory is taken.
  virtual void Get(std::string_view name, uint64_t size_max,
                   std::vector<std::byte>* contents, OpTag tag) = 0;

  // --- Answers ---------------------------------------------------------------

  // Fills `out` with finished calls and returns how many; 0 means none yet.
  // Never blocks.
  virtual size_t Poll(std::span<Completion> out) = 0;

  // Blocks until at least one call has finished or `wait_ms` passed; for loops
  // that have nothing else to do. The simulated disk returns at once.
  virtual void WaitForCompletion(int wait_ms) = 0;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_STORAGE_H_
