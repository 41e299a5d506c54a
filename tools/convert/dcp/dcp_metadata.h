// tools/convert/dcp/dcp_metadata.h: the `.metadata` of a checkpoint of
// torch.distributed.checkpoint (DCP): which tensors it has, how they are cut
// into chunks, and where each chunk lies.
//
// It is a pickle of Metadata (torch/distributed/checkpoint/metadata.py), whose
// storage_data maps MetadataIndex to _StorageInfo (filesystem.py). Pure.
//
// Memory: 60 to 110 bytes a chunk, and while it is read some 900 (six times the
// file; 1.7 GB for 2 million chunks of matrices with names of 80 bytes), up to
// PickleLimits::memory_max.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_DCP_METADATA_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_DCP_METADATA_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "tools/convert/dcp/pickle.h"
#include "tools/convert/dcp/torch_tensor.h"

namespace holdfast::tools {

// Bytes [offset, offset + length) of a file of the directory.
struct DcpPlace {
  uint32_t file = 0;  // DcpMetadata::files
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Elements [first[i], first[i] + count[i]) of each dimension.
using DcpLengths = absl::InlinedVector<int64_t, 2>;
struct DcpChunk {
  DcpLengths first;
  DcpLengths count;
  DcpPlace place;
  int64_t elements() const;
};

struct DcpTensor {
  std::string name;  // "layers.0.attention.wq.weight"
  TorchType type;
  std::vector<int64_t> shape;
  std::vector<DcpChunk> chunks;  // sorted by `first`
  int64_t elements() const;
};

// A value that is no tensor: torch.save of it (BYTE_IO).
struct DcpBlob {
  std::string name;
  DcpPlace place;
};

struct DcpMetadata {
  std::vector<std::string> files;
  std::vector<DcpTensor> tensors;  // sorted by name
  std::vector<DcpBlob> blobs;      // sorted by name
  std::string version;             // "1.0.0", or empty
};

// Chunks of a tensor cover each of its elements exactly once, and no offset or
// product of lengths overflows. kInvalidArgument says which name, found and
// expected; also for a transformed (compressed, encrypted) entry.
absl::StatusOr<DcpMetadata> DecodeDcpMetadata(std::string_view bytes,
                                              const PickleLimits& limits = {});

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_DCP_METADATA_H_
