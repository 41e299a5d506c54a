// tools/convert/dcp_tensors.h: the tensors of a DCP checkpoint
// (tools/convert/dcp) as something that states are mapped from, and the account
// of its keys: every key is used, known and left out, or named by the user;
// any other stops the import.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_TENSORS_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_TENSORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/convert/dcp/dcp_directory.h"
#include "tools/convert/foreign_tensors.h"
#include "tools/convert/formats.h"

namespace holdfast::tools {

// The directory that is to be imported, within request.memory_max; what it goes
// on taking is added to `*memory_bytes`. Errors as of DcpDirectory::Open.
absl::StatusOr<std::shared_ptr<DcpDirectory>> OpenDcpDirectory(
    const ImportRequest& request, uint64_t* memory_bytes);

// How many leading dimensions of a tensor count as one row: 2 makes [layers,
// rows, columns] one tensor of layers x rows rows. 1: as it is.
using RowsOfKey = std::function<int(const DcpTensor&)>;

// The tensors of `directory` that have a type of ours and at most four
// dimensions. With `as_bytes` those of other types too, as uint8 with the last
// dimension times the bytes of an element, and values that are no tensors as
// the bytes of their archives.
std::shared_ptr<ForeignTensors> MakeDcpTensors(
    std::shared_ptr<DcpDirectory> directory, const RowsOfKey& rows_of,
    bool as_bytes = false);

class DcpKeys {
 public:
  explicit DcpKeys(std::shared_ptr<DcpDirectory> directory);

  bool Has(const std::string& key) const { return state_.contains(key); }
  // There, and not given up by the user.
  bool Offers(const std::string& key) const {
    const auto at = state_.find(key);
    return at != state_.end() && at->second != State::kIgnored;
  }
  // Marks `key` as brought along; false when there is none.
  bool Use(const std::string& key);
  // Marks keys that begin with `prefix` as known and left out; how many.
  int64_t Leave(std::string_view prefix);
  // Calls `each` for every key that is still open.
  std::vector<std::string> Open() const;
  // Keys that the user gives up: exact, or a beginning that ends with '*'.
  // kInvalidArgument: one that matches nothing, a typing error most likely.
  absl::Status Ignore(const std::vector<std::string>& patterns);
  // kInvalidArgument lists the keys that are neither used nor left out nor
  // ignored, and how to ignore them.
  absl::Status CheckAllMapped(std::string_view what) const;

 private:
  enum class State { kOpen, kUsed, kLeft, kIgnored };
  std::map<std::string, State> state_;
  std::string path_;
};

// A number that is stored as a value or as a tensor of one element; nothing
// when there is none of that name. kInvalidArgument: it is something else.
absl::StatusOr<std::optional<double>> ReadDcpNumber(DcpDirectory& directory,
                                                    std::string_view key);

// Says in `notes` when torch wrote no checksums.
absl::Status NoteChecksums(DcpDirectory& directory,
                           std::vector<std::string>* notes);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_TENSORS_H_
