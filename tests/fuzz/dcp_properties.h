// tests/fuzz/dcp_properties.h: what must hold of any bytes that are offered as
// a .metadata or as an entry of torch.save. For the fuzz target and for
// ordinary tests.
//
// The first byte chooses: 'm' the rest is a .metadata, 't' an entry that should
// be a tensor, anything else an entry of any value.

#ifndef HOLDFAST_TESTS_FUZZ_DCP_PROPERTIES_H_
#define HOLDFAST_TESTS_FUZZ_DCP_PROPERTIES_H_

#include <cstdlib>
#include <string_view>

#include "tools/convert/dcp/dcp_metadata.h"
#include "tools/convert/dcp/torch_tensor.h"

namespace holdfast::tools {

inline void Require(bool holds) {
  if (!holds) std::abort();
}

// Visits what a caller may look at, in order; cycles end with the depth.
inline void WalkPickle(const Pickle& pickle, Pickle::Node node, int depth,
                       int* budget) {
  Require(node < pickle.nodes());
  if (depth == 0 || --*budget < 0) return;
  // Looks at the last byte of a text: the sanitizer knows when it is not there.
  if (!pickle.text(node).empty()) {
    volatile char last = pickle.text(node).back();
    static_cast<void>(last);
  }
  for (const Pickle::Node child : pickle.children(node)) {
    WalkPickle(pickle, child, depth - 1, budget);
  }
  if (pickle.kind(node) != PickleKind::kObject) return;
  WalkPickle(pickle, pickle.callee(node), depth - 1, budget);
  Require(pickle.kind(pickle.arguments(node)) == PickleKind::kTuple);
  WalkPickle(pickle, pickle.arguments(node), depth - 1, budget);
  if (pickle.state(node).has_value()) {
    WalkPickle(pickle, *pickle.state(node), depth - 1, budget);
  }
}

// 1 when the bytes were accepted, 0 when they were refused.
inline int CheckMetadata(std::string_view bytes) {
  PickleLimits limits;
  limits.nodes_max = 1 << 20;
  const auto metadata = DecodeDcpMetadata(bytes, limits);
  if (!metadata.ok()) return 0;
  for (const DcpTensor& tensor : metadata->tensors) {
    __int128 held = 0;
    for (const DcpChunk& chunk : tensor.chunks) {
      Require(chunk.first.size() == tensor.shape.size());
      Require(chunk.place.file < metadata->files.size());
      held += chunk.elements();
    }
    Require(held == tensor.elements());
  }
  for (const DcpBlob& blob : metadata->blobs) {
    Require(blob.place.file < metadata->files.size());
  }
  return 1;
}

inline int CheckTensor(std::string_view bytes) {
  MemorySource source(bytes, "entry");
  const auto tensor = ReadTorchTensor(&source, 0, bytes.size());
  if (!tensor.ok()) return 0;
  Require(tensor->data + tensor->record.size <= bytes.size());
  __int128 last = tensor->first;
  for (size_t i = 0; i < tensor->shape.size(); ++i) {
    Require(tensor->shape[i] >= 0 && tensor->strides[i] >= 0);
    if (tensor->shape[i] == 0) return 1;
    last += static_cast<__int128>(tensor->shape[i] - 1) * tensor->strides[i];
  }
  Require((last + 1) * tensor->type.bytes <=
          static_cast<__int128>(tensor->record.size));
  return 1;
}

inline int CheckValue(std::string_view bytes) {
  MemorySource source(bytes, "entry");
  const auto value = ReadTorchValue(&source, 0, bytes.size());
  if (!value.ok()) return 0;
  int budget = 100000;
  WalkPickle(value->pickle, value->pickle.root(), 50, &budget);
  return 1;
}

inline int CheckDcpBytes(std::string_view bytes) {
  if (bytes.empty()) return 0;
  const std::string_view rest = bytes.substr(1);
  switch (bytes[0]) {
    case 'm':
      return CheckMetadata(rest);
    case 't':
      return CheckTensor(rest);
    default:
      return CheckValue(rest);
  }
}

}  // namespace holdfast::tools

#endif  // HOLDFAST_TESTS_FUZZ_DCP_PROPERTIES_H_
