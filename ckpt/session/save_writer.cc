// ckpt/session/save_writer.cc: see save_writer.h.

#include "ckpt/session/save_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/while.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/coded_units.h"
#include "ckpt/session/packed_units.h"
#include "ckpt/session/plain_units.h"

namespace holdfast::ckpt {
namespace {

// Between two tries of Create in a directory that is not visible yet.
constexpr absl::Duration kCreateNap = absl::Milliseconds(20);

constexpr size_t kHeaderAt = 0;
constexpr size_t kFooterAt = kShardBlockBytes;
constexpr size_t kIndexAt = 2 * kShardBlockBytes;

// Two of the calls in flight are for the header and the directory.
std::unique_ptr<SaveUnits> MakeUnits(const SessionEnv& env,
                                     const SavePlans* plans, Snapshot* snapshot,
                                     const SaveWriterOptions& options) {
  const size_t depth = env.ops_max - 2;
  if (options.codec == Codec::kNone) {
    return std::make_unique<PlainUnits>(plans, snapshot, depth,
                                        options.recheck);
  }
  PackedUnitsOptions packed;
  packed.level = options.codec_level;
  packed.threads = options.codec_threads;
  packed.buffers = std::min(packed.buffers, depth);
  packed.recheck = options.recheck;
  return std::make_unique<PackedUnits>(plans, snapshot, packed);
}

}  // namespace

SaveWriter::SaveWriter(const SessionEnv& env, const SavePlans* plans,
                       Snapshot* snapshot, const SaveWriterOptions& options)
    : env_(env),
      plans_(plans),
      snapshot_(snapshot),
      options_(options),
      units_(MakeUnits(env, plans, snapshot, options)),
      write_unit_([this](size_t unit, uint64_t offset,
                         std::span<const std::byte> bytes) {
        Ask();
        env_.storage->Write(
            env_.File(0), offset, bytes,
            env_.Tag(static_cast<uint64_t>(Tag::kUnits) + unit));
      }),
      blocks_(kIndexAt + std::max(ShardIndexBytes(plans->file().unit_count),
                                  CodedIndexBytes(plans->own().units.size()))),
      parts_(plans->members().size()) {
  HF_CHECK(!shared() || options.codec == Codec::kNone,
           "files that ranks share are not coded");
  HF_CHECK(env.ops_max >= 3, "a save needs 3 calls in flight, it has %d",
           env.ops_max);
  HF_CHECK(snapshot->unit_count() == plans->own().units.size(),
           "the snapshot has %d units, the plan %d", snapshot->unit_count(),
           plans->own().units.size());
}

void SaveWriter::Start(uint16_t space, std::string dir,
                       const ShardIdentity& identity) {
  HF_CHECK(finished(), "a file is begun while another is being written");
  env_.space = space;
  status_ = absl::OkStatus();
  dir_ = plans_->names().DirOf(dir, identity.file);
  name_ = dir + "/" + plans_->names().NameOf(identity.file);
  identity_ = identity;
  file_open_ = header_written_ = dir_sync_sent_ = dir_synced_ = false;
  snapshot_held_ = true;
  units_->Start();
  std::fill(parts_.begin(), parts_.end(), std::nullopt);
  parts_missing_ = parts_.empty() ? 0 : parts_.size() - 1;
  crc_index_ = 0;
  last_answer_ = env_.clock->Monotonic();
  create_give_up_ = last_answer_ + options_.create_patience;
  started_at_ = synced_at_ = last_answer_;
  starved_since_.reset();
  if (!plans_->leads()) {
    state_ = State::kAwaitingFile;
    return;
  }
  state_ = State::kCreating;
  Create();
}

void SaveWriter::FileIsThere() {
  if (state_ != State::kAwaitingFile) return;
  create_give_up_ = env_.clock->Monotonic() + options_.create_patience;
  state_ = State::kCreating;
  Create();
}

void SaveWriter::Create() {
  create_at_ = absl::InfiniteDuration();
  Ask();
  if (!plans_->leads()) {
    env_.storage->OpenForWrite(name_, env_.File(0), TagOf(Tag::kCreate));
    return;
  }
  // Of a coded file no more than that; the sync gives back what is not needed.
  env_.storage->Create(name_, env_.File(0), plans_->file().file_bytes(),
                       TagOf(Tag::kCreate));
}

absl::Status SaveWriter::AddPart(Rank from, std::vector<Unit> units) {
  const std::vector<SavePlans::Member>& members = plans_->members();
  const auto member =
      std::find_if(members.begin(), members.end(),
                   [from](const auto& m) { return m.rank == from; });
  if (member == members.end() || from == plans_->leader()) {
    return absl::InternalError(absl::StrFormat(
        "rank %d says that it has a part of file %d, the plan knows of none",
        Index(from), identity_.file));
  }
  uint64_t end = member->begin;
  bool fits = units.size() == member->part.unit_count;
  for (const Unit& unit : units) {
    fits &= unit.offset == end && unit.bytes > 0 &&
            unit.bytes <= kUnitBytesMax && unit.bytes % kShardBlockBytes == 0;
    end += unit.bytes;
  }
  if (!fits || end != member->begin + member->part.data_bytes) {
    return absl::AbortedError(absl::StrFormat(
        "the part of rank %d in file %d is %d units up to offset %d, the plan "
        "has %d from %d to %d: do all ranks run the same build and "
        "configuration?",
        Index(from), identity_.file, units.size(), end, member->part.unit_count,
        member->begin, member->begin + member->part.data_bytes));
  }
  auto& place = parts_[member - members.begin()];
  if (!place.has_value()) --parts_missing_;
  place = std::move(units);
  return absl::OkStatus();
}

std::vector<int> SaveWriter::MissingParts() const {
  std::vector<int> ranks;
  for (size_t i = 1; i < parts_.size(); ++i) {
    if (!parts_[i].has_value()) {
      ranks.push_back(Index(plans_->members()[i].rank));
    }
  }
  return ranks;
}

void SaveWriter::Ask() {
  // The silence that io_timeout measures begins with the first question.
  if (unanswered_++ == 0) last_answer_ = env_.clock->Monotonic();
}

void SaveWriter::Stop(absl::Status why) {
  if (!finished() && status_.ok()) Fail(std::move(why));
}

void SaveWriter::Fail(absl::Status why) {
  if (!status_.ok()) return;
  status_ = std::move(why);
  units_->Stop();
  // The optimizer need not wait for bytes that nobody will count on.
  if (snapshot_held_) snapshot_->Poison(status_);
  state_ = State::kDraining;
  Advance();
}

void SaveWriter::ReleaseSnapshot() {
  if (std::exchange(snapshot_held_, false)) snapshot_->Release();
}

void SaveWriter::OnCompletion(const Completion& completion) {
  --unanswered_;
  last_answer_ = env_.clock->Monotonic();
  const uint64_t number = NumberOf(completion.tag);
  const absl::Status& status = completion.status;
  if (number >= static_cast<uint64_t>(Tag::kUnits)) {
    const size_t unit = number - static_cast<uint64_t>(Tag::kUnits);
    const absl::Status fine = units_->OnWritten(unit, status);
    if (!fine.ok()) Fail(fine);
    Advance();
    return;
  }
  const char* doing = "";
  switch (static_cast<Tag>(number)) {
    case Tag::kCreate:
      if (absl::IsNotFound(status) && state_ == State::kCreating &&
          last_answer_ < create_give_up_) {
        create_at_ = last_answer_ + kCreateNap;
        return;
      }
      file_open_ = status.ok();
      doing = plans_->leads() ? "creating its file" : "opening its file";
      break;
    case Tag::kHeader:
      header_written_ = true;
      doing = "writing the header";
      break;
    case Tag::kIndex:
      doing = "writing the index";
      break;
    case Tag::kSync:
      doing = "syncing its file";
      break;
    case Tag::kFooter:
      doing = "writing the footer";
      break;
    case Tag::kSyncDir:
      dir_synced_ = status.ok();
      doing = "syncing the directory";
      break;
    case Tag::kClose:
      file_open_ = false;
      doing = "closing its file";
      break;
    case Tag::kUnits:
      break;
  }
  if (!status.ok()) {
    Fail(While(doing, status));
    if (state_ == State::kDraining || state_ == State::kClosingFailed) {
      Advance();
    }
    return;
  }
  if (static_cast<Tag>(number) != Tag::kSyncDir) {
    switch (state_) {
      case State::kCreating:
        state_ = State::kWriting;
        started_at_ = last_answer_;
        if (plans_->leads()) {
          WriteBlock(Tag::kHeader, 0, EncodeShardHeader(identity_), kHeaderAt);
        } else {
          // Header and name are the leader's.
          header_written_ = dir_sync_sent_ = dir_synced_ = true;
        }
        break;
      case State::kIndex:
        Sync(State::kSyncData);
        break;
      case State::kSyncData:
        OnDataSynced();
        break;
      case State::kFooter:
        Sync(State::kSyncFooter);
        break;
      case State::kSyncFooter:
        state_ = State::kClosing;
        break;
      default:
        break;
    }
  }
  Advance();
}

void SaveWriter::Poll() {
  if (finished()) return;
  const absl::Duration now = env_.clock->Monotonic();
  if (status_.ok() && unanswered_ > 0 &&
      now - last_answer_ > options_.io_timeout) {
    Fail(absl::DeadlineExceededError(absl::StrFormat(
        "the storage has answered nothing for %d s, %d calls are waiting",
        absl::ToInt64Seconds(options_.io_timeout), unanswered_)));
  }
  if (state_ == State::kCreating && now >= create_at_) Create();
  if (state_ == State::kAwaitingFile && !snapshot_->status().ok()) {
    Fail(snapshot_->status());
  }
  if (state_ == State::kWriting) {
    const absl::Status intact = snapshot_->status();
    if (!intact.ok()) {
      Fail(intact);
    } else {
      const absl::Status fine = units_->Poll(write_unit_);
      if (!fine.ok()) Fail(fine);
      CheckStarved(now);
    }
  }
  Advance();
}

// A snapshot that takes its copies from somebody else may never hand out a
// unit.
void SaveWriter::CheckStarved(absl::Duration now) {
  const size_t count = plans_->own().units.size();
  const bool starved = state_ == State::kWriting && unanswered_ == 0 &&
                       units_->Idle() && !units_->eager() &&
                       units_->begun() < count;
  if (!starved) {
    starved_since_.reset();
    return;
  }
  if (!starved_since_.has_value()) starved_since_ = now;
  if (now - *starved_since_ <= options_.io_timeout) return;
  Fail(absl::DeadlineExceededError(absl::StrFormat(
      "the snapshot has not handed out unit %d of %d for %d s", units_->begun(),
      count, absl::ToInt64Seconds(options_.io_timeout))));
}

// Takes the steps that wait for several things at once.
void SaveWriter::Advance() {
  if (state_ == State::kWriting) {
    // Late, when the queue is full of writes: some backends block in it.
    if (units_->all_submitted() && header_written_ && !dir_sync_sent_) {
      dir_sync_sent_ = true;
      if (options_.canary_no_dir_sync) {
        dir_synced_ = true;
      } else {
        Ask();
        env_.storage->SyncDir(dir_, TagOf(Tag::kSyncDir));
      }
    }
    if (units_->all_written() && header_written_) {
      // Nothing of the state is needed any more. A poison that came in before
      // this point fails the save; none can come after it.
      const absl::Status intact = snapshot_->status();
      ReleaseSnapshot();
      if (!intact.ok()) {
        Fail(intact);
        return;
      }
      parts_since_ = env_.clock->Monotonic();
      if (plans_->leads()) {
        state_ = State::kParts;
      } else {
        Sync(State::kSyncData);
      }
    }
  }
  // Without others at once. The directory's sync may still be unanswered.
  if (state_ == State::kParts && parts_missing_ == 0) WriteIndex();
  if (state_ == State::kClosing && file_open_ && dir_synced_ &&
      unanswered_ == 0) {
    Ask();
    env_.storage->Close(env_.File(0), TagOf(Tag::kClose));
  } else if (state_ == State::kClosing && !file_open_) {
    state_ = State::kSucceeded;
  }
  if (state_ == State::kDraining && unanswered_ == 0 && units_->Idle()) {
    ReleaseSnapshot();
    state_ = file_open_ ? State::kClosingFailed : State::kFailed;
    if (file_open_) {
      Ask();
      env_.storage->Close(env_.File(0), TagOf(Tag::kClose));
    }
  } else if (state_ == State::kClosingFailed && unanswered_ == 0) {
    state_ = State::kFailed;
  }
}

void SaveWriter::WriteIndex() {
  state_ = State::kIndex;
  std::vector<std::byte> index;
  if (shared()) {
    std::vector<Unit> entries = units_->Entries();
    entries.reserve(plans_->file().unit_count);
    for (size_t i = 1; i < parts_.size(); ++i) {
      entries.insert(entries.end(), parts_[i]->begin(), parts_[i]->end());
    }
    index = EncodeShardIndex(entries);
  } else {
    index = units_->EncodeIndex();
  }
  crc_index_ = Crc32c(index);
  if (index.empty()) {
    Sync(State::kSyncData);
    return;
  }
  WriteBlock(Tag::kIndex, units_->facts().index_offset, index, kIndexAt);
}

// A rank that does not lead its file has no footer to write.
void SaveWriter::OnDataSynced() {
  synced_at_ = last_answer_;
  if (plans_->leads()) {
    WriteFooter();
  } else {
    state_ = State::kClosing;
  }
}

void SaveWriter::WriteFooter() {
  state_ = State::kFooter;
  const SaveFileFacts facts = units_->facts();
  WriteBlock(Tag::kFooter, facts.file_bytes - kShardBlockBytes,
             EncodeShardFooter(identity_, facts.index_offset, facts.unit_count,
                               crc_index_, facts.plain_bytes),
             kFooterAt);
}

void SaveWriter::WriteBlock(Tag tag, uint64_t offset,
                            std::span<const std::byte> bytes,
                            size_t block_offset) {
  std::memcpy(blocks_.data() + block_offset, bytes.data(), bytes.size());
  Ask();
  env_.storage->Write(env_.File(0), offset,
                      blocks_.span().subspan(block_offset, bytes.size()),
                      TagOf(tag));
}

void SaveWriter::Sync(State state) {
  state_ = state;
  if (options_.canary_no_file_sync ||
      (options_.canary_no_part_sync && !plans_->leads())) {
    // As if it had been answered.
    if (state == State::kSyncData) {
      OnDataSynced();
    } else {
      state_ = State::kClosing;
    }
    return;
  }
  Ask();
  env_.storage->Sync(env_.File(0), TagOf(Tag::kSync));
}

}  // namespace holdfast::ckpt
