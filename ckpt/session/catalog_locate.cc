// ckpt/session/catalog_locate.cc: see catalog_locate.h.

#include "ckpt/session/catalog_locate.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/session/io.h"
#include "ckpt/session/run_files.h"
#include "ckpt/storage/errno_status.h"

namespace holdfast::ckpt {
namespace {

constexpr uint16_t kSpace = 0x7f00;

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// A checkpoint's own directory: it has a manifest, or the name of an attempt.
bool LooksLikeCheckpoint(const std::string& path) {
  std::filesystem::path named(path);
  if (!named.has_filename()) named = named.parent_path();
  return Exists(path + "/" + kManifestName) ||
         ParseCheckpointDir(named.filename().string()).has_value();
}

// RUN, of RUN/checkpoints and the like; empty for anything else.
std::filesystem::path PartOfRun(const std::string& path) {
  std::error_code error;
  std::filesystem::path part =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path), error);
  if (error) return {};
  if (!part.has_filename()) part = part.parent_path();
  const std::string name = part.filename();
  const std::filesystem::path run = part.parent_path();
  const bool may_be =
      name == kCheckpointsDir || name == kOwnersDir || name == kConversionDir;
  return may_be && Exists(run / kRunIdName) ? run : std::filesystem::path();
}

std::string Listed(const Catalog& catalog) {
  std::string text;
  for (size_t i = catalog.line.size(); i-- > 0;) {
    absl::StrAppendFormat(&text, "%s%d", text.empty() ? "" : ", ",
                          catalog.entries[catalog.line[i]].id.step);
  }
  if (text.empty()) return "it has none";
  return absl::StrFormat("it has steps %s", text);
}

std::optional<int64_t> StepOf(const std::string& which) {
  int64_t step = 0;
  const char* const end = which.data() + which.size();
  const auto parsed = std::from_chars(which.data(), end, step);
  if (parsed.ec != std::errc{} || parsed.ptr != end || step < 0) {
    return std::nullopt;
  }
  return step;
}

// Of "PATH@WHICH".
struct NamedCheckpoint {
  std::string path;
  std::string which;  // "": the newest, or `path` itself
};

absl::StatusOr<NamedCheckpoint> SplitName(const std::string& text) {
  NamedCheckpoint named;
  HF_ASSIGN_OR_RETURN(named.path, PathOfLocation(text));
  // A directory whose name has an '@' is meant as it stands.
  const size_t at = named.path.rfind('@');
  if (at == std::string::npos || IsDirectory(named.path)) return named;
  named.which = named.path.substr(at + 1);
  named.path.resize(at);
  if (StepOf(named.which) || ParseCheckpointId(named.which)) return named;
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: expected a step after the '@', such as @1200, or an id, such as "
      "@step-000001200.i0003.a01",
      text));
}

// The entry that `which` names, as an index.
absl::StatusOr<size_t> Select(const Catalog& catalog, const std::string& root,
                              const std::string& which) {
  if (const auto id = ParseCheckpointId(which)) {
    for (size_t i = 0; i < catalog.entries.size(); ++i) {
      if (catalog.entries[i].id != *id) continue;
      if (catalog.entries[i].state == EntryState::kAttempt) {
        return absl::NotFoundError(
            absl::StrFormat("%s/%s is not a checkpoint: %s", root,
                            catalog.entries[i].dir, catalog.entries[i].reason));
      }
      return i;
    }
    return absl::NotFoundError(absl::StrFormat("%s has no checkpoint %s; %s",
                                               root, which, Listed(catalog)));
  }
  const std::optional<int64_t> named = StepOf(which);
  HF_CHECK(named.has_value(), "'%s' has been looked at", which);
  const int64_t step = *named;
  for (size_t i = catalog.line.size(); i-- > 0;) {
    if (catalog.entries[catalog.line[i]].id.step == step) {
      return catalog.line[i];
    }
  }
  std::string others;
  for (const CatalogEntry& entry : catalog.entries) {
    if (entry.id.step != step) continue;
    absl::StrAppendFormat(&others, "; %s is %s (%s)", ToString(entry.id),
                          std::string(NameOf(entry.state)), entry.reason);
  }
  return absl::NotFoundError(
      absl::StrFormat("%s has no checkpoint of step %d on its line; %s%s", root,
                      step, Listed(catalog), others));
}

}  // namespace

absl::StatusOr<OpenedRun> OpenRun(const std::string& path,
                                  StorageOptions options, Clock& clock) {
  OpenedRun run;
  HF_ASSIGN_OR_RETURN(run.root, PathOfLocation(path));
  if (!IsDirectory(run.root)) {
    return absl::NotFoundError(
        absl::StrFormat("%s is not a directory", run.root));
  }
  // What may not be looked into is not said to be no run.
  if (::access(run.root.c_str(), R_OK | X_OK) != 0) {
    return ErrnoStatus(errno, "opening", run.root);
  }
  const std::filesystem::path whole = PartOfRun(run.root);
  if (!whole.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "%s is a part of the run %s: name that", run.root, whole.string()));
  }
  if (!Exists(run.root + "/" + kRunIdName) &&
      !Exists(run.root + "/" + kOwnersDir) &&
      !Exists(run.root + "/" + kCheckpointsDir)) {
    return absl::NotFoundError(absl::StrFormat(
        "%s is neither a run (no %s, %s/ or %s/) nor a checkpoint (no %s)",
        run.root, kRunIdName, kOwnersDir, kCheckpointsDir, kManifestName));
  }
  options.location = path;
  HF_ASSIGN_OR_RETURN(run.storage, OpenStorage(options));
  SessionEnv env;
  env.storage = run.storage.get();
  env.clock = &clock;
  env.space = kSpace;
  CatalogSession session(env);
  RunAlone(run.storage.get(), &clock, &session);
  if (!session.result().ok()) {
    return absl::Status(
        session.result().status().code(),
        absl::StrFormat("%s: %s", run.root,
                        std::string(session.result().status().message())));
  }
  run.catalog = *session.result();
  return run;
}

absl::Status CheckCheckpointName(const std::string& text) {
  return SplitName(text).status();
}

bool MeansWholeRun(const std::string& text) {
  const absl::StatusOr<std::string> path = PathOfLocation(text);
  return path.ok() && IsDirectory(*path) && !LooksLikeCheckpoint(*path);
}

absl::StatusOr<LocatedCheckpoint> LocateCheckpoint(const std::string& text,
                                                   StorageOptions options,
                                                   Clock& clock) {
  HF_ASSIGN_OR_RETURN(const NamedCheckpoint named, SplitName(text));
  const auto& [path, which] = named;
  LocatedCheckpoint located;
  if (which.empty() && IsDirectory(path) && LooksLikeCheckpoint(path)) {
    if (!Exists(path + "/" + kManifestName)) {
      return absl::NotFoundError(absl::StrFormat(
          "%s is not a checkpoint: it has no %s", path, kManifestName));
    }
    options.location = path;
    HF_ASSIGN_OR_RETURN(located.storage, OpenStorage(options));
    located.root = path;
    located.dir.assign(1, '.');
    return located;
  }
  HF_ASSIGN_OR_RETURN(OpenedRun run, OpenRun(path, options, clock));
  size_t index = 0;
  if (which.empty()) {
    if (run.catalog.newest() == nullptr) {
      std::string why;
      if (run.catalog.is_half_converted) {
        why =
            "; a conversion that makes it has not finished: its command, given "
            "once more, goes on";
      }
      for (const CatalogEntry& entry : run.catalog.entries) {
        absl::StrAppendFormat(&why, "; %s: %s (%s)", ToString(entry.id),
                              std::string(NameOf(entry.state)), entry.reason);
      }
      return absl::NotFoundError(
          absl::StrFormat("%s has no whole checkpoint%s", run.root, why));
    }
    index = run.catalog.line.back();
  } else {
    HF_ASSIGN_OR_RETURN(index, Select(run.catalog, run.root, which));
  }
  located.storage = std::move(run.storage);
  located.root = run.root;
  located.entry = run.catalog.entries[index];
  located.dir = located.entry->dir;
  return located;
}

}  // namespace holdfast::ckpt
