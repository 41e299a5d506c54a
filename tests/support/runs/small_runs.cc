// tests/support/runs/small_runs.cc: see the header.

#include "tests/support/runs/small_runs.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <utility>

#include "absl/time/time.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "gtest/gtest.h"

namespace holdfast::tests {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr absl::Duration kNap = absl::Milliseconds(2);

double NowSeconds() {
  return absl::ToDoubleSeconds(ckpt::RealClock().Monotonic());
}

// Words of a language of its own: text that has something to learn, and is the
// same everywhere.
std::string MakeText(uint32_t seed, size_t bytes) {
  const auto next = [&seed] {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 16;
  };
  std::vector<std::string> words(64);
  for (std::string& word : words) {
    const uint32_t letters = 2 + next() % 6;
    for (uint32_t i = 0; i < letters; ++i) {
      word.push_back(static_cast<char>('a' + next() % 26));
    }
  }
  std::string text;
  while (text.size() < bytes) {
    text += words[next() % 8 * (next() % 8)];
    text += next() % 12 == 0 ? ".\n" : " ";
  }
  return text;
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const Ended& ended) {
  return stream << "code " << ended.code << " after " << ended.seconds
                << " s\nstdout: " << ended.out << "\nstderr: " << ended.err;
}

std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  // Unlike an iterator, it does not throw where reading fails: files of a
  // process in /proc do (ESRCH) once the process has gone.
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void FlipByte(const std::string& path, uint64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(byte ^ 0x10));
  ASSERT_TRUE(file.good()) << path << " has no byte " << offset;
}

Running::Running(tools::ChildProcess child, std::string out_file,
                 std::string err_file)
    : child_(std::move(child)),
      out_file_(std::move(out_file)),
      err_file_(std::move(err_file)),
      begun_s_(NowSeconds()) {}

std::string Running::out() const { return FileText(out_file_); }
std::string Running::err() const { return FileText(err_file_); }

bool Running::WaitForText(const std::string& text) {
  return WaitUntil("'" + text + "'",
                   [&] { return err().find(text) != std::string::npos; });
}

bool Running::WaitUntil(const std::string& what,
                        const std::function<bool()>& is_so) {
  const double end = NowSeconds() + absl::ToDoubleSeconds(kPatience);
  while (true) {
    const bool over = child_.Poll();
    if (is_so()) return true;
    if (over || NowSeconds() > end) {
      ADD_FAILURE() << (over ? "the program ended" : "a minute passed")
                    << " before " << what << "\nstderr: " << err();
      return false;
    }
    ckpt::RealClock().Sleep(kNap);
  }
}

Ended Running::Wait() {
  Ended ended;
  if (!child_.WaitFor(kPatience)) {
    ADD_FAILURE() << "the program did not end within a minute\nstderr: "
                  << err();
    child_.SignalGroup(SIGKILL);
    child_.WaitFor(kPatience);
  }
  ended.code = child_.exit_code();
  ended.seconds = NowSeconds() - begun_s_;
  ended.out = out();
  ended.err = err();
  return ended;
}

SmallRuns::SmallRuns() {
  std::string text =
      FileText(HOLDFAST_SOURCE_DIR "/tests/support/runs/small.toml");
  const size_t at = text.find("\"DATA\"");
  HF_CHECK(at != std::string::npos, "small.toml has no DATA");
  text.replace(at + 1, 4, MakeData("text", 1));
  WriteFile("small.toml", text);
}

std::string SmallRuns::Path(const std::string& name) const {
  return folder_.path() + "/" + name;
}

void SmallRuns::WriteFile(const std::string& name,
                          const std::string& text) const {
  std::ofstream(Path(name), std::ios::binary) << text;
}

std::string SmallRuns::MakeData(const std::string& name, uint32_t seed) const {
  WriteFile(name + ".txt", MakeText(seed, 256 * 1024));
  const Ended made = Program(
      "holdfast", {"data", "--in", Path(name + ".txt"), "--out", Path(name)});
  HF_CHECK(made.code == 0, "holdfast data: %s", made.err);
  return Path(name);
}

void SmallRuns::CopyRun(const std::string& from, const std::string& to) const {
  std::filesystem::remove_all(Path(to));
  std::filesystem::copy(Path(from), Path(to),
                        std::filesystem::copy_options::recursive);
}

Running SmallRuns::Start(const std::string& run, const JobSpec& spec) const {
  tools::ChildOptions child;
  child.argv = {HOLDFAST_BIN_DIR "/holdfast"};
  if (spec.ranks > 1 || spec.launch) {
    child.argv.insert(child.argv.end(),
                      {"launch", "-n", std::to_string(spec.ranks), "--"});
  }
  child.argv.insert(child.argv.end(),
                    {"train", "--config", config(), "--set",
                     "parallel.tp=" + std::to_string(spec.tp), "--set",
                     "parallel.pp=" + std::to_string(spec.pp)});
  for (const std::string& set : spec.sets) {
    child.argv.insert(child.argv.end(), {"--set", set});
  }
  child.argv.insert(child.argv.end(), {"--run", Path(run)});
  child.argv.insert(child.argv.end(), spec.words.begin(), spec.words.end());
  child.env = {{"OMP_NUM_THREADS", "1"}, {"HOLDFAST_FAULT", spec.fault}};
  const std::string said = Path("said-" + std::to_string(++started_));
  child.stdout_file = said + ".out";
  child.stderr_file = said + ".err";
  auto started = tools::ChildProcess::Start(child);
  HF_CHECK(started.ok(), "%s", started.status().ToString());
  return Running(*std::move(started), child.stdout_file, child.stderr_file);
}

Ended SmallRuns::Train(const std::string& run, const JobSpec& spec) const {
  return Start(run, spec).Wait();
}

Ended SmallRuns::TrainToTheEnd(const std::string& run,
                               const JobSpec& spec) const {
  Ended ended = Train(run, spec);
  EXPECT_EQ(ended.code, 0) << ended;
  return ended;
}

Ended SmallRuns::Program(const std::string& program,
                         const std::vector<std::string>& arguments,
                         const std::string& out_file) const {
  const std::string said = Path("said-" + std::to_string(++started_));
  tools::ChildOptions child;
  child.argv = {HOLDFAST_BIN_DIR "/" + program};
  child.argv.insert(child.argv.end(), arguments.begin(), arguments.end());
  child.env = {{"OMP_NUM_THREADS", "1"}};
  child.stdout_file = out_file.empty() ? said + ".out" : out_file;
  child.stderr_file = said + ".err";
  auto started = tools::ChildProcess::Start(child);
  HF_CHECK(started.ok(), "%s", started.status().ToString());
  // What was given may be a device without an end, such as /dev/full.
  return Running(*std::move(started), out_file.empty() ? said + ".out" : "",
                 child.stderr_file)
      .Wait();
}

nlohmann::json SmallRuns::Ckptctl(std::vector<std::string> arguments,
                                  int code) const {
  arguments.push_back("--json");
  const Ended ended = Program("ckptctl", arguments);
  EXPECT_EQ(ended.code, code) << arguments[0] << ": " << ended;
  auto json = nlohmann::json::parse(ended.out, nullptr,
                                    /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    ADD_FAILURE() << "ckptctl " << arguments[0]
                  << " printed no JSON: " << ended;
    return nlohmann::json::object();
  }
  return json;
}

std::string SmallRuns::Digest(const std::string& checkpoint) const {
  const nlohmann::json shown = Ckptctl({"show", Path(checkpoint), "--hash"});
  return shown.value("digest", "");
}

std::map<int64_t, std::string> SmallRuns::StatesOfSteps(
    const std::string& run) const {
  std::map<int64_t, std::string> states;
  std::map<int64_t, int64_t> incarnations;
  const nlohmann::json listed = Ckptctl({"ls", Path(run)});
  if (!listed.contains("checkpoints")) return states;
  for (const nlohmann::json& entry : listed["checkpoints"]) {
    const int64_t step = entry["step"];
    const int64_t incarnation = entry["incarnation"];
    if (states.contains(step) && incarnations[step] > incarnation) continue;
    states[step] = entry["state"];
    incarnations[step] = incarnation;
  }
  return states;
}

std::string SmallRuns::Shard(const std::string& run, int64_t step,
                             int rank) const {
  const nlohmann::json listed = Ckptctl({"ls", Path(run)});
  for (const nlohmann::json& entry : listed["checkpoints"]) {
    if (entry["step"] != step || entry["state"] != "committed") continue;
    const nlohmann::json shown =
        Ckptctl({"show", Path(run) + "@" + entry["id"].get<std::string>()});
    return Path(run) + "/" + entry["dir"].get<std::string>() + "/" +
           shown["shards"][static_cast<size_t>(rank)]["name"]
               .get<std::string>();
  }
  ADD_FAILURE() << run << " has no committed checkpoint of step " << step;
  return "";
}

std::vector<trainer::MetricsLine> SmallRuns::Metrics(
    const std::string& run) const {
  auto lines = trainer::ReadMetrics(Path(run));
  return lines.ok() ? *std::move(lines) : std::vector<trainer::MetricsLine>();
}

std::vector<trainer::MetricsLine> SmallRuns::AllMetrics(
    const std::string& run) const {
  auto lines = trainer::ReadAllMetrics(Path(run));
  return lines.ok() ? *std::move(lines) : std::vector<trainer::MetricsLine>();
}

int64_t SmallRuns::LastStep(const std::string& run) const {
  const auto lines = AllMetrics(run);
  return lines.empty() ? 0 : lines.back().step;
}

std::vector<trainer::JournalEvent> SmallRuns::Journal(
    const std::string& run, const std::string& event) const {
  auto events = trainer::ReadJournal(Path(run));
  if (!events.ok()) return {};
  std::erase_if(*events, [&](const trainer::JournalEvent& found) {
    return found.event != event;
  });
  return *std::move(events);
}

nlohmann::json SmallRuns::Status(const std::string& run) const {
  auto status = nlohmann::json::parse(FileText(Path(run) + "/status.json"),
                                      nullptr, /*allow_exceptions=*/false);
  return status.is_object() ? status : nlohmann::json::object();
}

void SmallRuns::ExpectSameSteps(const std::string& reference,
                                const std::string& run, int64_t first,
                                int64_t last) const {
  std::map<int64_t, trainer::MetricsLine> expected;
  for (trainer::MetricsLine& line : Metrics(reference)) {
    expected[line.step] = std::move(line);
  }
  int64_t compared = 0;
  for (const trainer::MetricsLine& line : Metrics(run)) {
    if (line.step < first || line.step > last) continue;
    ASSERT_TRUE(expected.contains(line.step))
        << reference << " has no step " << line.step;
    const trainer::MetricsLine& other = expected[line.step];
    EXPECT_EQ(line.loss_bits, other.loss_bits)
        << run << ", step " << line.step << " on " << line.layout << ": loss "
        << line.loss << ", in " << reference << " " << other.loss;
    EXPECT_EQ(line.grad_norm_bits, other.grad_norm_bits)
        << run << ", step " << line.step << " on " << line.layout;
    EXPECT_EQ(line.sample_digest, other.sample_digest)
        << run << ", step " << line.step << " on " << line.layout;
    ++compared;
  }
  EXPECT_GT(compared, 0) << run << " has no step from " << first << " on";
}

std::map<int, pid_t> SmallRuns::RankPids(const std::string& run) const {
  // The ranks, not the wrappers around them: "holdfast\0train\0".
  using std::string_literals::operator""s;
  const std::string train = "/holdfast\0train\0"s;
  const std::string named = "--run\0"s + Path(run) + "\0"s;
  std::map<int, pid_t> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const int pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0 || pid == getpid()) continue;
    const std::string words = FileText(entry.path() / "cmdline");
    if (words.find(train) == std::string::npos ||
        words.find(named) == std::string::npos) {
      continue;
    }
    const std::string env = FileText(entry.path() / "environ");
    constexpr std::string_view kRank = "OMPI_COMM_WORLD_RANK=";
    const size_t at = env.find(kRank);
    pids[at == std::string::npos ? 0
                                 : std::atoi(env.c_str() + at + kRank.size())] =
        pid;
  }
  return pids;
}

void SmallRuns::ExpectNoProcessLeft(const std::string& run) const {
  const auto left = [&] {
    std::string found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const int pid = std::atoi(entry.path().filename().c_str());
      if (pid <= 0 || pid == getpid()) continue;
      std::string words = FileText(entry.path() / "cmdline");
      if (words.find(Path(run)) == std::string::npos) continue;
      std::replace(words.begin(), words.end(), '\0', ' ');
      found += std::to_string(pid) + ": " + words + "\n";
    }
    return found;
  };
  const double end = NowSeconds() + 3;
  while (!left().empty() && NowSeconds() < end) ckpt::RealClock().Sleep(kNap);
  EXPECT_EQ(left(), "") << "processes were left behind";
}

}  // namespace holdfast::tests
