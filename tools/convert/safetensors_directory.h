// tools/convert/safetensors_directory.h: the tensors of model.safetensors, or
// of the files that model.safetensors.index.json names, read in parts.

#ifndef HOLDFAST_TOOLS_CONVERT_SAFETENSORS_DIRECTORY_H_
#define HOLDFAST_TOOLS_CONVERT_SAFETENSORS_DIRECTORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/convert/foreign_files.h"
#include "tools/convert/foreign_tensors.h"

namespace holdfast::tools {

inline constexpr char kSafetensorsFile[] = "model.safetensors";
inline constexpr char kSafetensorsIndex[] = "model.safetensors.index.json";

// Opens every file and reads its header. kNotFound: there are none.
// kInvalidArgument: a header or the index is malformed; the index and the files
// disagree about a tensor; a tensor is of a type that we have not (8-bit
// floats, booleans); there is both a single file and an index; or reading a
// header would take more than `memory_max` bytes.
absl::StatusOr<std::shared_ptr<ForeignTensors>> OpenSafetensorsDirectory(
    const ForeignDirectory& directory, uint64_t memory_max);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_SAFETENSORS_DIRECTORY_H_
