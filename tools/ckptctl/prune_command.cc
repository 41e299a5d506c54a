// tools/ckptctl/prune_command.cc: `ckptctl prune`: what a run can do without,
// listed, and removed when told so (ckpt/session/prune_session.h).

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/session/catalog_locate.h"
#include "ckpt/session/io.h"
#include "ckpt/session/prune_session.h"
#include "ckpt/storage/blocking.h"
#include "tools/ckptctl/commands.h"
#include "tools/ckptctl/opened.h"
#include "tools/ckptctl/owner_life.h"
#include "tools/ckptctl/verify_threads.h"
#include "tools/common/json_output.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

constexpr char kProgram[] = "ckptctl prune";

using ckpt::CatalogEntry;

// What was asked for, found.
struct Asked {
  ckpt::OpenedRun run;
  ckpt::PruneOptions options;
};

absl::Status NoRun(const std::string& what) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s is a checkpoint by itself, in no run; rm -r removes it", what));
}

absl::StatusOr<Asked> Find(const PruneCommandOptions& options) {
  Asked asked;
  asked.options.policy.keep_last = options.keep_last;
  asked.options.policy.keep_every = options.keep_every;
  asked.options.policy.keep_older_s = options.keep_older_s;
  std::string run = options.what;
  if (!ckpt::MeansWholeRun(run)) {
    HF_ASSIGN_OR_RETURN(const ckpt::LocatedCheckpoint place,
                        ckpt::LocateCheckpoint(run, {}, ckpt::RealClock()));
    if (!place.entry) return NoRun(options.what);
    asked.options.only = place.entry->id;
    run = place.root;
  }
  HF_ASSIGN_OR_RETURN(asked.run, ckpt::OpenRun(run, {}, ckpt::RealClock()));
  return asked;
}

// Ok when nobody lives who owns the run.
absl::Status CheckOwnerIsGone(const Asked& asked, bool told_so) {
  const uint32_t newest = asked.run.catalog.newest_claim;
  if (newest == 0) return absl::OkStatus();
  const std::string name = ckpt::ClaimName(newest);
  HF_ASSIGN_OR_RETURN(
      const auto bytes,
      ckpt::Blocking(*asked.run.storage).Get(name, ckpt::kRecordBytesMax));
  const auto claim = ckpt::DecodeClaim(bytes);
  if (!claim.ok()) {
    return absl::DataLossError(
        absl::StrFormat("%s/%s: %s", asked.run.root, name,
                        std::string(claim.status().message())));
  }
  const OwnerLife life =
      LookAtOwner(asked.run.root, *claim, ckpt::MarkOfThisProcess());
  switch (life.state) {
    case OwnerLife::State::kGone:
      return absl::OkStatus();
    case OwnerLife::State::kAlive:
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s; pruning would take the run from it, and end it at its next "
          "save. It prunes by itself (checkpoint.keep_last and so on); "
          "nothing was changed",
          life.why));
    case OwnerLife::State::kUnknown:
      break;
  }
  if (told_so) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s. If that job runs, pruning would take the run from it and end it at "
      "its next save. When you know that it has ended, say --owner-is-gone; "
      "nothing was changed",
      life.why));
}

// The newest, which everything else is removed for.
absl::Status VerifyNewest(const Asked& asked) {
  const CatalogEntry& newest = *asked.run.catalog.newest();
  HF_ASSIGN_OR_RETURN(
      const Opened opened,
      OpenCheckpoint(asked.run.root + "@" + ckpt::ToString(newest.id),
                     /*readers=*/1));
  Progress::Options shown;
  shown.doing = "verifying the newest";
  Progress progress(shown, ckpt::RealClock());
  const ckpt::VerifyOutcome outcome =
      VerifyOnThreads(opened, /*hash=*/false, VerifyThreads(), &progress);
  progress.Finish();
  if (outcome.status.ok()) return absl::OkStatus();
  return absl::Status(
      outcome.status.code(),
      absl::StrFormat("%s, the newest, is not whole: %s; nothing was removed",
                      opened.place.path(),
                      std::string(outcome.status.message())));
}

absl::StatusOr<ckpt::RetentionOutcome> Remove(const Asked& asked) {
  ckpt::Storage* const storage = asked.run.storage.get();
  ckpt::OwnerClaim who;
  who.host = HostName();
  who.pid = ::getpid();
  who.mark = ckpt::MarkOfThisProcess();
  // Verifying the newest may have taken long.
  ckpt::PruneOptions options = asked.options;
  options.newest_claim = asked.run.catalog.newest_claim;
  ckpt::PruneClaimSession claim(EnvOf(storage), options, who);
  ckpt::RunAlone(storage, &ckpt::RealClock(), &claim);
  if (!claim.result().ok()) return claim.result().status();
  ckpt::RetentionSession retention(EnvOf(storage), *claim.result(),
                                   asked.options.policy);
  ckpt::RunAlone(storage, &ckpt::RealClock(), &retention);
  return retention.outcome();
}

Json EntryJson(const CatalogEntry& entry, const ckpt::PruneEntry& judged) {
  Json json;
  json["id"] = ckpt::ToString(entry.id);
  json["step"] = entry.id.step;
  json["state"] = std::string(ckpt::NameOf(entry.state));
  json["bytes"] = entry.manifest ? Json(entry.manifest->bytes) : Json();
  json["goes"] = judged.goes;
  json["why"] = judged.why;
  return json;
}

struct Totals {
  size_t count = 0;
  uint64_t bytes = 0;
  explicit Totals(const ckpt::Catalog& catalog, const ckpt::PrunePlan& plan) {
    for (const ckpt::PruneEntry& judged : plan.entries) {
      if (!judged.goes) continue;
      ++count;
      const auto& manifest = catalog.entries[judged.index].manifest;
      if (manifest) bytes += manifest->bytes;
    }
  }
};

void PrintPlan(const ckpt::Catalog& catalog, const ckpt::PrunePlan& plan) {
  std::vector<std::vector<std::string>> rows = {
      {"STEP", "CHECKPOINT", "STATE", "SIZE", "", "WHY"}};
  for (const ckpt::PruneEntry& judged : plan.entries) {
    const CatalogEntry& entry = catalog.entries[judged.index];
    rows.push_back(
        {absl::StrFormat("%d", entry.id.step), ckpt::ToString(entry.id),
         std::string(ckpt::NameOf(entry.state)),
         entry.manifest ? BytesText(static_cast<double>(entry.manifest->bytes))
                        : "-",
         judged.goes ? "goes" : "stays", judged.why});
  }
  std::fputs(TableText(rows, {Align::kRight, Align::kLeft, Align::kLeft,
                              Align::kRight})
                 .c_str(),
             stdout);
}

}  // namespace

int RunPrune(const PruneCommandOptions& options) {
  const auto asked = Find(options);
  if (!asked.ok()) return ReportFailure(kProgram, asked.status());
  const ckpt::Catalog& catalog = asked->run.catalog;
  const auto failed = [&asked](const absl::Status& status) {
    return ReportFailure(
        kProgram, absl::Status(status.code(),
                               absl::StrFormat("%s: %s", asked->run.root,
                                               std::string(status.message()))));
  };
  const auto plan =
      ckpt::PlanPrune(catalog, asked->options,
                      absl::ToUnixMillis(ckpt::RealClock().WallTime()));
  if (!plan.ok()) return failed(plan.status());
  const Totals totals(catalog, *plan);

  ckpt::RetentionOutcome outcome;
  if (options.yes && totals.count > 0) {
    const absl::Status gone = CheckOwnerIsGone(*asked, options.owner_is_gone);
    if (!gone.ok()) return failed(gone);
    if (options.verify) {
      const absl::Status whole = VerifyNewest(*asked);
      if (!whole.ok()) return ReportFailure(kProgram, whole);
    }
    auto removed = Remove(*asked);
    if (!removed.ok()) return failed(removed.status());
    outcome = *std::move(removed);
  }
  if (options.json) {
    Json json;
    json["run"] = asked->run.root;
    json["checkpoints"] = Json::array();
    for (const ckpt::PruneEntry& judged : plan->entries) {
      json["checkpoints"].push_back(
          EntryJson(catalog.entries[judged.index], judged));
    }
    json["goes"] = totals.count;
    json["bytes"] = totals.bytes;
    json["removed"] = Json::array();
    for (const ckpt::CheckpointId& id : outcome.removed) {
      json["removed"].push_back(ckpt::ToString(id));
    }
    json["swept"] = Json::array();
    for (const ckpt::CheckpointId& id : outcome.swept) {
      json["swept"].push_back(ckpt::ToString(id));
    }
    json["error"] = std::string(outcome.status.message());
    PrintJson(json);
  } else {
    PrintPlan(catalog, *plan);
    const std::string bytes = BytesText(static_cast<double>(totals.bytes));
    if (options.yes) {
      std::printf("removed %d checkpoints and %d attempts%s%s\n",
                  static_cast<int>(outcome.removed.size()),
                  static_cast<int>(outcome.swept.size()),
                  totals.bytes > 0 ? ", " : "",
                  totals.bytes > 0 ? bytes.c_str() : "");
    } else if (totals.count == 0) {
      std::printf("nothing goes\n");
    } else {
      std::printf("%d would go, %s at least; --yes removes them\n",
                  static_cast<int>(totals.count), bytes.c_str());
    }
  }
  if (outcome.status.ok()) return trainer::kExitFinished;
  return failed(outcome.status);
}

}  // namespace holdfast::tools
