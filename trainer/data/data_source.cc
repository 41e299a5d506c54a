// trainer/data/data_source.cc: opens the sets, copies windows into batches.

#include "trainer/data/data_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "trainer/data/fingerprint_hash.h"
#include "trainer/data/unigram.h"

namespace holdfast::trainer {

DataSource::DataSource(const DataOptions& options, std::vector<TokenSet> sets,
                       SampleSource samples)
    : seq_len_(static_cast<uint64_t>(options.seq_len)),
      vocab_(options.vocab),
      seed_(options.seed),
      sets_(std::move(sets)),
      samples_(std::move(samples)) {}

absl::StatusOr<std::unique_ptr<DataSource>> DataSource::Open(
    const DataConfig& config, const DataOptions& options) {
  HF_CHECK(options.seq_len > 0 && options.vocab > 0, "seq_len %d, vocab %d",
           options.seq_len, options.vocab);
  if (!config.weights.empty() && config.weights.size() != config.paths.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("opening data: %d paths, %d weights",
                        config.paths.size(), config.weights.size()));
  }
  std::vector<TokenSet> sets;
  std::vector<WindowCounts> windows;
  for (size_t i = 0; i < config.paths.size(); ++i) {
    HF_ASSIGN_OR_RETURN(TokenSet set, TokenSet::Open(config.paths[i]));
    windows.push_back(CountWindows(set.tokens(),
                                   static_cast<uint64_t>(options.seq_len),
                                   config.eval_fraction));
    const bool drawn = config.weights.empty() || config.weights[i] > 0;
    if (drawn && windows.back().train == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "opening token set %s: %d tokens make %d sequences of %d + 1, of "
          "which data.eval_fraction = %g holds out %d; none is left to train "
          "on",
          config.paths[i], set.tokens(),
          windows.back().train + windows.back().eval, options.seq_len,
          config.eval_fraction, windows.back().eval));
    }
    if (options.check_tokens) {
      HF_RETURN_IF_ERROR(set.CheckTokens(options.vocab));
    }
    sets.push_back(std::move(set));
  }
  HF_ASSIGN_OR_RETURN(SampleSource samples,
                      SampleSource::Create(windows, config.weights));
  return std::unique_ptr<DataSource>(
      new DataSource(options, std::move(sets), std::move(samples)));
}

void DataSource::Load(std::span<const uint64_t> indices, bool eval,
                      Batch& batch) const {
  batch.rows = static_cast<int64_t>(indices.size());
  batch.seq_len = static_cast<int64_t>(seq_len_);
  const size_t elements = indices.size() * seq_len_;
  batch.tokens.resize(elements);
  batch.targets.resize(elements);
  batch.counts.resize(elements);
  for (size_t row = 0; row < indices.size(); ++row) {
    const SampleRef sample =
        eval ? samples_.EvalAt(indices[row]) : At(indices[row]);
    const TokenSet& set = sets_[sample.set];
    const uint64_t first = sample.window * seq_len_;
    const auto part = [&](auto& all) {
      return std::span(all).subspan(row * seq_len_, seq_len_);
    };
    set.Read(first, part(batch.tokens));
    set.Read(first + 1, part(batch.targets));
    set.ReadMask(first + 1, part(batch.counts));
  }
}

void DataSource::LoadBatch(std::span<const uint64_t> indices,
                           Batch& batch) const {
  Load(indices, /*eval=*/false, batch);
}

void DataSource::LoadEvalBatch(std::span<const uint64_t> indices,
                               Batch& batch) const {
  Load(indices, /*eval=*/true, batch);
}

uint64_t DataSource::Counting(const SampleRef& sample) const {
  return sets_[sample.set].Counting(sample.window * seq_len_ + 1, seq_len_);
}

uint64_t DataSource::CountingTokens(uint64_t index) const {
  return Counting(At(index));
}

uint64_t DataSource::EvalCountingTokens(uint64_t index) const {
  return Counting(samples_.EvalAt(index));
}

std::string DataSource::Fingerprint() const {
  FingerprintHash hash;
  hash.Add(seq_len_);
  for (size_t i = 0; i < sets_.size(); ++i) {
    hash.Add(sets_[i].Fingerprint());
    hash.Add(samples_.windows()[i].train);
    hash.Add(samples_.windows()[i].eval);
    hash.Add(uint64_t{samples_.mixture().quotas()[i]});
  }
  return absl::StrFormat("%016x", hash.value());
}

double DataSource::UnigramNats() const {
  std::vector<uint64_t> counts(static_cast<size_t>(vocab_), 0);
  std::vector<double> shares(counts.size(), 0.0);
  for (size_t i = 0; i < sets_.size(); ++i) {
    const uint64_t quota = samples_.mixture().quotas()[i];
    if (quota == 0) continue;
    const uint64_t targets = samples_.windows()[i].train * seq_len_;
    const uint64_t counting = sets_[i].Counting(1, targets);
    if (counting == 0) continue;
    std::fill(counts.begin(), counts.end(), uint64_t{0});
    sets_[i].AddCounts(1, targets, counts);
    for (size_t token = 0; token < counts.size(); ++token) {
      shares[token] += static_cast<double>(quota) *
                       static_cast<double>(counts[token]) /
                       static_cast<double>(counting);
    }
  }
  return UnigramEntropy<double>(shares);
}

}  // namespace holdfast::trainer
