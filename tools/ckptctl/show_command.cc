// tools/ckptctl/show_command.cc: `ckptctl show`: one manifest.

#include <fnmatch.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
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

constexpr char kProgram[] = "ckptctl show";
// Where the trainer keeps its configuration (trainer/resume_state.cc).
constexpr char kConfigAttribute[] = ".config";

bool IsWanted(const ckpt::ItemSpec& item, const ShowOptions& options) {
  if (options.tensors.empty()) return true;
  return std::any_of(options.tensors.begin(), options.tensors.end(),
                     [&item](const std::string& pattern) {
                       return item.name == pattern ||
                              ::fnmatch(pattern.c_str(), item.name.c_str(),
                                        /*flags=*/0) == 0;
                     });
}

// "[0,64) x [0,32), elements 0-2047"
std::string RunText(const ckpt::Chunk& chunk) {
  std::string text;
  for (int d = 0; d < chunk.part.dimensions; ++d) {
    absl::StrAppendFormat(&text, "%s[%d,%d)", d == 0 ? "" : " x ",
                          chunk.part.first[d],
                          chunk.part.first[d] + chunk.part.count[d]);
  }
  if (chunk.count == chunk.part.elements()) return text;
  return absl::StrFormat("%s%selements %d-%d of it", text,
                         text.empty() ? "" : ", ", chunk.first,
                         chunk.first + chunk.count - 1);
}

// Long or multi-line values are for --json.
std::string OneLine(const std::string& value) {
  constexpr size_t kWidth = 60;
  const size_t newline = value.find('\n');
  if (newline == std::string::npos && value.size() <= kWidth) return value;
  return absl::StrFormat("%s... (%d bytes)",
                         value.substr(0, std::min(newline, kWidth)),
                         value.size());
}

std::vector<std::vector<std::string>> ItemRows(const Manifest& manifest,
                                               const ShowOptions& options) {
  std::vector<std::vector<std::string>> rows = {{"ITEM", "KIND", "TYPE"}};
  if (options.hash) rows[0].push_back("DIGEST");
  for (size_t i = 0; i < manifest.items.size(); ++i) {
    const ckpt::ItemSpec& item = manifest.items[i];
    if (!IsWanted(item, options)) continue;
    rows.push_back({item.name, item.kind, TypeText(item)});
    if (options.hash) {
      rows.back().push_back(ckpt::ToHex(manifest.item_digests[i]));
    }
  }
  return rows;
}

void PrintFiles(const Manifest& manifest) {
  std::vector<std::vector<std::string>> rows = {
      {"FILE", "BYTES", "UNITS", "CHUNKS"}};
  for (const ckpt::ShardFile& file : manifest.files) {
    rows.push_back({file.name, absl::StrFormat("%d", file.bytes),
                    absl::StrFormat("%d", file.unit_count),
                    absl::StrFormat("%d", file.chunks.size())});
  }
  std::printf("\n%s", TableText(rows, {Align::kLeft, Align::kRight,
                                       Align::kRight, Align::kRight})
                          .c_str());
}

void PrintText(const Opened& opened, const ShowOptions& options) {
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

  std::printf("\n%s", TableText(ItemRows(manifest, options)).c_str());
  PrintFiles(manifest);
  if (options.hash) {
    std::printf("\ndigest %s\n",
                ckpt::ToHex(ckpt::LogicalDigest(manifest)).c_str());
  }
}

// The tensors that were asked for, and where each part of them is stored.
void PrintTensors(const Manifest& manifest, const ShowOptions& options) {
  std::fputs(TableText(ItemRows(manifest, options)).c_str(), stdout);
  std::vector<std::vector<std::string>> rows = {
      {"ITEM", "KIND", "FILE", "OFFSET", "BYTES", "PART"}};
  for (const ckpt::ShardFile& file : manifest.files) {
    for (const ckpt::Chunk& chunk : file.chunks) {
      const ckpt::ItemSpec& item = manifest.items[chunk.item];
      if (!IsWanted(item, options)) continue;
      rows.push_back(
          {item.name, item.kind, file.name, absl::StrFormat("%d", chunk.offset),
           absl::StrFormat("%d", chunk.bytes_stored), RunText(chunk)});
    }
  }
  std::printf("\n%s", TableText(rows, {Align::kLeft, Align::kLeft, Align::kLeft,
                                       Align::kRight, Align::kRight})
                          .c_str());
}

Json BoxJson(const ckpt::Box& box) {
  Json first = Json::array();
  Json count = Json::array();
  for (int d = 0; d < box.dimensions; ++d) {
    first.push_back(box.first[d]);
    count.push_back(box.count[d]);
  }
  return {{"first", std::move(first)}, {"count", std::move(count)}};
}

// What is stored where of each item that was asked for.
Json ChunksJson(const Manifest& manifest, ckpt::ItemIndex item) {
  Json chunks = Json::array();
  for (const ckpt::ShardFile& file : manifest.files) {
    for (const ckpt::Chunk& chunk : file.chunks) {
      if (chunk.item != item) continue;
      chunks.push_back({{"file", file.name},
                        {"offset", chunk.offset},
                        {"bytes", chunk.bytes_stored},
                        {"part", BoxJson(chunk.part)},
                        {"first", chunk.first},
                        {"count", chunk.count}});
    }
  }
  return chunks;
}

void PrintAsJson(const Opened& opened, const ShowOptions& options) {
  const bool hash = options.hash;
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
    if (!IsWanted(item, options)) continue;
    Json entry = {{"name", item.name},
                  {"kind", item.kind},
                  {"dtype", std::string(ckpt::NameOf(item.dtype))},
                  {"shape", item.shape}};
    if (hash) entry["digest"] = ckpt::ToHex(manifest.item_digests[i]);
    if (!options.tensors.empty()) entry["chunks"] = ChunksJson(manifest, i);
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
  if (!opened.ok()) return ReportFailure(kProgram, opened.status());
  const Manifest& manifest = *opened->manifest;
  if (std::none_of(manifest.items.begin(), manifest.items.end(),
                   [&](const auto& item) { return IsWanted(item, options); }) &&
      !options.tensors.empty()) {
    return ReportFailure(
        kProgram,
        absl::NotFoundError(absl::StrFormat(
            "%s has no tensor '%s', of %d; 'ckptctl show' without "
            "--tensor lists them",
            opened->place.path(), absl::StrJoin(options.tensors, "', '"),
            manifest.items.size())));
  }
  if (options.config && !options.json) {
    const auto config = manifest.attributes.find(kConfigAttribute);
    if (config == manifest.attributes.end()) {
      return ReportFailure(
          kProgram,
          absl::NotFoundError(absl::StrFormat(
              "%s has no configuration (attribute %s): the trainer writes one, "
              "other users of the library need not",
              opened->place.path(), kConfigAttribute)));
    }
    std::fputs(Printable(config->second, /*keep_lines=*/true).c_str(), stdout);
  } else if (options.json) {
    PrintAsJson(*opened, options);
  } else if (!options.tensors.empty()) {
    PrintTensors(manifest, options);
  } else {
    PrintText(*opened, options);
  }
  return trainer::kExitFinished;
}

}  // namespace holdfast::tools
