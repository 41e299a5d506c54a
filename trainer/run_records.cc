// trainer/run_records.cc: JSON lines and the status file.

#include "trainer/run_records.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace holdfast::trainer {
namespace {

using Json = nlohmann::ordered_json;

absl::Status ErrnoStatus(const std::string& doing, const std::string& path) {
  const int error = errno;
  const std::string text =
      absl::StrFormat("%s %s: %s", doing, path, std::strerror(error));
  if (error == EACCES || error == EROFS || error == EPERM) {
    return absl::PermissionDeniedError(text);
  }
  if (error == ENOSPC || error == EDQUOT) {
    return absl::ResourceExhaustedError(text);
  }
  return absl::UnavailableError(text);
}

double NowSeconds() {
  return absl::ToDoubleSeconds(ckpt::RealClock().WallTime() -
                               absl::UnixEpoch());
}

absl::Status MakeDirs(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error) return absl::OkStatus();
  errno = error.value();
  return ErrnoStatus("making directory", path);
}

absl::Status WriteAll(int fd, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus("writing", path);
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// Readers see the old file or the new one, never a part.
absl::Status ReplaceFile(const std::string& path, std::string_view text) {
  const std::string temporary = absl::StrFormat("%s.tmp.%d", path, ::getpid());
  const int fd =
      ::open(temporary.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus("creating", temporary);
  absl::Status status = WriteAll(fd, temporary, text);
  if (::close(fd) != 0 && status.ok()) {
    status = ErrnoStatus("closing", temporary);
  }
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus("renaming into place", path);
  }
  if (!status.ok()) ::unlink(temporary.c_str());
  return status;
}

// A file that grows by whole lines. What a crash or a full disk has torn is
// ended before the next line, which would be lost with it.
class LineFile {
 public:
  LineFile() = default;
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  absl::Status Open(const std::string& path) {
    path_ = path;
    fd_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0) return ErrnoStatus("opening", path);
    const off_t size = ::lseek(fd_, 0, SEEK_END);
    char last = '\n';
    torn_ = size > 0 && ::pread(fd_, &last, 1, size - 1) == 1 && last != '\n';
    return absl::OkStatus();
  }
  absl::Status Append(const std::string& line) {
    const absl::Status status =
        WriteAll(fd_, path_, torn_ ? "\n" + line + "\n" : line + "\n");
    torn_ = !status.ok();
    return status;
  }

 private:
  std::string path_;
  int fd_ = -1;
  bool torn_ = false;
};

// Text from outside, such as a path in a message, need not be UTF-8, of which
// the library would throw.
std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace);
}

Json ToJson(const JournalValue& value) {
  switch (value.kind) {
    case JournalValue::Kind::kText:
      return value.text;
    case JournalValue::Kind::kInteger:
      return value.integer;
    case JournalValue::Kind::kNumber:
      return value.number;
    case JournalValue::Kind::kBool:
      return value.integer != 0;
  }
  return nullptr;
}

JournalValue FromJson(const Json& json) {
  if (json.is_boolean()) return JournalValue(json.get<bool>());
  if (json.is_number_integer()) return JournalValue(json.get<int64_t>());
  if (json.is_number()) return JournalValue(json.get<double>());
  if (json.is_string()) return JournalValue(json.get<std::string>());
  return JournalValue(Dump(json));
}

Json ToJson(const MetricsLine& line) {
  Json json;
  json["time"] = line.time;
  json["step"] = line.step;
  json["loss"] = line.loss;
  json["loss_bits"] = absl::StrFormat("%08x", line.loss_bits);
  json["grad_norm"] = line.grad_norm;
  json["grad_norm_bits"] = absl::StrFormat("%016x", line.grad_norm_bits);
  json["lr"] = line.lr;
  json["tokens"] = line.tokens;
  json["tokens_per_s"] = line.tokens_per_s;
  json["step_ms"] = line.step_ms;
  json["mfu"] = line.mfu;
  json["peak_bytes"] = line.peak_bytes;
  json["fwd_ms"] = line.fwd_ms;
  json["bwd_ms"] = line.bwd_ms;
  json["wait_ms"] = line.wait_ms;
  json["sample_digest"] = absl::StrFormat("%016x", line.sample_digest);
  json["save_stall_ms"] = line.save_stall_ms;
  json["last_durable_step"] = line.last_durable_step;
  json["layout"] = line.layout;
  json["incarnation"] = line.incarnation;
  if (line.eval_loss.has_value()) json["eval_loss"] = *line.eval_loss;
  if (line.skipped) json["skipped"] = true;
  return json;
}

MetricsLine MetricsFromJson(const Json& json) {
  MetricsLine line;
  line.time = json.at("time").get<double>();
  line.step = json.at("step").get<int64_t>();
  // JSON has no NaN: a loss that is not finite is written as null.
  const auto number = [&](const char* key) {
    return json.at(key).is_null() ? std::nan("") : json.at(key).get<double>();
  };
  const auto hex = [&](const char* key) {
    return std::stoull(json.at(key).get<std::string>(), nullptr, 16);
  };
  line.loss = number("loss");
  line.loss_bits = static_cast<uint32_t>(hex("loss_bits"));
  line.grad_norm = number("grad_norm");
  line.grad_norm_bits = hex("grad_norm_bits");
  line.lr = number("lr");
  line.tokens = json.at("tokens").get<int64_t>();
  line.tokens_per_s = number("tokens_per_s");
  line.step_ms = number("step_ms");
  line.mfu = number("mfu");
  line.peak_bytes = json.at("peak_bytes").get<int64_t>();
  line.fwd_ms = json.at("fwd_ms").get<std::vector<double>>();
  line.bwd_ms = json.at("bwd_ms").get<std::vector<double>>();
  line.wait_ms = json.at("wait_ms").get<std::vector<double>>();
  line.sample_digest = hex("sample_digest");
  line.save_stall_ms = number("save_stall_ms");
  line.last_durable_step = json.at("last_durable_step").get<int64_t>();
  line.layout = json.at("layout").get<std::string>();
  line.incarnation = json.at("incarnation").get<uint32_t>();
  if (json.contains("eval_loss")) line.eval_loss = number("eval_loss");
  line.skipped = json.value("skipped", false);
  return line;
}

// Calls `use` with every line of `path` that parses; a line that does not, or
// on which `use` throws, is counted.
template <class Use>
absl::Status ForEachLine(const std::string& path, int* skipped, Use use) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrFormat("no file %s", path));
  int bad = 0;
  for (std::string text; std::getline(file, text);) {
    if (text.empty()) continue;
    // nlohmann reports what it cannot read by exceptions; they end here.
    try {
      use(Json::parse(text));
    } catch (const std::exception&) {
      ++bad;
    }
  }
  if (skipped != nullptr) *skipped = bad;
  return absl::OkStatus();
}

}  // namespace

struct RunRecords::Data {
  std::string run_dir;
  uint32_t incarnation = 0;
  LineFile metrics;
  LineFile journal;
};

RunRecords::RunRecords(std::unique_ptr<Data> data) : data_(std::move(data)) {}
RunRecords::~RunRecords() = default;

absl::StatusOr<std::unique_ptr<RunRecords>> RunRecords::Open(
    const std::string& run_dir, uint32_t incarnation) {
  auto data = std::make_unique<Data>();
  data->run_dir = run_dir;
  data->incarnation = incarnation;
  HF_RETURN_IF_ERROR(MakeIncarnationDirs(run_dir, incarnation));
  HF_RETURN_IF_ERROR(data->metrics.Open(run_dir + "/metrics.jsonl"));
  HF_RETURN_IF_ERROR(data->journal.Open(run_dir + "/journal.jsonl"));
  return std::unique_ptr<RunRecords>(new RunRecords(std::move(data)));
}

absl::Status RunRecords::WriteMetrics(const MetricsLine& line) {
  return data_->metrics.Append(Dump(ToJson(line)));
}

absl::Status RunRecords::WriteJournal(
    const std::string& event, std::map<std::string, JournalValue> facts) {
  Json json;
  json["time"] = NowSeconds();
  json["event"] = event;
  json["incarnation"] = data_->incarnation;
  for (const auto& [key, value] : facts) json[key] = ToJson(value);
  return data_->journal.Append(Dump(json));
}

absl::Status RunRecords::WriteStatus(const std::string& state, int64_t step,
                                     std::optional<int> exit_code,
                                     const std::string& message) {
  return WriteStatusFile(data_->run_dir, state, step, data_->incarnation,
                         exit_code, message);
}

absl::Status RunRecords::WriteConfig(const std::string& canonical_toml) {
  return ReplaceFile(
      IncarnationDir(data_->run_dir, data_->incarnation) + "/config.toml",
      canonical_toml);
}

absl::Status RunRecords::WriteEnvironment(
    std::map<std::string, JournalValue> facts) {
  Json json;
  for (const auto& [key, value] : facts) json[key] = ToJson(value);
  return ReplaceFile(
      IncarnationDir(data_->run_dir, data_->incarnation) + "/env.json",
      Dump(json, 2) + "\n");
}

std::string IncarnationDir(const std::string& run_dir, uint32_t incarnation) {
  return absl::StrFormat("%s/incarnations/%03d", run_dir, incarnation);
}

std::string RankLogPath(const std::string& run_dir, uint32_t incarnation,
                        int rank) {
  return absl::StrFormat("%s/logs/rank-%05d.log",
                         IncarnationDir(run_dir, incarnation), rank);
}

absl::Status MakeIncarnationDirs(const std::string& run_dir,
                                 uint32_t incarnation) {
  return MakeDirs(IncarnationDir(run_dir, incarnation) + "/logs");
}

absl::Status WriteStatusFile(const std::string& run_dir,
                             const std::string& state, int64_t step,
                             uint32_t incarnation, std::optional<int> exit_code,
                             const std::string& message) {
  const std::string path = run_dir + "/status.json";
  std::ifstream file(path);
  const Json before = Json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto has = [&before](const char* key, auto unknown) {
    if (!before.is_object()) return unknown;
    const auto found = before.find(key);
    return found != before.end() && found->is_number_integer()
               ? found->get<decltype(unknown)>()
               : unknown;
  };
  const uint32_t writer = has("incarnation", kUnknownIncarnation);
  if (incarnation == kUnknownIncarnation) incarnation = writer;
  if (writer > incarnation) return absl::OkStatus();
  if (step == kUnknownStep) step = has("step", kUnknownStep);
  Json json;
  json["state"] = state;
  json["step"] = step;
  json["incarnation"] = incarnation;
  if (exit_code.has_value()) json["exit_code"] = *exit_code;
  json["message"] = message;
  json["time"] = NowSeconds();
  return ReplaceFile(path, Dump(json, 2) + "\n");
}

absl::StatusOr<std::vector<MetricsLine>> ReadAllMetrics(
    const std::string& run_dir, int* skipped) {
  std::vector<MetricsLine> lines;
  HF_RETURN_IF_ERROR(ForEachLine(
      run_dir + "/metrics.jsonl", skipped,
      [&](const Json& json) { lines.push_back(MetricsFromJson(json)); }));
  return lines;
}

absl::StatusOr<std::vector<MetricsLine>> ReadMetrics(const std::string& run_dir,
                                                     int* skipped) {
  HF_ASSIGN_OR_RETURN(const std::vector<MetricsLine> lines,
                      ReadAllMetrics(run_dir, skipped));
  std::map<int64_t, MetricsLine> newest;
  for (const MetricsLine& line : lines) {
    const auto found = newest.find(line.step);
    if (found == newest.end() ||
        line.incarnation >= found->second.incarnation) {
      newest.insert_or_assign(line.step, line);
    }
  }
  std::vector<MetricsLine> result;
  result.reserve(newest.size());
  for (auto& [step, line] : newest) result.push_back(std::move(line));
  return result;
}

absl::StatusOr<std::vector<JournalEvent>> ReadJournal(
    const std::string& run_dir) {
  std::vector<JournalEvent> events;
  const absl::Status status =
      ForEachLine(run_dir + "/journal.jsonl", nullptr, [&](const Json& json) {
        JournalEvent event;
        event.time = json.at("time").get<double>();
        event.event = json.at("event").get<std::string>();
        for (const auto& [key, value] : json.items()) {
          if (key == "time" || key == "event") continue;
          event.facts.insert_or_assign(key, FromJson(value));
        }
        events.push_back(std::move(event));
      });
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  return events;
}

}  // namespace holdfast::trainer
