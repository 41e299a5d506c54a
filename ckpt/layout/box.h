// ckpt/layout/box.h: boxes of logical tensors, and how a contiguous run of a
// row-major box is cut into boxes. Pure.
//
//   a 4 x 6 box, elements 3 to 16 of its row-major order:
//
//     . . . a a a        box a: row 0,      columns 3-5
//     b b b b b b        box b: rows 1,     columns 0-5
//     c c c c c .        box c: row 2,      columns 0-4
//     . . . . . .
//
// A run of a d-dimensional box is at most 2d - 1 boxes.

#ifndef HOLDFAST_CKPT_LAYOUT_BOX_H_
#define HOLDFAST_CKPT_LAYOUT_BOX_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace holdfast::ckpt {

inline constexpr int kDimensionsMax = 4;

// The elements whose coordinate in dimension i lies in
// [first[i], first[i] + count[i]). A scalar has no dimension and one element.
// Unused entries of the arrays are zero, so that == means the same box.
struct Box {
  int dimensions = 0;
  std::array<int64_t, kDimensionsMax> first{};
  std::array<int64_t, kDimensionsMax> count{};

  int64_t elements() const;
  friend bool operator==(const Box&, const Box&) = default;
};

// The whole of a tensor of `shape`; at most kDimensionsMax dimensions (CHECK).
Box WholeBox(std::span<const int64_t> shape);

std::optional<Box> Intersect(const Box& a, const Box& b);

// Elements [first, first + count) of the row-major order of `part`, as boxes in
// logical coordinates, in that order; each box's own row-major order is its
// order in the run. `first + count <= part.elements()`.
std::vector<Box> BoxesOfRun(const Box& part, int64_t first, int64_t count);

// "[0:4, 3:6]"
std::string ToString(const Box& box);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_LAYOUT_BOX_H_
