// trainer/data/data_source.h: the data of a run: global index to batch.
//
// Opens every data set of the configuration, checks it before training starts,
// and then answers for any global index. Const and without locks: any thread
// may call. Batches are made from mapped pages; nothing is read ahead.

#ifndef HOLDFAST_TRAINER_DATA_DATA_SOURCE_H_
#define HOLDFAST_TRAINER_DATA_DATA_SOURCE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/data/data_config.h"
#include "trainer/data/sample_source.h"
#include "trainer/data/token_set.h"

namespace holdfast::trainer {

struct DataOptions {
  int64_t seq_len = 0;
  int64_t vocab = 0;
  uint64_t seed = 0;
  // Reads every token for ids outside the vocabulary (TokenSet::CheckTokens).
  // One rank of a host is enough; a rank that does not check must not start
  // before the one that does has said yes.
  bool check_tokens = true;
};

// Rows in the order of the indices asked for. Reused from step to step: its
// vectors keep their capacity, so that a steady state allocates nothing.
struct Batch {
  int64_t rows = 0;
  int64_t seq_len = 0;
  std::vector<int32_t> tokens;   // [rows, seq_len]
  std::vector<int32_t> targets;  // [rows, seq_len], tokens one further on
  std::vector<uint8_t> counts;   // [rows, seq_len], 1 where the target counts
};

class DataSource {
 public:
  // kInvalidArgument: what TokenSet::Open, CheckTokens and SampleSource::Create
  //     refuse; data sets are named by their prefix.
  static absl::StatusOr<std::unique_ptr<DataSource>> Open(
      const DataConfig& config, const DataOptions& options);

  // Any indices, in any order; copies 9 bytes a token.
  void LoadBatch(std::span<const uint64_t> indices, Batch& batch) const;

  // Held-out sequences; only if samples().has_eval().
  void LoadEvalBatch(std::span<const uint64_t> indices, Batch& batch) const;

  // Targets that count in the sample at a global index: seq_len without masks.
  // The loss weight of a step is 1 / their sum over the global batch, which may
  // be 0 when all of it is masked.
  uint64_t CountingTokens(uint64_t index) const;
  uint64_t EvalCountingTokens(uint64_t index) const;

  SampleRef At(uint64_t index) const { return samples_.At(seed_, index); }
  const SampleSource& samples() const { return samples_; }
  std::span<const TokenSet> sets() const { return sets_; }

  // 16 hexadecimal digits over the fingerprint of every data set in order, and
  // what turns them into samples: sequence length, windows and quotas. Two
  // starts with equal seeds and equal fingerprints read the same samples. Reads
  // all indices and masks; call it on one rank.
  std::string Fingerprint() const;

  // Entropy, in nats a token, of the training targets that count, taken one by
  // one, in the mixture's shares. Reads every token.
  double UnigramNats() const;

 private:
  DataSource(const DataOptions& options, std::vector<TokenSet> sets,
             SampleSource samples);

  void Load(std::span<const uint64_t> indices, bool eval, Batch& batch) const;
  uint64_t Counting(const SampleRef& sample) const;

  const uint64_t seq_len_;
  const int64_t vocab_;
  const uint64_t seed_;
  const std::vector<TokenSet> sets_;
  const SampleSource samples_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_DATA_DATA_SOURCE_H_
