// ckpt/session/owner_preflight.cc: rank 0's side of the look at the run
// directory before the claim (preflight.h).

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/session/messages.h"
#include "ckpt/session/owner_state.h"
#include "ckpt/session/rank_names.h"

namespace holdfast::ckpt {
namespace {

std::string NonceName(const std::string& dir, uint64_t nonce) {
  return absl::StrFormat("%spreflight.%016x", dir == "." ? "" : dir + "/",
                         nonce);
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

Task<absl::Status> OwnerSession::State::Preflight() {
  const auto fail = [this](const absl::Status& status) {
    return absl::Status(
        status.code(),
        absl::StrFormat("before the start: %s: %s; nothing was changed",
                        NameRank(0), std::string(status.message())));
  };
  PreflightMessage message;
  message.dir = kCheckpointsDir;
  Io::Ref space = io.FreeSpace(message.dir);
  co_await UntilDone(space);
  if (absl::IsNotFound(space->status)) {
    message.dir = ".";
    space = io.FreeSpace(message.dir);
    co_await UntilDone(space);
  }
  if (!space->status.ok() && !absl::IsUnimplemented(space->status)) {
    co_return fail(space->status);
  }
  if (space->status.ok() && options.plans != nullptr) {
    std::string warning;
    const absl::Status fits =
        CheckSpace(space->bytes, options.plans->TotalBytes(), options.keep_last,
                   static_cast<int64_t>(catalog.line.size()), &warning);
    if (!fits.ok()) co_return fail(fits);
    if (!warning.empty()) result.notes.push_back(warning);
  }

  message.name = NonceName(message.dir, options.nonce);
  message.nonce = absl::StrFormat("holdfast preflight %016x of %d ranks\n",
                                  options.nonce, env.group->size());
  std::function<Io::Ref()> put = [&] {
    return io.PutIfAbsent(message.name, BytesOf(message.nonce));
  };
  absl::Status status = co_await Repeat(&io, std::move(put));
  if (absl::IsUnknown(status)) {
    status = absl::UnavailableError(std::string(status.message()));
  }
  if (status.ok()) {
    const std::vector<std::byte> body = Encode(message);
    for (int rank = 1; rank < env.group->size(); ++rank) {
      Send(Rank{rank}, kPhasePreflight, body);
    }
    PreflightReport own;
    own.status = co_await LookBefore(&io, env.group, &message);
    own.direct_io = env.storage->traits().direct_io;
    preflight_reports[0] = std::move(own);
    status = co_await ReportsOfPreflight();
  } else {
    status = fail(status);
  }
  // Also when it is not certain that it is there.
  std::function<Io::Ref()> remove = [&] { return io.Remove(message.name); };
  const absl::Status removed = co_await Repeat(&io, std::move(remove));
  if (status.ok() && !removed.ok()) co_return fail(removed);
  co_return status;
}

Task<absl::Status> OwnerSession::State::ReportsOfPreflight() {
  const absl::Duration asked = env.clock->Monotonic();
  const absl::Duration until =
      std::min(asked + options.hello_timeout, deadline);
  Until all([this, until] {
    return std::all_of(preflight_reports.begin(), preflight_reports.end(),
                       [](const auto& r) { return r.has_value(); }) ||
           !garbled.ok() || env.clock->Monotonic() >= until;
  });
  co_await all;
  if (!garbled.ok()) co_return garbled;
  std::vector<bool> there;
  for (const auto& report : preflight_reports)
    there.push_back(report.has_value());
  if (std::find(there.begin(), there.end(), false) != there.end()) {
    co_return Missing(there, env.clock->Monotonic() - asked,
                      "look at the run directory");
  }
  co_return WeighPreflight();
}

absl::Status OwnerSession::State::WeighPreflight() {
  std::vector<int> failed;
  std::vector<int> others;  // that write in another way than rank 0
  for (size_t rank = 0; rank < preflight_reports.size(); ++rank) {
    const PreflightReport& report = *preflight_reports[rank];
    if (!report.status.ok()) failed.push_back(static_cast<int>(rank));
    if (report.direct_io != preflight_reports[0]->direct_io) {
      others.push_back(static_cast<int>(rank));
    }
  }
  if (failed.empty()) {
    if (!others.empty()) {
      result.notes.push_back(
          absl::StrFormat("rank 0 writes %s O_DIRECT, these do not: %s",
                          preflight_reports[0]->direct_io ? "with" : "without",
                          NameRanks(*env.group, others)));
    }
    return absl::OkStatus();
  }
  // What a person must decide comes before what may come back.
  const auto worst = std::find_if(failed.begin(), failed.end(), [&](int rank) {
    return absl::IsFailedPrecondition(preflight_reports[rank]->status);
  });
  const int rank = worst != failed.end() ? *worst : failed.front();
  const absl::Status& status = preflight_reports[rank]->status;
  return absl::Status(
      status.code(),
      absl::StrFormat(
          "before the start: %s %s%s; nothing was changed", NameRank(rank),
          std::string(status.message()),
          failed.size() == 1
              ? ""
              : absl::StrFormat(" (%d ranks in all: %s)", failed.size(),
                                NameRanks(*env.group, failed))));
}

}  // namespace holdfast::ckpt
