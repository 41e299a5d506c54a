// tools/convert/mapped_source.h: a state whose items are made of other people's
// tensors, by declaration.
//
//   {item q_proj f32[8, 64], rows {{wq, 0, 2, 2}, {wq, 1, 2, 2}, ...}}
//
//     item row     0  1  2  3      every second row of a head of wq, from its
//     row of wq    0  2  1  3      first and from its second: rotary pairs that
//                                  lie side by side, put half a head apart
//
// A row is all that follows the first dimension; of a tensor of one dimension
// it is an element. Rows of fused tensors (q, k, v by query group; gate and up)
// are runs with an offset. Elements are cast to the item's type on the way
// (cast.h).

#ifndef HOLDFAST_TOOLS_CONVERT_MAPPED_SOURCE_H_
#define HOLDFAST_TOOLS_CONVERT_MAPPED_SOURCE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckpt/convert/state_source.h"
#include "tools/convert/foreign_tensors.h"

namespace holdfast::tools {

// Rows first, first + stride, ... of a foreign tensor, `count` of them.
struct RowRun {
  int tensor = 0;  // index into ForeignTensors::tensors()
  int64_t first = 0;
  int64_t count = 0;
  int64_t stride = 1;
};

struct MappedItem {
  ckpt::ItemSpec item;
  // One after the other they are the item's rows. None: the item is zero.
  std::vector<RowRun> rows;
};

// Whether two tensors are the same, in type, shape and bytes: files of tied
// models may repeat the embedding as a head. Reads both up to a difference.
absl::StatusOr<bool> SameBytes(ForeignTensors& tensors, int a, int b);

// All rows of a tensor.
std::vector<RowRun> WholeTensor(const ForeignTensors& from, int tensor);
// Rows [first, first + heads * head_dim) of a tensor whose heads have rotary
// pairs side by side (0 1 | 2 3 | ...), as heads that have them half a head
// apart (0 2 4 ... 1 3 5 ...), which is our order.
std::vector<RowRun> RotaryPairsApart(int tensor, int64_t first, int64_t heads,
                                     int64_t head_dim);

// `items` in any order; attributes as in a manifest.
//
// kInvalidArgument, naming item and tensor: rows that are not there, are not as
// many as the item's or as long as its, a type that cannot be cast to the
// item's.
//
// Threads: `readers` of them may be in Fill at the same time.
// Memory: 256 KiB each.
absl::StatusOr<std::unique_ptr<ckpt::StateSource>> MakeMappedSource(
    std::shared_ptr<ForeignTensors> from, std::vector<MappedItem> items,
    std::map<std::string, std::string> attributes, int readers = 1);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_MAPPED_SOURCE_H_
