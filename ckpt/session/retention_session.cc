// ckpt/session/retention_session.cc: what goes, and in which order.

#include "ckpt/session/retention_session.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/base/check.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/manifest_rules.h"
#include "ckpt/session/catalog.h"

namespace holdfast::ckpt {

std::vector<CheckpointId> PlanRetention(const RunLedger& ledger,
                                        const RetentionPolicy& policy,
                                        int64_t now_unix_ms) {
  HF_CHECK(policy.keep_last >= 1, "keep_last is %d", policy.keep_last);
  // Before the first commit of this incarnation nothing is superseded by it.
  if (ledger.committed.empty() && !ledger.by_hand) return {};
  std::vector<CheckpointId> line;
  for (const SealedCheckpoint& sealed : ledger.seal.line) {
    line.push_back(sealed.id);
  }
  line.insert(line.end(), ledger.committed.begin(), ledger.committed.end());

  if (!ledger.chosen.empty()) {
    std::vector<CheckpointId> chosen = ledger.chosen;
    if (!line.empty()) std::erase(chosen, line.back());
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

  std::set<CheckpointId> unknown(ledger.unknown.begin(), ledger.unknown.end());
  unknown.insert(ledger.kept.begin(), ledger.kept.end());
  // line[young] is the first that is not keep_older_s old.
  const auto is_older = [&](const CheckpointId& id) {
    const auto found = ledger.committed_unix_ms.find(id);
    return found != ledger.committed_unix_ms.end() &&
           now_unix_ms - found->second >= policy.keep_older_s * 1000;
  };
  const size_t young =
      std::find_if_not(line.begin(), line.end(), is_older) - line.begin();

  const size_t keep_last = policy.keep_last;
  std::vector<CheckpointId> old;
  for (size_t i = 0; i + keep_last < line.size(); ++i) {
    const bool kept =
        (policy.keep_every > 0 && line[i].step % policy.keep_every == 0) ||
        (policy.keep_older_s > 0 && (i + 1 == young || i == young));
    if (!kept && !unknown.contains(line[i])) old.push_back(line[i]);
  }
  if (ledger.committed.size() >= keep_last || ledger.by_hand) {
    for (const SupersededCheckpoint& superseded : ledger.seal.superseded) {
      const CheckpointId& id = superseded.checkpoint.id;
      if (!unknown.contains(id)) old.push_back(id);
    }
  }
  return old;
}

RetentionSession::RetentionSession(const SessionEnv& env, RunLedger ledger,
                                   RetentionPolicy policy)
    : clock_(env.clock), io_(env), ledger_(std::move(ledger)), policy_(policy) {
  fiber_.Start(Run());
}

// Files and empty directories of `dir`; those that are gone already are fine.
Task<absl::Status> RetentionSession::RemoveAll(
    std::string dir, const std::vector<DirEntry>* entries) {
  std::vector<Io::Ref> removes;
  for (const DirEntry& entry : *entries) {
    const std::string name = dir + "/" + entry.name;
    removes.push_back(io_.Remove(name));
  }
  absl::Status status;
  for (const Io::Ref& removed : removes) {
    co_await UntilDone(removed);
    if (status.ok() && !absl::IsNotFound(removed->status)) {
      status = removed->status;
    }
  }
  co_return status;
}

// Idempotent: what a power cut left of an earlier try is taken away as well.
Task<absl::Status> RetentionSession::RemoveTree(std::string dir,
                                                bool has_manifest) {
  const auto failed = [&dir](const char* doing, const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrFormat("%s %s: %s", doing, dir,
                                        std::string(status.message())));
  };
  // Once it is gone for good no reader can meet a manifest without its files.
  if (has_manifest) {
    const std::string manifest = dir + "/" + kManifestName;
    const Io::Ref removed = io_.Remove(manifest);
    co_await UntilDone(removed);
    if (!removed->status.ok() && !absl::IsNotFound(removed->status)) {
      co_return failed("removing the manifest of", removed->status);
    }
  }
  // Also without one: an earlier try may not have come to this sync.
  const Io::Ref synced = io_.SyncDir(dir);
  co_await UntilDone(synced);
  if (!synced->status.ok()) co_return failed("syncing", synced->status);

  const auto entries = co_await ListDir(&io_, dir);
  if (!entries.ok()) co_return entries.status();
  for (const DirEntry& entry : *entries) {
    if (!entry.is_directory || !IsShardDir(entry.name)) continue;
    const std::string inner = dir + "/" + entry.name;
    const auto files = co_await ListDir(&io_, inner);
    if (absl::IsNotFound(files.status())) continue;
    if (!files.ok()) co_return files.status();
    const absl::Status emptied = co_await RemoveAll(inner, &*files);
    if (!emptied.ok()) co_return failed("emptying", emptied);
  }
  const absl::Status emptied = co_await RemoveAll(dir, &*entries);
  if (!emptied.ok()) co_return failed("emptying", emptied);
  const Io::Ref removed = io_.Remove(dir);
  co_await UntilDone(removed);
  if (!removed->status.ok() && !absl::IsNotFound(removed->status)) {
    co_return failed("removing", removed->status);
  }
  co_return absl::OkStatus();
}

Task<bool> RetentionSession::Run() {
  const std::vector<CheckpointId> planned =
      PlanRetention(ledger_, policy_, absl::ToUnixMillis(clock_->WallTime()));
  const std::set<CheckpointId> old(planned.begin(), planned.end());
  const std::set<CheckpointId> aborted(ledger_.aborted.begin(),
                                       ledger_.aborted.end());
  const std::set<CheckpointId> unknown(ledger_.unknown.begin(),
                                       ledger_.unknown.end());
  const auto note = [this](const absl::Status& status) {
    if (outcome_.status.ok()) outcome_.status = status;
  };
  const auto entries = co_await ListDir(&io_, kCheckpointsDir);
  if (!entries.ok()) {
    note(entries.status());
    co_return false;
  }
  bool touched = false;
  for (const DirEntry& entry : *entries) {
    const auto parsed = ParseCheckpointDir(entry.name);
    if (!parsed || !entry.is_directory || unknown.contains(parsed->id)) {
      continue;
    }
    const bool is_old = old.contains(parsed->id);
    const bool may_be_swept = ledger_.chosen.empty() &&
                              (parsed->id.incarnation < ledger_.incarnation ||
                               (parsed->id.incarnation == ledger_.incarnation &&
                                aborted.contains(parsed->id)));
    if (!is_old && !may_be_swept) continue;
    const std::string dir =
        absl::StrFormat("%s/%s", kCheckpointsDir, entry.name);
    const auto inside = co_await ListDir(&io_, dir);
    if (!inside.ok()) {
      if (!absl::IsNotFound(inside.status())) note(inside.status());
      continue;
    }
    const bool has_manifest = std::any_of(
        inside->begin(), inside->end(),
        [](const DirEntry& file) { return file.name == kManifestName; });
    // Something with a manifest goes only because its time has come.
    if (has_manifest && !is_old) continue;
    const absl::StatusOr<uint32_t> newest = co_await NewestClaim(&io_);
    if (!newest.ok()) {
      note(newest.status());
      break;
    }
    if (*newest != ledger_.incarnation) {
      note(absl::FailedPreconditionError(absl::StrFormat(
          "owner i%04d has taken the run; this job, i%04d, removes nothing "
          "more",
          *newest, ledger_.incarnation)));
      break;
    }
    touched = true;
    const absl::Status removed = co_await RemoveTree(dir, has_manifest);
    note(removed);
    if (!removed.ok()) continue;
    (has_manifest ? outcome_.removed : outcome_.swept).push_back(parsed->id);
  }
  if (touched) {
    const Io::Ref synced = io_.SyncDir(kCheckpointsDir);
    co_await UntilDone(synced);
    note(synced->status);
  }
  co_return true;
}

void RetentionSession::OnCompletion(const Completion& completion) {
  io_.OnCompletion(completion);
}
bool RetentionSession::OnMessage(const Message&) { return false; }
void RetentionSession::Poll() { fiber_.Poll(); }
bool RetentionSession::done() const { return fiber_.done() && io_.idle(); }

}  // namespace holdfast::ckpt
