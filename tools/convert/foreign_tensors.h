// tools/convert/foreign_tensors.h: named tensors of somebody else's format, as
// something that can be read in parts.

#ifndef HOLDFAST_TOOLS_CONVERT_FOREIGN_TENSORS_H_
#define HOLDFAST_TOOLS_CONVERT_FOREIGN_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/layout/tensor.h"

namespace holdfast::tools {

struct ForeignTensor {
  std::string name;
  ckpt::DType dtype = ckpt::DType::kF32;
  std::vector<int64_t> shape;

  friend bool operator==(const ForeignTensor&, const ForeignTensor&) = default;
};

class ForeignTensors {
 public:
  virtual ~ForeignTensors() = default;

  // Sorted by name, each once. Sizes have been checked: those of one fit in 63
  // bits.
  virtual const std::vector<ForeignTensor>& tensors() const = 0;

  // Elements [first, first + count) of the row-major order of
  // tensors()[tensor], as they are stored, into `out`, which has exactly their
  // bytes. Any number of threads at once.
  virtual absl::Status Read(int tensor, int64_t first, int64_t count,
                            std::span<std::byte> out) = 0;

  // Names, sizes and times of the files, so that an interrupted conversion is
  // not continued from others.
  virtual std::string identity() const = 0;

  // So far. Any thread.
  virtual uint64_t bytes_read() const = 0;
};

// What a tensor takes beside its name (twice): its place, what it becomes and
// how, about.
inline constexpr uint64_t kTableBytes = 1024;
uint64_t TableBytes(const std::vector<ForeignTensor>& tensors);

// Index into tensors(), or -1.
int FindTensor(const std::vector<ForeignTensor>& tensors,
               std::string_view name);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_FOREIGN_TENSORS_H_
