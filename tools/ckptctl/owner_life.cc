// tools/ckptctl/owner_life.cc: see owner_life.h.

#include "tools/ckptctl/owner_life.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/storage/fd.h"
#include "tools/common/json_output.h"

namespace holdfast::tools {
namespace {

constexpr size_t kTextBytesMax = size_t{1} << 20;

// A small regular file, or "" when there is none.
std::string ReadSmall(const std::string& path) {
  const ckpt::Fd fd(
      ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat st = {};
  if (!fd.valid() || ::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
    return "";
  }
  std::string text;
  char buffer[4096];
  while (text.size() < kTextBytesMax) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got <= 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

std::optional<int64_t> Number(std::string_view text) {
  int64_t value = 0;
  const auto parsed =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc{}) return std::nullopt;
  return value;
}

// Not by /proc, which may hide the processes of others (hidepid=2).
bool IsThere(int64_t pid) {
  if (pid <= 0 || pid > std::numeric_limits<pid_t>::max()) return false;
  return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH;
}

// When a process of this host began, in ms since 1970; proc(5): field 22 of
// /proc/PID/stat in clock ticks after `btime` of /proc/stat.
std::optional<int64_t> BeganAt(int64_t pid) {
  const std::string stat = ReadSmall(absl::StrFormat("/proc/%d/stat", pid));
  // Field 2, the name, may hold anything, spaces and ')' included.
  size_t at = stat.rfind(')');
  if (at == std::string::npos) return std::nullopt;
  for (int field = 2; field < 22; ++field) {
    at = stat.find(' ', at + 1);
    if (at == std::string::npos) return std::nullopt;
  }
  const auto ticks = Number(std::string_view(stat).substr(at + 1));
  const std::string system = ReadSmall("/proc/stat");
  const size_t boot = system.find("\nbtime ");
  const long ticks_per_s = ::sysconf(_SC_CLK_TCK);
  if (!ticks || boot == std::string::npos || ticks_per_s <= 0) {
    return std::nullopt;
  }
  const auto boot_s = Number(std::string_view(system).substr(boot + 7));
  if (!boot_s) return std::nullopt;
  return *boot_s * 1000 + *ticks * 1000 / ticks_per_s;
}

// What status.json says of the end of `incarnation`; "" for nothing.
std::string LastWord(const std::string& run, uint32_t incarnation) {
  const Json json = Json::parse(ReadSmall(run + "/status.json"), nullptr,
                                /*allow_exceptions=*/false);
  if (!json.is_object()) return "";
  const auto number = json.find("incarnation");
  const auto state = json.find("state");
  if (number == json.end() || !number->is_number_unsigned() ||
      number->get<uint64_t>() != incarnation || state == json.end() ||
      !state->is_string()) {
    return "";
  }
  const std::string word = *state;
  return word == "finished" || word == "stopped" || word == "failed" ? word
                                                                     : "";
}

}  // namespace

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "this host";
}

OwnerLife LookAtOwner(const std::string& run, const ckpt::OwnerClaim& claim) {
  const std::string owner = absl::StrFormat("owner i%04d", claim.incarnation);
  const std::string word = LastWord(run, claim.incarnation);
  if (!word.empty()) {
    return {OwnerLife::State::kGone,
            absl::StrFormat("%s: status.json says '%s'", owner, word)};
  }
  const std::string process =
      absl::StrFormat("process %d of host %s", claim.pid, claim.host);
  if (claim.host != HostName()) {
    return {OwnerLife::State::kUnknown,
            absl::StrFormat(
                "%s, %s, claimed the run at %s and has left no "
                "last word in status.json",
                owner, process,
                absl::FormatTime("%Y-%m-%d %H:%M:%S UTC",
                                 absl::FromUnixMillis(claim.time_unix_ms),
                                 absl::UTCTimeZone()))};
  }
  if (!IsThere(claim.pid)) {
    return {OwnerLife::State::kGone,
            absl::StrFormat("%s: there is no %s any more", owner, process)};
  }
  // btime is in seconds, and clocks are set.
  constexpr int64_t kSlackMs = 5000;
  const auto began = BeganAt(claim.pid);
  if (began && *began > claim.time_unix_ms + kSlackMs) {
    return {OwnerLife::State::kGone,
            absl::StrFormat("%s: its process number, %d, is another process's",
                            owner, claim.pid)};
  }
  return {OwnerLife::State::kAlive,
          absl::StrFormat("%s, %s, is alive", owner, process)};
}

}  // namespace holdfast::tools
