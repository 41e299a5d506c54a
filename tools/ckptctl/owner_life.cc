// tools/ckptctl/owner_life.cc: see owner_life.h.

#include "tools/ckptctl/owner_life.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

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

// Not by /proc, which may hide the processes of others (hidepid=2).
bool IsThere(int64_t pid) {
  if (pid <= 0 || pid > std::numeric_limits<pid_t>::max()) return false;
  return ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH;
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

OwnerLife LookAtOwner(const std::string& run, const ckpt::OwnerClaim& claim,
                      const ckpt::ProcessMark& here) {
  using State = OwnerLife::State;
  const std::string owner = absl::StrFormat("owner i%04d", claim.incarnation);
  const std::string word = LastWord(run, claim.incarnation);
  if (!word.empty()) {
    return {State::kGone,
            absl::StrFormat("%s: status.json says '%s'", owner, word)};
  }
  const std::string process =
      absl::StrFormat("process %d of host %s", claim.pid, claim.host);
  const auto unknown = [&](std::string_view where) {
    return OwnerLife{
        State::kUnknown,
        absl::StrFormat(
            "%s, %s, claimed the run at %s and has left no last "
            "word in status.json; %s",
            owner, process,
            absl::FormatTime("%Y-%m-%d %H:%M:%S UTC",
                             absl::FromUnixMillis(claim.time_unix_ms),
                             absl::UTCTimeZone()),
            std::string(where))};
  };
  if (claim.mark.empty()) {
    return unknown(
        "its claim does not say which start of which machine it belongs to");
  }
  if (here.empty()) {
    return unknown("/proc does not say which machine this is");
  }
  if (claim.mark.boot != here.boot) {
    return unknown(
        "it ran on another machine, or on this one before it was started "
        "again, which cannot be told from here");
  }
  if (claim.mark.namespaces != here.namespaces) {
    return unknown(
        "it ran in another container of this machine (another pid namespace), "
        "whose processes cannot be told from here");
  }
  if (!IsThere(claim.pid)) {
    return {State::kGone,
            absl::StrFormat("%s: there is no %s any more", owner, process)};
  }
  const auto start = ckpt::StartTicksOf(claim.pid);
  if (start && *start != claim.mark.start_ticks) {
    return {State::kGone,
            absl::StrFormat("%s: its process number, %d, is another process's",
                            owner, claim.pid)};
  }
  return {State::kAlive, absl::StrFormat("%s, %s, is alive", owner, process)};
}

}  // namespace holdfast::tools
