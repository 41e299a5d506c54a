// ckpt/layout/train_layout.cc: tensors to cells, blocks to owners, blocks to
// fragments. Everything a cell needs is worked out in Create; a rank's holding
// then costs a binary search and its fragments.

#include "ckpt/layout/train_layout.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::ckpt {
namespace {

constexpr int kRegions = 4;
// By TrainRegion.
constexpr std::array<std::string_view, kRegions> kKinds = {
    "weight", "master", "exp_avg", "exp_avg_sq"};

// Elements of one item; keeps every byte count of a job far from overflow.
constexpr int64_t kItemElementsMax = int64_t{1} << 56;

int64_t CeilDivide(int64_t value, int64_t by) { return (value + by - 1) / by; }

struct Cell {
  std::vector<LocalTensor> tensors;
  int64_t block_count = 0;
  int64_t updated_block_count = 0;
};

absl::Status CheckMesh(const TrainLayoutOptions& options) {
  const Mesh& mesh = options.mesh;
  if (mesh.tp < 1 || mesh.cp < 1 || mesh.ep < 1 || mesh.pp < 1 || mesh.dp < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tp = %d, cp = %d, ep = %d, pp = %d, dp = %d: each must be at least 1",
        mesh.tp, mesh.cp, mesh.ep, mesh.pp, mesh.dp));
  }
  if (mesh.cp > 1 || mesh.ep > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cp = %d, ep = %d: context and expert parallelism are not built; both "
        "must be 1",
        mesh.cp, mesh.ep));
  }
  if (options.sharding != Sharding::kOptimizer) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "sharding '%s' is not built; it must be 'optimizer'",
        options.sharding == Sharding::kFull ? "full" : "hybrid"));
  }
  if (options.weight_dtype != DType::kBf16 &&
      options.weight_dtype != DType::kF16 &&
      options.weight_dtype != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrFormat("weights of dtype %s; they must be bf16, f16 or f32",
                        NameOf(options.weight_dtype)));
  }
  if (int64_t{1} * mesh.tp * mesh.pp > std::numeric_limits<int32_t>::max() ||
      int64_t{1} * mesh.tp * mesh.pp * mesh.dp >
          std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tp = %d, pp = %d, dp = %d make more ranks than %d", mesh.tp, mesh.pp,
        mesh.dp, std::numeric_limits<int32_t>::max()));
  }
  return absl::OkStatus();
}

// stage_of[layer] for layers [0, n).
absl::StatusOr<std::vector<int>> StageOfLayers(
    const TrainLayoutOptions& options, int layers) {
  if (static_cast<int>(options.stages.size()) != options.mesh.pp) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the list of stages has %d entries, pp is %d",
                        options.stages.size(), options.mesh.pp));
  }
  std::vector<int> stage_of(layers, -1);
  for (int stage = 0; stage < options.mesh.pp; ++stage) {
    for (const LayerChunk& chunk : options.stages[stage]) {
      if (chunk.first < 0 || chunk.count < 1 ||
          chunk.first > layers - chunk.count) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "stage %d has %d layers from layer %d on, the model has layers 0 "
            "to %d",
            stage, chunk.count, chunk.first, layers - 1));
      }
      for (int layer = chunk.first; layer < chunk.first + chunk.count;
           ++layer) {
        if (stage_of[layer] != -1) {
          return absl::InvalidArgumentError(
              absl::StrFormat("layer %d is on stage %d and on stage %d", layer,
                              stage_of[layer], stage));
        }
        stage_of[layer] = stage;
      }
    }
  }
  for (int layer = 0; layer < layers; ++layer) {
    if (stage_of[layer] == -1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("layer %d of %d is on no stage", layer, layers));
    }
  }
  return stage_of;
}

int64_t PaddedLength(const TensorSpec& tensor, int dimension) {
  return CeilDivide(tensor.shape[dimension], tensor.tp_pad_multiple) *
         tensor.tp_pad_multiple;
}

absl::Status CheckTensor(const TensorSpec& tensor, int tp) {
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensor '%s': %s", tensor.name, why));
  };
  const int dimensions = static_cast<int>(tensor.shape.size());
  if (dimensions > kDimensionsMax) {
    return wrong(absl::StrFormat("%d dimensions, at most %d are possible",
                                 dimensions, kDimensionsMax));
  }
  int64_t elements = 1;
  for (const int64_t length : tensor.shape) {
    if (length < 1 || length > kItemElementsMax / elements) {
      return wrong(
          absl::StrFormat("a dimension of %d elements; it must be from 1 up, "
                          "and the whole at most 2^56",
                          length));
    }
    elements *= length;
  }
  if (tensor.layer < kOnLastStage) {
    return wrong(absl::StrFormat("layer %d", tensor.layer));
  }
  if (tensor.tied_to_last_stage && tensor.layer != kOnFirstStage) {
    return wrong("tied to the last stage, but not on the first");
  }
  const int cut = tensor.tp_dimension;
  if (cut < -1 || cut >= dimensions) {
    return wrong(
        absl::StrFormat("cut over dimension %d of %d", cut, dimensions));
  }
  if (tensor.tp_pad_multiple < 1 ||
      tensor.tp_pad_multiple > kItemElementsMax / elements) {
    return wrong(
        absl::StrFormat("padded to a multiple of %d", tensor.tp_pad_multiple));
  }
  if (tensor.tp_pad_multiple > 1 && cut != 0) {
    return wrong(absl::StrFormat(
        "padded to a multiple of %d, which needs a cut over dimension 0 (pads "
        "sit at the end of a rank's memory)",
        tensor.tp_pad_multiple));
  }
  if (cut >= 0 && PaddedLength(tensor, cut) % tp != 0) {
    return wrong(absl::StrFormat(
        "dimension %d has %d elements%s, tp = %d does not divide them", cut,
        tensor.shape[cut],
        tensor.tp_pad_multiple > 1
            ? absl::StrFormat(", %d with pads", PaddedLength(tensor, cut))
            : "",
        tp));
  }
  return absl::OkStatus();
}

// The tensor on TP rank `at` of `tp`, without a place in memory yet.
LocalTensor PartOf(const TensorSpec& tensor, int index, int at, int tp) {
  LocalTensor local;
  local.tensor = index;
  local.part = WholeBox(tensor.shape);
  local.elements = local.elements_padded = local.part.elements();
  const int cut = tensor.tp_dimension;
  if (cut >= 0) {
    const int64_t length = tensor.shape[cut];
    const int64_t share = PaddedLength(tensor, cut) / tp;
    const int64_t row = local.elements / length;  // of the other dimensions
    local.part.first[cut] = std::min(at * share, length);
    local.part.count[cut] =
        std::min((at + 1) * share, length) - local.part.first[cut];
    local.elements = row * local.part.count[cut];
    local.elements_padded = row * share;
  }
  local.block_count = CeilDivide(local.elements_padded, kBlockElements);
  local.stored_here = cut >= 0 || at == 0;
  return local;
}

void Place(LocalTensor local, Cell* cell) {
  local.first_block = cell->block_count;
  cell->block_count += local.block_count;
  if (local.updated_here) cell->updated_block_count = cell->block_count;
  cell->tensors.push_back(std::move(local));
}

}  // namespace

struct TrainLayout::Data {
  TrainLayoutOptions options;
  std::vector<TensorSpec> tensors;
  std::vector<ItemSpec> items;
  // By tensor, then by region.
  std::vector<std::array<ItemIndex, kRegions>> item_of;
  std::vector<Cell> cells;  // tp + TP * pp

  const Cell& CellAt(int tp, int pp) const {
    const Mesh& mesh = options.mesh;
    HF_CHECK(tp >= 0 && tp < mesh.tp && pp >= 0 && pp < mesh.pp,
             "cell tp %d, pp %d of mesh %s", tp, pp, ToString(mesh));
    return cells[tp + mesh.tp * pp];
  }

  BlockRange Owned(const Cell& cell, int dp) const {
    HF_CHECK(dp >= 0 && dp < options.mesh.dp, "dp %d of mesh %s", dp,
             ToString(options.mesh));
    const int64_t blocks = cell.updated_block_count;
    const int64_t first = dp * blocks / options.mesh.dp;
    return {first, (dp + 1) * blocks / options.mesh.dp - first};
  }

  int64_t BlockBytes(int region) const {
    return kBlockElements *
           SizeOf(region == kWeightRegion ? options.weight_dtype : DType::kF32);
  }

  void BuildItems();
  Holding HoldingOf(Rank rank, bool stored_only) const;
};

void TrainLayout::Data::BuildItems() {
  struct Place {
    int tensor;
    int region;
  };
  std::vector<Place> places;
  places.reserve(tensors.size() * kRegions);
  for (int t = 0; t < static_cast<int>(tensors.size()); ++t) {
    for (int region = 0; region < kRegions; ++region) {
      places.push_back({t, region});
    }
  }
  std::sort(places.begin(), places.end(), [&](const Place& a, const Place& b) {
    if (a.tensor != b.tensor)
      return tensors[a.tensor].name < tensors[b.tensor].name;
    return kKinds[a.region] < kKinds[b.region];
  });
  item_of.resize(tensors.size());
  items.reserve(places.size());
  for (const Place& place : places) {
    item_of[place.tensor][place.region] = static_cast<ItemIndex>(items.size());
    items.push_back({.name = tensors[place.tensor].name,
                     .kind = std::string(kKinds[place.region]),
                     .dtype = place.region == kWeightRegion
                                  ? options.weight_dtype
                                  : DType::kF32,
                     .shape = tensors[place.tensor].shape});
  }
}

Holding TrainLayout::Data::HoldingOf(Rank rank, bool stored_only) const {
  const Coordinates at = CoordinatesOf(options.mesh, rank);
  const Cell& cell = CellAt(at.tp, at.pp);
  const BlockRange owned = Owned(cell, at.dp);
  const int64_t owned_end = owned.first + owned.count;

  Holding holding;
  holding.region_bytes = {
      static_cast<uint64_t>(cell.block_count * BlockBytes(kWeightRegion))};
  for (int region = kMasterRegion; region < kRegions; ++region) {
    holding.region_bytes.push_back(owned.count * BlockBytes(region));
  }

  // The first tensor that reaches into the owned blocks.
  const auto begin = std::partition_point(
      cell.tensors.begin(), cell.tensors.end(), [&](const LocalTensor& t) {
        return t.first_block + t.block_count <= owned.first;
      });
  for (int region = 0; region < kRegions; ++region) {
    // The weight region holds every block, the others only the owned ones.
    const int64_t region_first = region == kWeightRegion ? 0 : owned.first;
    for (auto t = begin; t != cell.tensors.end() && t->first_block < owned_end;
         ++t) {
      if (!t->updated_here || (stored_only && !t->stored_here)) continue;
      const int64_t block = std::max(owned.first, t->first_block);
      const int64_t block_end =
          std::min(owned_end, t->first_block + t->block_count);
      const int64_t first = (block - t->first_block) * kBlockElements;
      const int64_t end =
          std::min((block_end - t->first_block) * kBlockElements, t->elements);
      if (first >= end) continue;  // Pads only.
      holding.fragments.push_back(
          {.item = item_of[t->tensor][region],
           .part = t->part,
           .first = first,
           .count = end - first,
           .region = static_cast<uint32_t>(region),
           .offset = static_cast<uint64_t>((block - region_first) *
                                           BlockBytes(region))});
    }
  }
  return holding;
}

absl::StatusOr<std::unique_ptr<TrainLayout>> TrainLayout::Create(
    std::vector<TensorSpec> tensors, const TrainLayoutOptions& options) {
  HF_RETURN_IF_ERROR(CheckMesh(options));
  const Mesh& mesh = options.mesh;
  int layers = 0;
  std::set<std::string_view> names;
  for (const TensorSpec& tensor : tensors) {
    HF_RETURN_IF_ERROR(CheckTensor(tensor, mesh.tp));
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor '%s' is in the table twice", tensor.name));
    }
    layers = std::max(layers, tensor.layer + 1);
  }
  HF_ASSIGN_OR_RETURN(const std::vector<int> stage_of,
                      StageOfLayers(options, layers));

  auto data = std::make_unique<Data>();
  data->options = options;
  data->tensors = std::move(tensors);
  data->BuildItems();
  data->cells.resize(size_t{1} * mesh.tp * mesh.pp);
  for (int pp = 0; pp < mesh.pp; ++pp) {
    for (int tp = 0; tp < mesh.tp; ++tp) {
      Cell& cell = data->cells[tp + mesh.tp * pp];
      std::vector<LocalTensor> copies;
      for (int t = 0; t < static_cast<int>(data->tensors.size()); ++t) {
        const TensorSpec& tensor = data->tensors[t];
        const int stage = tensor.layer == kOnFirstStage ? 0
                          : tensor.layer == kOnLastStage
                              ? mesh.pp - 1
                              : stage_of[tensor.layer];
        if (stage == pp) Place(PartOf(tensor, t, tp, mesh.tp), &cell);
        if (tensor.tied_to_last_stage && pp == mesh.pp - 1 && pp != 0) {
          LocalTensor copy = PartOf(tensor, t, tp, mesh.tp);
          copy.stored_here = copy.updated_here = false;
          copies.push_back(std::move(copy));
        }
      }
      for (LocalTensor& copy : copies) Place(std::move(copy), &cell);
    }
  }
  return std::unique_ptr<TrainLayout>(new TrainLayout(std::move(data)));
}

TrainLayout::TrainLayout(std::unique_ptr<Data> data) : data_(std::move(data)) {}
TrainLayout::~TrainLayout() = default;

int TrainLayout::world() const { return data_->options.mesh.world(); }

const std::vector<ItemSpec>& TrainLayout::items() const { return data_->items; }

Holding TrainLayout::StoredBy(Rank rank) const {
  return data_->HoldingOf(rank, /*stored_only=*/true);
}

Holding TrainLayout::WantedBy(Rank rank) const {
  return data_->HoldingOf(rank, /*stored_only=*/false);
}

std::string TrainLayout::description() const {
  return ToString(data_->options.mesh);
}

const Mesh& TrainLayout::mesh() const { return data_->options.mesh; }

const TrainLayoutOptions& TrainLayout::options() const {
  return data_->options;
}

const std::vector<TensorSpec>& TrainLayout::tensors() const {
  return data_->tensors;
}

const std::vector<LocalTensor>& TrainLayout::TensorsOf(int tp, int pp) const {
  return data_->CellAt(tp, pp).tensors;
}

int64_t TrainLayout::BlockCount(int tp, int pp) const {
  return data_->CellAt(tp, pp).block_count;
}

int64_t TrainLayout::UpdatedBlockCount(int tp, int pp) const {
  return data_->CellAt(tp, pp).updated_block_count;
}

BlockRange TrainLayout::OwnedBlocks(int tp, int pp, int dp) const {
  return data_->Owned(data_->CellAt(tp, pp), dp);
}

}  // namespace holdfast::ckpt
