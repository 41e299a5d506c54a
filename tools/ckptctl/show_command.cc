// tools/ckptctl/show_command.cc: `ckptctl show`: one manifest.

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/format/manifest_rules.h"
#include "tools/ckptctl/commands.h"
#include "tools/ckptctl/opened.h"
#include "tools/common/json_output.h"
#include "tools/common/text.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

using ckpt::Manifest;

// Long or multi-line values are for --json.
std::string OneLine(const std::string& value) {
  constexpr size_t kWidth = 60;
  const size_t newline = value.find('\n');
  if (newline == std::string::npos && value.size() <= kWidth) return value;
  return absl::StrFormat("%s... (%d bytes)",
                         value.substr(0, std::min(newline, kWidth)),
                         value.size());
}

void PrintText(const Opened& opened, bool hash) {
  const Manifest& manifest = *opened.manifest;
  std::vector<std::vector<std::string>> head = {
      {"checkpoint", ckpt::ToString(manifest.id)},
      {"path", opened.place.path()},
      {"run", ckpt::ToHex(manifest.run_id)},
      {"parent", manifest.parent ? ckpt::ToString(*manifest.parent) : "none"},
      {"written", absl::FormatTime("%Y-%m-%d %H:%M:%S UTC",
                                   absl::FromUnixMillis(manifest.time_unix_ms),
                                   absl::UTCTimeZone())},
      {"layout", absl::StrFormat("%s, %d %s", manifest.layout, manifest.world,
                                 manifest.world == 1 ? "rank" : "ranks")},
      {"size",
       absl::StrFormat("%s in %d %s",
                       BytesText(static_cast<double>(opened.summary.bytes)),
                       manifest.files.size(),
                       manifest.files.size() == 1 ? "file" : "files")}};
  if (ckpt::HasCodedFiles(manifest)) {
    const auto plain = static_cast<double>(PlainBytes(manifest));
    head.push_back({"codec", absl::StrFormat("zstd, %.2f to 1 (%s plain)",
                                             plain / opened.summary.bytes,
                                             BytesText(plain))});
  }
  if (opened.place.entry &&
      opened.place.entry->state != ckpt::EntryState::kCommitted) {
    head.push_back(
        {"state",
         absl::StrFormat("%s: %s",
                         std::string(ckpt::NameOf(opened.place.entry->state)),
                         opened.place.entry->reason)});
  }
  for (const auto& [name, value] : manifest.attributes) {
    head.push_back({"@" + name, OneLine(value)});
  }
  std::fputs(TableText(head).c_str(), stdout);

  std::vector<std::vector<std::string>> rows = {{"ITEM", "KIND", "TYPE"}};
  if (hash) rows[0].push_back("DIGEST");
  for (size_t i = 0; i < manifest.items.size(); ++i) {
    const ckpt::ItemSpec& item = manifest.items[i];
    rows.push_back({item.name, item.kind, TypeText(item)});
    if (hash) rows.back().push_back(ckpt::ToHex(manifest.item_digests[i]));
  }
  std::printf("\n%s", TableText(rows).c_str());
  if (hash) {
    std::printf("\ndigest %s\n",
                ckpt::ToHex(ckpt::LogicalDigest(manifest)).c_str());
  }
}

void PrintAsJson(const Opened& opened, bool hash) {
  const Manifest& manifest = *opened.manifest;
  Json json = DescribeJson(opened);
  if (opened.place.entry) {
    json["state"] = std::string(ckpt::NameOf(opened.place.entry->state));
    json["reason"] = opened.place.entry->reason;
  }
  json["format_version"] = manifest.format_version;
  json["features_must"] = manifest.features_must;
  json["features_may"] = manifest.features_may;
  json["plan_hash"] = absl::StrFormat("%016x", manifest.plan_hash);
  json["attributes"] = Json::object();
  for (const auto& [name, value] : manifest.attributes) {
    json["attributes"][name] = value;
  }
  if (hash) json["digest"] = ckpt::ToHex(ckpt::LogicalDigest(manifest));
  json["items"] = Json::array();
  for (size_t i = 0; i < manifest.items.size(); ++i) {
    const ckpt::ItemSpec& item = manifest.items[i];
    Json entry = {{"name", item.name},
                  {"kind", item.kind},
                  {"dtype", std::string(ckpt::NameOf(item.dtype))},
                  {"shape", item.shape}};
    if (hash) entry["digest"] = ckpt::ToHex(manifest.item_digests[i]);
    json["items"].push_back(std::move(entry));
  }
  json["shards"] = Json::array();
  for (const ckpt::ShardFile& file : manifest.files) {
    json["shards"].push_back(
        {{"name", file.name},
         {"bytes", file.bytes},
         {"plain_bytes", file.plain_bytes},
         {"units", file.unit_count},
         {"chunks", file.chunks.size()},
         {"crc_index", absl::StrFormat("%08x", file.crc_index)}});
  }
  PrintJson(json);
}

}  // namespace

int RunShow(const ShowOptions& options) {
  const auto opened = OpenCheckpoint(options.checkpoint, /*readers=*/1);
  if (!opened.ok()) return ReportFailure("ckptctl show", opened.status());
  if (options.json) {
    PrintAsJson(*opened, options.hash);
  } else {
    PrintText(*opened, options.hash);
  }
  return trainer::kExitFinished;
}

}  // namespace holdfast::tools
