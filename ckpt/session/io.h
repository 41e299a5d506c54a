// ckpt/session/io.h: a session's calls on the storage, as records to wait for.
//
// A Storage answers by tag. Io makes the calls of one session under tags and
// file ids of the session's space, and gives the caller a small record that
// fills in when the host hands over the answer. Calls beyond the session's
// ops_max wait inside, in order.
//
// The record owns the memory that List and Get fill and that Write uses, so a
// session that gives up leaves nothing dangling; memory of Read is the
// caller's, who keeps it until idle(). A session that is destroyed with calls
// unanswered, since its storage hangs, leaves their memory behind on purpose
// (KeepForEver).
//
// Thread: the storage's owner (the ckpt thread). Cost: one small allocation a
// call; meant for metadata and for reads of megabytes.

#ifndef HOLDFAST_CKPT_SESSION_IO_H_
#define HOLDFAST_CKPT_SESSION_IO_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/session/session.h"
#include "ckpt/session/task.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

class Io {
 public:
  struct Op {
    bool done = false;
    absl::Status status;
    uint64_t bytes = 0;                           // As in Completion.
    std::vector<DirEntry> entries;                // List
    std::vector<std::byte> contents;              // Get
    std::shared_ptr<const AlignedBuffer> memory;  // Write
  };
  using Ref = std::shared_ptr<Op>;

  explicit Io(const SessionEnv& env);
  ~Io();

  Storage& storage() { return *env_.storage; }
  Clock& clock() { return *env_.clock; }
  const SessionEnv& env() const { return env_; }

  // The host's delivery. Starts calls that waited for a place.
  void OnCompletion(const Completion& completion);

  // No call is unanswered or waiting.
  bool idle() const { return flying_.empty() && waiting_.empty(); }
  size_t unanswered() const { return flying_.size(); }

  // A file id of this session. At most 65,535 of them in its life (CHECK), so
  // long loops take one and use it again after Close has answered.
  FileId NewFileId();

  Ref PutIfAbsent(std::string_view name, std::span<const std::byte> contents);
  Ref Get(std::string_view name, uint64_t size_max);
  Ref List(std::string_view dir);
  Ref MakeDir(std::string_view name);
  Ref SyncDir(std::string_view name);
  Ref Rename(std::string_view from, std::string_view to);
  Ref Remove(std::string_view name);
  Ref FreeSpace(std::string_view dir);
  Ref Create(std::string_view name, FileId file, uint64_t size_expected);
  Ref Write(FileId file, uint64_t offset,
            std::shared_ptr<const AlignedBuffer> memory);
  Ref Sync(FileId file);
  Ref Open(std::string_view name, FileId file);
  Ref Close(FileId file);
  Ref Read(FileId file, uint64_t offset, std::span<std::byte> out);

 private:
  using Start = std::function<void(OpTag, Op*)>;
  Ref Begin(Start start);
  void StartWaiting();

  const SessionEnv env_;
  uint64_t last_tag_ = 0;
  uint16_t last_file_ = 0;
  std::map<uint64_t, Ref> flying_;
  std::deque<std::pair<Start, Ref>> waiting_;
};

// Memory that a hanging storage may still write into. Any thread.
void KeepForEver(std::shared_ptr<void> memory);

inline Until UntilDone(Io::Ref op) {
  return Until([op = std::move(op)] { return op->done; });
}

// co_await UntilTime(clock, t): goes on when the clock shows t or later.
Until UntilTime(Clock* clock, absl::Duration at);

// Bounded repetition of what may come back. Only kUnavailable is repeated.
struct RetryPolicy {
  int tries = 4;
  absl::Duration first_wait = absl::Milliseconds(100);  // doubles each time
};

// A call that may simply be made again: not SyncDir, whose error stays true
// although the next try answers OK. The last answer's status.
Task<absl::Status> Repeat(Io* io, std::function<Io::Ref()> call,
                          RetryPolicy retry = {});

// Get, List with repetition. Other codes come back as they are, with "reading
// NAME: " in front.
Task<absl::StatusOr<std::vector<std::byte>>> GetFile(Io* io, std::string name,
                                                     uint64_t size_max,
                                                     RetryPolicy retry = {});
Task<absl::StatusOr<std::vector<DirEntry>>> ListDir(Io* io, std::string dir,
                                                    RetryPolicy retry = {});

// MakeDir, and SyncDir of its parent ("." is the root); fine if it is there.
Task<absl::Status> EnsureDir(Io* io, std::string name, std::string parent);

// Drives one session that needs no messages until it is done, waiting for the
// storage in between. For tools and tests.
void RunAlone(Storage* storage, Clock* clock, Session* session);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_IO_H_
