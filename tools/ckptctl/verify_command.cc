// tools/ckptctl/verify_command.cc: `ckptctl verify`: reads every byte of a
// checkpoint and says what is wrong.

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/format/manifest_rules.h"
#include "ckpt/session/verify_session.h"
#include "ckpt/storage/raw_speed.h"
#include "tools/ckptctl/commands.h"
#include "tools/ckptctl/opened.h"
#include "tools/ckptctl/verify_threads.h"
#include "tools/common/json_output.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

constexpr char kProgram[] = "ckptctl verify";

// The digest of the whole, from the bytes that were read.
std::string DigestOf(const ckpt::Manifest& manifest,
                     const ckpt::VerifyOutcome& outcome) {
  ckpt::Manifest read = manifest;
  read.item_digests = outcome.item_digests;
  return ckpt::ToHex(ckpt::LogicalDigest(read));
}

void PrintAsJson(const Opened& opened, const VerifyOptions& options,
                 const ckpt::VerifyOutcome& outcome, double raw) {
  const ckpt::Manifest& manifest = *opened.manifest;
  Json json = DescribeJson(opened);
  json["ok"] = outcome.status.ok();
  json["error"] = std::string(outcome.status.message());
  json["bytes_read"] = outcome.bytes_read;
  json["seconds"] = outcome.seconds;
  json["threads"] =
      ThreadsFor({options.threads, options.readers}, *opened.manifest);
  json["bytes_per_s"] =
      outcome.seconds > 0 ? outcome.bytes_read / outcome.seconds : 0;
  if (raw > 0) {
    json["raw_read_bytes_per_s"] = raw;
    json["raw_share"] = json["bytes_per_s"].get<double>() / raw;
  }
  json["damage"] = Json::array();
  for (const ckpt::UnitDamage& damage : outcome.damage) {
    json["damage"].push_back({{"file", damage.file_name},
                              {"offset", damage.offset},
                              {"bytes", damage.bytes},
                              {"item", damage.item},
                              {"what", damage.what}});
  }
  if (options.hash) {
    if (outcome.damage.empty() && outcome.bytes_read > 0) {
      json["digest"] = DigestOf(manifest, outcome);
    }
    json["digest_in_manifest"] = ckpt::ToHex(ckpt::LogicalDigest(manifest));
    json["items_with_another_digest"] = Json::array();
    for (const ckpt::ItemIndex item : outcome.digests_wrong) {
      json["items_with_another_digest"].push_back(
          {{"name", manifest.items[item].name},
           {"kind", manifest.items[item].kind},
           {"digest", ckpt::ToHex(outcome.item_digests[item])},
           {"in_manifest", ckpt::ToHex(manifest.item_digests[item])}});
    }
  }
  PrintJson(json);
}

void PrintText(const Opened& opened, const VerifyOptions& options,
               const ckpt::VerifyOutcome& outcome, double raw) {
  const ckpt::Manifest& manifest = *opened.manifest;
  for (const ckpt::UnitDamage& damage : outcome.damage) {
    std::printf("damaged: %s/%s\n", opened.place.path().c_str(),
                Printable(ckpt::ToString(damage)).c_str());
  }
  for (const ckpt::ItemIndex item : outcome.digests_wrong) {
    std::printf(
        "digest differs: %s of '%s': %s from the bytes, %s in the "
        "manifest\n",
        Printable(manifest.items[item].kind).c_str(),
        Printable(manifest.items[item].name).c_str(),
        ckpt::ToHex(outcome.item_digests[item]).c_str(),
        ckpt::ToHex(manifest.item_digests[item]).c_str());
  }
  const double rate =
      outcome.seconds > 0 ? outcome.bytes_read / outcome.seconds : 0;
  std::string speed = absl::StrFormat("%s/s", BytesText(rate));
  if (raw > 0) {
    absl::StrAppendFormat(&speed, ", %.0f %% of the raw device's %s/s",
                          100 * rate / raw, BytesText(raw));
  }
  const std::string plain =
      ckpt::HasCodedFiles(manifest)
          ? absl::StrFormat(
                " (%s plain)",
                BytesText(static_cast<double>(PlainBytes(manifest))))
          : "";
  std::printf("%s: %s; %s%s in %d %s read in %s, %s\n",
              ckpt::ToString(manifest.id).c_str(),
              outcome.status.ok() ? "whole" : "NOT WHOLE",
              BytesText(static_cast<double>(outcome.bytes_read)).c_str(),
              plain.c_str(), static_cast<int>(manifest.files.size()),
              manifest.files.size() == 1 ? "file" : "files",
              DurationText(outcome.seconds).c_str(), speed.c_str());
  if (options.hash && outcome.status.ok()) {
    std::printf("digest %s, computed from the bytes, as the manifest says\n",
                DigestOf(manifest, outcome).c_str());
  }
}

// What a plain loop reads of the largest file in half a second: the first
// 256 MiB of it at most. 0 when there is too little of it to say, or it cannot
// be read past the page cache. Damage is not looked at.
double RawReadOf(const Opened& opened) {
  constexpr uint64_t kBytesMin = uint64_t{32} << 20;
  const std::vector<ckpt::ShardFile>& files = opened.manifest->files;
  const auto largest =
      std::max_element(files.begin(), files.end(),
                       [](const ckpt::ShardFile& a, const ckpt::ShardFile& b) {
                         return a.bytes < b.bytes;
                       });
  if (largest == files.end() || largest->bytes < kBytesMin) return 0;
  return ckpt::MeasureRawRead(opened.place.path() + "/" + largest->name)
      .value_or(0);
}

}  // namespace

int RunVerify(const VerifyOptions& options) {
  const auto opened = OpenCheckpoint(options.checkpoint, /*readers=*/1);
  if (!opened.ok()) return ReportFailure(kProgram, opened.status());
  const double raw = options.raw_speed ? RawReadOf(*opened) : 0;
  Progress::Options shown;
  shown.doing = "verifying";
  shown.raw_per_s = raw;
  Progress progress(shown, ckpt::RealClock());
  const VerifyThreads threads{options.threads, options.readers};
  const ckpt::VerifyOutcome outcome =
      VerifyOnThreads(*opened, options.hash, threads, &progress);
  progress.Finish();
  if (options.json) {
    PrintAsJson(*opened, options, outcome, raw);
  } else if (outcome.status.ok() || absl::IsDataLoss(outcome.status)) {
    PrintText(*opened, options, outcome, raw);
  }
  if (outcome.status.ok()) return trainer::kExitFinished;
  return ReportFailure(
      kProgram,
      absl::Status(outcome.status.code(),
                   absl::StrFormat("%s: %s", opened->place.path(),
                                   std::string(outcome.status.message()))));
}

}  // namespace holdfast::tools
