// trainer/batch_source.h: the samples of a step, as microbatches for the
// runner.
//
// The global batch of a step is the next global_seqs samples of the data order
// that no skipped range leaves out; microbatch g holds the sequences
// [g, g + 1) * micro_seqs of it, on every layout. A rank reads only the
// microbatches that it is asked for.
//
// Thread: the step thread. Memory: one microbatch, sized at Create.

#ifndef HOLDFAST_TRAINER_BATCH_SOURCE_H_
#define HOLDFAST_TRAINER_BATCH_SOURCE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/data/data_source.h"
#include "trainer/data/data_state.h"
#include "trainer/step.h"

namespace holdfast::trainer {

// What all ranks know of a step's samples before its first forward.
struct BatchInfo {
  int64_t counting_tokens = 0;  // of the global batch
  uint64_t sample_digest = 0;   // of its sample ids, in global order
  uint64_t next_cursor = 0;     // where the step after this one begins
};

class BatchSource final : public MicrobatchSource {
 public:
  // `data` outlives the result. For evaluation the microbatches are those of
  // the first `eval_seqs` held-out sequences, rounded down to whole
  // microbatches and to what is held out.
  static std::unique_ptr<BatchSource> ForTraining(const DataSource& data,
                                                  const BatchConfig& batch);
  static std::unique_ptr<BatchSource> ForEvaluation(const DataSource& data,
                                                    const BatchConfig& batch,
                                                    int64_t eval_seqs);

  // Chooses the samples of the step that begins at `state`.
  BatchInfo StartStep(const DataState& state);

  // The next evaluation calls microbatch `first` of the whole its number 0.
  void StartEval(int64_t first) { eval_first_ = first; }

  // Of a step, or of a whole evaluation.
  int64_t microbatches() const { return microbatches_; }

  absl::StatusOr<Microbatch> Get(int64_t microbatch) override;

 private:
  BatchSource(const DataSource& data, int64_t micro_seqs, int64_t microbatches,
              bool eval);

  const DataSource& data_;
  const int64_t micro_seqs_;
  const int64_t microbatches_;
  const bool eval_;
  std::vector<uint64_t> indices_;  // of the whole batch, in order
  int64_t eval_first_ = 0;
  Batch microbatch_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_BATCH_SOURCE_H_
