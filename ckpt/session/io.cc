// ckpt/session/io.cc: calls, their records and their repetition.

#include "ckpt/session/io.h"

#include <array>
#include <mutex>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/while.h"

namespace holdfast::ckpt {
namespace {

// True when the call may be made again.
bool MayRepeat(const absl::Status& status, const RetryPolicy& retry,
               int tries_made) {
  return absl::IsUnavailable(status) && tries_made < retry.tries;
}

}  // namespace

Io::Io(const SessionEnv& env) : env_(env) {
  HF_CHECK(env.storage != nullptr && env.clock != nullptr && env.ops_max > 0,
           "a session's environment is incomplete");
}

Io::~Io() {
  for (auto& [number, op] : flying_) KeepForEver(std::move(op));
}

void KeepForEver(std::shared_ptr<void> memory) {
  static std::mutex lock;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard guard(lock);
  kept->push_back(std::move(memory));
}

FileId Io::NewFileId() {
  HF_CHECK(last_file_ < 0xffff, "a session opened 65,535 files");
  return env_.File(++last_file_);
}

Io::Ref Io::Begin(Start start) {
  auto op = std::make_shared<Op>();
  waiting_.emplace_back(std::move(start), op);
  StartWaiting();
  return op;
}

void Io::StartWaiting() {
  while (!waiting_.empty() && flying_.size() < env_.ops_max) {
    auto [start, op] = std::move(waiting_.front());
    waiting_.pop_front();
    const uint64_t number = ++last_tag_;
    flying_.emplace(number, op);
    start(env_.Tag(number), op.get());
  }
}

void Io::OnCompletion(const Completion& completion) {
  const auto found = flying_.find(NumberOf(completion.tag));
  HF_CHECK(found != flying_.end(), "an answer to a call that nobody made");
  Op& op = *found->second;
  op.status = completion.status;
  op.bytes = completion.bytes;
  op.done = true;
  flying_.erase(found);
  StartWaiting();
}

Io::Ref Io::PutIfAbsent(std::string_view name,
                        std::span<const std::byte> contents) {
  return Begin(
      [this, name = std::string(name),
       contents = std::vector<std::byte>(contents.begin(), contents.end())](
          OpTag tag, Op*) { env_.storage->PutIfAbsent(name, contents, tag); });
}

Io::Ref Io::Get(std::string_view name, uint64_t size_max) {
  return Begin([this, name = std::string(name), size_max](OpTag tag, Op* op) {
    env_.storage->Get(name, size_max, &op->contents, tag);
  });
}

Io::Ref Io::List(std::string_view dir) {
  return Begin([this, dir = std::string(dir)](OpTag tag, Op* op) {
    env_.storage->List(dir, &op->entries, tag);
  });
}

Io::Ref Io::MakeDir(std::string_view name) {
  return Begin([this, name = std::string(name)](OpTag tag, Op*) {
    env_.storage->MakeDir(name, tag);
  });
}

Io::Ref Io::SyncDir(std::string_view name) {
  return Begin([this, name = std::string(name)](OpTag tag, Op*) {
    env_.storage->SyncDir(name, tag);
  });
}

Io::Ref Io::Rename(std::string_view from, std::string_view to) {
  return Begin([this, from = std::string(from), to = std::string(to)](
                   OpTag tag, Op*) { env_.storage->Rename(from, to, tag); });
}

Io::Ref Io::Remove(std::string_view name) {
  return Begin([this, name = std::string(name)](OpTag tag, Op*) {
    env_.storage->Remove(name, tag);
  });
}

Io::Ref Io::FreeSpace(std::string_view dir) {
  return Begin([this, dir = std::string(dir)](OpTag tag, Op*) {
    env_.storage->FreeSpace(dir, tag);
  });
}

Io::Ref Io::Create(std::string_view name, FileId file, uint64_t size_expected) {
  return Begin(
      [this, name = std::string(name), file, size_expected](OpTag tag, Op*) {
        env_.storage->Create(name, file, size_expected, tag);
      });
}

Io::Ref Io::Write(FileId file, uint64_t offset,
                  std::shared_ptr<const AlignedBuffer> memory) {
  return Begin([this, file, offset, memory](OpTag tag, Op* op) {
    op->memory = memory;
    env_.storage->Write(file, offset, memory->span(), tag);
  });
}

Io::Ref Io::Sync(FileId file) {
  return Begin([this, file](OpTag tag, Op*) { env_.storage->Sync(file, tag); });
}

Io::Ref Io::Open(std::string_view name, FileId file) {
  return Begin([this, name = std::string(name), file](OpTag tag, Op*) {
    env_.storage->Open(name, file, tag);
  });
}

Io::Ref Io::Close(FileId file) {
  return Begin(
      [this, file](OpTag tag, Op*) { env_.storage->Close(file, tag); });
}

Io::Ref Io::Read(FileId file, uint64_t offset, std::span<std::byte> out) {
  return Begin([this, file, offset, out](OpTag tag, Op*) {
    env_.storage->Read(file, offset, out, tag);
  });
}

Until UntilTime(Clock* clock, absl::Duration at) {
  return Until([clock, at] { return clock->Monotonic() >= at; });
}

Task<absl::Status> Repeat(Io* io, std::function<Io::Ref()> call,
                          RetryPolicy retry) {
  absl::Duration wait = retry.first_wait;
  for (int tries = 1;; ++tries) {
    const Io::Ref op = call();
    co_await UntilDone(op);
    if (!MayRepeat(op->status, retry, tries)) co_return op->status;
    const absl::Duration at = io->clock().Monotonic() + wait;
    co_await UntilTime(&io->clock(), at);
    wait *= 2;
  }
}

Task<absl::StatusOr<std::vector<std::byte>>> GetFile(Io* io, std::string name,
                                                     uint64_t size_max,
                                                     RetryPolicy retry) {
  absl::Duration wait = retry.first_wait;
  for (int tries = 1;; ++tries) {
    const Io::Ref op = io->Get(name, size_max);
    co_await UntilDone(op);
    if (op->status.ok()) co_return std::move(op->contents);
    if (!MayRepeat(op->status, retry, tries)) {
      co_return While("reading " + name, op->status);
    }
    const absl::Duration at = io->clock().Monotonic() + wait;
    co_await UntilTime(&io->clock(), at);
    wait *= 2;
  }
}

Task<absl::StatusOr<std::vector<DirEntry>>> ListDir(Io* io, std::string dir,
                                                    RetryPolicy retry) {
  absl::Duration wait = retry.first_wait;
  for (int tries = 1;; ++tries) {
    const Io::Ref op = io->List(dir);
    co_await UntilDone(op);
    if (op->status.ok()) co_return std::move(op->entries);
    if (!MayRepeat(op->status, retry, tries)) {
      co_return While("listing " + dir, op->status);
    }
    const absl::Duration at = io->clock().Monotonic() + wait;
    co_await UntilTime(&io->clock(), at);
    wait *= 2;
  }
}

Task<absl::Status> EnsureDir(Io* io, std::string name, std::string parent) {
  std::function<Io::Ref()> make = [io, &name] { return io->MakeDir(name); };
  const absl::Status made = co_await Repeat(io, std::move(make));
  if (!made.ok() && !absl::IsAlreadyExists(made)) {
    co_return While("making directory " + name, made);
  }
  // Also when it was there: whoever made it may not have lived to sync it.
  const Io::Ref synced = io->SyncDir(parent);
  co_await UntilDone(synced);
  if (!synced->status.ok()) {
    co_return While("syncing the parent of " + name, synced->status);
  }
  co_return absl::OkStatus();
}

void RunAlone(Storage* storage, Clock* clock, Session* session) {
  std::array<Completion, 64> done;
  for (int idle = 0;;) {
    session->Poll();
    if (session->done()) return;
    const size_t count = storage->Poll(done);
    for (size_t i = 0; i < count; ++i) session->OnCompletion(done[i]);
    idle = count > 0 ? 0 : idle + 1;
    if (idle == 1) storage->WaitForCompletion(/*wait_ms=*/10);
    // Nothing came: the session waits for a time, not for the storage.
    if (idle > 1) clock->Sleep(absl::Milliseconds(1));
  }
}

}  // namespace holdfast::ckpt
