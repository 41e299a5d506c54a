// ckpt/storage/fault_spec.cc: reading the line.

#include "ckpt/storage/fault_spec.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <set>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::ckpt {
namespace {

constexpr std::array<std::string_view, 12> kOpNames = {
    "create", "write", "sync", "mkdir", "syncdir", "rename",
    "remove", "put",   "open", "read",  "list",    "get"};

struct ErrorName {
  std::string_view name;
  int error;
};
constexpr std::array<ErrorName, 6> kErrors = {{{"EIO", EIO},
                                               {"ENOSPC", ENOSPC},
                                               {"EDQUOT", EDQUOT},
                                               {"EACCES", EACCES},
                                               {"EROFS", EROFS},
                                               {"ESTALE", ESTALE}}};

absl::Status Wrong(std::string_view piece, std::string_view expected) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "storage fault: found '%s', expected %s", piece, expected));
}

// Calls `use` with each part of `text` between `separator`s.
template <typename Use>
absl::Status ForEachPart(std::string_view text, char separator, Use use) {
  while (true) {
    const size_t end = text.find(separator);
    HF_RETURN_IF_ERROR(use(text.substr(0, end)));
    if (end == std::string_view::npos) return absl::OkStatus();
    text.remove_prefix(end + 1);
  }
}

absl::Status ParseNumber(std::string_view piece, std::string_view value,
                         int64_t low, int64_t high, int64_t* number) {
  const auto [end, error] =
      std::from_chars(value.data(), value.data() + value.size(), *number);
  if (error != std::errc() || end != value.data() + value.size() ||
      *number < low || *number > high) {
    return Wrong(piece, absl::StrFormat("a whole number, %d to %d", low, high));
  }
  return absl::OkStatus();
}

absl::Status ParseChoice(std::string_view piece, std::string_view value,
                         std::string_view no, std::string_view yes,
                         bool* result) {
  if (value != no && value != yes) {
    return Wrong(piece, absl::StrFormat("%s or %s", no, yes));
  }
  *result = value == yes;
  return absl::OkStatus();
}

absl::Status ParsePiece(std::string_view piece, std::string_view key,
                        std::string_view value, StorageFault* fault) {
  int64_t number = 0;
  if (key == "rank") {
    HF_RETURN_IF_ERROR(ParseNumber(piece, value, 0, 1 << 24, &number));
    fault->rank = static_cast<int>(number);
    return absl::OkStatus();
  }
  if (key == "op") {
    if (value == "any") return absl::OkStatus();
    for (size_t i = 0; i < kOpNames.size(); ++i) {
      if (kOpNames[i] != value) continue;
      fault->any_op = false;
      fault->op = static_cast<StorageOp>(i);
      return absl::OkStatus();
    }
    return Wrong(piece,
                 "op=any or one of create, write, sync, mkdir, syncdir, "
                 "rename, remove, put, open, read, list, get");
  }
  if (key == "match") {
    fault->match = value;
    return absl::OkStatus();
  }
  if (key == "at") return ParseNumber(piece, value, 0, INT64_MAX, &fault->at);
  if (key == "n") return ParseNumber(piece, value, 1, INT64_MAX, &fault->n);
  if (key == "ms") {
    return ParseNumber(piece, value, 1, 3600 * 1000, &fault->delay_ms);
  }
  if (key == "when") {
    return ParseChoice(piece, value, "before", "after", &fault->after);
  }
  if (key == "lasting") {
    return ParseChoice(piece, value, "no", "yes", &fault->lasting);
  }
  if (key == "error") {
    for (const ErrorName& known : kErrors) {
      if (known.name != value) continue;
      fault->error = known.error;
      return absl::OkStatus();
    }
    return Wrong(piece, "EIO, ENOSPC, EDQUOT, EACCES, EROFS or ESTALE");
  }
  if (key == "do") {
    if (value == "kill") {
      fault->act = StorageFault::Act::kKill;
    } else if (value == "stop") {
      fault->act = StorageFault::Act::kStop;
    } else if (value == "fail") {
      fault->act = StorageFault::Act::kFail;
    } else if (value == "delay") {
      fault->act = StorageFault::Act::kDelay;
    } else if (value == "count") {
      fault->act = StorageFault::Act::kCount;
    } else {
      return Wrong(piece, "do=kill, do=stop, do=fail, do=delay or do=count");
    }
    return absl::OkStatus();
  }
  return Wrong(
      piece,
      "KEY=VALUE with a key of rank, op, match, at, n, do, when, error, "
      "lasting, ms");
}

absl::StatusOr<StorageFault> ParseFault(std::string_view text) {
  StorageFault fault;
  std::set<std::string_view> given;
  HF_RETURN_IF_ERROR(ForEachPart(text, ',', [&](std::string_view piece) {
    const size_t equals = piece.find('=');
    const std::string_view key = piece.substr(0, equals);
    if (equals == std::string_view::npos) {
      return ParsePiece(piece, "", "", &fault);
    }
    if (!given.insert(key).second) {
      return Wrong(piece, absl::StrFormat("'%s' only once", key));
    }
    return ParsePiece(piece, key, piece.substr(equals + 1), &fault);
  }));
  if (!given.contains("do")) {
    return Wrong(text, "do=kill, do=stop, do=fail, do=delay or do=count in it");
  }
  using Act = StorageFault::Act;
  struct Only {
    std::string_view key;
    bool fits;
    std::string_view with;
  };
  for (const Only& only :
       {Only{"when", fault.act == Act::kKill || fault.act == Act::kStop,
             "do=kill or do=stop"},
        Only{"error", fault.act == Act::kFail, "do=fail"},
        Only{"ms", fault.act == Act::kDelay, "do=delay"},
        Only{"lasting", fault.act == Act::kFail || fault.act == Act::kDelay,
             "do=fail or do=delay"}}) {
    if (given.contains(only.key) && !only.fits) {
      return Wrong(text,
                   absl::StrFormat("'%s' only with %s", only.key, only.with));
    }
  }
  if (fault.act == Act::kFail && fault.error == 0) fault.error = EIO;
  if (fault.act == Act::kDelay) {
    if (fault.delay_ms == 0)
      return Wrong(text, "ms=MILLISECONDS with do=delay");
    if (!given.contains("lasting")) fault.lasting = true;
  }
  return fault;
}

}  // namespace

std::string_view Name(StorageOp op) {
  return kOpNames[static_cast<size_t>(op)];
}

absl::StatusOr<std::vector<StorageFault>> ParseStorageFaults(
    std::string_view spec) {
  std::vector<StorageFault> faults;
  if (spec.empty()) return faults;
  HF_RETURN_IF_ERROR(
      ForEachPart(spec, ';', [&](std::string_view text) -> absl::Status {
        HF_ASSIGN_OR_RETURN(faults.emplace_back(), ParseFault(text));
        return absl::OkStatus();
      }));
  return faults;
}

}  // namespace holdfast::ckpt
