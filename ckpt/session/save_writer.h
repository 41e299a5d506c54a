// ckpt/session/save_writer.h: one rank's file of one save, from Create to
// Close.
//
//   create -> header, units ... -> index -> sync -> footer -> sync -> close
//                    \-> sync of the directory, beside the others
//
// A file that several ranks share (ckpt/plan/file_plan.h) has a leader, who
// does all that, for the units of all:
//
//   leader   create -> header, own units -> parts of all -> index -> sync ->
//   ... others   FileIsThere -> open -> own units -> sync -> close
//
// The leader syncs nothing before all parts are there: a sync of the one who
// created the file cuts off what is behind his own writes (storage.h).
//
// How units get from the snapshot into the file is the matter of save_units.h;
// this is the file around them. The footer is written last, after a first sync:
// only a rank that is about to vote yes has one.
//
// The directory's sync is that of the rank that made the name: a yes says "my
// bytes and my name survive", whoever else is there (ckpt/DESIGN.md, R1).
//
// Thread: the ckpt thread. Memory: sized by the constructor, used for save
//     after save; Create to the last unit allocates nothing.

#ifndef HOLDFAST_CKPT_SESSION_SAVE_WRITER_H_
#define HOLDFAST_CKPT_SESSION_SAVE_WRITER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/format/codec.h"
#include "ckpt/format/digest.h"
#include "ckpt/format/shard.h"
#include "ckpt/session/save_plans.h"
#include "ckpt/session/save_units.h"
#include "ckpt/session/session.h"
#include "ckpt/snapshot/snapshot.h"

namespace holdfast::ckpt {

struct SaveWriterOptions {
  // With calls unanswered and no answer arriving for so long, the save fails;
  // so it does when the snapshot hands out nothing for so long.
  absl::Duration io_timeout = absl::Minutes(2);
  // The attempt's directory was made by rank 0 on another machine; file systems
  // that cache names may show it late.
  absl::Duration create_patience = absl::Seconds(30);
  // Take each checksum again after the write: finds stores without the fence.
  bool recheck = false;
  // kZstd: a coded file, at this level, by so many threads (0: the caller's).
  Codec codec = Codec::kNone;
  int codec_level = kZstdLevelDefault;
  int codec_threads = 0;
  // Canaries of the tests: success is reported without them.
  bool canary_no_file_sync = false;
  bool canary_no_dir_sync = false;
  // The leader's sync is to do for the others' bytes.
  bool canary_no_part_sync = false;
};

class SaveWriter {
 public:
  // At most env.ops_max (at least 3) calls are unanswered. All pointers outlive
  // the writer.
  SaveWriter(const SessionEnv& env, const SavePlans* plans, Snapshot* snapshot,
             const SaveWriterOptions& options);

  // Memory that Write uses besides the snapshot's, for registration. Some may
  // be empty.
  std::array<std::span<std::byte>, 2> blocks() {
    return {blocks_.span(), units_->memory()};
  }

  // The snapshot is armed; the writer before is finished(). `space` is that of
  // this save.
  void Start(uint16_t space, std::string dir, const ShardIdentity& identity);

  // The leader has made this attempt's file; for the others, once is enough.
  void FileIsThere();
  // Waits for that.
  bool awaits_file() const { return state_ == State::kAwaitingFile; }
  // This rank's file has been made, and is still being written.
  bool file_made() const {
    return plans_->leads() && file_open_ && status_.ok();
  }

  // The leader: `from` has its bytes where they belong, durable. Not OK: they
  // are not what the plan says.
  absl::Status AddPart(Rank from, std::vector<Unit> units);
  // Since when nothing but parts of others has been awaited.
  std::optional<absl::Duration> awaits_parts_since() const {
    if (state_ != State::kParts) return std::nullopt;
    return parts_since_;
  }
  // Whose.
  std::vector<int> MissingParts() const;

  // Gives up for `why`, unless it has succeeded or failed already.
  void Stop(absl::Status why);

  void OnCompletion(const Completion& completion);
  void Poll();

  // The first error; OK so far otherwise. The snapshot is poisoned with it.
  const absl::Status& status() const { return status_; }
  bool succeeded() const { return state_ == State::kSucceeded; }
  // No call is unanswered and the file is closed; nothing more will happen.
  bool finished() const {
    return state_ == State::kIdle || state_ == State::kSucceeded ||
           state_ == State::kFailed;
  }

  // After success. Of the whole file on the rank that leads it, of its part on
  // another.
  uint32_t crc_index() const { return crc_index_; }
  // This rank's units.
  std::vector<Unit> Entries() const { return units_->Entries(); }
  SaveFileFacts facts() const { return units_->facts(); }
  const std::vector<Digest128>& item_digests() const {
    return units_->item_digests();
  }
  // First write submitted to data synced.
  absl::Duration write_time() const { return synced_at_ - started_at_; }
  size_t units_ended() const { return units_->ended(); }
  // There are bytes to hash now: Poll again at once.
  bool eager() const { return state_ == State::kWriting && units_->eager(); }
  // Every unit is written and hashed; nothing is synced yet.
  bool has_index() const {
    return status_.ok() && state_ >= State::kIndex &&
           state_ <= State::kSucceeded;
  }

 private:
  enum class State {
    kIdle,
    kAwaitingFile,  // the leader's
    kCreating,      // or opening
    kWriting,       // header and units
    kParts,         // the others are not done yet
    kIndex,         // the index is being written
    kSyncData,      // units, index
    kFooter,        // the footer is being written
    kSyncFooter,
    kClosing,
    kSucceeded,
    kDraining,  // failed; waits for answers
    kClosingFailed,
    kFailed,
  };
  enum class Tag : uint64_t {
    kCreate = 1,
    kHeader,
    kIndex,
    kSync,
    kFooter,
    kSyncDir,
    kClose,
    kUnits,  // + unit
  };
  OpTag TagOf(Tag tag) const { return env_.Tag(static_cast<uint64_t>(tag)); }
  void Ask();
  void Create();
  void CheckStarved(absl::Duration now);
  void WriteBlock(Tag tag, uint64_t offset, std::span<const std::byte> bytes,
                  size_t block_offset);
  bool shared() const { return plans_->members().size() != 1; }
  void OnDataSynced();
  void WriteIndex();
  void WriteFooter();
  void Sync(State state);
  void Advance();
  void Fail(absl::Status why);
  void ReleaseSnapshot();

  SessionEnv env_;
  const SavePlans* const plans_;
  Snapshot* const snapshot_;
  const SaveWriterOptions options_;

  const std::unique_ptr<SaveUnits> units_;
  const SaveUnits::Write write_unit_;
  // Header, footer, index.
  AlignedBuffer blocks_;

  State state_ = State::kIdle;
  absl::Status status_;
  std::string dir_;   // of the file
  std::string name_;  // the file
  ShardIdentity identity_;
  size_t unanswered_ = 0;
  bool file_open_ = false;
  bool snapshot_held_ = false;
  bool header_written_ = false;
  bool dir_sync_sent_ = false;
  bool dir_synced_ = false;
  absl::Duration create_at_;  // next try
  absl::Duration create_give_up_;
  absl::Duration last_answer_;
  absl::Duration started_at_;
  absl::Duration synced_at_;
  std::optional<absl::Duration> starved_since_;

  // Of the leader of a shared file, by member; the own one stays empty.
  std::vector<std::optional<std::vector<Unit>>> parts_;
  size_t parts_missing_ = 0;
  absl::Duration parts_since_;

  uint32_t crc_index_ = 0;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_SAVE_WRITER_H_
