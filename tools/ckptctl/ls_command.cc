// tools/ckptctl/ls_command.cc: `ckptctl ls`: everything in a run's
// checkpoints/, and what counts.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "ckpt/session/catalog_locate.h"
#include "tools/ckptctl/commands.h"
#include "tools/ckptctl/opened.h"
#include "tools/common/json_output.h"
#include "tools/common/text.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

using ckpt::CatalogEntry;

constexpr char kProgram[] = "ckptctl ls";
const std::vector<std::string> kHead = {"STEP", "CHECKPOINT", "STATE",  "AGE",
                                        "SIZE", "LAYOUT",     "PARENT", "NOTE"};
const std::vector<Align> kAligns = {Align::kRight, Align::kLeft, Align::kLeft,
                                    Align::kRight, Align::kRight};

Json EntryJson(const CatalogEntry& entry, const CatalogEntry* newest) {
  Json json;
  json["id"] = ckpt::ToString(entry.id);
  json["step"] = entry.id.step;
  json["incarnation"] = entry.id.incarnation;
  json["attempt"] = entry.id.attempt;
  json["state"] = std::string(ckpt::NameOf(entry.state));
  json["reason"] = entry.reason;
  json["offered"] = entry.state == ckpt::EntryState::kCommitted;
  json["newest"] = &entry == newest;
  json["dir"] = entry.dir;
  if (entry.manifest) {
    const ckpt::ManifestSummary& manifest = *entry.manifest;
    json["commit_number"] = manifest.commit_number;
    json["parent"] =
        manifest.parent ? Json(ckpt::ToString(*manifest.parent)) : Json();
    json["time_unix_ms"] = manifest.time_unix_ms;
    json["bytes"] = manifest.bytes;
    json["files"] = manifest.files;
    json["world"] = manifest.world;
    json["layout"] = manifest.layout;
  }
  return json;
}

std::string AgeText(int64_t time_unix_ms) {
  const double age = absl::ToDoubleSeconds(ckpt::RealClock().WallTime() -
                                           absl::FromUnixMillis(time_unix_ms));
  return age < 0 ? "in the future" : DurationText(age);
}

std::vector<std::string> Row(const CatalogEntry& entry,
                             const CatalogEntry* newest) {
  std::vector<std::string> row = {absl::StrFormat("%d", entry.id.step),
                                  ckpt::ToString(entry.id),
                                  std::string(ckpt::NameOf(entry.state))};
  if (entry.manifest) {
    row.push_back(AgeText(entry.manifest->time_unix_ms));
    row.push_back(BytesText(static_cast<double>(entry.manifest->bytes)));
    row.push_back(entry.manifest->layout);
    row.push_back(entry.manifest->parent
                      ? ckpt::ToString(*entry.manifest->parent)
                      : "none");
  } else {
    row.insert(row.end(), {"-", "-", "-", "-"});
  }
  std::string note = entry.reason;
  if (&entry == newest) note = "newest";
  if (!note.empty() && entry.state != ckpt::EntryState::kCommitted) {
    note = "never offered: " + note;
  }
  row.push_back(std::move(note));
  return row;
}

std::string OwnerText(const ckpt::Catalog& catalog) {
  if (catalog.newest_claim == 0) return "no owner yet";
  if (catalog.seal && catalog.seal->incarnation == catalog.newest_claim) {
    return absl::StrFormat("owner i%04d", catalog.newest_claim);
  }
  return absl::StrFormat(
      "claimed by i%04d, which has not sealed; what counts is what %s says",
      catalog.newest_claim,
      catalog.seal ? absl::StrFormat("i%04d", catalog.seal->incarnation)
                   : "nobody");
}

// One checkpoint. Outside of a run nobody says what it counts for.
int ListOne(const LsOptions& options) {
  const auto opened = OpenCheckpoint(options.what, /*readers=*/1);
  if (!opened.ok()) return ReportFailure(kProgram, opened.status());
  CatalogEntry entry;
  if (opened->place.entry) {
    entry = *opened->place.entry;
  } else {
    entry.id = opened->manifest->id;
    entry.dir = opened->place.dir;
    entry.manifest = opened->summary;
  }
  if (options.json) {
    Json json = EntryJson(entry, nullptr);
    json.erase("newest");
    if (!opened->place.entry) {
      json["state"] = Json();
      json["offered"] = Json();
      json["dir"] = opened->place.path();
    }
    json["run_id"] = ckpt::ToHex(opened->manifest->run_id);
    PrintJson(json);
    return trainer::kExitFinished;
  }
  std::vector<std::string> row = Row(entry, nullptr);
  if (!opened->place.entry) {
    row[2] = "-";
    row.back() = "a directory by itself, of run " +
                 ckpt::ToHex(opened->manifest->run_id);
  }
  std::fputs(TableText({kHead, row}, kAligns).c_str(), stdout);
  return trainer::kExitFinished;
}

}  // namespace

int RunLs(const LsOptions& options) {
  if (!ckpt::MeansWholeRun(options.what)) return ListOne(options);
  const auto run = ckpt::OpenRun(options.what, {}, ckpt::RealClock());
  if (!run.ok()) return ReportFailure(kProgram, run.status());
  const ckpt::Catalog& catalog = run->catalog;
  const CatalogEntry* const newest = catalog.newest();
  if (options.json) {
    Json json;
    json["run"] = run->root;
    json["run_id"] =
        catalog.run_id ? Json(ckpt::ToHex(*catalog.run_id)) : Json();
    json["newest_claim"] = catalog.newest_claim;
    json["sealed_by"] = catalog.seal ? Json(catalog.seal->incarnation) : Json();
    json["newest"] =
        newest != nullptr ? Json(ckpt::ToString(newest->id)) : Json();
    json["seal_lost"] =
        catalog.seal_lost.empty() ? Json() : Json(catalog.seal_lost);
    json["checkpoints"] = Json::array();
    for (const CatalogEntry& entry : catalog.entries) {
      json["checkpoints"].push_back(EntryJson(entry, newest));
    }
    PrintJson(json);
    return trainer::kExitFinished;
  }
  std::printf("%s: run %s, %s\n", Printable(run->root).c_str(),
              catalog.run_id ? ckpt::ToHex(*catalog.run_id).c_str()
                             : "without an identity",
              OwnerText(catalog).c_str());
  if (!catalog.seal_lost.empty()) {
    std::printf("WARNING: %s\n", Printable(catalog.seal_lost).c_str());
  }
  if (catalog.entries.empty()) {
    std::printf("no checkpoints%s\n",
                catalog.has_committed
                    ? (", though " + Printable(catalog.committed_proof)).c_str()
                    : " yet");
    return trainer::kExitFinished;
  }
  std::vector<std::vector<std::string>> rows = {kHead};
  for (const CatalogEntry& entry : catalog.entries) {
    rows.push_back(Row(entry, newest));
  }
  std::fputs(TableText(rows, kAligns).c_str(), stdout);
  return trainer::kExitFinished;
}

}  // namespace holdfast::tools
