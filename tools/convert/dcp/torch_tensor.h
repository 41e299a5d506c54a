// tools/convert/dcp/torch_tensor.h: what torch.save wrote, one tensor or a
// plain value, without torch.
//
// A torch.save of a tensor is a zip archive whose data.pkl calls
// torch._utils._rebuild_tensor_v2 with a persistent id ("storage", a storage
// class, the name of a record, a device, elements), an offset, a shape and
// strides (torch/serialization.py, torch/_tensor.py of torch 2.15). Types that
// have no storage class come as _rebuild_tensor_v3, with UntypedStorage, bytes
// instead of elements, and the type as a further argument.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_TORCH_TENSOR_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_TORCH_TENSOR_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/layout/tensor.h"
#include "tools/convert/dcp/pickle.h"
#include "tools/convert/dcp/zip_archive.h"

namespace holdfast::tools {

// A torch.dtype. Not every one has a DType of ours.
struct TorchType {
  std::string name;  // "float32"
  int bytes = 0;     // of an element
  std::optional<ckpt::DType> dtype;
  friend bool operator==(const TorchType&, const TorchType&) = default;
};

// `name` with or without "torch." before it.
std::optional<TorchType> FindTorchType(std::string_view name);

// A tensor whose elements lie in one stored record.
struct TorchTensor {
  TorchType type;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements
  int64_t first = 0;             // element of the record that is [0, ...]
  ZipRecord record;
  uint64_t data = 0;  // where in the source the record begins

  // True when elements follow each other in row-major order.
  bool IsRowMajor() const;
};

// kInvalidArgument, kDataLoss: not a tensor, big-endian, sparse or quantized,
// or elements outside the record.
absl::StatusOr<TorchTensor> ReadTorchTensor(ByteSource* source, uint64_t offset,
                                            uint64_t length);

// A plain value inside an archive that torch.save made of it: its pickle, whose
// strings point into `bytes`.
struct TorchValue {
  std::unique_ptr<std::string> bytes;
  Pickle pickle;
  // Records of at most eight bytes, by name: scalar tensors inside the value.
  std::map<std::string, std::string> scalars;

  // A Python number, or a tensor of one element; nothing for anything else.
  std::optional<double> Number(Pickle::Node node) const;
};
// Any name may be imported by it; none is run. At most `bytes_max` of pickle.
absl::StatusOr<TorchValue> ReadTorchValue(ByteSource* source, uint64_t offset,
                                          uint64_t length,
                                          uint64_t bytes_max = uint64_t{64}
                                                               << 20);

// The integers of a tuple, list or torch.Size; at most 16. Nothing when the
// value is something else.
std::optional<std::vector<int64_t>> IntegersOf(const Pickle& pickle,
                                               Pickle::Node node);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_TORCH_TENSOR_H_
