// ckpt/plan/plan_hash.cc: the hashes by which ranks see that they planned the
// same save.

#include <string>

#include "ckpt/format/digest.h"
#include "ckpt/format/mix.h"
#include "ckpt/plan/save_plan.h"

namespace holdfast::ckpt {
namespace {

// Numbers and texts in a row, each text after its length, so that no two
// sequences read alike.
class Hasher {
 public:
  void Add(uint64_t value) { state_ = Mix64(state_ ^ value) + kGolden64; }
  void Add(const std::string& text) {
    Add(text.size());
    Add(DigestBytes(text).low);
  }
  void Add(const Box& box) {
    Add(static_cast<uint64_t>(box.dimensions));
    for (int d = 0; d < box.dimensions; ++d) {
      Add(static_cast<uint64_t>(box.first[d]));
      Add(static_cast<uint64_t>(box.count[d]));
    }
  }
  uint64_t Finish() const { return Mix64(state_); }

 private:
  uint64_t state_ = kGolden64;
};

}  // namespace

uint64_t HashSavePlan(const SavePlan& plan) {
  Hasher hasher;
  hasher.Add(plan.units.size());
  for (const WriteUnit& unit : plan.units) {
    hasher.Add(uint64_t{unit.region} << 32 | unit.bytes);
    hasher.Add(unit.region_offset);
    hasher.Add(unit.file_offset);
  }
  hasher.Add(plan.pieces.size());
  for (const DigestPiece& piece : plan.pieces) {
    hasher.Add(uint64_t{piece.unit} << 32 | piece.unit_offset);
    hasher.Add(piece.item);
    hasher.Add(piece.part);
    hasher.Add(piece.first);
    hasher.Add(piece.count);
  }
  hasher.Add(plan.chunks.size());
  for (const Chunk& chunk : plan.chunks) {
    hasher.Add(chunk.item);
    hasher.Add(chunk.part);
    hasher.Add(chunk.first);
    hasher.Add(chunk.count);
    hasher.Add(chunk.offset);
    hasher.Add(chunk.bytes_stored);
  }
  hasher.Add(plan.index_offset);
  hasher.Add(plan.file_bytes);
  hasher.Add(plan.data_bytes);
  return hasher.Finish();
}

uint64_t HashItems(const std::vector<ItemSpec>& items) {
  Hasher hasher;
  hasher.Add(items.size());
  for (const ItemSpec& item : items) {
    hasher.Add(item.name);
    hasher.Add(item.kind);
    hasher.Add(static_cast<uint64_t>(item.dtype));
    hasher.Add(WholeBox(item.shape));
  }
  return hasher.Finish();
}

}  // namespace holdfast::ckpt
