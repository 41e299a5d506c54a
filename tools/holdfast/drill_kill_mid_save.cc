// tools/holdfast/drill_kill_mid_save.cc: one rank dies between its first and
// its last write of a save; the run comes back on other layouts.
//
//   1  reference   never interrupted, on the first layout
//   2  broken      the same; SIGKILL at a counted storage operation of one rank
//   3  resumed     on the second layout; SIGTERM after some steps, exit code 75
//   4  resumed     on the third layout, to the last step
//   5  compared    every step's loss, norm and samples; the final state's
//   digest

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/holdfast/drill.h"
#include "trainer/compare_runs.h"
#include "trainer/config.h"
#include "trainer/data/data_source.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/run_records.h"

namespace holdfast::tools {
namespace {

using nlohmann::json;
using trainer::MetricsLine;
using trainer::SegmentComparison;

// Steps that must be compared after each resume for the drill to mean anything.
constexpr int64_t kStepsComparedMin = 5;
// The longest a job of a drill may take.
constexpr absl::Duration kJobTimeout = absl::Minutes(30);
// Between two looks at the step that a job has reached: a small model's steps
// take milliseconds.
constexpr absl::Duration kLook = absl::Milliseconds(20);
// Loss of the first step after a change of TP, relative (trainer/DESIGN.md).
constexpr double kTpGapMaxBf16 = 1e-3;
constexpr double kTpGapMaxF32 = 1e-5;

absl::StatusOr<json> RunJson(const std::vector<std::string>& argv,
                             const std::string& scratch) {
  ChildOptions options;
  options.argv = argv;
  options.stdout_file = scratch;
  HF_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(options));
  if (!child.WaitFor(kJobTimeout) || child.exit_code() != 0) {
    return absl::InternalError(absl::StrFormat(
        "%s ended with %d", ShellCommand(argv), child.exit_code()));
  }
  std::FILE* const file = std::fopen(scratch.c_str(), "re");
  if (file == nullptr) {
    return absl::UnavailableError(absl::StrFormat("cannot read %s", scratch));
  }
  std::string text;
  char part[4096];
  size_t got;
  while ((got = std::fread(part, 1, sizeof part, file)) > 0) {
    text.append(part, got);
  }
  std::fclose(file);
  const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return absl::InternalError(
        absl::StrFormat("%s printed no JSON", ShellCommand(argv)));
  }
  return value;
}

class KillMidSave {
 public:
  explicit KillMidSave(const DrillOptions& options)
      : options_(options),
        ckptctl_(std::filesystem::path(OwnProgramPath()).parent_path() /
                 "ckptctl"),
        reference_(options, options.run_dir + "/reference"),
        broken_(options, options.run_dir + "/broken") {}

  absl::Status Run();
  json Summary() const { return summary_; }

 private:
  absl::Status Prepare();
  absl::Status RunReference();
  absl::Status BreakTheRun();
  absl::Status ResumeUntil(size_t layout, std::optional<int64_t> stop_at);
  absl::Status Compare();
  absl::Status CheckLearning(std::span<const MetricsLine> lines);

  absl::StatusOr<int> RunToEnd(
      const DrillJob& job, const ckpt::Mesh& mesh,
      const std::vector<std::pair<std::string, std::string>>& env);
  absl::Status Show(const std::vector<std::string>& argv);
  void PrintSaves(const std::string& run_dir) const;
  absl::StatusOr<std::string> Digest(const std::string& run_dir);

  const DrillOptions& options_;
  const std::string ckptctl_;
  const DrillJob reference_;
  const DrillJob broken_;
  std::vector<ckpt::Mesh> meshes_;
  trainer::Config config_;
  int64_t interval_ = 0;
  int64_t kill_at_ = 0;  // the step whose save is broken
  json summary_;
};

void Title(const char* format, const std::string& text) {
  std::printf("\n-- ");
  std::printf(format, text.c_str());
  std::printf("\n");
  std::fflush(stdout);
}

absl::Status KillMidSave::Prepare() {
  if (options_.layouts.size() < 2) {
    return absl::InvalidArgumentError(
        "--layouts needs the layout of the reference and at least one to "
        "resume "
        "on, such as tp2-pp2-dp2,tp2-pp1-dp2");
  }
  for (const std::string& text : options_.layouts) {
    HF_ASSIGN_OR_RETURN(const ckpt::Mesh mesh, ckpt::ParseMesh(text));
    meshes_.push_back(mesh);
    HF_ASSIGN_OR_RETURN(config_,
                        trainer::LoadConfig(options_.config, options_.sets));
    config_.parallel.tp = mesh.tp;
    config_.parallel.pp = mesh.pp;
    const absl::Status resolved = trainer::ResolveConfig(config_, mesh.world());
    if (!resolved.ok()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "layout %s: %s", text, std::string(resolved.message())));
    }
  }
  interval_ = config_.checkpoint.interval.steps;
  const int64_t resumes = static_cast<int64_t>(meshes_.size()) - 1;
  // Two saves are whole before the one that is broken, and every resume has
  // steps to compare.
  kill_at_ = 3 * interval_;
  const int64_t last_resume = 2 * interval_;
  if (interval_ == 0 || config_.train.steps < kill_at_ ||
      config_.train.steps - last_resume < resumes * kStepsComparedMin) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "checkpoint.interval = %d steps and train.steps = %d leave no room: "
        "the "
        "drill breaks the third save and then compares %d steps on each of %d "
        "layouts",
        interval_, config_.train.steps, kStepsComparedMin, resumes));
  }
  if (std::filesystem::exists(options_.run_dir)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s exists; a drill starts from nothing: name another directory or "
        "remove it",
        options_.run_dir));
  }
  std::error_code error;
  std::filesystem::create_directories(options_.run_dir, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrFormat("making %s: %s", options_.run_dir, error.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> KillMidSave::RunToEnd(
    const DrillJob& job, const ckpt::Mesh& mesh,
    const std::vector<std::pair<std::string, std::string>>& env) {
  HF_ASSIGN_OR_RETURN(ChildProcess child, job.Start(mesh, env));
  if (!child.WaitFor(kJobTimeout)) {
    return absl::DeadlineExceededError(
        absl::StrFormat("the job in %s did not end within %s", job.run_dir(),
                        absl::FormatDuration(kJobTimeout)));
  }
  return child.exit_code();
}

absl::Status KillMidSave::Show(const std::vector<std::string>& argv) {
  std::printf("$ %s\n", ShellCommand(argv).c_str());
  std::fflush(stdout);
  ChildOptions options;
  options.argv = argv;
  HF_ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(options));
  if (!child.WaitFor(kJobTimeout) || child.exit_code() != 0) {
    return absl::InternalError(absl::StrFormat(
        "%s ended with %d", ShellCommand(argv), child.exit_code()));
  }
  return absl::OkStatus();
}

void KillMidSave::PrintSaves(const std::string& run_dir) const {
  const auto events = trainer::ReadJournal(run_dir);
  if (!events.ok()) return;
  std::printf(
      "saves: step, outcome, MB, seconds, GB/s a rank, of the raw device, "
      "stall\n");
  for (const trainer::JournalEvent& event : *events) {
    if (event.event != "save") continue;
    const auto number = [&](const char* key) {
      const auto found = event.facts.find(key);
      if (found == event.facts.end()) return 0.0;
      return found->second.kind == trainer::JournalValue::Kind::kInteger
                 ? static_cast<double>(found->second.integer)
                 : found->second.number;
    };
    std::string stall = "-";
    for (const trainer::JournalEvent& other : *events) {
      if (other.event == "save_stall" &&
          other.facts.at("step").integer == event.facts.at("step").integer) {
        stall = absl::StrFormat("%.0f ms", other.facts.at("stall_ms").number);
      }
    }
    const double share = number("raw_share");
    std::printf(
        "  %5.0f  %-9s  %6.1f  %5.2f  %5.2f  %5s  %s\n", number("step"),
        event.facts.at("outcome").text.c_str(), number("bytes_total") / 1e6,
        number("seconds"), number("bytes_per_s") / 1e9,
        share > 0 ? absl::StrFormat("%.0f %%", 100 * share).c_str() : "-",
        stall.c_str());
  }
}

absl::Status KillMidSave::RunReference() {
  Title("1. reference, never interrupted: %s", options_.layouts[0]);
  HF_ASSIGN_OR_RETURN(const int code, RunToEnd(reference_, meshes_[0], {}));
  if (code != 0) {
    return absl::InternalError(
        absl::StrFormat("the reference run ended with %d", code));
  }
  PrintSaves(reference_.run_dir());
  return absl::OkStatus();
}

absl::Status KillMidSave::BreakTheRun() {
  const int victim = meshes_[0].world() - 1;
  Title(
      "2. the same run; %s",
      absl::StrFormat("rank %d is killed in the middle of the save of step %d",
                      victim, kill_at_));
  // Even a tiny shard takes a header, units of four regions, an index and a
  // footer: the third write of the save is neither the first nor the last.
  const std::string fault = absl::StrFormat(
      "rank=%d,match=step-%09d,op=write,n=3,do=kill", victim, kill_at_);
  const absl::Duration start = ckpt::RealClock().Monotonic();
  HF_ASSIGN_OR_RETURN(const int code, RunToEnd(broken_, meshes_[0],
                                               {{"HOLDFAST_FAULT", fault}}));
  if (code == 0) {
    return absl::InternalError(
        "the run was to be killed and finished instead: the fault never "
        "struck");
  }
  std::printf("the job ended with exit code %d after %.1f s, at step %d\n",
              code,
              absl::ToDoubleSeconds(ckpt::RealClock().Monotonic() - start),
              static_cast<int>(broken_.LastStep()));
  HF_RETURN_IF_ERROR(Show({ckptctl_, "ls", broken_.run_dir()}));
  // The broken attempt is there, and is not a checkpoint.
  HF_ASSIGN_OR_RETURN(const json entries,
                      RunJson({ckptctl_, "ls", broken_.run_dir(), "--json"},
                              options_.run_dir + "/ls.json"));
  bool attempt = false;
  for (const json& entry : entries.at("checkpoints")) {
    if (entry.at("step") != kill_at_) continue;
    if (entry.at("state") != "attempt") {
      return absl::DataLossError(absl::StrFormat(
          "the save of step %d was broken, yet ckptctl calls it '%s'", kill_at_,
          entry.at("state").get<std::string>()));
    }
    attempt = true;
  }
  if (!attempt) {
    return absl::InternalError(
        absl::StrFormat("no attempt of step %d was left behind: the kill came "
                        "at another moment",
                        kill_at_));
  }
  summary_["killed"] = {{"rank", victim},
                        {"step", kill_at_},
                        {"fault", fault},
                        {"exit_code", code}};
  return absl::OkStatus();
}

absl::Status KillMidSave::ResumeUntil(size_t layout,
                                      std::optional<int64_t> stop_at) {
  Title("%s",
        absl::StrFormat(
            "%d. resumed as %s%s", layout + 2, options_.layouts[layout],
            stop_at.has_value()
                ? absl::StrFormat("; asked to leave (SIGTERM) after step %d",
                                  *stop_at)
                : std::string(", to the last step")));
  HF_ASSIGN_OR_RETURN(ChildProcess child, broken_.Start(meshes_[layout], {}));
  const absl::Duration end = ckpt::RealClock().Monotonic() + kJobTimeout;
  const uint32_t incarnation = static_cast<uint32_t>(layout) + 1;
  bool asked = !stop_at.has_value();
  while (!child.WaitFor(kLook)) {
    if (ckpt::RealClock().Monotonic() > end) {
      return absl::DeadlineExceededError(
          absl::StrFormat("the resumed job did not end within %s",
                          absl::FormatDuration(kJobTimeout)));
    }
    if (asked) continue;
    const auto lines = trainer::ReadAllMetrics(broken_.run_dir());
    if (lines.ok() && !lines->empty() &&
        lines->back().incarnation == incarnation &&
        lines->back().step >= *stop_at) {
      child.Signal(SIGTERM);
      asked = true;
    }
  }
  const int expected =
      stop_at.has_value() ? trainer::kExitSavedRestart : trainer::kExitFinished;
  if (child.exit_code() != expected) {
    return absl::InternalError(
        absl::StrFormat("the job resumed as %s ended with %d, expected %d",
                        options_.layouts[layout], child.exit_code(), expected));
  }
  std::printf("exit code %d%s\n", child.exit_code(),
              stop_at.has_value() ? ": saved, asks to be started again" : "");
  return absl::OkStatus();
}

absl::StatusOr<std::string> KillMidSave::Digest(const std::string& run_dir) {
  HF_ASSIGN_OR_RETURN(const json shown,
                      RunJson({ckptctl_, "show", run_dir, "--hash", "--json"},
                              options_.run_dir + "/show.json"));
  return shown.at("digest").get<std::string>();
}

absl::Status KillMidSave::CheckLearning(std::span<const MetricsLine> lines) {
  trainer::DataOptions data_options;
  data_options.seq_len = config_.model.seq_len;
  data_options.vocab = config_.model.vocab;
  data_options.seed = config_.train.seed;
  data_options.check_tokens = false;
  HF_ASSIGN_OR_RETURN(const auto data,
                      trainer::DataSource::Open(config_.data, data_options));
  const double unigram = data->UnigramNats();
  const size_t last = std::min<size_t>(lines.size(), 10);
  double loss = 0;
  for (const MetricsLine& line : lines.last(last)) loss += line.loss / last;
  std::printf(
      "loss: %.3f at step 1, %.3f over the last %d steps; %.3f nats is the "
      "unigram entropy of the text\n",
      lines.front().loss, loss, static_cast<int>(last), unigram);
  summary_["loss_last"] = loss;
  summary_["unigram_nats"] = unigram;
  if (options_.require_learning && !(loss < unigram)) {
    return absl::InternalError(absl::StrFormat(
        "the loss (%.3f) has not fallen below the unigram entropy (%.3f): the "
        "model has not learned anything from context",
        loss, unigram));
  }
  return absl::OkStatus();
}

absl::Status KillMidSave::Compare() {
  Title("%s",
        absl::StrFormat("%d. compared with the reference", meshes_.size() + 2));
  HF_ASSIGN_OR_RETURN(const std::vector<MetricsLine> reference,
                      trainer::ReadMetrics(reference_.run_dir()));
  HF_ASSIGN_OR_RETURN(const std::vector<MetricsLine> broken,
                      trainer::ReadMetrics(broken_.run_dir()));
  const std::vector<SegmentComparison> segments =
      trainer::CompareSegments(reference, broken);
  HF_ASSIGN_OR_RETURN(const std::string reference_digest,
                      Digest(reference_.run_dir()));
  HF_ASSIGN_OR_RETURN(const std::string broken_digest,
                      Digest(broken_.run_dir()));

  std::vector<std::string> failures;
  bool bits_promised = config_.numerics.invariant;
  std::printf("  %-11s  %-12s  %5s  %-14s  %-14s  %s\n", "steps", "layout",
              "start", "loss bits", "samples", "promised");
  json rows = json::array();
  for (size_t i = 0; i < segments.size(); ++i) {
    const SegmentComparison& segment = segments[i];
    const auto mesh = ckpt::ParseMesh(segment.layout);
    const bool tp_changes =
        bits_promised && !(mesh.ok() && mesh->tp == meshes_[0].tp);
    bits_promised = bits_promised && !tp_changes;
    const auto share = [&](int64_t equal) {
      return equal == segment.steps
                 ? absl::StrFormat("equal %d/%d", equal, segment.steps)
                 : absl::StrFormat("DIFFER %d/%d", segment.steps - equal,
                                   segment.steps);
    };
    std::printf("  %4d - %-4d  %-12s  %5d  %-14s  %-14s  %s\n",
                static_cast<int>(segment.first_step),
                static_cast<int>(segment.last_step), segment.layout.c_str(),
                segment.incarnation, share(segment.loss_equal).c_str(),
                share(segment.samples_equal).c_str(),
                bits_promised ? "the same bits" : "the same samples");
    rows.push_back({{"first_step", segment.first_step},
                    {"last_step", segment.last_step},
                    {"layout", segment.layout},
                    {"incarnation", segment.incarnation},
                    {"loss_bits_equal", segment.loss_equal},
                    {"samples_equal", segment.samples_equal},
                    {"steps", segment.steps},
                    {"bits_promised", bits_promised}});
    const std::string what =
        absl::StrFormat("steps %d to %d on %s", segment.first_step,
                        segment.last_step, segment.layout);
    if (!segment.all_samples_equal())
      failures.push_back(what + ": samples differ");
    if (bits_promised && !segment.bits_equal()) {
      failures.push_back(what + ": loss or norm bits differ");
    }
    // The state is still that of the reference; later steps drift apart.
    const double gap_max =
        config_.numerics.compute == trainer::ComputeType::kBf16 ? kTpGapMaxBf16
                                                                : kTpGapMaxF32;
    if (tp_changes && segment.loss_gap_first > gap_max) {
      failures.push_back(absl::StrFormat(
          "%s: the first loss is %.1e from the reference's, at most %.0e is "
          "promised",
          what, segment.loss_gap_first, gap_max));
    }
    if (i > 0 && segment.steps < kStepsComparedMin) {
      failures.push_back(absl::StrFormat("%s: only %d steps were compared",
                                         what, segment.steps));
    }
  }
  if (segments.size() != meshes_.size()) {
    failures.push_back(absl::StrFormat("%d segments were expected, %d found",
                                       meshes_.size(), segments.size()));
  }
  const bool digests_equal = reference_digest == broken_digest;
  std::printf(
      "  final state, reference  %s\n  final state, broken     %s  %s\n",
      reference_digest.c_str(), broken_digest.c_str(),
      digests_equal ? "equal" : "DIFFERENT");
  if (bits_promised && !digests_equal) {
    failures.push_back("the final states differ");
  }
  summary_["segments"] = rows;
  summary_["digest_reference"] = reference_digest;
  summary_["digest_broken"] = broken_digest;
  HF_RETURN_IF_ERROR(CheckLearning(broken));
  if (!failures.empty()) {
    std::string text = "a promise was broken:";
    for (const std::string& failure : failures) text += "\n  " + failure;
    return absl::DataLossError(text);
  }
  return absl::OkStatus();
}

absl::Status KillMidSave::Run() {
  HF_RETURN_IF_ERROR(Prepare());
  HF_RETURN_IF_ERROR(RunReference());
  HF_RETURN_IF_ERROR(BreakTheRun());
  const int64_t from = 2 * interval_;
  const int64_t resumes = static_cast<int64_t>(meshes_.size()) - 1;
  for (int64_t i = 1; i <= resumes; ++i) {
    std::optional<int64_t> stop_at;
    if (i < resumes) {
      stop_at = from + (config_.train.steps - from) * i / resumes;
    }
    HF_RETURN_IF_ERROR(ResumeUntil(static_cast<size_t>(i), stop_at));
  }
  return Compare();
}

}  // namespace

int RunKillMidSave(const DrillOptions& options) {
  KillMidSave drill(options);
  const absl::Status status = drill.Run();
  json summary = drill.Summary();
  summary["drill"] = "kill-mid-save";
  summary["passed"] = status.ok();
  if (!status.ok()) summary["failure"] = std::string(status.message());
  if (options.json) std::printf("%s\n", summary.dump().c_str());
  if (status.ok()) {
    std::printf("drill kill-mid-save: passed\n");
    return trainer::kExitFinished;
  }
  std::fprintf(stderr, "drill kill-mid-save: FAILED: %s\n",
               std::string(status.message()).c_str());
  return trainer::ExitCodeOf(status);
}

}  // namespace holdfast::tools
