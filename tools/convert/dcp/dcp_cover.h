// tools/convert/dcp/dcp_cover.h: that the chunks of a tensor are its elements,
// each once. Pure.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_DCP_COVER_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_DCP_COVER_H_

#include "absl/status/status.h"
#include "tools/convert/dcp/dcp_metadata.h"

namespace holdfast::tools {

// `tensor.chunks` is sorted by `first`. kInvalidArgument: a chunk outside the
// tensor, two that overlap, elements that no chunk has, sizes beyond 2^56
// elements, more than 2^26 comparisons.
//
// Costs about n log n for n chunks that are cut along any one dimension.
absl::Status CheckCover(const DcpTensor& tensor);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_DCP_COVER_H_
