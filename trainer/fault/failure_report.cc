// trainer/fault/failure_report.cc: a flat JSON object, written and read by
// hand so that trainer/fault needs no library for it.

#include "trainer/fault/failure_report.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace holdfast::trainer {
namespace {

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted.push_back('\\');
      quoted.push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      quoted += absl::StrFormat("\\u%04x", static_cast<int>(c));
    } else {
      quoted.push_back(c);
    }
  }
  return quoted + "\"";
}

// Reads {"name": value, ...} with strings and numbers only.
class FlatObject {
 public:
  static std::optional<FlatObject> Parse(std::string_view text) {
    FlatObject object;
    object.text_ = text;
    if (!object.ParseMembers()) return std::nullopt;
    return object;
  }

  std::optional<std::string> Text(const std::string& name) const {
    const auto found = members_.find(name);
    if (found == members_.end()) return std::nullopt;
    return found->second;
  }

 private:
  bool ParseMembers() {
    if (!Take('{')) return false;
    while (true) {
      std::string name;
      std::string value;
      if (!TakeString(&name) || !Take(':')) return false;
      Skip();
      if (at_ < text_.size() && text_[at_] == '"') {
        if (!TakeString(&value)) return false;
      } else {
        while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '}') {
          value.push_back(text_[at_++]);
        }
      }
      members_[name] = value;
      if (Take(',')) continue;
      return Take('}');
    }
  }

  void Skip() {
    while (at_ < text_.size() &&
           std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
      ++at_;
    }
  }

  bool Take(char c) {
    Skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  bool TakeString(std::string* out) {
    if (!Take('"')) return false;
    while (at_ < text_.size() && text_[at_] != '"') {
      char c = text_[at_++];
      if (c == '\\') {
        if (at_ >= text_.size()) return false;
        c = text_[at_++];
        if (c == 'u') {
          int code = 0;
          if (at_ + 4 > text_.size() ||
              !absl::SimpleHexAtoi(std::string(text_.substr(at_, 4)), &code) ||
              code > 0x7f) {
            return false;
          }
          at_ += 4;
          c = static_cast<char>(code);
        }
      }
      out->push_back(c);
    }
    return Take('"');
  }

  std::string_view text_;
  size_t at_ = 0;
  std::map<std::string, std::string> members_;
};

}  // namespace

std::string EncodeFailureReport(const FailureReport& report) {
  return absl::StrFormat(
      "{\"rank\": %d, \"host\": %s, \"operation\": %s, \"seconds\": %.3f, "
      "\"waiting_for\": %d, \"waiting_for_host\": %s, \"exit_code\": %d, "
      "\"time_unix_ms\": %d, \"message\": %s}\n",
      report.rank, Quoted(report.host), Quoted(report.operation),
      report.seconds, report.waiting_for, Quoted(report.waiting_for_host),
      report.exit_code, report.time_unix_ms, Quoted(report.message));
}

absl::StatusOr<FailureReport> DecodeFailureReport(std::string_view text) {
  const absl::Status damaged = absl::DataLossError(absl::StrFormat(
      "reading a failure report: not one: %s", text.substr(0, 200)));
  const std::optional<FlatObject> object = FlatObject::Parse(text);
  if (!object.has_value()) return damaged;
  FailureReport report;
  const auto number = [&](const char* name, auto* out) {
    const std::optional<std::string> value = object->Text(name);
    return value.has_value() && absl::SimpleAtoi(*value, out);
  };
  const auto string = [&](const char* name, std::string* out) {
    const std::optional<std::string> value = object->Text(name);
    if (value.has_value()) *out = *value;
    return value.has_value();
  };
  const std::optional<std::string> seconds = object->Text("seconds");
  if (!number("rank", &report.rank) || !string("host", &report.host) ||
      !string("operation", &report.operation) || !seconds.has_value() ||
      !absl::SimpleAtod(*seconds, &report.seconds) ||
      !number("waiting_for", &report.waiting_for) ||
      !string("waiting_for_host", &report.waiting_for_host) ||
      !number("exit_code", &report.exit_code) ||
      !number("time_unix_ms", &report.time_unix_ms) ||
      !string("message", &report.message)) {
    return damaged;
  }
  return report;
}

std::string FailureReportName(int rank) {
  return absl::StrFormat("failure-rank-%05d.json", rank);
}

absl::Status WriteFailureReport(const std::string& dir,
                                const FailureReport& report) {
  const std::string path = dir + "/" + FailureReportName(report.rank);
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) {
    const int error = errno;
    const std::string message =
        absl::StrFormat("creating %s: %s", path, strerror(error));
    return error == EEXIST ? absl::AlreadyExistsError(message)
                           : absl::UnavailableError(message);
  }
  const std::string text = EncodeFailureReport(report);
  const ssize_t written = write(file, text.data(), text.size());
  const int error = errno;
  close(file);
  if (written != static_cast<ssize_t>(text.size())) {
    return absl::UnavailableError(absl::StrFormat(
        "writing %s: %s", path, written < 0 ? strerror(error) : "short"));
  }
  return absl::OkStatus();
}

std::vector<FailureReport> ReadFailureReports(const std::string& dir) {
  std::vector<FailureReport> reports;
  DIR* const listing = opendir(dir.c_str());
  if (listing == nullptr) return reports;
  while (const dirent* entry = readdir(listing)) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with("failure-rank-") || !name.ends_with(".json")) {
      continue;
    }
    std::ifstream file(dir + "/" + std::string(name));
    std::stringstream text;
    text << file.rdbuf();
    if (auto report = DecodeFailureReport(text.str()); report.ok()) {
      reports.push_back(*std::move(report));
    }
  }
  closedir(listing);
  std::sort(reports.begin(), reports.end(),
            [](const FailureReport& a, const FailureReport& b) {
              return a.rank < b.rank;
            });
  return reports;
}

std::optional<int> FirstFailingRank(std::span<const FailureReport> reports) {
  if (reports.empty()) return std::nullopt;
  const auto earliest =
      std::min_element(reports.begin(), reports.end(),
                       [](const FailureReport& a, const FailureReport& b) {
                         return a.time_unix_ms < b.time_unix_ms;
                       });
  int suspect = earliest->rank;
  std::set<int> seen;  // Ranks may wait in a circle: then the earliest.
  while (seen.insert(suspect).second) {
    const auto report =
        std::find_if(reports.begin(), reports.end(),
                     [&](const FailureReport& r) { return r.rank == suspect; });
    if (report == reports.end() || report->waiting_for < 0) return suspect;
    suspect = report->waiting_for;
  }
  return earliest->rank;
}

}  // namespace holdfast::trainer
