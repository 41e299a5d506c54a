// tests/bench/support/random_source.h: microbatches for benchmarks of a step.

#ifndef HOLDFAST_TESTS_BENCH_SUPPORT_RANDOM_SOURCE_H_
#define HOLDFAST_TESTS_BENCH_SUPPORT_RANDOM_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/base/philox.h"
#include "trainer/model/model_config.h"
#include "trainer/step.h"

namespace holdfast::trainer {

// The same random tokens each time; all of them count.
class RandomSource : public MicrobatchSource {
 public:
  RandomSource(const ModelConfig& model, int64_t micro_seqs)
      : tokens_(static_cast<size_t>(micro_seqs * model.seq_len)),
        mask_(tokens_.size(), 1) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<int32_t>(ckpt::Philox64(1, 1, i) %
                                        static_cast<uint64_t>(model.vocab));
    }
  }
  absl::StatusOr<Microbatch> Get(int64_t) override {
    return Microbatch{tokens_, tokens_, mask_};
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> mask_;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TESTS_BENCH_SUPPORT_RANDOM_SOURCE_H_
