// ckpt/examples/mpi_save_load.cc: a job in C++ that saves its own tensors and
// comes back on any number of ranks, without the trainer.
//
//   mpirun -n RANKS mpi_save_load RUN [rows|columns]
//
// The state is a matrix, cut over the ranks by rows or by columns, and a vector
// that all ranks hold and rank 0 stores. A run without a checkpoint starts at
// step 0. Each start makes two steps: it saves the first one while it computes
// the second. Loaded bits are compared with what that step must have left.

#include <mpi.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/checkpointer.h"
#include "ckpt/group/mpi_group.h"
#include "ckpt/layout/holding.h"

namespace {

using namespace holdfast::ckpt;

constexpr int64_t kRows = 900;
constexpr int64_t kColumns = 601;
constexpr int64_t kLength = 100;
enum ItemNumber : ItemIndex { kMatrix, kVector };  // sorted by (name, kind)

// Which rank holds what, as a pure function: every rank can work out every
// other's part.
class ExampleLayout final : public JobLayout {
 public:
  ExampleLayout(int ranks, bool by_rows)
      : ranks_(ranks),
        by_rows_(by_rows),
        items_{{"matrix", "weight", DType::kF32, {kRows, kColumns}},
               {"vector", "weight", DType::kF32, {kLength}}} {}

  int world() const override { return ranks_; }
  const std::vector<ItemSpec>& items() const override { return items_; }

  // Replicas are stored once.
  Holding StoredBy(Rank rank) const override {
    Holding holding = WantedBy(rank);
    if (rank != Rank{0}) holding.fragments.pop_back();
    return holding;
  }

  // One region for the matrix, one for the vector.
  Holding WantedBy(Rank rank) const override {
    const Box matrix = PartOf(rank);
    const Box vector = WholeBox(items_[kVector].shape);
    Holding holding;
    for (const auto& [item, part] :
         {std::pair(kMatrix, matrix), std::pair(kVector, vector)}) {
      holding.fragments.push_back(
          {.item = item,
           .part = part,
           .first = 0,
           .count = part.elements(),
           .region = static_cast<uint32_t>(holding.region_bytes.size()),
           .offset = 0});
      holding.region_bytes.push_back(
          RoundUp(part.elements() * sizeof(float), AlignedBuffer::kAlignment));
    }
    return holding;
  }

  std::string description() const override {
    return (by_rows_ ? "rows" : "columns") + std::to_string(ranks_);
  }

  Box PartOf(Rank rank) const {
    Box part = WholeBox(items_[kMatrix].shape);
    const int d = by_rows_ ? 0 : 1;
    const int64_t length = part.count[d];
    part.first[d] = length * Index(rank) / ranks_;
    part.count[d] = length * (Index(rank) + 1) / ranks_ - part.first[d];
    return part;
  }

 private:
  const int ranks_;
  const bool by_rows_;
  const std::vector<ItemSpec> items_;
};

float MatrixAt(int64_t row, int64_t column, int64_t step) {
  return static_cast<float>(row * kColumns + column) + step / 8.0f;
}

// This rank's part of the state.
class State {
 public:
  State(const ExampleLayout& layout, Rank rank) : part_(layout.PartOf(rank)) {
    for (const uint64_t bytes : layout.WantedBy(rank).region_bytes) {
      memory_.emplace_back(bytes);
    }
  }

  std::vector<std::span<std::byte>> regions() {
    return {memory_[kMatrix].span(), memory_[kVector].span()};
  }

  // The optimizer of a real job would be here.
  void Compute(int64_t step, Checkpointer* checkpointer) {
    for (uint32_t region = 0; region < memory_.size(); ++region) {
      // A save may be reading these bytes.
      checkpointer->FenceWrite(region, 0, memory_[region].size());
      ForEach(region, step, [](float* at, float value) { *at = value; });
    }
  }

  bool IsStateOf(int64_t step) {
    bool same = true;
    for (uint32_t region = 0; region < memory_.size(); ++region) {
      ForEach(region, step, [&same](float* at, float value) {
        same &= std::memcmp(at, &value, sizeof(value)) == 0;
      });
    }
    return same;
  }

 private:
  template <typename Visit>
  void ForEach(uint32_t region, int64_t step, Visit visit) {
    float* at = reinterpret_cast<float*>(memory_[region].data());
    if (region == kVector) {
      for (int64_t i = 0; i < kLength; ++i) {
        visit(at++, static_cast<float>(step - i));
      }
      return;
    }
    for (int64_t r = 0; r < part_.count[0]; ++r) {
      for (int64_t c = 0; c < part_.count[1]; ++c) {
        visit(at++, MatrixAt(part_.first[0] + r, part_.first[1] + c, step));
      }
    }
  }

  const Box part_;
  std::vector<AlignedBuffer> memory_;
};

absl::Status Run(const std::string& run_dir, bool by_rows) {
  absl::StatusOr<std::unique_ptr<Group>> group = OpenMpiGroup();
  if (!group.ok()) return group.status();
  const Rank rank = (*group)->rank();
  const int ranks = (*group)->size();
  const auto layout = std::make_shared<ExampleLayout>(ranks, by_rows);
  State state(*layout, rank);

  CheckpointerOptions options;
  options.run_dir = run_dir;
  absl::StatusOr<std::unique_ptr<Checkpointer>> opened = Checkpointer::Open(
      options, *std::move(group), layout, state.regions(), RealClock());
  if (!opened.ok()) return opened.status();
  Checkpointer& checkpointer = **opened;

  const absl::StatusOr<LoadReport> loaded = checkpointer.ClaimAndLoad({});
  if (!loaded.ok()) return loaded.status();
  if (loaded->loaded) {
    if (!state.IsStateOf(loaded->step)) {
      return absl::DataLossError("other bits than that step left");
    }
    std::printf("rank %d of %d: loaded %s, saved on %s: the same bits\n",
                Index(rank), ranks, ToString(loaded->id).c_str(),
                loaded->layout_from.c_str());
  }

  const int64_t step = loaded->step + 1;
  state.Compute(step, &checkpointer);
  SaveRequest request;
  request.step = step;
  request.attributes = {{"made_by", "mpi_save_load.cc"}};
  absl::Status status = checkpointer.BeginSave(request);
  if (!status.ok()) return status;
  state.Compute(step + 1, &checkpointer);  // beside the save
  const std::optional<SaveReport> saved =
      checkpointer.WaitForSave(absl::InfiniteDuration());
  if (saved.has_value() && !saved->status.ok()) return saved->status;
  std::printf("rank %d of %d: saved %s: %.1f MB\n", Index(rank), ranks,
              ToString(saved->id).c_str(), saved->bytes / 1e6);
  return checkpointer.Close();
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  const std::string cut = argc > 2 ? argv[2] : "rows";
  if (argc < 2 || argc > 3 || (cut != "rows" && cut != "columns")) {
    std::fprintf(stderr, "usage: mpi_save_load RUN [rows|columns]\n");
    return 64;
  }
  const absl::Status status = Run(argv[1], cut == "rows");
  if (!status.ok()) {
    // The others may be waiting in MPI for this rank.
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
