// trainer/data/sample_source.h: which sequence stands at a global index.
//
// Pure: At(i) is a function of (seed, i, data) alone, whatever was read before
// and however many ranks read. A data set of T tokens is cut into windows of
// seq_len + 1 tokens that overlap by one:
//
//   window w   tokens w S to w S + S: inputs are the first S, targets the last
//   S windows    (T - 1) / S, rounded down; the tail is not read held out   the
//   last windows of each set, for evaluation
//
// The mixture names the data set of index i and its occurrence k there; k / n
// is the epoch of its n training windows, and k % n goes through a permutation
// keyed by (seed, set, epoch). So each window is read once an epoch.

#ifndef HOLDFAST_TRAINER_DATA_SAMPLE_SOURCE_H_
#define HOLDFAST_TRAINER_DATA_SAMPLE_SOURCE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/data/mixture.h"

namespace holdfast::trainer {

struct SampleRef {
  uint32_t set = 0;
  uint64_t epoch = 0;
  uint64_t window = 0;

  friend bool operator==(const SampleRef&, const SampleRef&) = default;
};

// Windows of one data set; evaluation gets those from `train` on.
struct WindowCounts {
  uint64_t train = 0;
  uint64_t eval = 0;

  friend bool operator==(const WindowCounts&, const WindowCounts&) = default;
};

// A fraction above 0 holds out at least one window where there are two.
WindowCounts CountWindows(uint64_t tokens, uint64_t seq_len,
                          double eval_fraction);

class SampleSource {
 public:
  // `weights` empty: by number of training windows.
  //
  // kInvalidArgument: a data set that is drawn from has no training window; or
  //     what Mixture::Create refuses.
  static absl::StatusOr<SampleSource> Create(
      std::span<const WindowCounts> windows, std::span<const double> weights);

  // About 1 us.
  SampleRef At(uint64_t seed, uint64_t index) const;

  // Held-out sequence `index`, from 0: the same for every seed and step, in the
  // training mixture, each window once before any comes again. A data set
  // without held-out windows is left out. Only if has_eval().
  SampleRef EvalAt(uint64_t index) const;
  bool has_eval() const { return eval_mixture_.has_value(); }

  std::span<const WindowCounts> windows() const { return windows_; }
  const Mixture& mixture() const { return mixture_; }

 private:
  SampleSource(std::vector<WindowCounts> windows, Mixture mixture,
               std::optional<Mixture> eval_mixture)
      : windows_(std::move(windows)),
        mixture_(std::move(mixture)),
        eval_mixture_(std::move(eval_mixture)) {}

  std::vector<WindowCounts> windows_;
  Mixture mixture_;
  std::optional<Mixture> eval_mixture_;
};

// Order-sensitive 64-bit digest of samples, for the metrics line of a step. Add
// the whole global batch in global order; start anew each step.
class SampleDigest {
 public:
  void Add(const SampleRef& sample);
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_SAMPLE_SOURCE_H_
