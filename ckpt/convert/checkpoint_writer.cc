// ckpt/convert/checkpoint_writer.cc: see checkpoint_writer.h.

#include "ckpt/convert/checkpoint_writer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <semaphore>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/base/threads.h"
#include "ckpt/convert/conversion.h"
#include "ckpt/convert/convert_group.h"
#include "ckpt/convert/convert_plan.h"
#include "ckpt/convert/convert_record.h"
#include "ckpt/convert/target_dir.h"
#include "ckpt/convert/verify_threads.h"
#include "ckpt/convert/window_worker.h"
#include "ckpt/session/preflight.h"

namespace holdfast::ckpt {
namespace {

constexpr std::chrono::milliseconds kTick(100);

RunId DrawRunId() {
  std::random_device device;
  RunId id{};
  for (size_t i = 0; i < id.size(); i += sizeof(uint32_t)) {
    const uint32_t word = device();
    std::memcpy(id.data() + i, &word, sizeof(word));
  }
  return id;
}

std::string TypeText(const ItemSpec& item) {
  std::string text(NameOf(item.dtype));
  for (const int64_t length : item.shape) {
    absl::StrAppendFormat(&text, " x %d", length);
  }
  return text;
}

absl::Status CheckItems(const std::vector<ItemSpec>& have,
                        const std::vector<ItemSpec>& want) {
  for (size_t i = 0; i < std::max(have.size(), want.size()); ++i) {
    if (i < have.size() && i < want.size() && have[i] == want[i]) continue;
    const auto text = [i](const std::vector<ItemSpec>& items) -> std::string {
      if (i >= items.size()) return "nothing more";
      return absl::StrFormat("'%s' (%s, %s)", items[i].name, items[i].kind,
                             TypeText(items[i]));
    };
    return absl::InvalidArgumentError(
        absl::StrFormat("item %d of the source is %s, the layout wants %s", i,
                        text(have), text(want)));
  }
  return absl::OkStatus();
}

std::string CodecText(const WriteCheckpointOptions& options) {
  if (options.codec == Codec::kNone) return "none";
  return absl::StrFormat("%s:%d", kZstdName, options.codec_level);
}

class Writing {
 public:
  Writing(StateSource* source, const JobLayout& target,
          const WriteCheckpointOptions& options, Clock& clock)
      : source_(source),
        target_(target),
        options_(options),
        clock_(clock),
        group_(options.group, clock) {}

  absl::StatusOr<WriteCheckpointReport> Run();

 private:
  absl::StatusOr<WriteCheckpointReport> Lead();
  absl::StatusOr<WriteCheckpointReport> Follow();
  absl::StatusOr<StorageOptions> StorageOf() const;
  absl::Status TakeRecords();
  absl::Status MakePlan();
  int Threads() const;
  absl::Status OpenWorkers();
  absl::Status TakeUp();
  absl::Status WriteRounds();
  absl::Status Commit(const std::vector<FinishedFile>& finished);
  absl::StatusOr<WriteCheckpointReport> VerifyComplete();
  // What to do when the storage has failed.
  absl::Status WithAdvice(const absl::Status& status) const;
  absl::Status CheckDigests(std::span<const Digest128> found) const;
  void AddDigests(const RoundRecord& record);
  // Of other ranks, and of who wants to stop.
  void Listen();
  void Tick(const char* phase);
  // `work` in a thread of its own, while this one ticks: it may wait for the
  // disk as long as it has to, and nobody takes this rank for dead.
  absl::Status WhileTicking(const char* phase,
                            const std::function<absl::Status()>& work);
  WriteCheckpointReport Report() const;

  StateSource* const source_;
  const JobLayout& target_;
  const WriteCheckpointOptions& options_;
  Clock& clock_;
  ConvertGroup group_;
  std::atomic<bool> stop_ = false;

  absl::Duration begin_;
  std::map<std::string, std::string> attributes_;
  ConvertPlan plan_;
  ConversionRecord record_;
  std::unique_ptr<TargetDir> out_;
  ConvertShared shared_;
  std::optional<std::counting_semaphore<>> fills_;
  std::vector<std::unique_ptr<WindowWorker>> workers_;
  std::vector<bool> round_done_;
  std::vector<Digest128> digests_;
  uint64_t bytes_verified_ = 0;
  uint64_t bytes_stored_ = 0;
};

void Writing::Listen() {
  group_.Tick(shared_.bytes_done);
  if (group_.must_stop() || (options_.stop != nullptr && *options_.stop)) {
    stop_ = true;
  }
}

void Writing::Tick(const char* phase) {
  Listen();
  if (!options_.on_progress) return;
  options_.on_progress(
      {.bytes_done = shared_.bytes_done + group_.bytes_of_others(),
       .bytes_total = plan_.unit_bytes,
       .bytes_verified = bytes_verified_,
       .phase = phase});
}

absl::Status Writing::WhileTicking(const char* phase,
                                   const std::function<absl::Status()>& work) {
  absl::Status result;
  RunWorkers({.purpose = "the disk, which this one waits for",
              .every = kTick,
              .tick = [&] { Tick(phase); }},
             [&](size_t, const WorkerTurn&) { result = work(); });
  return result;
}

absl::Status Writing::MakePlan() {
  HF_RETURN_IF_ERROR(CheckItems(source_->items(), target_.items()));
  if (target_.items().empty()) {
    return absl::InvalidArgumentError("the source has no items");
  }
  attributes_ = source_->attributes();
  for (const auto& [name, value] : options_.attributes) {
    attributes_[name] = value;
  }
  ConvertPlanOptions plan_options;
  plan_options.window_bytes = options_.window_bytes;
  plan_options.files_per_dir = options_.files_per_dir;
  if (options_.round_bytes > 0) {
    plan_options.round_bytes = options_.round_bytes;
    plan_options.round_bytes_per_file = 0;
  }
  plan_ = PlanConversion(target_, plan_options);

  record_.run_id = DrawRunId();
  record_.source = source_->identity();
  record_.target = target_.description();
  record_.form = options_.form == WriteCheckpointOptions::Form::kRun
                     ? "run"
                     : "checkpoint";
  record_.codec = CodecText(options_);
  record_.step = options_.step;
  record_.plan_hash = plan_.hash;
  std::string text;
  for (const auto& [name, value] : attributes_) {
    absl::StrAppendFormat(&text, "%d %s %d %s\n", name.size(), name,
                          value.size(), value);
  }
  record_.attributes = ToHex(DigestBytes(text));
  attributes_[kConversionAttribute] = ConversionText(record_);
  return absl::OkStatus();
}

int Writing::Threads() const {
  if (options_.threads > 0) return options_.threads;
  return std::max(2, static_cast<int>(std::thread::hardware_concurrency()));
}

absl::Status Writing::OpenWorkers() {
  shared_.plan = &plan_;
  shared_.items = &target_.items();
  shared_.source = source_;
  shared_.checkpoint_dir = out_->checkpoint_dir();
  shared_.codec = options_.codec;
  shared_.codec_level = options_.codec_level;
  shared_.stop = &stop_;
  shared_.clock = &clock_;
  if (shared_.coded()) {
    shared_.units.resize(plan_.order.size());
    shared_.file_ends = std::vector<std::atomic<uint64_t>>(plan_.files.size());
    for (auto& end : shared_.file_ends) end = kShardBlockBytes;
  } else {
    shared_.crcs.resize(plan_.order.size());
  }
  shared_.fills = &fills_.emplace(std::max(1, source_->fills_at_once()));
  const int threads =
      static_cast<int>(std::clamp<size_t>(plan_.windows.size(), 1, Threads()));
  for (int i = 0; i < threads; ++i) {
    HF_ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
                        OpenStorage(out_->storage_options()));
    workers_.push_back(std::make_unique<WindowWorker>(
        &shared_, std::move(storage), plan_.window_bytes_max));
  }
  round_done_.resize(plan_.rounds.size());
  digests_.resize(target_.items().size());
  return absl::OkStatus();
}

void Writing::AddDigests(const RoundRecord& record) {
  for (const auto& [item, digest] : record.digests) {
    HF_CHECK(item < digests_.size(), "a digest of item %d", item);
    digests_[item] += digest;
  }
}

// What an earlier try has finished, verified.
absl::Status Writing::TakeUp() {
  std::vector<RoundRecord> records;
  HF_RETURN_IF_ERROR(WhileTicking("verifying", [&]() -> absl::Status {
    HF_ASSIGN_OR_RETURN(records,
                        out_->Rounds(plan_, digests_.size(), shared_.coded()));
    return absl::OkStatus();
  }));
  if (records.empty()) return absl::OkStatus();
  std::vector<uint32_t> rounds;
  for (const RoundRecord& record : records) {
    rounds.push_back(record.round);
    const size_t first =
        plan_.windows[plan_.rounds[record.round].first_window].first;
    std::copy(
        record.crcs.begin(), record.crcs.end(),
        shared_.coded() ? shared_.crcs.end() : shared_.crcs.begin() + first);
    std::copy(
        record.units.begin(), record.units.end(),
        shared_.coded() ? shared_.units.begin() + first : shared_.units.end());
  }
  Conversion conversion(&shared_, &workers_, [this] { Tick("verifying"); });
  HF_ASSIGN_OR_RETURN(std::vector<uint32_t> bad, conversion.Verify(rounds));
  if (shared_.coded() && !bad.empty()) {
    // What is stored behind a hole has to go with it.
    for (const uint32_t round : rounds) {
      if (round > bad.front()) bad.push_back(round);
    }
    std::sort(bad.begin(), bad.end());
    bad.erase(std::unique(bad.begin(), bad.end()), bad.end());
  }
  shared_.bytes_done = 0;
  for (const RoundRecord& record : records) {
    if (std::binary_search(bad.begin(), bad.end(), record.round)) {
      HF_LOG_WARNING("%s: what round %d had written is damaged; written again",
                     out_->path(), record.round);
      HF_RETURN_IF_ERROR(out_->DropRound(record.round));
      continue;
    }
    round_done_[record.round] = true;
    AddDigests(record);
    const RoundPlan& round = plan_.rounds[record.round];
    shared_.bytes_done += round.bytes;
    bytes_verified_ += round.bytes;
    if (!shared_.coded()) continue;
    const size_t first = plan_.windows[round.first_window].first;
    for (size_t i = first; i < first + record.units.size(); ++i) {
      std::atomic<uint64_t>& end = shared_.file_ends[plan_.order[i].file];
      const CodedUnit& unit = shared_.units[i];
      end = std::max<uint64_t>(end, unit.offset + unit.padded_bytes());
    }
  }
  return absl::OkStatus();
}

absl::Status Writing::WriteRounds() {
  std::vector<uint32_t> rounds;
  for (uint32_t r = 0; r < round_done_.size(); ++r) {
    if (!round_done_[r]) rounds.push_back(r);
  }
  if (rounds.empty()) return absl::OkStatus();
  ConvertGroup::Told told;
  told.order = ConvertGroup::Order::kWrite;
  told.record = EncodeConversion(record_);
  told.rounds = rounds;
  group_.Tell(told);
  const auto tick = [this] { Tick("writing"); };
  Conversion conversion(&shared_, &workers_, tick);
  const absl::Status written = conversion.Write(
      group_.Share(rounds), [this](RoundRecord record) -> absl::Status {
        HF_RETURN_IF_ERROR(out_->PutRound(record));
        AddDigests(record);
        return absl::OkStatus();
      });
  if (absl::IsCancelled(written)) {
    // Because another rank has failed?
    HF_RETURN_IF_ERROR(group_.FirstError());
  }
  HF_RETURN_IF_ERROR(WithAdvice(written));
  if (group_.size() == 1) return absl::OkStatus();
  const absl::Status gathered = group_.Gather(tick, stop_);
  if (absl::IsCancelled(gathered)) return ConversionStopped();
  HF_RETURN_IF_ERROR(gathered);
  return WhileTicking("syncing", [this] { return TakeRecords(); });
}

absl::Status Writing::WithAdvice(const absl::Status& status) const {
  if (!absl::IsUnavailable(status)) return status;
  return absl::UnavailableError(absl::StrFormat(
      "%s. The same command goes on from what is finished; if it is always the "
      "same file of %s that cannot be written, remove that file first",
      std::string(status.message()), out_->path()));
}

// All of them, those of the other ranks too.
absl::Status Writing::TakeRecords() {
  std::vector<RoundRecord> records;
  for (int tries = 1;; ++tries) {
    HF_ASSIGN_OR_RETURN(records,
                        out_->Rounds(plan_, digests_.size(), shared_.coded()));
    if (records.size() == plan_.rounds.size()) break;
    if (tries == kSeeTries) {
      return absl::UnavailableError(absl::StrFormat(
          "%s has the records of %d of %d rounds: do all ranks see one "
          "directory?",
          out_->path(), records.size(), plan_.rounds.size()));
    }
    clock_.Sleep(kSeeWait);
  }
  digests_.assign(digests_.size(), Digest128{});
  for (const RoundRecord& record : records) {
    AddDigests(record);
    std::copy(record.crcs.begin(), record.crcs.end(),
              shared_.crcs.begin() +
                  plan_.windows[plan_.rounds[record.round].first_window].first);
  }
  return absl::OkStatus();
}

absl::Status Writing::CheckDigests(std::span<const Digest128> found) const {
  const std::span<const Digest128> recorded = source_->recorded_digests();
  if (recorded.empty()) return absl::OkStatus();
  for (size_t i = 0; i < found.size(); ++i) {
    if (!source_->records_digest_of(static_cast<ItemIndex>(i))) continue;
    if (found[i] == recorded[i]) continue;
    const ItemSpec& item = target_.items()[i];
    return absl::DataLossError(absl::StrFormat(
        "'%s' (%s): the source records the digest %s, its bytes have %s; the "
        "result was not committed",
        item.name, item.kind, ToHex(recorded[i]), ToHex(found[i])));
  }
  return absl::OkStatus();
}

absl::Status Writing::Commit(const std::vector<FinishedFile>& finished) {
  HF_RETURN_IF_ERROR(CheckDigests(digests_));
  Manifest manifest;
  manifest.run_id = record_.run_id;
  manifest.id = out_->id();
  manifest.commit_number = 1;
  manifest.time_unix_ms = absl::ToUnixMillis(clock_.WallTime());
  manifest.world = static_cast<uint32_t>(target_.world());
  manifest.layout = target_.description();
  manifest.plan_hash = plan_.layout_hash;
  manifest.items = target_.items();
  manifest.item_digests = digests_;
  manifest.attributes = attributes_;
  if (!plan_.dirs.empty()) {
    manifest.features_must.push_back(kFeatureDirectories);
  }
  bool coded = false;
  for (size_t f = 0; f < plan_.files.size(); ++f) {
    TargetFile& file = plan_.files[f];
    bytes_stored_ += finished[f].bytes;
    coded |= finished[f].plain_bytes > 0;
    manifest.files.push_back({file.name, finished[f].bytes,
                              static_cast<uint32_t>(file.units.size()),
                              finished[f].crc_index, std::move(file.chunks),
                              finished[f].plain_bytes});
  }
  if (coded) manifest.features_must.push_back(kZstdName);
  HF_RETURN_IF_ERROR(ValidateManifest(manifest));
  HF_RETURN_IF_ERROR(out_->Commit(manifest));
  return out_->RemoveRecords();
}

WriteCheckpointReport Writing::Report() const {
  WriteCheckpointReport report;
  report.run_id = record_.run_id;
  report.id = out_->id();
  report.path = out_->path();
  report.item_digests = digests_;
  report.digest = DigestOfState(target_.items(), digests_, attributes_);
  report.bytes_state = plan_.state_bytes;
  report.bytes_stored = bytes_stored_;
  report.bytes_read = source_->bytes_read();
  report.bytes_verified = bytes_verified_;
  report.files = static_cast<uint32_t>(plan_.files.size());
  report.seconds = absl::ToDoubleSeconds(clock_.Monotonic() - begin_);
  return report;
}

absl::StatusOr<WriteCheckpointReport> Writing::VerifyComplete() {
  HF_ASSIGN_OR_RETURN(const Manifest manifest, out_->ReadManifest());
  VerifyThreadsOptions verify;
  verify.open = [this] { return OpenStorage(out_->storage_options()); };
  verify.dir = out_->checkpoint_dir();
  verify.hash = true;
  verify.threads = std::min(Threads(), VerifyThreadsUseful(manifest));
  uint64_t total = 0;
  for (const ShardFile& file : manifest.files) total += file.bytes;
  verify.on_tick = [this, total](uint64_t done) {
    done = std::min(done, total);
    if (options_.on_progress) {
      options_.on_progress({.bytes_done = done,
                            .bytes_total = total,
                            .bytes_verified = done,
                            .phase = "verifying"});
    }
    Listen();
    return !stop_;
  };
  const VerifyOutcome outcome = VerifyOnThreads(manifest, verify, clock_);
  if (absl::IsCancelled(outcome.status)) return outcome.status;
  if (!outcome.status.ok()) {
    return absl::Status(
        outcome.status.code(),
        absl::StrFormat("the result that is there, %s, is damaged: %s. "
                        "Remove %s, and the same command makes it again",
                        out_->path(), std::string(outcome.status.message()),
                        options_.out));
  }
  HF_RETURN_IF_ERROR(CheckDigests(outcome.item_digests));
  HF_RETURN_IF_ERROR(out_->RemoveRecords());
  digests_ = outcome.item_digests;
  for (const ShardFile& file : manifest.files) bytes_stored_ += file.bytes;
  bytes_verified_ = plan_.unit_bytes;
  WriteCheckpointReport report = Report();
  report.was_complete = true;
  return report;
}

absl::StatusOr<StorageOptions> Writing::StorageOf() const {
  StorageOptions storage;
  HF_ASSIGN_OR_RETURN(storage.backend, ParseStorageBackend(options_.storage));
  storage.queue_depth = 32;
  storage.rank = group_.rank();
  return storage;
}

absl::StatusOr<WriteCheckpointReport> Writing::Lead() {
  HF_RETURN_IF_ERROR(MakePlan());
  HF_ASSIGN_OR_RETURN(const StorageOptions storage, StorageOf());
  TargetDir::State state{};
  HF_RETURN_IF_ERROR(WhileTicking("looking", [&]() -> absl::Status {
    HF_ASSIGN_OR_RETURN(out_, TargetDir::Open(options_.out, storage, clock_));
    HF_ASSIGN_OR_RETURN(state, out_->Look(&record_));
    return absl::OkStatus();
  }));
  if (state == TargetDir::State::kComplete) return VerifyComplete();
  const absl::Status begun = WhileTicking("reserving", [&] {
    return out_->Begin(record_, plan_, options_.codec == Codec::kNone, stop_);
  });
  if (absl::IsCancelled(begun)) return ConversionStopped();
  HF_RETURN_IF_ERROR(begun);
  HF_RETURN_IF_ERROR(OpenWorkers());
  HF_RETURN_IF_ERROR(TakeUp());
  HF_RETURN_IF_ERROR(WriteRounds());
  Conversion conversion(&shared_, &workers_, [this] { Tick("syncing"); });
  const auto finished = conversion.Finish([this](uint32_t file) {
    return ShardIdentity{record_.run_id, out_->id(), file,
                         static_cast<uint32_t>(plan_.files.size())};
  });
  HF_RETURN_IF_ERROR(WithAdvice(finished.status()));
  Listen();
  if (stop_) return ConversionStopped();
  HF_RETURN_IF_ERROR(
      WhileTicking("syncing", [&] { return Commit(*finished); }));
  return Report();
}

absl::StatusOr<WriteCheckpointReport> Writing::Follow() {
  const auto tick = [this] { Tick("waiting"); };
  HF_ASSIGN_OR_RETURN(ConvertGroup::Told told, group_.Await(tick));
  if (told.order == ConvertGroup::Order::kWrite) {
    const auto write = [&]() -> absl::Status {
      HF_RETURN_IF_ERROR(MakePlan());
      HF_ASSIGN_OR_RETURN(const StorageOptions storage, StorageOf());
      const std::string mine = ConversionText(record_);
      HF_ASSIGN_OR_RETURN(record_, DecodeConversion(told.record));
      if (ConversionText(record_) != mine) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "rank 0 converts %s, this rank %s: do all ranks run the same "
            "command on the same files?",
            ConversionText(record_), mine));
      }
      HF_RETURN_IF_ERROR(WhileTicking("waiting", [&]() -> absl::Status {
        HF_ASSIGN_OR_RETURN(
            out_, TargetDir::Join(options_.out, storage, record_, clock_));
        return absl::OkStatus();
      }));
      HF_RETURN_IF_ERROR(OpenWorkers());
      Conversion conversion(&shared_, &workers_, tick);
      return conversion.Write(
          group_.Share(told.rounds),
          [this](RoundRecord record) { return out_->PutRound(record); });
    };
    group_.Answer(write());
    HF_ASSIGN_OR_RETURN(told, group_.Await(tick));
  } else {
    group_.Answer(absl::OkStatus());
  }
  HF_RETURN_IF_ERROR(told.status);
  return WriteCheckpointReport();
}

absl::StatusOr<WriteCheckpointReport> Writing::Run() {
  begin_ = clock_.Monotonic();
  if (group_.size() > 1 && options_.codec != Codec::kNone) {
    return absl::UnimplementedError(
        "a codec and several ranks: start it alone, with threads");
  }
  if (!group_.leads()) return Follow();
  absl::StatusOr<WriteCheckpointReport> report = Lead();
  ConvertGroup::Told end;
  end.order = ConvertGroup::Order::kEnd;
  end.status = report.status();
  group_.Tell(end);
  // The last word is on its way as long as somebody polls.
  group_.Tick(shared_.bytes_done);
  return report;
}

}  // namespace

absl::StatusOr<WriteCheckpointReport> WriteCheckpoint(
    StateSource* source, const JobLayout& target,
    const WriteCheckpointOptions& options, Clock& clock) {
  Writing writing(source, target, options, clock);
  return writing.Run();
}

bool TellRefusal(Group* group, const absl::Status& why, Clock& clock) {
  ConvertGroup ranks(group, clock);
  return ranks.Refuse(why);
}

bool HearRefusal(Group* group, Clock& clock) {
  ConvertGroup ranks(group, clock);
  return ranks.AwaitRefusal();
}

}  // namespace holdfast::ckpt
