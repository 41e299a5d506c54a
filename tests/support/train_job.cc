// tests/support/train_job.cc: see train_job.h.

#include "tests/support/train_job.h"

#include <atomic>
#include <fstream>
#include <memory>
#include <span>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/base/philox.h"
#include "ckpt/format/digest.h"
#include "ckpt/format/manifest.h"
#include "ckpt/group/inproc_group.h"
#include "trainer/data/token_writer.h"
#include "trainer/parallel/inproc_collectives.h"

namespace holdfast::tests {
namespace {

constexpr int32_t kVocab = 37;
constexpr int kTokens = 1200;

constexpr char kConfig[] = R"(
threads = 1
[model]
layers = 2
hidden = 24
heads = 4
kv_heads = 2
ffn = 40
vocab = 37
seq_len = 11
tied = true
[batch]
global_seqs = 8
micro_seqs = 1
[train]
steps = 6
[optim]
lr = 1e-2
min_lr = 1e-3
warmup_steps = 2
decay_steps = 40
[data]
paths = ["%s"]
eval_fraction = 0.2
[checkpoint]
interval = 2
storage = "posix"
[numerics]
virtual_dp = 4
)";

}  // namespace

TrainJob::TrainJob() {
  ckpt::InitLog(ckpt::LogLevel::kError, "", "").IgnoreError();
  WriteTokens("tokens", 1);
  options.config_path = path("config.toml");
  options.run_dir = path("run");
  std::ofstream(options.config_path)
      << absl::StrFormat(kConfig, path("tokens"));
}

void TrainJob::WriteTokens(const std::string& name, uint64_t seed) const {
  auto writer = trainer::TokenWriter::Create(path(name),
                                             {.vocab = kVocab, .masked = true});
  HF_CHECK(writer.ok(), "%s", writer.status().ToString());
  for (uint64_t i = 0; i < kTokens; ++i) {
    const uint64_t draw = ckpt::Philox64(seed, /*stream=*/3, i);
    const auto token = static_cast<int32_t>(draw % kVocab);
    // About one target in five does not count.
    const absl::Status status =
        (*writer)->Append({&token, 1}, (draw >> 32) % 5 != 0);
    HF_CHECK(status.ok(), "%s", status.ToString());
  }
  (*writer)->EndDocument();
  const absl::Status status = (*writer)->Finish();
  HF_CHECK(status.ok(), "%s", status.ToString());
}

std::vector<trainer::TrainOutcome> TrainJob::Run() {
  const int ranks = mesh.world();
  trainer::InprocWorld world(ranks);
  std::vector<std::unique_ptr<ckpt::Group>> groups =
      ckpt::MakeInprocGroups(ranks);
  abort = [&world](const absl::Status& why) { world.Abort(why); };
  std::vector<trainer::TrainOutcome> outcomes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::unique_ptr<trainer::Collectives> mine = world.Join(rank);
      trainer::TrainOptions own = options;
      own.sets.push_back(absl::StrFormat("parallel.tp=%d", mesh.tp));
      own.sets.push_back(absl::StrFormat("parallel.pp=%d", mesh.pp));
      trainer::TrainEnv env;
      env.world = mine.get();
      env.checkpoint_group = std::move(groups[static_cast<size_t>(rank)]);
      env.clock = &ckpt::RealClock();
      env.host = "here";
      env.first_on_host = rank == 0;
      env.ranks_on_host = ranks;
      env.command = "test";
      env.log_to_files = false;
      env.measure_speeds = false;
      int looks = 0;
      env.requested_action = [&, rank] {
        ++looks;
        return signals ? signals(rank, looks) : trainer::SignalAction::kNone;
      };
      env.clear_save_request = [] {};
      if (each) each(rank, own, env);
      trainer::TrainOutcome outcome = trainer::Train(own, std::move(env));
      if (outcome.peers_may_wait) {
        world.Abort(absl::AbortedError(
            absl::StrFormat("rank %d gave up: %s", rank, outcome.message)));
      }
      outcomes[static_cast<size_t>(rank)] = std::move(outcome);
    });
  }
  for (std::thread& thread : threads) thread.join();
  abort = nullptr;
  return outcomes;
}

std::string TrainJob::DigestOf(const std::string& name) const {
  std::ifstream file(
      options.run_dir + "/checkpoints/" + name + "/" + ckpt::kManifestName,
      std::ios::binary);
  if (!file) return "";
  std::ostringstream text;
  text << file.rdbuf();
  const std::string bytes = text.str();
  const auto manifest = ckpt::DecodeManifest(
      std::as_bytes(std::span<const char>(bytes.data(), bytes.size())));
  HF_CHECK(manifest.ok(), "%s", manifest.status().ToString());
  return ckpt::ToHex(ckpt::LogicalDigest(*manifest));
}

nlohmann::json TrainJob::Status() const {
  std::ifstream file(options.run_dir + "/status.json");
  if (!file) return nullptr;
  std::ostringstream text;
  text << file.rdbuf();
  return nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
}

std::vector<int64_t> TrainJob::SavedSteps() const {
  std::vector<int64_t> steps;
  const auto events = trainer::ReadJournal(options.run_dir);
  HF_CHECK(events.ok(), "%s", events.status().ToString());
  for (const trainer::JournalEvent& event : *events) {
    if (event.event != "save") continue;
    if (event.facts.at("outcome").text != "committed") continue;
    steps.push_back(event.facts.at("step").integer);
  }
  return steps;
}

std::vector<trainer::MetricsLine> TrainJob::Metrics() const {
  auto lines = trainer::ReadMetrics(options.run_dir);
  HF_CHECK(lines.ok(), "%s", lines.status().ToString());
  return *std::move(lines);
}

std::string FirstDifference(const std::vector<trainer::MetricsLine>& a,
                            const std::vector<trainer::MetricsLine>& b) {
  if (a.size() != b.size()) {
    return absl::StrFormat("%d steps and %d", a.size(), b.size());
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].step != b[i].step) {
      return absl::StrFormat("line %d is of step %d and %d", i, a[i].step,
                             b[i].step);
    }
    const auto differ = [&](const char* what) {
      return absl::StrFormat("%s of step %d", what, a[i].step);
    };
    if (a[i].loss_bits != b[i].loss_bits) return differ("loss");
    if (a[i].grad_norm_bits != b[i].grad_norm_bits) return differ("norm");
    if (a[i].sample_digest != b[i].sample_digest) return differ("samples");
    if (a[i].lr != b[i].lr) return differ("learning rate");
    if (a[i].tokens != b[i].tokens) return differ("tokens");
    if (a[i].eval_loss != b[i].eval_loss) return differ("evaluation");
  }
  return "";
}

}  // namespace holdfast::tests
