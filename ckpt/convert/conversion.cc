// ckpt/convert/conversion.cc: see conversion.h.

#include "ckpt/convert/conversion.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <utility>

#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/base/threads.h"

namespace holdfast::ckpt {
namespace {

constexpr std::chrono::milliseconds kTick(100);

}  // namespace

Conversion::Conversion(ConvertShared* shared,
                       std::vector<std::unique_ptr<WindowWorker>>* workers,
                       std::function<void()> tick)
    : shared_(shared), workers_(workers), tick_(std::move(tick)) {}

absl::Status Conversion::RunThreads(
    const Work& work, const std::function<absl::Status()>& settle) {
  failed_ = false;
  if (tick_) tick_();
  std::vector<absl::Status> results(workers_->size());
  absl::Status settled;
  const auto fail = [this] {
    const std::lock_guard guard(lock_);
    failed_ = true;
    changed_.notify_all();
  };
  const auto tick = [&] {
    if (tick_) tick_();
    if (!settled.ok() || !settle) return;
    settled = settle();
    if (!settled.ok()) fail();
  };
  RunWorkers({.purpose = "a conversion",
              .wanted = workers_->size(),
              .every = kTick,
              .tick = tick},
             [&](size_t worker, const WorkerTurn& turn) {
               results[worker] = work(worker, turn);
               if (!results[worker].ok()) fail();
             });
  // Of several errors the one that says most: not that somebody was stopped.
  absl::Status first = settled;
  for (const absl::Status& status : results) {
    if (first.ok() || (absl::IsCancelled(first) && !status.ok())) {
      first = status;
    }
  }
  return first;
}

absl::StatusOr<std::vector<uint32_t>> Conversion::Verify(
    const std::vector<uint32_t>& rounds) {
  const ConvertPlan& plan = *shared_->plan;
  std::vector<std::pair<uint32_t, size_t>> windows;
  for (const uint32_t round : rounds) {
    for (size_t w = plan.rounds[round].first_window;
         w < plan.rounds[round].end_window; ++w) {
      windows.emplace_back(round, w);
    }
  }
  std::atomic<size_t> next = 0;
  std::set<uint32_t> bad;
  HF_RETURN_IF_ERROR(RunThreads(
      [&](size_t worker, const WorkerTurn& turn) -> absl::Status {
        for (size_t i = next++; i < windows.size(); i = next++) {
          turn();
          const auto [round, window] = windows[i];
          {
            const std::lock_guard guard(lock_);
            if (failed_) break;
            if (bad.contains(round)) continue;
          }
          HF_ASSIGN_OR_RETURN(const bool is_good, (*workers_)[worker]->Verify(
                                                      plan.windows[window]));
          const std::lock_guard guard(lock_);
          if (!is_good) bad.insert(round);
        }
        return absl::OkStatus();
      },
      nullptr));
  return std::vector<uint32_t>(bad.begin(), bad.end());
}

std::optional<std::pair<size_t, size_t>> Conversion::NextWindow() {
  std::unique_lock guard(lock_);
  while (!failed_ && open_round_ < rounds_.size()) {
    Round& round = rounds_[open_round_];
    const RoundPlan& planned = shared_->plan->rounds[round.number];
    const bool begins = round.next_window == planned.first_window;
    if (begins && shared_->coded() && open_round_ > 0 &&
        rounds_[open_round_ - 1].windows_left > 0) {
      changed_.wait(guard);
      continue;
    }
    const std::pair<size_t, size_t> taken(open_round_, round.next_window++);
    if (round.next_window == planned.end_window) ++open_round_;
    return taken;
  }
  return std::nullopt;
}

void Conversion::NoteSynced(size_t worker, const std::set<size_t>& rounds) {
  const std::lock_guard guard(lock_);
  for (const size_t r : rounds) rounds_[r].unsynced.erase(worker);
  changed_.notify_all();
}

absl::Status Conversion::WriteWindows(size_t worker, const WorkerTurn& turn) {
  WindowWorker& own = *(*workers_)[worker];
  std::set<size_t> dirty;  // rounds of which this worker has written windows
  const auto sync = [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(own.SyncAll());
    NoteSynced(worker, dirty);
    dirty.clear();
    return absl::OkStatus();
  };
  while (const auto next = NextWindow()) {
    const auto [r, window] = *next;
    {
      const std::lock_guard guard(lock_);
      rounds_[r].unsynced.insert(worker);
    }
    dirty.insert(r);
    std::map<ItemIndex, Digest128> digests;
    HF_RETURN_IF_ERROR(own.Write(shared_->plan->windows[window], &digests));
    bool is_written = false;
    {
      const std::lock_guard guard(lock_);
      for (const auto& [item, digest] : digests) {
        rounds_[r].digests[item] += digest;
      }
      --rounds_[r].windows_left;
      changed_.notify_all();
      for (const size_t mine : dirty) {
        is_written |= rounds_[mine].windows_left == 0;
      }
    }
    if (is_written) HF_RETURN_IF_ERROR(sync());
    turn();
  }
  return sync();
}

RoundRecord Conversion::RecordOf(const Round& round) const {
  const ConvertPlan& plan = *shared_->plan;
  const RoundPlan& planned = plan.rounds[round.number];
  const size_t first = plan.windows[planned.first_window].first;
  const size_t end = plan.windows[planned.end_window - 1].end;
  RoundRecord record;
  record.plan_hash = plan.hash;
  record.round = round.number;
  record.coded = shared_->coded();
  if (record.coded) {
    record.units.assign(shared_->units.begin() + first,
                        shared_->units.begin() + end);
  } else {
    record.crcs.assign(shared_->crcs.begin() + first,
                       shared_->crcs.begin() + end);
  }
  record.digests.assign(round.digests.begin(), round.digests.end());
  return record;
}

absl::Status Conversion::Write(
    const std::vector<uint32_t>& rounds,
    std::function<absl::Status(RoundRecord)> record) {
  rounds_.clear();
  open_round_ = 0;
  for (const uint32_t number : rounds) {
    const RoundPlan& planned = shared_->plan->rounds[number];
    rounds_.push_back(
        {.number = number,
         .windows_left = planned.end_window - planned.first_window,
         .next_window = planned.first_window});
  }
  return RunThreads(
      [this](size_t worker, const WorkerTurn& turn) {
        return WriteWindows(worker, turn);
      },
      [this, &record]() -> absl::Status {
        while (true) {
          std::optional<RoundRecord> safe;
          {
            const std::lock_guard guard(lock_);
            for (Round& round : rounds_) {
              if (round.recorded || round.windows_left > 0 ||
                  !round.unsynced.empty()) {
                continue;
              }
              round.recorded = true;
              safe = RecordOf(round);
              round.digests.clear();
              break;
            }
          }
          if (!safe.has_value()) return absl::OkStatus();
          HF_RETURN_IF_ERROR(record(*std::move(safe)));
        }
      });
}

absl::StatusOr<std::vector<FinishedFile>> Conversion::Finish(
    std::function<ShardIdentity(uint32_t file)> identity) {
  const ConvertPlan& plan = *shared_->plan;
  std::vector<std::vector<size_t>> places(plan.files.size());
  for (size_t f = 0; f < plan.files.size(); ++f) {
    places[f].resize(plan.files[f].units.size());
  }
  for (size_t i = 0; i < plan.order.size(); ++i) {
    places[plan.order[i].file][plan.order[i].unit] = i;
  }
  std::vector<FinishedFile> finished(plan.files.size());
  std::atomic<uint32_t> next = 0;
  HF_RETURN_IF_ERROR(RunThreads(
      [&](size_t worker, const WorkerTurn& turn) -> absl::Status {
        for (uint32_t file = next++; file < plan.files.size(); file = next++) {
          {
            const std::lock_guard guard(lock_);
            if (failed_) break;
          }
          HF_ASSIGN_OR_RETURN(
              finished[file],
              (*workers_)[worker]->Finish(file, identity(file), places[file]));
          turn();
        }
        return absl::OkStatus();
      },
      nullptr));
  return finished;
}

}  // namespace holdfast::ckpt
