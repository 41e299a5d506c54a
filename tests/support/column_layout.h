// tests/support/column_layout.h: a small model of which another TP wants other
// columns, so that ranks want parts of the same stored units.

#ifndef HOLDFAST_TESTS_SUPPORT_COLUMN_LAYOUT_H_
#define HOLDFAST_TESTS_SUPPORT_COLUMN_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/layout/train_layout.h"

namespace holdfast::tests {

// A decoder of 4 layers, 4 MB of state, two thirds of it cut by columns.
inline std::unique_ptr<ckpt::TrainLayout> ColumnLayout(int tp, int pp, int dp) {
  constexpr int64_t kHidden = 64, kFfn = 512;
  std::vector<ckpt::TensorSpec> tensors;
  for (int layer = 0; layer < 4; ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape,
                         int tp_dimension) {
      tensors.push_back({.name = absl::StrFormat("layers.%d.%s", layer, name),
                         .shape = std::move(shape),
                         .tp_dimension = tp_dimension,
                         .layer = layer});
    };
    add("norm", {kHidden}, -1);
    add("up_proj", {kFfn, kHidden}, 0);
    add("down_proj", {kHidden, kFfn}, 1);
    add("o_proj", {kHidden, kFfn}, 1);
  }
  ckpt::TrainLayoutOptions options;
  options.mesh = {.tp = tp, .pp = pp, .dp = dp};
  options.stages = *ckpt::EvenStages(4, pp, 0, 0);
  auto layout = ckpt::TrainLayout::Create(std::move(tensors), options);
  HF_CHECK(layout.ok(), "%s", layout.status().ToString());
  return *std::move(layout);
}

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_COLUMN_LAYOUT_H_
