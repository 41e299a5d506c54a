// trainer/data/sample_source.cc: global index to window.

#include "trainer/data/sample_source.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/philox.h"
#include "ckpt/base/status_macros.h"
#include "trainer/data/permutation.h"

namespace holdfast::trainer {
namespace {

// Streams of Philox under the run's seed; no other use may share them. A data
// set's own stream is kShuffleStream + its index.
constexpr uint64_t kShuffleStream = uint64_t{0x64617461} << 32;  // "data"
// Evaluation reads the same sequences in every run.
constexpr uint64_t kEvalSeed = 0;
constexpr uint64_t kEvalEpoch = ~uint64_t{0};

uint64_t ShuffleKey(uint64_t seed, uint32_t set, uint64_t epoch) {
  return ckpt::Philox64(seed, kShuffleStream + set, epoch);
}

}  // namespace

WindowCounts CountWindows(uint64_t tokens, uint64_t seq_len,
                          double eval_fraction) {
  const uint64_t windows = tokens == 0 ? 0 : (tokens - 1) / seq_len;
  auto eval =
      static_cast<uint64_t>(static_cast<double>(windows) * eval_fraction);
  if (eval == 0 && eval_fraction > 0 && windows >= 2) eval = 1;
  return {.train = windows - eval, .eval = eval};
}

absl::StatusOr<SampleSource> SampleSource::Create(
    std::span<const WindowCounts> windows, std::span<const double> weights) {
  std::vector<double> shares(weights.begin(), weights.end());
  if (shares.empty()) {
    for (const WindowCounts& count : windows) {
      shares.push_back(static_cast<double>(count.train));
    }
  }
  HF_CHECK(shares.size() == windows.size(), "%d weights, %d data sets",
           shares.size(), windows.size());
  for (size_t set = 0; set < windows.size(); ++set) {
    if (windows[set].train == 0 && (weights.empty() || shares[set] > 0)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "data set %d of %d has no whole sequence to train on; give it more "
          "text, a shorter model.seq_len or a smaller data.eval_fraction",
          set, windows.size()));
    }
  }
  HF_ASSIGN_OR_RETURN(Mixture mixture, Mixture::Create(shares));
  std::optional<Mixture> eval_mixture;
  for (size_t set = 0; set < windows.size(); ++set) {
    if (windows[set].eval == 0) shares[set] = 0;
  }
  if (std::any_of(shares.begin(), shares.end(),
                  [](double share) { return share > 0; })) {
    HF_ASSIGN_OR_RETURN(eval_mixture, Mixture::Create(shares));
  }
  return SampleSource({windows.begin(), windows.end()}, std::move(mixture),
                      std::move(eval_mixture));
}

SampleRef SampleSource::At(uint64_t seed, uint64_t index) const {
  const MixturePick pick = mixture_.PickAt(index);
  const uint64_t n = windows_[pick.set].train;
  const uint64_t epoch = pick.occurrence / n;
  return {.set = pick.set,
          .epoch = epoch,
          .window = Permute(ShuffleKey(seed, pick.set, epoch), n,
                            pick.occurrence % n)};
}

SampleRef SampleSource::EvalAt(uint64_t index) const {
  HF_CHECK(has_eval(), "nothing is held out");
  const MixturePick pick = eval_mixture_->PickAt(index);
  const WindowCounts& windows = windows_[pick.set];
  return {.set = pick.set,
          .epoch = pick.occurrence / windows.eval,
          .window = windows.train +
                    Permute(ShuffleKey(kEvalSeed, pick.set, kEvalEpoch),
                            windows.eval, pick.occurrence % windows.eval)};
}

void SampleDigest::Add(const SampleRef& sample) {
  value_ = ckpt::Philox64(value_, sample.set, sample.window);
}

}  // namespace holdfast::trainer
