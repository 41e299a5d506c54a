// ckpt/storage/fault_storage.cc: counting, and then killing, stopping, failing,
// delaying.

#include "ckpt/storage/fault_storage.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/storage/errno_status.h"
#include "ckpt/storage/names.h"

namespace holdfast::ckpt {
namespace {

void Strike(StorageFault::Act act, const std::string& at) {
  const bool kill = act == StorageFault::Act::kKill;
  HF_LOG_WARNING("storage fault: %s this process %s, as told",
                 kill ? "killing" : "stopping", at);
  FlushLog();
  // To this thread, which so gets no further; the others die or stop with it.
  do {
    ::raise(kill ? SIGKILL : SIGSTOP);
  } while (kill);
}

bool Matches(const StorageFault& fault, StorageOp op, std::string_view name) {
  if (fault.any_op ? op > StorageOp::kPut : op != fault.op) return false;
  return name.find(fault.match) != std::string_view::npos;
}

}  // namespace

FaultStorage::FaultStorage(std::unique_ptr<Storage> storage,
                           std::vector<StorageFault> faults, int rank,
                           const Clock& clock)
    : storage_(std::move(storage)), traits_(storage_->traits()), clock_(clock) {
  traits_.name += " with faults";
  for (StorageFault& fault : faults) {
    if (fault.rank < 0 || fault.rank == rank) {
      armed_.push_back({std::move(fault), 0});
    }
  }
}

FaultStorage::~FaultStorage() {
  for (const Armed& armed : armed_) {
    if (armed.fault.act != StorageFault::Act::kCount) continue;
    HF_LOG_INFO("storage fault: counted %d operations (op=%s, match='%s')",
                armed.count, armed.fault.any_op ? "any" : Name(armed.fault.op),
                armed.fault.match);
  }
}

void FaultStorage::Begin() {
  HF_CHECK(unanswered_ < queue_depth(),
           "%d calls are unanswered, which is the queue depth", unanswered_);
  ++unanswered_;
}

bool FaultStorage::Meet(StorageOp op, const std::string& name, OpTag tag,
                        std::function<void()> call, Extent extent) {
  Begin();
  absl::Duration delay;
  for (Armed& armed : armed_) {
    const StorageFault& fault = armed.fault;
    if (!Matches(fault, op, name)) continue;
    if (fault.at >= 0 &&
        static_cast<uint64_t>(fault.at) - extent.offset >= extent.size) {
      continue;  // below it wraps around
    }
    ++armed.count;
    if (armed.count < fault.n || (armed.count > fault.n && !fault.lasting)) {
      continue;
    }
    const auto what = [&] {
      return absl::StrFormat("%s number %d, %s", Name(op), armed.count, name);
    };
    switch (fault.act) {
      case StorageFault::Act::kKill:
      case StorageFault::Act::kStop:
        if (fault.after) {
          after_[tag] = {fault.act, "after " + what()};
        } else {
          Strike(fault.act, "before " + what());
        }
        break;
      case StorageFault::Act::kFail:
        if (armed.count == fault.n) {
          HF_LOG_WARNING("storage fault: failing %s, as told", what());
        }
        failed_.push_back(
            {tag, ErrnoStatus(fault.error, Name(op), name + " (injected)"), 0});
        return false;
      case StorageFault::Act::kDelay:
        delay = std::max(delay, absl::Milliseconds(fault.delay_ms));
        break;
      case StorageFault::Act::kCount:
        break;
    }
  }
  if (delay == absl::ZeroDuration()) {
    call();
  } else {
    late_.push_back({clock_.Monotonic() + delay, std::move(call)});
  }
  return true;
}

void FaultStorage::MeetOnFile(StorageOp op, FileId file, OpTag tag,
                              std::function<void()> call, Extent extent) {
  File& slot = files_[file];
  if (!slot.poisoned.ok()) {
    Begin();
    failed_.push_back({tag, slot.poisoned, 0});
    return;
  }
  if (!Meet(op, slot.name, tag, std::move(call), extent) &&
      op != StorageOp::kRead) {
    slot.poisoned = failed_.back().status;
  }
}

void FaultStorage::Create(std::string_view name, FileId file,
                          uint64_t size_expected, OpTag tag) {
  CheckName(name);
  const std::string kept(name);
  if (Meet(StorageOp::kCreate, kept, tag,
           [=, this] { storage_->Create(kept, file, size_expected, tag); })) {
    files_[file] = {kept, absl::OkStatus()};
    opening_[tag] = file;
  }
}

void FaultStorage::OpenForWrite(std::string_view name, FileId file, OpTag tag) {
  CheckName(name);
  const std::string kept(name);
  if (Meet(StorageOp::kOpen, kept, tag,
           [=, this] { storage_->OpenForWrite(kept, file, tag); })) {
    files_[file] = {kept, absl::OkStatus()};
    opening_[tag] = file;
  }
}

void FaultStorage::Open(std::string_view name, FileId file, OpTag tag) {
  CheckName(name);
  const std::string kept(name);
  if (Meet(StorageOp::kOpen, kept, tag,
           [=, this] { storage_->Open(kept, file, tag); })) {
    files_[file] = {kept, absl::OkStatus()};
    opening_[tag] = file;
  }
}

void FaultStorage::Write(FileId file, uint64_t offset,
                         std::span<const std::byte> data, OpTag tag) {
  CheckAligned(data.data(), offset, data.size());
  MeetOnFile(StorageOp::kWrite, file, tag,
             [=, this] { storage_->Write(file, offset, data, tag); },
             {offset, data.size()});
}

void FaultStorage::Sync(FileId file, OpTag tag) {
  MeetOnFile(StorageOp::kSync, file, tag,
             [=, this] { storage_->Sync(file, tag); }, {});
}

void FaultStorage::Read(FileId file, uint64_t offset, std::span<std::byte> out,
                        OpTag tag) {
  CheckAligned(out.data(), offset, out.size());
  MeetOnFile(StorageOp::kRead, file, tag,
             [=, this] { storage_->Read(file, offset, out, tag); },
             {offset, out.size()});
}

void FaultStorage::Close(FileId file, OpTag tag) {
  const auto found = files_.find(file);
  if (found != files_.end()) {
    if (!found->second.poisoned.ok()) closing_[tag] = found->second.poisoned;
    files_.erase(found);
  }
  Begin();
  storage_->Close(file, tag);
}

void FaultStorage::MakeDir(std::string_view name, OpTag tag) {
  CheckName(name);
  const std::string kept(name);
  Meet(StorageOp::kMakeDir, kept, tag,
       [=, this] { storage_->MakeDir(kept, tag); });
}

void FaultStorage::SyncDir(std::string_view name, OpTag tag) {
  CheckDirName(name);
  const std::string kept(name);
  Meet(StorageOp::kSyncDir, kept, tag,
       [=, this] { storage_->SyncDir(kept, tag); });
}

void FaultStorage::Rename(std::string_view from, std::string_view to,
                          OpTag tag) {
  CheckName(from);
  CheckName(to);
  const std::string kept_from(from);
  const std::string kept_to(to);
  Meet(StorageOp::kRename, kept_from, tag,
       [=, this] { storage_->Rename(kept_from, kept_to, tag); });
}

void FaultStorage::List(std::string_view dir, std::vector<DirEntry>* entries,
                        OpTag tag) {
  CheckDirName(dir);
  const std::string kept(dir);
  Meet(StorageOp::kList, kept, tag,
       [=, this] { storage_->List(kept, entries, tag); });
}

void FaultStorage::Remove(std::string_view name, OpTag tag) {
  CheckName(name);
  const std::string kept(name);
  Meet(StorageOp::kRemove, kept, tag,
       [=, this] { storage_->Remove(kept, tag); });
}

void FaultStorage::FreeSpace(std::string_view dir, OpTag tag) {
  Begin();
  storage_->FreeSpace(dir, tag);
}

void FaultStorage::PutIfAbsent(std::string_view name,
                               std::span<const std::byte> contents, OpTag tag) {
  CheckName(name);
  const std::string kept(name);
  Meet(StorageOp::kPut, kept, tag,
       [=, this,
        copy = std::vector<std::byte>(contents.begin(), contents.end())] {
         storage_->PutIfAbsent(kept, copy, tag);
       });
}

void FaultStorage::Get(std::string_view name, uint64_t size_max,
                       std::vector<std::byte>* contents, OpTag tag) {
  CheckName(name);
  const std::string kept(name);
  Meet(StorageOp::kGet, kept, tag,
       [=, this] { storage_->Get(kept, size_max, contents, tag); });
}

void FaultStorage::MakeLateCalls() {
  const absl::Duration now = clock_.Monotonic();
  for (size_t i = 0; i < late_.size();) {
    if (late_[i].due > now) {
      ++i;
      continue;
    }
    const std::function<void()> call = std::move(late_[i].call);
    late_.erase(late_.begin() + static_cast<ptrdiff_t>(i));
    call();
  }
}

size_t FaultStorage::Poll(std::span<Completion> out) {
  MakeLateCalls();
  size_t count = std::min(out.size(), failed_.size());
  std::move(failed_.begin(), failed_.begin() + static_cast<ptrdiff_t>(count),
            out.begin());
  failed_.erase(failed_.begin(),
                failed_.begin() + static_cast<ptrdiff_t>(count));
  const size_t answered = storage_->Poll(out.subspan(count));
  for (Completion& answer : out.subspan(count, answered)) {
    if (const auto after = after_.extract(answer.tag); !after.empty()) {
      Strike(after.mapped().act, after.mapped().what);
    }
    if (const auto close = closing_.find(answer.tag); close != closing_.end()) {
      answer.status = close->second;
      closing_.erase(close);
    }
    if (const auto open = opening_.find(answer.tag); open != opening_.end()) {
      if (!answer.status.ok()) files_.erase(open->second);
      opening_.erase(open);
    }
  }
  unanswered_ -= count + answered;
  return count + answered;
}

void FaultStorage::WaitForCompletion(int wait_ms) {
  MakeLateCalls();
  if (!failed_.empty()) return;
  if (!late_.empty()) wait_ms = std::min(wait_ms, 1);
  storage_->WaitForCompletion(wait_ms);
}

}  // namespace holdfast::ckpt
