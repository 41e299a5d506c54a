// trainer/parallel/parallel_config.h: how one model is cut over ranks.
//
// A plain struct that trainer/config.h fills from the keys `parallel.*`. Fields
// of cuts that are not built are here so that layouts can be planned; a run
// that sets one is refused by name in CheckConfig.

#ifndef HOLDFAST_TRAINER_PARALLEL_PARALLEL_CONFIG_H_
#define HOLDFAST_TRAINER_PARALLEL_PARALLEL_CONFIG_H_

#include <cstdint>
#include <vector>

namespace holdfast::trainer {

// What is divided over the data-parallel axis besides the batch.
enum class Sharding { kOptimizer, kFull, kHybrid };
enum class Recompute { kNone, kSelective, kFull };

struct ParallelConfig {
  int64_t tp = 1;  // Ranks that share each layer.
  int64_t pp = 1;  // Stages.
  int64_t cp = 1;  // Ranks that share each sequence.
  int64_t ep = 1;  // Ranks that share the experts of a layer.
  int64_t dp = 0;  // 0: world / (tp x pp x cp). Otherwise asserts that.
  // Layers of each stage, pp of them; empty divides automatically.
  std::vector<int64_t> stages = {};
  int64_t chunks = 1;  // Runs of layers a stage (interleaved schedules).
  Sharding sharding = Sharding::kOptimizer;
  bool sequence_parallel = false;
  Recompute recompute = Recompute::kNone;

  friend bool operator==(const ParallelConfig&,
                         const ParallelConfig&) = default;
};

// What travels while something is computed. No bit depends on it.
struct OverlapConfig {
  bool grad_reduce = false;   // Gradients over DP during the last backward.
  bool param_gather = false;  // Weights over DP during the update and the next
                              // forward.
  int64_t bucket_kb =
      65'536;  // Gradients or weights of a rank that go at once.

  friend bool operator==(const OverlapConfig&, const OverlapConfig&) = default;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_PARALLEL_CONFIG_H_
