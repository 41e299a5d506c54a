// ckpt/layout/train_layout.h: which blocks of which tensors a rank of a
// TP x PP x DP training job holds, owns, stores and wants. Pure functions of
// (tensors, mesh, stages, sharding); every rank can ask for any rank.
//
// Memory of one rank. Its tensors follow each other in the order of the tensor
// table. Each tensor's local part is row-major, starts on a block and is cut
// into blocks of kBlockElements; the last block of a tensor may be partly empty
// (zero). Block numbers run through the whole rank, 0 to block_count - 1. All
// ranks of one (tp, pp) cell, its DP members, agree on them.
//
//   tensor    | embed (2.5 blocks) | q_proj (1 block) | norm (0.1) |
//   blocks    |   0   |   1   |  2 |        3         |     4      |
//   DP = 2    |  owner 0           |  owner 1                      |
//
// DP member d owns blocks [floor(d B / DP), floor((d+1) B / DP)): it keeps
// their master and moments, updates them, and stores them and their weight.
// Blocks of a tensor that TP does not cut are updated by the owners of every TP
// rank, alike to the bit, and stored by TP rank 0. A tied tensor's blocks are
// owned in its first stage; the last stage holds a copy of the weight.

#ifndef HOLDFAST_CKPT_LAYOUT_TRAIN_LAYOUT_H_
#define HOLDFAST_CKPT_LAYOUT_TRAIN_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/layout/holding.h"
#include "ckpt/layout/mesh.h"
#include "ckpt/layout/tensor.h"

namespace holdfast::ckpt {

inline constexpr int64_t kBlockElements = 2048;

// A run of consecutive global layers, on one stage. A stage has a list of them:
// one for the plain schedule, several when interleaved.
struct LayerChunk {
  int first = 0;
  int count = 0;
  friend bool operator==(const LayerChunk&, const LayerChunk&) = default;
};
using StageChunks = std::vector<LayerChunk>;

enum class Sharding { kOptimizer, kFull, kHybrid };

struct TrainLayoutOptions {
  Mesh mesh{};
  std::vector<StageChunks>
      stages;  // mesh.pp entries that cover every layer once
  Sharding sharding = Sharding::kOptimizer;
  int hybrid_group = 1;  // kHybrid: ranks over which the state is cut
  DType weight_dtype = DType::kBf16;
};

// One tensor in one rank's memory.
struct LocalTensor {
  int tensor = 0;        // index into the tensor table
  Box part;              // the rank's part, logical coordinates, no pads
  int64_t elements = 0;  // of `part`; may be 0 (a TP rank with pads only)
  int64_t elements_padded = 0;  // with this rank's vocabulary pad rows
  int64_t first_block = 0;
  int64_t block_count = 0;   // ceil(elements_padded / kBlockElements)
  bool stored_here = true;   // by this (tp, pp) cell
  bool updated_here = true;  // false: a tied copy, refreshed by the first stage
};

struct BlockRange {
  int64_t first = 0;
  int64_t count = 0;
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

// The four regions of a rank's memory, as `Holding` numbers them: the weight of
// ALL its blocks, and master and moments of the blocks it owns.
enum TrainRegion : uint32_t {
  kWeightRegion = 0,
  kMasterRegion = 1,
  kExpAvgRegion = 2,
  kExpAvgSqRegion = 3,
};

class TrainLayout final : public JobLayout {
 public:
  // kInvalidArgument names the numbers that do not fit: a dimension that TP
  // does not divide, layers that stages do not cover exactly once, a stage list
  // of the wrong length; and by name what is not built (cp, ep > 1, several
  // chunks a stage for training is fine here, full and hybrid sharding are
  // planned only).
  static absl::StatusOr<std::unique_ptr<TrainLayout>> Create(
      std::vector<TensorSpec> tensors, const TrainLayoutOptions& options);

  int world() const override;
  const std::vector<ItemSpec>& items() const override;
  Holding StoredBy(Rank rank) const override;
  Holding WantedBy(Rank rank) const override;
  std::string description() const override;

  const Mesh& mesh() const;
  const TrainLayoutOptions& options() const;
  const std::vector<TensorSpec>& tensors() const;

  // The tensors of every rank of the cell (tp, pp), in memory order.
  const std::vector<LocalTensor>& TensorsOf(int tp, int pp) const;
  int64_t BlockCount(int tp, int pp) const;
  // Blocks [0, n) are updated here; tied copies come last and are not.
  int64_t UpdatedBlockCount(int tp, int pp) const;
  BlockRange OwnedBlocks(int tp, int pp, int dp) const;

  ~TrainLayout() override;

 private:
  struct Data;
  explicit TrainLayout(std::unique_ptr<Data> data);
  std::unique_ptr<Data> data_;
};

// Stages for `layers` over `pp`: as even as layers allow when the embedding
// counts as `embedding_layers` and the head as `head_layers` of work.
// kInvalidArgument with fewer layers than stages.
absl::StatusOr<std::vector<StageChunks>> EvenStages(int layers, int pp,
                                                    double embedding_layers,
                                                    double head_layers);
// `layers_per_stage` as users write it: [13, 14, 14, 13].
absl::StatusOr<std::vector<StageChunks>> StagesFromCounts(
    int layers, const std::vector<int>& layers_per_stage);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_LAYOUT_TRAIN_LAYOUT_H_
