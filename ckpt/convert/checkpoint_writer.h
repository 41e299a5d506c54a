// ckpt/convert/checkpoint_writer.h: writes a committed checkpoint of a state,
// for any layout, in bounded memory.
//
//   source (state_source.h)  --Fill-->  windows of target units
//       --checksum, digest, codec-->  shard files  -->  sync  -->  MANIFEST
//
// The result is a run directory with one committed checkpoint, which
// `holdfast train --run` resumes and `--init-from` reads, or the checkpoint's
// directory alone. It exists exactly when its manifest does, which comes last.
//
// Restartable. What is being made carries a record of itself (OUT/conversion/):
// the same call on the same source goes on where the one before was killed,
// after it has verified what that one had finished. Anything else in OUT is
// refused with kFailedPrecondition and left as it is.
//
// Blocks; the calling thread waits, `threads` others work.

#ifndef HOLDFAST_CKPT_CONVERT_CHECKPOINT_WRITER_H_
#define HOLDFAST_CKPT_CONVERT_CHECKPOINT_WRITER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/types.h"
#include "ckpt/convert/state_source.h"
#include "ckpt/format/codec.h"
#include "ckpt/format/digest.h"
#include "ckpt/group/group.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

// Units are filled and written so many bytes at a time, by each thread; with a
// codec it takes as much again, and some 8 MiB.
inline constexpr uint64_t kConvertWindowBytes = uint64_t{16} << 20;

struct WriteProgress {
  uint64_t bytes_done = 0;  // of the target's plain bytes, verified ones too
  uint64_t bytes_total = 0;
  uint64_t bytes_verified = 0;  // found there, from a run before
  // "looking", "reserving", "verifying", "writing", "syncing", "waiting"
  const char* phase = "";
};

struct WriteCheckpointOptions {
  // The directory to be made: absent, empty, or begun by the same call.
  std::string out;
  enum class Form {
    kRun,         // OUT/owners, OUT/checkpoints/step-...i0001.a01
    kCheckpoint,  // OUT/MANIFEST, OUT/shard-00000.hf
  };
  Form form = Form::kRun;
  int64_t step = 0;
  // Attributes of the result are the source's, with these instead or besides.
  std::map<std::string, std::string> attributes;
  // What a person calls this conversion, for messages: "RUN@120 to
  // tp4-pp1-dp3".
  std::string title;

  Codec codec = Codec::kNone;
  int codec_level = kZstdLevelDefault;
  uint32_t files_per_dir = 1024;
  int threads = 0;  // 0: as many as processors, at least 2
  // What is written is made safe and recorded each so many bytes; 0: 4 GiB.
  uint64_t round_bytes = 0;
  uint64_t window_bytes = kConvertWindowBytes;
  std::string storage = "auto";  // "io_uring", "posix"

  // Several processes that call this together, on one file system: rank 0 leads
  // and reports, the others get a report without figures (or rank 0's error).
  // Null: alone. kUnimplemented with a codec: where a unit is stored is known
  // to one process only.
  Group* group = nullptr;

  // Called by the thread that called WriteCheckpoint, some times a second.
  std::function<void(const WriteProgress&)> on_progress;
  // When it becomes true the call ends soon with kCancelled; what is finished
  // stays for the next one.
  const std::atomic<bool>* stop = nullptr;
};

struct WriteCheckpointReport {
  RunId run_id{};
  CheckpointId id;
  std::string path;  // of the checkpoint's own directory
  Digest128 digest;  // of the whole state, from the bytes that were written
  std::vector<Digest128> item_digests;
  uint64_t bytes_state = 0;     // of the items
  uint64_t bytes_stored = 0;    // of the files
  uint64_t bytes_read = 0;      // by the source
  uint64_t bytes_verified = 0;  // found from a run before, read again
  uint32_t files = 0;
  double seconds = 0;
  bool was_complete = false;  // there was nothing left to do but to verify
};

// `target`'s items are the source's (kInvalidArgument names the first
// difference). Errors besides the source's: kResourceExhausted (no space: asked
// before the first write), kFailedPrecondition (OUT is something else),
// kDataLoss (the source's recorded digests are not those of its bytes),
// kCancelled, and what the storage says.
absl::StatusOr<WriteCheckpointReport> WriteCheckpoint(
    StateSource* source, const JobLayout& target,
    const WriteCheckpointOptions& options, Clock& clock);

// For ranks that do not come as far as WriteCheckpoint. Mostly all of them find
// the same to be wrong, and it is to be said once.
//
// Rank 0: tells the others, in WriteCheckpoint or HearRefusal; true when all
// have answered (ten seconds at most), so that the job can end in order.
bool TellRefusal(Group* group, const absl::Status& why, Clock& clock);
// The others: true when rank 0 says that it refuses, and has said why; false
// when it goes on, or nothing is heard of it for ten seconds.
bool HearRefusal(Group* group, Clock& clock);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_CHECKPOINT_WRITER_H_
