// ckpt/c/declared_layout.h: a JobLayout made of what each rank says it holds.
//
// Pure, and the same on every rank. Elements that several ranks hold as the
// same run of the same box are stored by the lowest of them; all others overlap
// with nothing, and together they are every item whole. That is checked here.
//
// Memory: about 150 bytes for each buffer of the job, on every rank.

#ifndef HOLDFAST_CKPT_C_DECLARED_LAYOUT_H_
#define HOLDFAST_CKPT_C_DECLARED_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/layout/holding.h"

namespace holdfast::ckpt {

// What one rank says. Fragments name `items` by index, in any order.
struct Declaration {
  absl::Status status;  // not OK: this rank cannot take part
  std::string layout;   // for people; rank 0's counts
  std::vector<ItemSpec> items;
  Holding holding;
};

std::vector<std::byte> Encode(const Declaration& declaration);
// kDataLoss: the bytes are no declaration, or of another version.
absl::StatusOr<Declaration> DecodeDeclaration(std::span<const std::byte> bytes);

// kInvalidArgument: what is wrong with the item, or with a run of a box of it.
absl::Status CheckDeclaredItem(const ItemSpec& item);
absl::Status CheckDeclaredRun(const ItemSpec& item, const Box& part,
                              int64_t first, int64_t count);

class DeclaredLayout final : public JobLayout {
 public:
  // `declarations`: one for each rank.
  //
  // The first rank's status that is not OK. kInvalidArgument: ranks differ
  // about an item; elements that nobody holds; boxes that overlap and are not
  // the same.
  static absl::StatusOr<std::shared_ptr<const DeclaredLayout>> Make(
      std::vector<Declaration> declarations);

  int world() const override { return static_cast<int>(wanted_.size()); }
  const std::vector<ItemSpec>& items() const override { return items_; }
  Holding StoredBy(Rank rank) const override;
  Holding WantedBy(Rank rank) const override;
  std::string description() const override { return description_; }

 private:
  DeclaredLayout() = default;
  absl::Status MergeItems(std::vector<Declaration>* declarations);
  absl::Status ChooseStored();

  std::vector<ItemSpec> items_;
  std::vector<Holding> wanted_;            // by rank
  std::vector<std::vector<bool>> stored_;  // by rank and fragment
  std::string description_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_C_DECLARED_LAYOUT_H_
