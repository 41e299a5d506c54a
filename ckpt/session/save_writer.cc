// ckpt/session/save_writer.cc: see save_writer.h.

#include "ckpt/session/save_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/while.h"
#include "ckpt/format/checksum.h"

namespace holdfast::ckpt {
namespace {

// Between two tries of Create in a directory that is not visible yet.
constexpr absl::Duration kCreateNap = absl::Milliseconds(20);

constexpr size_t kHeaderAt = 0;
constexpr size_t kFooterAt = kShardBlockBytes;
constexpr size_t kIndexAt = 2 * kShardBlockBytes;

}  // namespace

SaveWriter::SaveWriter(const SessionEnv& env, const SavePlans* plans,
                       Snapshot* snapshot, const SaveWriterOptions& options)
    : env_(env),
      plans_(plans),
      snapshot_(snapshot),
      options_(options),
      blocks_(kIndexAt + ShardIndexBytes(plans->own().units.size())),
      unit_bytes_(plans->own().units.size()),
      unit_flags_(plans->own().units.size()),
      index_(plans->own().units.size()),
      digests_(plans->layout().items().size()) {
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
  dir_ = std::move(dir);
  identity_ = identity;
  file_open_ = header_written_ = dir_sync_sent_ = dir_synced_ = false;
  snapshot_held_ = true;
  units_begun_ = units_hashed_ = units_ended_ = 0;
  std::fill(unit_flags_.begin(), unit_flags_.end(), 0);
  std::fill(digests_.begin(), digests_.end(), Digest128{});
  crc_index_ = 0;
  last_answer_ = env_.clock->Monotonic();
  create_give_up_ = last_answer_ + options_.create_patience;
  started_at_ = synced_at_ = last_answer_;
  starved_since_.reset();
  state_ = State::kCreating;
  Create();
}

void SaveWriter::Create() {
  create_at_ = absl::InfiniteDuration();
  Ask();
  env_.storage->Create(dir_ + "/" + ShardFileName(identity_.file), env_.File(0),
                       plans_->own().file_bytes, TagOf(Tag::kCreate));
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
    OnUnitWritten(number - static_cast<uint64_t>(Tag::kUnits), status);
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
      doing = "creating its file";
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
        WriteBlock(Tag::kHeader, 0, EncodeShardHeader(identity_), kHeaderAt);
        break;
      case State::kIndex:
        Sync(State::kSyncData);
        break;
      case State::kSyncData:
        synced_at_ = last_answer_;
        state_ = State::kFooter;
        WriteBlock(Tag::kFooter, plans_->own().file_bytes - kShardBlockBytes,
                   EncodeShardFooter(identity_, plans_->own().index_offset,
                                     plans_->own().units.size(), crc_index_),
                   kFooterAt);
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

void SaveWriter::OnUnitWritten(size_t unit, const absl::Status& status) {
  const WriteUnit& place = plans_->own().units[unit];
  unit_flags_[unit] |= kWritten;
  if (!status.ok()) {
    Fail(While(absl::StrFormat("writing %d bytes at offset %d of its file",
                               place.bytes, place.file_offset),
               status));
  }
  if (status_.ok() && options_.recheck && (unit_flags_[unit] & kHashed)) {
    const uint32_t again = Crc32c({unit_bytes_[unit], place.bytes});
    if (again != index_[unit].crc) {
      Fail(absl::AbortedError(absl::StrFormat(
          "bytes %d-%d of region %d changed while they were being written "
          "(crc32c %08x, then %08x): something stores without the fence",
          place.region_offset, place.region_offset + place.bytes - 1,
          place.region, index_[unit].crc, again)));
    }
  }
  if (status_.ok()) MaybeEndUnit(unit);
  Advance();
}

void SaveWriter::MaybeEndUnit(size_t unit) {
  if (unit_flags_[unit] != (kWritten | kHashed)) return;
  ++units_ended_;
  const absl::Status same = snapshot_->EndUnit(unit);
  if (!same.ok()) Fail(same);
}

void SaveWriter::SubmitUnits() {
  const std::vector<WriteUnit>& units = plans_->own().units;
  while (units_begun_ < units.size() && units_begun_ - units_ended_ < depth()) {
    const auto bytes = snapshot_->BeginUnit(units_begun_);
    if (!bytes.has_value()) return;
    const WriteUnit& unit = units[units_begun_];
    unit_bytes_[units_begun_] = bytes->data();
    Ask();
    env_.storage->Write(
        env_.File(0), unit.file_offset, *bytes,
        env_.Tag(static_cast<uint64_t>(Tag::kUnits) + units_begun_));
    ++units_begun_;
  }
}

void SaveWriter::HashUnit(size_t unit) {
  const WriteUnit& place = plans_->own().units[unit];
  const std::span<const std::byte> bytes(unit_bytes_[unit], place.bytes);
  index_[unit] = {place.file_offset, place.bytes, Crc32c(bytes)};
  const std::vector<ItemSpec>& items = plans_->layout().items();
  for (uint32_t i = plans_->piece_first()[unit];
       i < plans_->piece_first()[unit + 1]; ++i) {
    const DigestPiece& piece = plans_->own().pieces[i];
    const ItemSpec& item = items[piece.item];
    digests_[piece.item] += DigestRun(
        item, piece.part, piece.first, piece.count,
        bytes.subspan(piece.unit_offset, piece.count * SizeOf(item.dtype)));
  }
  unit_flags_[unit] |= kHashed;
  MaybeEndUnit(unit);
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
  if (state_ == State::kWriting) {
    const absl::Status intact = snapshot_->status();
    if (!intact.ok()) {
      Fail(intact);
    } else {
      SubmitUnits();
      if (units_hashed_ < units_begun_) HashUnit(units_hashed_++);
      CheckStarved(now);
    }
  }
  Advance();
}

// A snapshot that takes its copies from somebody else may never hand out a
// unit.
void SaveWriter::CheckStarved(absl::Duration now) {
  const bool starved = state_ == State::kWriting && unanswered_ == 0 &&
                       units_hashed_ == units_begun_ &&
                       units_begun_ < plans_->own().units.size();
  if (!starved) {
    starved_since_.reset();
    return;
  }
  if (!starved_since_.has_value()) starved_since_ = now;
  if (now - *starved_since_ <= options_.io_timeout) return;
  Fail(absl::DeadlineExceededError(absl::StrFormat(
      "the snapshot has not handed out unit %d of %d for %d s", units_begun_,
      plans_->own().units.size(), absl::ToInt64Seconds(options_.io_timeout))));
}

// Takes the steps that wait for several things at once.
void SaveWriter::Advance() {
  if (state_ == State::kWriting) {
    const bool all_begun = units_begun_ == plans_->own().units.size();
    // Late, when the queue is full of writes: some backends block in it.
    if (all_begun && header_written_ && !dir_sync_sent_) {
      dir_sync_sent_ = true;
      if (options_.canary_no_dir_sync) {
        dir_synced_ = true;
      } else {
        Ask();
        env_.storage->SyncDir(dir_, TagOf(Tag::kSyncDir));
      }
    }
    if (all_begun && !UnitsLeft() && header_written_) {
      // Nothing of the state is needed any more. A poison that came in before
      // this point fails the save; none can come after it.
      const absl::Status intact = snapshot_->status();
      ReleaseSnapshot();
      if (!intact.ok()) {
        Fail(intact);
        return;
      }
      WriteIndex();
    }
  }
  if (state_ == State::kClosing && file_open_ && dir_synced_ &&
      unanswered_ == 0) {
    Ask();
    env_.storage->Close(env_.File(0), TagOf(Tag::kClose));
  } else if (state_ == State::kClosing && !file_open_) {
    state_ = State::kSucceeded;
  }
  if (state_ == State::kDraining && unanswered_ == 0) {
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
  const std::vector<std::byte> index = EncodeShardIndex(index_);
  crc_index_ = Crc32c(index);
  if (index.empty()) {
    Sync(State::kSyncData);
    return;
  }
  WriteBlock(Tag::kIndex, plans_->own().index_offset, index, kIndexAt);
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
  if (options_.canary_no_file_sync) {
    // As if it had been answered.
    if (state == State::kSyncData) {
      synced_at_ = last_answer_;
      state_ = State::kFooter;
      WriteBlock(Tag::kFooter, plans_->own().file_bytes - kShardBlockBytes,
                 EncodeShardFooter(identity_, plans_->own().index_offset,
                                   plans_->own().units.size(), crc_index_),
                 kFooterAt);
    } else {
      state_ = State::kClosing;
    }
    return;
  }
  Ask();
  env_.storage->Sync(env_.File(0), TagOf(Tag::kSync));
}

}  // namespace holdfast::ckpt
