// tests/support/sim_storage.cc: calls that take effect later, in any order.

#include "tests/support/sim_storage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/storage/names.h"

namespace holdfast::tests {

using ckpt::CheckAligned;
using ckpt::CheckDirName;
using ckpt::CheckName;
using ckpt::FileId;
using ckpt::OpTag;

SimStorage::SimStorage(SimDisk& disk, const SimStorageOptions& options)
    : disk_(disk),
      options_(options),
      era_(disk.Attach(options.process)),
      stream_(disk.NewStream()),
      random_(disk.options().seed, stream_) {
  traits_.name = "sim";
  traits_.has_rename = !disk.options().object_store;
  traits_.has_directories = !disk.options().object_store;
}

SimStorage::~SimStorage() {
  if (!dead()) disk_.AbandonWrites(options_.process);
}

void SimStorage::SetDelay(SimOp call, absl::Duration delay) {
  HF_CHECK(options_.clock != nullptr, "a delay needs a clock");
  delays_[call] = delay;
}

// --- Calls -------------------------------------------------------------------

SimStorage::Call& SimStorage::Begin(SimOp kind, std::string_view name,
                                    OpTag tag) {
  if (dead()) Die();  // Nobody will answer; nothing piles up.
  HF_CHECK(calls_.size() + finished_.size() < options_.queue_depth,
           "%d calls are unanswered, which is the queue depth",
           options_.queue_depth);
  for (const auto* list : {&calls_, &finished_}) {
    for (const auto& other : *list) {
      HF_CHECK(other->tag != tag, "tag %x is unanswered",
               static_cast<uint64_t>(tag));
    }
  }
  calls_.push_back(std::make_unique<Call>());
  Call& call = *calls_.back();
  call.kind = kind;
  call.tag = tag;
  call.name = name;
  if (const auto delay = delays_.find(kind); delay != delays_.end()) {
    call.due = options_.clock->Monotonic() + delay->second;
  }
  return call;
}

SimStorage::File& SimStorage::OpenedFile(FileId id, bool writable) {
  const auto found = files_.find(id);
  HF_CHECK(found != files_.end() && found->second.open,
           "file id %d is not open, or its Create or Open is not polled",
           static_cast<uint32_t>(id));
  HF_CHECK(found->second.writable == writable, "%s is open for %s",
           found->second.name, found->second.writable ? "writing" : "reading");
  return found->second;
}

void SimStorage::Create(std::string_view name, FileId file,
                        uint64_t size_expected, OpTag tag) {
  CheckName(name);
  Call& call = Begin(SimOp::kCreate, name, tag);
  call.file = file;
  call.size = size_expected;
  const bool is_new = files_.try_emplace(file).second;
  HF_CHECK(is_new, "file id %d is in use", static_cast<uint32_t>(file));
  files_[file].name = name;
  files_[file].writable = true;
}

void SimStorage::OpenForWrite(std::string_view name, FileId file, OpTag tag) {
  Open(name, file, tag);
  files_[file].writable = files_[file].others = true;
}

void SimStorage::Write(FileId file, uint64_t offset,
                       std::span<const std::byte> data, OpTag tag) {
  CheckAligned(data.data(), offset, data.size());
  File& slot = OpenedFile(file, /*writable=*/true);
  ++slot.unanswered;
  Call& call = Begin(SimOp::kWrite, slot.name, tag);
  call.file = file;
  call.offset = offset;
  call.size = data.size();
  if (dead()) return;
  call.writes = {disk_.BeginWrite(options_.process, slot.inode, offset, data)};
}

void SimStorage::Sync(FileId file, OpTag tag) {
  File& slot = OpenedFile(file, /*writable=*/true);
  ++slot.unanswered;
  Call& call = Begin(SimOp::kSync, slot.name, tag);
  call.file = file;
  call.writes = std::exchange(slot.answered, {});
  call.end = slot.end_answered;
}

void SimStorage::Close(FileId file, OpTag tag) {
  const auto found = files_.find(file);
  HF_CHECK(found != files_.end() && found->second.open,
           "file id %d is not open", static_cast<uint32_t>(file));
  HF_CHECK(found->second.unanswered == 0, "close of %s with %d calls under way",
           found->second.name, found->second.unanswered);
  Call& call = Begin(SimOp::kClose, found->second.name, tag);
  call.file = file;
  if (!found->second.poisoned.ok()) call.status = found->second.poisoned;
  files_.erase(found);
}

void SimStorage::Open(std::string_view name, FileId file, OpTag tag) {
  CheckName(name);
  Call& call = Begin(SimOp::kOpen, name, tag);
  call.file = file;
  const bool is_new = files_.try_emplace(file).second;
  HF_CHECK(is_new, "file id %d is in use", static_cast<uint32_t>(file));
  files_[file].name = name;
}

void SimStorage::Read(FileId file, uint64_t offset, std::span<std::byte> out,
                      OpTag tag) {
  CheckAligned(out.data(), offset, out.size());
  File& slot = OpenedFile(file, /*writable=*/false);
  ++slot.unanswered;
  Call& call = Begin(SimOp::kRead, slot.name, tag);
  call.file = file;
  call.offset = offset;
  call.out = out;
}

void SimStorage::MakeDir(std::string_view name, OpTag tag) {
  CheckName(name);
  Begin(SimOp::kMakeDir, name, tag);
}

void SimStorage::SyncDir(std::string_view name, OpTag tag) {
  CheckDirName(name);
  Begin(SimOp::kSyncDir, name, tag);
}

void SimStorage::Rename(std::string_view from, std::string_view to, OpTag tag) {
  CheckName(from);
  CheckName(to);
  Begin(SimOp::kRename, from, tag).to = to;
}

void SimStorage::List(std::string_view dir,
                      std::vector<ckpt::DirEntry>* entries, OpTag tag) {
  CheckDirName(dir);
  Begin(SimOp::kList, dir, tag).entries = entries;
}

void SimStorage::Remove(std::string_view name, OpTag tag) {
  CheckName(name);
  Begin(SimOp::kRemove, name, tag);
}

void SimStorage::FreeSpace(std::string_view dir, OpTag tag) {
  CheckDirName(dir);
  Begin(SimOp::kFreeSpace, dir, tag);
}

void SimStorage::PutIfAbsent(std::string_view name,
                             std::span<const std::byte> contents, OpTag tag) {
  CheckName(name);
  Call& call = Begin(SimOp::kPut, name, tag);
  call.contents.assign(contents.begin(), contents.end());
}

void SimStorage::Get(std::string_view name, uint64_t size_max,
                     std::vector<std::byte>* contents, OpTag tag) {
  CheckName(name);
  Call& call = Begin(SimOp::kGet, name, tag);
  call.size = size_max;
  call.target = contents;
}

// --- Answers -----------------------------------------------------------------

size_t SimStorage::Poll(std::span<ckpt::Completion> out) {
  if (dead()) {
    Die();
    return 0;
  }
  const size_t steps = calls_.empty() ? 0 : 1 + random_.Below(calls_.size());
  for (size_t i = 0; i < steps && !calls_.empty(); ++i) {
    const size_t chosen = random_.Below(calls_.size());
    Call& call = *calls_[chosen];
    if (call.due != absl::ZeroDuration() &&
        options_.clock->Monotonic() < call.due) {
      continue;
    }
    const bool is_finished = Step(call);
    if (dead()) {
      Die();
      return 0;
    }
    if (!is_finished) continue;
    finished_.push_back(std::move(calls_[chosen]));
    calls_[chosen] = std::move(calls_.back());
    calls_.pop_back();
  }
  size_t count = std::min(out.size(), finished_.size());
  if (random_.Below(4) == 0) count = random_.Below(count + 1);
  for (size_t i = 0; i < count; ++i) {
    const size_t chosen = random_.Below(finished_.size());
    Call& call = *finished_[chosen];
    OnAnswer(call);
    out[i] = {call.tag, std::move(call.status), call.bytes};
    finished_[chosen] = std::move(finished_.back());
    finished_.pop_back();
  }
  return count;
}

// The caller learns about a call's end: from here on it may build on it.
void SimStorage::OnAnswer(Call& call) {
  const auto found = files_.find(call.file);
  switch (call.kind) {
    case SimOp::kCreate:
    case SimOp::kOpen:
      if (call.status.ok()) {
        found->second.open = true;
      } else {
        files_.erase(found);
      }
      break;
    case SimOp::kWrite:
      if (call.status.ok()) {
        found->second.answered.push_back(call.writes[0]);
        found->second.end_answered =
            std::max(found->second.end_answered, call.offset + call.size);
      }
      --found->second.unanswered;
      break;
    case SimOp::kSync:
    case SimOp::kRead:
      --found->second.unanswered;
      break;
    default:
      break;
  }
}

void SimStorage::Die() {
  calls_.clear();
  finished_.clear();
}

// --- Operations --------------------------------------------------------------

bool SimStorage::Happens(Call& call, SimOp op, std::string_view name) {
  SimFaults::Decision decision = disk_.Decide(options_.process, op, name);
  if (decision.verdict == SimFaults::Verdict::kFails) {
    call.status = std::move(decision.status);
  }
  return decision.verdict == SimFaults::Verdict::kHappens;
}

bool SimStorage::Step(Call& call) {
  switch (call.kind) {
    case SimOp::kWrite:
      StepWrite(call);
      return true;
    case SimOp::kSync:
      StepSync(call);
      return true;
    case SimOp::kRead:
      StepRead(call);
      return true;
    case SimOp::kGet:
      StepGet(call);
      return true;
    case SimOp::kClose:
      return true;
    case SimOp::kPut:
      return StepPut(call);
    default:
      break;
  }
  if (call.kind == SimOp::kRename && !traits_.has_rename) {
    call.status =
        absl::UnimplementedError("sim: an object store cannot rename");
    return true;
  }
  if (call.kind == SimOp::kOpen && files_[call.file].writable &&
      !traits_.has_directories) {
    call.status =
        absl::UnimplementedError("sim: an object is written by one process");
    return true;
  }
  if (!Happens(call, call.kind, call.name)) return true;
  switch (call.kind) {
    case SimOp::kCreate: {
      const absl::StatusOr<InodeId> inode =
          disk_.DoCreate(call.name, call.size);
      call.status = inode.status();
      if (inode.ok()) files_[call.file].inode = *inode;
      break;
    }
    case SimOp::kOpen: {
      File& file = files_[call.file];
      const absl::StatusOr<InodeId> inode = disk_.DoOpen(call.name, &file.size);
      call.status = inode.status();
      if (inode.ok()) file.inode = *inode;
      call.bytes = file.size;
      break;
    }
    case SimOp::kMakeDir:
      call.status = disk_.DoMakeDir(call.name);
      break;
    case SimOp::kSyncDir:
      call.status = disk_.DoSyncDir(call.name);
      break;
    case SimOp::kRename:
      call.status = disk_.DoRename(call.name, call.to);
      break;
    case SimOp::kRemove:
      call.status = disk_.DoRemove(call.name);
      break;
    case SimOp::kList:
      call.status = disk_.DoList(call.name, call.entries);
      break;
    case SimOp::kFreeSpace:
      call.status = disk_.DoFreeSpace(call.name, &call.bytes);
      break;
    default:
      HF_CHECK(false, "operation %s", Name(call.kind));
  }
  return true;
}

void SimStorage::StepWrite(Call& call) {
  File& file = files_[call.file];
  if (!file.poisoned.ok()) {
    call.status = file.poisoned;
    disk_.EndWrite(call.writes[0], /*torn=*/true).IgnoreError();
    return;
  }
  if (Happens(call, SimOp::kWrite, call.name)) {
    call.status = disk_.EndWrite(call.writes[0], /*torn=*/false);
  } else if (!dead()) {
    disk_.EndWrite(call.writes[0], /*torn=*/true).IgnoreError();
  }
  if (call.status.ok()) {
    file.end_seen = std::max(file.end_seen, call.offset + call.size);
    call.bytes = call.size;
  } else {
    file.poisoned = call.status;
  }
}

void SimStorage::StepSync(Call& call) {
  File& file = files_[call.file];
  if (!file.poisoned.ok()) {
    call.status = file.poisoned;
    return;
  }
  if (Happens(call, SimOp::kSync, call.name)) {
    // Only a creator cuts off what it had reserved.
    disk_.DoSync(file.inode, call.writes, call.end,
                 file.others ? UINT64_MAX : file.end_seen,
                 /*fails=*/false);
  } else if (!dead()) {
    disk_.DoSync(file.inode, call.writes, call.end, file.end_seen,
                 /*fails=*/true);
    file.poisoned = call.status;
  }
}

void SimStorage::StepRead(Call& call) {
  const File& file = files_[call.file];
  const uint64_t end = call.offset + call.out.size();
  if (call.offset >= file.size ||
      end > ckpt::RoundUp(file.size, ckpt::kStorageAlignment)) {
    call.status = absl::OutOfRangeError(
        absl::StrFormat("sim: read %s, offset %d, %d bytes: it has %d bytes",
                        call.name, call.offset, call.out.size(), file.size));
    return;
  }
  if (!Happens(call, SimOp::kRead, call.name)) return;
  const size_t real =
      std::min<uint64_t>(call.out.size(), file.size - call.offset);
  call.status = disk_.DoRead(file.inode, call.offset, call.out.first(real));
  if (!call.status.ok()) return;
  std::memset(call.out.data() + real, 0, call.out.size() - real);
  call.bytes = real;
}

void SimStorage::StepGet(Call& call) {
  if (!Happens(call, SimOp::kGet, call.name)) return;
  call.target->clear();
  uint64_t size = 0;
  const absl::StatusOr<InodeId> inode = disk_.DoOpen(call.name, &size);
  call.status = inode.status();
  if (!inode.ok()) return;
  if (size > call.size) {
    call.status = absl::ResourceExhaustedError(
        absl::StrFormat("sim: get %s: it has %d bytes, at most %d are wanted",
                        call.name, size, call.size));
    return;
  }
  call.target->resize(size);
  call.status = disk_.DoRead(*inode, 0, *call.target);
}

// Create, write, sync, link, remove, sync directory; each is one operation.
bool SimStorage::StepPut(Call& call) {
  if (!traits_.has_directories) {
    if (Happens(call, SimOp::kPut, call.name)) {
      call.status = disk_.DoPut(call.name, call.contents);
    } else if (call.status.code() == absl::StatusCode::kUnknown &&
               random_.Coin()) {
      // The answer was lost, not the request.
      disk_.DoPut(call.name, call.contents).IgnoreError();
    }
    return true;
  }
  const ckpt::SplitName split = ckpt::Split(call.name);
  enum { kCreate, kWrite, kSync, kLink, kRemove, kSyncDir };
  switch (call.step++) {
    case kCreate: {
      call.temp = absl::StrFormat(
          "%s%s.%d.%d.%d", split.parent == "." ? "" : split.parent + "/",
          ckpt::kTempPrefix, options_.process, stream_, ++temps_);
      if (!Happens(call, SimOp::kCreate, call.temp)) return true;
      const absl::StatusOr<InodeId> inode = disk_.DoCreate(call.temp, 0);
      call.status = inode.status();
      if (!inode.ok()) return true;
      call.temp_inode = *inode;
      return false;
    }
    case kWrite: {
      call.writes = {disk_.BeginWrite(options_.process, call.temp_inode, 0,
                                      call.contents)};
      const bool happens = Happens(call, SimOp::kWrite, call.temp);
      if (dead()) return true;
      const absl::Status written =
          disk_.EndWrite(call.writes[0], /*torn=*/!happens);
      if (happens) call.status = written;
      break;
    }
    case kSync: {
      const bool happens = Happens(call, SimOp::kSync, call.temp);
      if (dead()) return true;
      disk_.DoSync(call.temp_inode, call.writes, call.contents.size(),
                   call.contents.size(), /*fails=*/!happens);
      break;
    }
    case kLink:
      if (Happens(call, SimOp::kLink, call.name)) {
        call.status = disk_.DoLink(call.temp, call.name);
      }
      break;
    case kRemove: {
      // A failure only leaves a hidden name behind.
      absl::Status so_far = std::exchange(call.status, absl::OkStatus());
      if (Happens(call, SimOp::kRemove, call.temp)) {
        disk_.DoRemove(call.temp).IgnoreError();
      }
      call.status = std::move(so_far);
      return !call.status.ok();
    }
    case kSyncDir:
      if (Happens(call, SimOp::kSyncDir, split.parent)) {
        call.status = disk_.DoSyncDir(split.parent);
      }
      if (!call.status.ok()) {
        call.status = absl::UnknownError(absl::StrFormat(
            "sim: %s exists, but may not survive a power cut: %s", call.name,
            std::string(call.status.message())));
      }
      return true;
  }
  if (!call.status.ok()) call.step = kRemove;
  return false;
}

}  // namespace holdfast::tests
