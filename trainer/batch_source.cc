// trainer/batch_source.cc: global indices of a step, one microbatch at a time.

#include "trainer/batch_source.h"

#include <algorithm>
#include <numeric>

#include "ckpt/base/check.h"

namespace holdfast::trainer {

BatchSource::BatchSource(const DataSource& data, int64_t micro_seqs,
                         int64_t microbatches, bool eval)
    : data_(data),
      micro_seqs_(micro_seqs),
      microbatches_(microbatches),
      eval_(eval),
      indices_(static_cast<size_t>(microbatches * micro_seqs)) {
  // Held-out sequences are numbered from 0 and read in order.
  std::iota(indices_.begin(), indices_.end(), uint64_t{0});
}

std::unique_ptr<BatchSource> BatchSource::ForTraining(
    const DataSource& data, const BatchConfig& batch) {
  return std::unique_ptr<BatchSource>(
      new BatchSource(data, batch.micro_seqs,
                      batch.global_seqs / batch.micro_seqs, /*eval=*/false));
}

std::unique_ptr<BatchSource> BatchSource::ForEvaluation(
    const DataSource& data, const BatchConfig& batch, int64_t eval_seqs) {
  uint64_t held_out = 0;
  for (const WindowCounts& windows : data.samples().windows()) {
    held_out += windows.eval;
  }
  const int64_t seqs = std::min(eval_seqs, static_cast<int64_t>(held_out));
  return std::unique_ptr<BatchSource>(new BatchSource(
      data, batch.micro_seqs, seqs / batch.micro_seqs, /*eval=*/true));
}

BatchInfo BatchSource::StartStep(const DataState& state) {
  HF_CHECK(!eval_, "a step was begun on evaluation data");
  NextIndices(state, indices_);
  BatchInfo info;
  SampleDigest digest;
  for (const uint64_t index : indices_) {
    info.counting_tokens += static_cast<int64_t>(data_.CountingTokens(index));
    digest.Add(data_.At(index));
  }
  info.sample_digest = digest.value();
  info.next_cursor = state.cursor + indices_.size();
  return info;
}

absl::StatusOr<Microbatch> BatchSource::Get(int64_t microbatch) {
  const int64_t number = microbatch + (eval_ ? eval_first_ : 0);
  HF_CHECK(number >= 0 && number < microbatches_,
           "microbatch %d of %d was asked for", number, microbatches_);
  const std::span<const uint64_t> indices =
      std::span(indices_).subspan(static_cast<size_t>(number * micro_seqs_),
                                  static_cast<size_t>(micro_seqs_));
  if (eval_) {
    data_.LoadEvalBatch(indices, microbatch_);
  } else {
    data_.LoadBatch(indices, microbatch_);
  }
  return Microbatch{.tokens = microbatch_.tokens,
                    .targets = microbatch_.targets,
                    .mask = microbatch_.counts};
}

}  // namespace holdfast::trainer
