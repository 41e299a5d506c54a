// tools/ckptctl/opened.cc: see opened.h.

#include "tools/ckptctl/opened.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/codec.h"
#include "ckpt/format/manifest_rules.h"
#include "ckpt/format/shard.h"
#include "ckpt/session/io.h"

namespace holdfast::tools {
namespace {

constexpr uint16_t kSpace = 1;
constexpr int kOpsBesidesReads = 8;

}  // namespace

ckpt::SessionEnv EnvOf(ckpt::Storage* storage) {
  ckpt::SessionEnv env;
  env.storage = storage;
  env.clock = &ckpt::RealClock();
  env.space = kSpace;
  env.ops_max = storage->queue_depth();
  return env;
}

ckpt::SessionEnv Opened::env() const { return EnvOf(place.storage.get()); }

absl::StatusOr<std::unique_ptr<ckpt::Storage>> ReopenStorage(
    const Opened& opened, int readers) {
  ckpt::StorageOptions storage;
  const std::string& root = opened.place.root;
  storage.location = root.find(':') == root.npos ? root : "file:" + root;
  storage.queue_depth = readers + kOpsBesidesReads;
  return ckpt::OpenStorage(storage);
}

absl::StatusOr<Opened> OpenCheckpoint(const std::string& text, int readers) {
  Opened opened;
  ckpt::StorageOptions storage;
  storage.queue_depth = readers + kOpsBesidesReads;
  HF_ASSIGN_OR_RETURN(opened.place,
                      ckpt::LocateCheckpoint(text, storage, ckpt::RealClock()));
  ckpt::ManifestSession session(opened.env(), opened.place.dir);
  ckpt::RunAlone(opened.place.storage.get(), &ckpt::RealClock(), &session);
  if (!session.result().ok()) {
    const absl::Status& status = session.result().status();
    return absl::Status(status.code(),
                        absl::StrFormat("%s: %s", opened.place.root,
                                        std::string(status.message())));
  }
  opened.manifest = *std::move(session.result());
  opened.summary = ckpt::Summarize(*opened.manifest, session.encoded());
  return opened;
}

ckpt::UnitReaderOptions ReaderOptions(int readers) {
  ckpt::UnitReaderOptions options;
  options.reads_in_flight = readers;
  return options;
}

std::string TypeText(const ckpt::ItemSpec& item) {
  return absl::StrFormat("%s[%s]", std::string(ckpt::NameOf(item.dtype)),
                         absl::StrJoin(item.shape, ","));
}

uint64_t PlainBytes(const ckpt::Manifest& manifest) {
  uint64_t bytes = 0;
  for (const ckpt::ShardFile& file : manifest.files) {
    bytes += file.coded() ? file.data_end() + ckpt::kShardBlockBytes +
                                ckpt::ShardIndexBytes(file.unit_count)
                          : file.bytes;
  }
  return bytes;
}

Json DescribeJson(const Opened& opened) {
  const ckpt::Manifest& manifest = *opened.manifest;
  Json json;
  json["path"] = opened.place.path();
  json["id"] = ckpt::ToString(manifest.id);
  json["run_id"] = ckpt::ToHex(manifest.run_id);
  json["step"] = manifest.id.step;
  json["incarnation"] = manifest.id.incarnation;
  json["attempt"] = manifest.id.attempt;
  json["commit_number"] = manifest.commit_number;
  json["parent"] =
      manifest.parent ? Json(ckpt::ToString(*manifest.parent)) : Json();
  json["time_unix_ms"] = manifest.time_unix_ms;
  json["layout"] = manifest.layout;
  json["world"] = manifest.world;
  json["bytes"] = opened.summary.bytes;
  json["bytes_plain"] = PlainBytes(manifest);
  json["codec"] = ckpt::HasCodedFiles(manifest) ? ckpt::kZstdName : "none";
  json["files"] = opened.summary.files;
  return json;
}

}  // namespace holdfast::tools
