// ckpt/layout/box.cc: runs of a row-major box, cut into boxes.

#include "ckpt/layout/box.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {
namespace {

// Elements of one step of `dimension`: the product of the later counts.
int64_t Stride(const Box& box, int dimension) {
  int64_t stride = 1;
  for (int d = dimension + 1; d < box.dimensions; ++d) stride *= box.count[d];
  return stride;
}

// Appends elements [begin, end) of `box`'s order over dimensions `dimension`
// and later; the earlier ones are down to one coordinate.
void AppendRun(Box box, int dimension, int64_t begin, int64_t end,
               std::vector<Box>* out) {
  const int64_t base = box.first[dimension];
  const int64_t row = Stride(box, dimension);
  const auto narrow = [&](int64_t first, int64_t count) {
    Box part = box;
    part.first[dimension] = base + first;
    part.count[dimension] = count;
    return part;
  };
  int64_t first_row = begin / row;
  const int64_t head = begin % row;
  const int64_t last_row = end / row;  // the row that is cut, or one past
  const int64_t tail = end % row;
  if (head != 0) {
    const bool one_row = first_row == last_row;
    AppendRun(narrow(first_row, 1), dimension + 1, head, one_row ? tail : row,
              out);
    if (one_row) return;
    ++first_row;
  }
  if (last_row > first_row) {
    out->push_back(narrow(first_row, last_row - first_row));
  }
  if (tail != 0) AppendRun(narrow(last_row, 1), dimension + 1, 0, tail, out);
}

}  // namespace

int64_t Box::elements() const {
  int64_t product = 1;
  for (int d = 0; d < dimensions; ++d) product *= count[d];
  return product;
}

Box WholeBox(std::span<const int64_t> shape) {
  HF_CHECK(shape.size() <= kDimensionsMax, "a tensor of %d dimensions",
           shape.size());
  Box box;
  box.dimensions = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), box.count.begin());
  return box;
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  HF_CHECK(a.dimensions == b.dimensions, "boxes %s and %s", ToString(a),
           ToString(b));
  Box both;
  both.dimensions = a.dimensions;
  for (int d = 0; d < a.dimensions; ++d) {
    both.first[d] = std::max(a.first[d], b.first[d]);
    both.count[d] = std::min(a.first[d] + a.count[d], b.first[d] + b.count[d]) -
                    both.first[d];
    if (both.count[d] <= 0) return std::nullopt;
  }
  return both;
}

std::vector<Box> BoxesOfRun(const Box& part, int64_t first, int64_t count) {
  HF_CHECK(first >= 0 && count >= 0 && first <= part.elements() - count,
           "elements %d to %d of box %s", first, first + count, ToString(part));
  std::vector<Box> boxes;
  if (count == 0) return boxes;
  if (part.dimensions == 0) {
    boxes.push_back(part);
  } else {
    AppendRun(part, 0, first, first + count, &boxes);
  }
  return boxes;
}

std::string ToString(const Box& box) {
  std::string text = "[";
  for (int d = 0; d < box.dimensions; ++d) {
    absl::StrAppendFormat(&text, "%s%d:%d", d == 0 ? "" : ", ", box.first[d],
                          box.first[d] + box.count[d]);
  }
  return text + "]";
}

}  // namespace holdfast::ckpt
