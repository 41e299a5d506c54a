// ckpt/plan/file_plan.cc: see file_plan.h.

#include "ckpt/plan/file_plan.h"

#include <algorithm>
#include <numeric>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {

FileGroups FileGroups::OnePerRank(int world) {
  std::vector<int32_t> first(world + 1);
  std::iota(first.begin(), first.end(), 0);
  return FileGroups(std::move(first));
}

FileGroups FileGroups::Equal(int world, int files) {
  HF_CHECK(files >= 1 && files <= world, "%d files of %d ranks", files, world);
  std::vector<int32_t> first;
  for (int64_t file = 0; file <= files; ++file) {
    first.push_back(static_cast<int32_t>(file * world / files));
  }
  return FileGroups(std::move(first));
}

FileGroups FileGroups::OnePerHost(std::span<const std::string> hosts) {
  HF_CHECK(!hosts.empty(), "files of no ranks");
  std::vector<int32_t> first = {0};
  for (size_t rank = 1; rank < hosts.size(); ++rank) {
    if (hosts[rank] != hosts[rank - 1]) {
      first.push_back(static_cast<int32_t>(rank));
    }
  }
  first.push_back(static_cast<int32_t>(hosts.size()));
  return FileGroups(std::move(first));
}

uint32_t FileGroups::FileOf(Rank rank) const {
  HF_CHECK(Index(rank) >= 0 && Index(rank) < world(), "rank %d of %d",
           Index(rank), world());
  const auto after =
      std::upper_bound(first_.begin(), first_.end(), Index(rank));
  return static_cast<uint32_t>(after - first_.begin() - 1);
}

FilePart PartOf(const SavePlan& plan) {
  return {plan.index_offset - kShardBlockBytes,
          static_cast<uint32_t>(plan.units.size())};
}

uint64_t DataAreaBytes(const std::vector<ItemSpec>& items,
                       const Holding& stored) {
  uint64_t bytes = 0;
  for (const Fragment& fragment : stored.fragments) {
    bytes += RoundUp(static_cast<uint64_t>(fragment.count) *
                         SizeOf(items[fragment.item].dtype),
                     kShardBlockBytes);
  }
  return bytes;
}

uint64_t FileShape::Append(const FilePart& part) {
  const uint64_t begin = index_offset;
  index_offset += part.data_bytes;
  unit_count += part.unit_count;
  return begin;
}

void MovePlan(uint64_t begin, SavePlan* plan) {
  const uint64_t by = begin - kShardBlockBytes;
  for (WriteUnit& unit : plan->units) unit.file_offset += by;
  for (Chunk& chunk : plan->chunks) chunk.offset += by;
  plan->index_offset += by;
  plan->file_bytes += by;
}

}  // namespace holdfast::ckpt
