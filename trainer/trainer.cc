// trainer/trainer.cc: the training loop.
//
//   start (startup.cc)
//   for each step
//     RunStep      forward, backward, reduce, update behind the fence, gather
//     Evaluate     every train.eval_interval steps
//     AgreeOnNext  one all-reduce: signals, saves due, saves that failed
//     BeginSave    returns at once; the ckpt thread writes beside the next
//     steps
//   last save, stop
//
// Nothing is decided by one rank alone: what a rank has seen (a signal, a save
// that is still in flight) goes into the agreement, and all act on its result.

#include "trainer/trainer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/model/tensor_table.h"
#include "trainer/process_memory.h"
#include "trainer/save_policy.h"
#include "trainer/startup.h"

namespace holdfast::trainer {
namespace {

using Outcome = ckpt::SaveReport::Outcome;

// Of closing the checkpointer, which has two minutes of its own
// (CheckpointerOptions::close_timeout_ms), and of giving up a GPU (20 s).
constexpr absl::Duration kEndTimeout = absl::Seconds(210);
constexpr char kStartAgain[] = "start again with the same command to go on";

// What all ranks know after AgreeOnNext: the largest value that any rank put
// in.
struct Agreement {
  bool leave = false;           // SIGTERM or SIGINT somewhere
  bool save_asked = false;      // SIGUSR1 somewhere
  bool save_due = false;        // rank 0 says so
  bool save_in_flight = false;  // somewhere
  int64_t failed_in_a_row = 0;
  int64_t peak_bytes = 0;
  bool lost_run = false;  // another job has taken the run
};

class Loop {
 public:
  Loop(TrainRun& run, TrainEnv& env)
      : run_(run),
        env_(env),
        world_(*env.world),
        is_root_(env.world->rank() == 0),
        policy_(run.config.checkpoint.interval, env.clock->Monotonic()),
        gate_(*run.checkpointer, run.runner->state().shape().owned.first,
              run.runner->state().shape().weight_bytes),
        flops_per_token_(FlopsPerToken(run.config.model)) {}

  absl::StatusOr<TrainOutcome> Run();

 private:
  // Fills `line` on rank 0.
  absl::Status RunOneStep(MetricsLine& line);
  // Adds to `line` when an evaluation is due; leaves early when asked to leave.
  absl::Status Evaluate(MetricsLine& line);
  void Report(const MetricsLine& line);
  absl::Status LostRun() const;
  // Exit code and message of a run that may not go on, if it may not.
  absl::Status RefuseToGoOn(const Agreement& agreement) const;
  absl::StatusOr<Agreement> AgreeOnNext(bool save_due);
  absl::Status BeginSave();
  // Reports a save that has ended, if one has.
  void CollectSave(std::optional<ckpt::SaveReport> report);
  // Saves the present step unless that is done already, and waits for it and
  // for what is in flight before it, at most `patience` in all.
  absl::Status SaveAndWait(const char* why, absl::Duration patience);
  void Journal(const std::string& event,
               std::map<std::string, JournalValue> facts);
  // Records decide nothing: a full disk costs lines, not the run.
  void Recorded(const absl::Status& status);
  // Planned and measured memory, once. Collective.
  absl::Status ReportMemoryOnce();
  std::string SaveText(const ckpt::SaveReport& report) const;

  TrainRun& run_;
  TrainEnv& env_;
  Collectives& world_;
  const bool is_root_;
  SavePolicy policy_;
  FenceGate gate_;
  const double flops_per_token_;
  StallMeter stall_;
  int64_t nonfinite_in_a_row_ = 0;
  int64_t peak_bytes_ = 0;  // of any rank
  int64_t save_begun_step_ = -1;
  bool beside_save_ = false;  // a save was in flight during the last step
  bool memory_reported_ = false;
  bool records_work_ = true;
  bool lost_run_ = false;  // a save of this rank was refused for that
  int64_t steps_made_ = 0;
};

void Loop::Recorded(const absl::Status& status) {
  if (status.ok() == records_work_) return;
  records_work_ = status.ok();
  if (status.ok()) {
    HF_LOG_WARNING("step %d: the run's records can be written again",
                   run_.state.step);
  } else {
    HF_LOG_WARNING("step %d: %s; training goes on, its records have a gap",
                   run_.state.step, std::string(status.message()));
  }
}

void Loop::Journal(const std::string& event,
                   std::map<std::string, JournalValue> facts) {
  if (is_root_) Recorded(run_.records->WriteJournal(event, std::move(facts)));
}

absl::StatusOr<Agreement> Loop::AgreeOnNext(bool save_due) {
  const Heartbeat::Scope scope(env_.heartbeat, "agree on what comes next");
  const SignalAction action = env_.requested_action();
  int64_t values[] = {
      static_cast<int64_t>(action),
      is_root_ && save_due,
      run_.checkpointer->save_in_flight(),
      run_.checkpointer->counters().failed_in_a_row,
      ReadProcessMemory().peak_bytes,
      lost_run_,
  };
  HF_RETURN_IF_ERROR(world_.AllReduceMax(std::span<int64_t>(values)));
  const auto agreed = static_cast<SignalAction>(values[0]);
  Agreement agreement;
  agreement.leave = agreed == SignalAction::kSaveAndLeave;
  agreement.save_asked = agreed == SignalAction::kSave;
  agreement.save_due = values[1] != 0;
  agreement.save_in_flight = values[2] != 0;
  agreement.failed_in_a_row = values[3];
  agreement.peak_bytes = values[4];
  agreement.lost_run = values[5] != 0;
  return agreement;
}

std::string Loop::SaveText(const ckpt::SaveReport& report) const {
  std::string text = absl::StrFormat("%.1f MB durable in %.2f s",
                                     report.bytes_total / 1e6, report.seconds);
  if (report.raw_share > 0) {
    absl::StrAppendFormat(&text, ", %.2f GB/s, %.0f %% of the raw device",
                          report.bytes_total / report.seconds / 1e9,
                          100 * report.raw_share);
  }
  return text;
}

void Loop::CollectSave(std::optional<ckpt::SaveReport> report) {
  if (!report.has_value()) return;
  const std::string name = ckpt::ToString(report->id);
  if (report->outcome == Outcome::kCommitted) {
    if (is_root_) {
      HF_LOG_INFO("step %d: saved %s: %s", report->step, name,
                  SaveText(*report));
    }
  } else if (report->outcome == Outcome::kAborted &&
             absl::IsFailedPrecondition(report->status)) {
    lost_run_ = true;
    HF_LOG_WARNING("%s", std::string(report->status.message()));
  } else {
    // The message says what becomes of it.
    HF_LOG_WARNING("step %d: not saved as %s: %s", report->step, name,
                   std::string(report->status.message()));
  }
  Journal("save", {{"step", report->step},
                   {"checkpoint", name},
                   {"outcome", std::string(ckpt::NameOf(report->outcome))},
                   {"status", std::string(report->status.message())},
                   {"bytes_total", static_cast<int64_t>(report->bytes_total)},
                   {"seconds", report->seconds},
                   {"bytes_per_s", report->bytes_per_s},
                   {"raw_share", report->raw_share},
                   {"bytes_copied", static_cast<int64_t>(report->bytes_copied)},
                   {"fence_wait_ms", report->fence_wait_ms},
                   {"fence_copy_ms", report->fence_copy_ms},
                   {"thread_cpu_seconds", report->thread_cpu_seconds}});
}

absl::Status Loop::BeginSave() {
  const absl::Duration start = env_.clock->Monotonic();
  ckpt::SaveRequest request;
  request.step = run_.state.step;
  request.attributes = ToAttributes(run_.state);
  HF_RETURN_IF_ERROR(run_.checkpointer->BeginSave(request));
  const absl::Duration now = env_.clock->Monotonic();
  stall_.SaveBegan(absl::ToDoubleMilliseconds(now - start));
  policy_.Began(now);
  save_begun_step_ = run_.state.step;
  return absl::OkStatus();
}

absl::Status Loop::SaveAndWait(const char* why, absl::Duration patience) {
  // A rank that waits here for one that hangs must name it in the end.
  const Heartbeat::Scope scope(
      env_.heartbeat, "wait for a save",
      patience + absl::Seconds(run_.config.fault.step_timeout_s));
  const absl::Duration end = env_.clock->Monotonic() + patience;
  for (int tries = 0; tries < 2; ++tries) {
    CollectSave(run_.checkpointer->WaitForSave(
        std::max(end - env_.clock->Monotonic(), absl::ZeroDuration())));
    // All ranks must begin the same save or none: durable is what all say, and
    // in flight what any says.
    int64_t values[] = {-run_.checkpointer->counters().last_durable_step,
                        run_.checkpointer->save_in_flight(), lost_run_};
    HF_RETURN_IF_ERROR(world_.AllReduceMax(std::span<int64_t>(values)));
    if (-values[0] == run_.state.step) return absl::OkStatus();
    if (values[2] != 0) return LostRun();
    if (values[1] != 0) {
      return absl::UnavailableError(absl::StrFormat(
          "step %d could not be saved (%s): a save was not over within %s; the "
          "newest whole checkpoint is of step %d; if there is more time, raise "
          "fault.grace_s (%d s)",
          run_.state.step, why, absl::FormatDuration(patience),
          run_.checkpointer->counters().last_durable_step,
          run_.config.fault.grace_s));
    }
    if (tries == 1) break;
    if (is_root_) HF_LOG_INFO("step %d: saving, %s", run_.state.step, why);
    HF_RETURN_IF_ERROR(BeginSave());
  }
  return absl::UnavailableError(absl::StrFormat(
      "step %d could not be saved (%s); the newest whole checkpoint is of step "
      "%d",
      run_.state.step, why, run_.checkpointer->counters().last_durable_step));
}

absl::Status Loop::Evaluate(MetricsLine& line) {
  const TrainConfig& train = run_.config.train;
  if (train.eval_interval == 0 || run_.state.step % train.eval_interval != 0 ||
      run_.eval_data == nullptr) {
    return absl::OkStatus();
  }
  const Heartbeat::Scope scope(env_.heartbeat, "evaluate",
                               absl::Seconds(run_.config.fault.step_timeout_s));
  // In a few parts, so that a signal need not wait for the whole. Their number
  // does not depend on the layout, and so neither do the bits.
  constexpr int64_t kParts = 4;
  const int64_t total = run_.eval_data->microbatches();
  double weighted = 0;
  int64_t counted = 0;
  for (int64_t part = 0; part < kParts; ++part) {
    const int64_t first = total * part / kParts;
    const int64_t count = total * (part + 1) / kParts - first;
    if (count == 0) continue;
    run_.eval_data->StartEval(first);
    HF_ASSIGN_OR_RETURN(const EvalResult result,
                        run_.runner->RunEval(count, *run_.eval_data));
    if (result.counting_tokens > 0) {
      weighted += result.loss * static_cast<double>(result.counting_tokens);
      counted += result.counting_tokens;
    }
    HF_ASSIGN_OR_RETURN(const Agreement agreement, AgreeOnNext(false));
    if (agreement.leave) return absl::OkStatus();
  }
  if (counted > 0) line.eval_loss = weighted / static_cast<double>(counted);
  return absl::OkStatus();
}

absl::Status Loop::ReportMemoryOnce() {
  // After the second step everything that is made on first use has been made.
  if (memory_reported_ || ++steps_made_ < 2) return absl::OkStatus();
  memory_reported_ = true;
  int64_t values[] = {
      ReadProcessMemory().anonymous_bytes - run_.memory_base_bytes,
      run_.memory_planned_bytes};
  if (run_.device.on_gpu()) {
    // Of the GPU, which knows no ranks.
    HF_ASSIGN_OR_RETURN(values[0], GpuBytesTaken(run_.device));
    values[1] *= run_.device.ranks_sharing;
  }
  HF_RETURN_IF_ERROR(world_.AllReduceMax(std::span<int64_t>(values)));
  if (!is_root_) return absl::OkStatus();
  HF_LOG_INFO(
      "memory of the fullest %s over the base: planned %.1f MB, measured %.1f "
      "MB (%+.1f %%)",
      run_.device.on_gpu() ? "GPU" : "rank", values[1] / 1e6, values[0] / 1e6,
      100.0 * static_cast<double>(values[0] - values[1]) /
          static_cast<double>(values[1]));
  Journal("memory",
          {{"planned_bytes", values[1]}, {"measured_bytes", values[0]}});
  return absl::OkStatus();
}

absl::Status Loop::RunOneStep(MetricsLine& line) {
  const absl::Duration start = env_.clock->Monotonic();
  const BatchInfo batch = run_.train_data->StartStep(run_.state.data);
  HF_ASSIGN_OR_RETURN(
      const StepResult result,
      run_.runner->RunStep(run_.state.step + 1, batch.counting_tokens,
                           *run_.train_data, &gate_));

  // The step is whole: only now does the state move on.
  run_.state.step += 1;
  run_.state.tokens += static_cast<uint64_t>(batch.counting_tokens);
  run_.state.data.cursor = batch.next_cursor;
  if (result.skipped_nonfinite) {
    ++run_.state.skipped_steps;
    ++nonfinite_in_a_row_;
  } else {
    nonfinite_in_a_row_ = 0;
  }

  const double step_ms =
      absl::ToDoubleMilliseconds(env_.clock->Monotonic() - start);
  beside_save_ = beside_save_ || run_.checkpointer->save_in_flight();
  const std::optional<double> stall = stall_.StepDone(step_ms, beside_save_);
  beside_save_ = run_.checkpointer->save_in_flight();
  if (stall.has_value()) {
    Journal("save_stall", {{"step", save_begun_step_}, {"stall_ms", *stall}});
  }
  if (!is_root_) return absl::OkStatus();

  line.time = absl::ToDoubleSeconds(env_.clock->WallTime() - absl::UnixEpoch());
  line.step = run_.state.step;
  line.loss = result.loss;
  line.loss_bits = result.loss_bits;
  line.grad_norm = result.grad_norm;
  line.grad_norm_bits = std::bit_cast<uint64_t>(line.grad_norm);
  line.lr = result.lr;
  line.tokens = batch.counting_tokens;
  line.tokens_per_s = static_cast<double>(result.tokens) / (step_ms / 1000);
  line.step_ms = step_ms;
  line.mfu = run_.matmul_flops > 0
                 ? line.tokens_per_s * flops_per_token_ / run_.matmul_flops
                 : 0;
  line.peak_bytes = peak_bytes_;
  line.fwd_ms.assign(result.fwd_ms.begin(), result.fwd_ms.end());
  line.bwd_ms.assign(result.bwd_ms.begin(), result.bwd_ms.end());
  line.wait_ms.assign(result.wait_ms.begin(), result.wait_ms.end());
  line.sample_digest = batch.sample_digest;
  line.save_stall_ms = stall.value_or(0);
  line.last_durable_step = run_.checkpointer->counters().last_durable_step;
  line.layout = run_.layout->description();
  line.incarnation = run_.load.incarnation;
  line.skipped = result.skipped_nonfinite;
  return absl::OkStatus();
}

void Loop::Report(const MetricsLine& line) {
  if (!is_root_) return;
  const TrainConfig& train = run_.config.train;
  if (line.step % train.log_interval == 0 || line.step == train.steps ||
      line.eval_loss.has_value() || line.skipped) {
    std::string text = absl::StrFormat(
        "step %d/%d  loss %.4f  grad %.3f  lr %.2e  %.0f tok/s  %.0f ms",
        line.step, train.steps, line.loss, line.grad_norm, line.lr,
        line.tokens_per_s, line.step_ms);
    if (line.eval_loss.has_value()) {
      absl::StrAppendFormat(&text, "  eval %.4f", *line.eval_loss);
    }
    if (line.skipped) text += "  NOT FINITE: no update";
    const double left_s = (train.steps - line.step) * line.step_ms / 1000;
    absl::StrAppendFormat(&text, "  left %s",
                          absl::FormatDuration(absl::Seconds(
                              static_cast<int64_t>(left_s + 0.5))));
    HF_LOG_INFO("%s", text);
  }
  absl::Status recorded = run_.records->WriteMetrics(line);
  recorded.Update(
      run_.records->WriteStatus("running", line.step, std::nullopt, ""));
  Recorded(recorded);
}

// To be started again would take the run back from the job that has it.
absl::Status Loop::LostRun() const {
  return absl::FailedPreconditionError(absl::StrFormat(
      "another job has taken the run in %s: this one, incarnation %d, can save "
      "nothing any more and stops at step %d",
      run_.options.run_dir, run_.load.incarnation, run_.state.step));
}

absl::Status Loop::RefuseToGoOn(const Agreement& agreement) const {
  if (agreement.lost_run) return LostRun();
  if (agreement.failed_in_a_row >= run_.config.checkpoint.failures_max) {
    return absl::UnavailableError(absl::StrFormat(
        "%d saves in a row have failed (checkpoint.failures_max = %d): "
        "training "
        "on would only risk more work; step %d is the newest whole checkpoint",
        agreement.failed_in_a_row, run_.config.checkpoint.failures_max,
        run_.checkpointer->counters().last_durable_step));
  }
  if (nonfinite_in_a_row_ >= run_.config.fault.nonfinite_max) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%d steps in a row gave a gradient that is not finite "
        "(fault.nonfinite_max = %d); none of them changed the model; lower "
        "optim.lr, skip the data, or look at the last checkpoint",
        nonfinite_in_a_row_, run_.config.fault.nonfinite_max));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainOutcome> Loop::Run() {
  TrainOutcome outcome;
  outcome.incarnation = run_.load.incarnation;
  const absl::Duration step_timeout =
      absl::Seconds(run_.config.fault.step_timeout_s);
  Agreement next;
  {
    const Heartbeat::Scope scope(env_.heartbeat, "first agreement",
                                 step_timeout);
    HF_ASSIGN_OR_RETURN(next, AgreeOnNext(false));
  }
  peak_bytes_ = next.peak_bytes;
  while (true) {
    outcome.step = run_.state.step;
    if (run_.state.step >= run_.config.train.steps) {
      // The sessions hold their own deadlines; this one bounds their sum.
      HF_RETURN_IF_ERROR(SaveAndWait(
          "the last step",
          3 * absl::Milliseconds(run_.config.checkpoint.vote_timeout_ms) +
              absl::Minutes(10)));
      outcome.exit_code = kExitFinished;
      outcome.message =
          absl::StrFormat("all %d steps are done", run_.state.step);
      return outcome;
    }
    if (next.leave) {
      if (run_.state.step > 0) {
        HF_RETURN_IF_ERROR(
            SaveAndWait("asked to leave by a signal",
                        absl::Seconds(run_.config.fault.grace_s)));
      }
      outcome.exit_code = kExitSavedRestart;
      outcome.message =
          run_.state.step > 0
              ? absl::StrFormat("step %d is saved; %s", run_.state.step,
                                kStartAgain)
              : absl::StrFormat("no step was made yet; %s", kStartAgain);
      return outcome;
    }
    HF_RETURN_IF_ERROR(RefuseToGoOn(next));
    // To the end of the next agreement: a rank that is late there counts too.
    const Heartbeat::Scope scope(
        env_.heartbeat, absl::StrFormat("step %d", run_.state.step + 1),
        step_timeout);
    if ((next.save_asked || next.save_due) && !next.save_in_flight) {
      HF_RETURN_IF_ERROR(BeginSave());
      if (next.save_asked) env_.clear_save_request();
    } else if (next.save_due) {
      // What a signal asked for is not skipped: the request stands until the
      // save in flight is over.
      if (is_root_) {
        HF_LOG_WARNING(
            "step %d: a save is due while the one of step %d is still being "
            "written; it is skipped",
            run_.state.step, save_begun_step_);
      }
      Journal("skip_save", {{"step", run_.state.step}});
    }

    MetricsLine line;
    HF_RETURN_IF_ERROR(RunOneStep(line));
    CollectSave(run_.checkpointer->PollSave());
    HF_RETURN_IF_ERROR(Evaluate(line));
    Report(line);
    HF_ASSIGN_OR_RETURN(next, AgreeOnNext(policy_.Due(
                                  run_.state.step, env_.clock->Monotonic())));
    peak_bytes_ = next.peak_bytes;
    HF_RETURN_IF_ERROR(ReportMemoryOnce());
  }
}

// Whether this rank's words about a start that failed are those of rank 0,
// which then speaks for it: thousands of ranks that read one wrong file say so
// once. Collective.
bool RootSaysTheSame(const TrainEnv& env, const std::string& message) {
  Collectives& world = *env.world;
  const Heartbeat::Scope scope(env.heartbeat, "refusing to start",
                               absl::Minutes(1));
  const uint64_t mine = ckpt::Hash64(message);
  uint64_t roots = mine;
  const absl::Status heard = world.Broadcast(
      std::as_writable_bytes(std::span<uint64_t>(&roots, 1)), 0);
  return heard.ok() && world.rank() != 0 && roots == mine;
}

// For a start that ended before its records were open. Leaves a directory that
// is no run's as it is.
void WriteStatusOfRefused(const std::string& run_dir,
                          const TrainOutcome& outcome) {
  std::error_code error;
  if (!std::filesystem::exists(run_dir + "/incarnations", error) &&
      !std::filesystem::exists(run_dir + "/status.json", error)) {
    return;
  }
  WriteStatusFile(
      run_dir, outcome.exit_code == kExitSavedRestart ? "stopped" : "failed",
      kUnknownStep, kUnknownIncarnation, outcome.exit_code, outcome.message)
      .IgnoreError();
}

}  // namespace

TrainOutcome Train(const TrainOptions& options, TrainEnv env) {
  TrainOutcome outcome;
  const bool is_root = env.world->rank() == 0;
  absl::StatusOr<std::unique_ptr<TrainRun>> run = StartRun(options, env);
  if (!run.ok()) {
    outcome.exit_code = ExitCodeOf(run.status());
    outcome.message = std::string(run.status().message());
    outcome.said_by_rank_0 = RootSaysTheSame(env, outcome.message);
    if (is_root) WriteStatusOfRefused(options.run_dir, outcome);
    return outcome;
  }
  if ((*run)->asked_to_leave) {
    outcome.exit_code = kExitSavedRestart;
    outcome.message = absl::StrFormat(
        "asked to leave before the run was taken; %s", kStartAgain);
    if (is_root) WriteStatusOfRefused(options.run_dir, outcome);
    return outcome;
  }
  absl::Status status;
  {
    Loop loop(**run, env);
    absl::StatusOr<TrainOutcome> result = loop.Run();
    if (result.ok()) {
      outcome = *std::move(result);
    } else {
      status = result.status();
      outcome.peers_may_wait = true;
    }
  }
  // The end has a deadline too: a GPU or a network that is gone may not hold
  // it.
  const Heartbeat::Scope ending(env.heartbeat, "ending the run", kEndTimeout);
  if (!status.ok() && (*run)->device_mesh != nullptr) {
    (*run)->device_mesh->GiveUp(status);
  }
  // After an error the others may be gone. A save in flight may still be whole:
  // the end of `run` waits for it, for as long as a checkpointer's close may.
  if (status.ok()) {
    status = (*run)->checkpointer->Close();
    if (!status.ok()) HF_LOG_ERROR("closing: %s", status.ToString());
  }
  if (!status.ok()) {
    outcome.exit_code = ExitCodeOf(status);
    outcome.message = std::string(status.message());
    outcome.step = (*run)->state.step;
    outcome.incarnation = (*run)->load.incarnation;
  }
  const bool good = outcome.exit_code == kExitFinished ||
                    outcome.exit_code == kExitSavedRestart;
  if (is_root && (*run)->records != nullptr) {
    (*run)
        ->records
        ->WriteJournal("stop", {{"step", outcome.step},
                                {"exit_code", outcome.exit_code},
                                {"message", outcome.message}})
        .IgnoreError();
  }
  if (is_root || !good) {
    WriteStatusFile(options.run_dir,
                    outcome.exit_code == kExitFinished ? "finished"
                    : good                             ? "stopped"
                                                       : "failed",
                    outcome.step, outcome.incarnation, outcome.exit_code,
                    outcome.message)
        .IgnoreError();
  }
  run->reset();
  return outcome;
}

}  // namespace holdfast::trainer
