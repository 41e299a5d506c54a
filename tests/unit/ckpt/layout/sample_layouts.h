// tests/unit/ckpt/layout/sample_layouts.h: a small decoder, laid out in many
// ways, for the tests of layouts, manifests and plans. Sizes are chosen so that
// block cuts fall in mid-row, tensors have partly empty last blocks, TP cuts
// rows and columns, and some layouts have more ranks than blocks.

#ifndef HOLDFAST_TESTS_UNIT_CKPT_LAYOUT_SAMPLE_LAYOUTS_H_
#define HOLDFAST_TESTS_UNIT_CKPT_LAYOUT_SAMPLE_LAYOUTS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/layout/train_layout.h"

namespace holdfast::ckpt {

struct SampleLayout {
  int tp = 1;
  int pp = 1;
  int dp = 1;
  std::vector<int> stages = {};  // layers of each stage; empty: even
  bool tied = false;
  int64_t vocab_pad = 12;  // 1: none; then vocab is cut as it is
  int64_t vocab = 60;
  int layers = 4;
  DType weight = DType::kBf16;
  std::string name = "";
};

inline std::vector<TensorSpec> SampleTensors(const SampleLayout& sample) {
  constexpr int64_t kHidden = 72;
  constexpr int64_t kKv = 24;
  constexpr int64_t kFfn = 120;
  std::vector<TensorSpec> tensors;
  tensors.push_back({.name = "model.embed_tokens.weight",
                     .shape = {sample.vocab, kHidden},
                     .tp_dimension = 0,
                     .tp_pad_multiple = sample.vocab_pad,
                     .tied_to_last_stage = sample.tied});
  for (int layer = 0; layer < sample.layers; ++layer) {
    const auto add = [&](const char* name, std::vector<int64_t> shape,
                         int tp_dimension) {
      tensors.push_back(
          {.name = absl::StrFormat("model.layers.%d.%s.weight", layer, name),
           .shape = std::move(shape),
           .tp_dimension = tp_dimension,
           .layer = layer});
    };
    add("input_layernorm", {kHidden}, -1);
    add("self_attn.q_proj", {kHidden, kHidden}, 0);
    add("self_attn.k_proj", {kKv, kHidden}, 0);
    add("self_attn.v_proj", {kKv, kHidden}, 0);
    add("self_attn.o_proj", {kHidden, kHidden}, 1);
    add("mlp.gate_proj", {kFfn, kHidden}, 0);
    add("mlp.down_proj", {kHidden, kFfn}, 1);
  }
  tensors.push_back(
      {.name = "model.norm.weight", .shape = {kHidden}, .layer = kOnLastStage});
  if (!sample.tied) {
    tensors.push_back({.name = "lm_head.weight",
                       .shape = {sample.vocab, kHidden},
                       .tp_dimension = 0,
                       .tp_pad_multiple = sample.vocab_pad,
                       .layer = kOnLastStage});
  }
  return tensors;
}

inline std::unique_ptr<TrainLayout> MakeLayout(const SampleLayout& sample) {
  auto stages = sample.stages.empty()
                    ? EvenStages(sample.layers, sample.pp, 1, 1)
                    : StagesFromCounts(sample.layers, sample.stages);
  HF_CHECK(stages.ok(), "%s", stages.status().ToString());
  auto layout = TrainLayout::Create(
      SampleTensors(sample),
      {.mesh = {.tp = sample.tp, .pp = sample.pp, .dp = sample.dp},
       .stages = *stages,
       .weight_dtype = sample.weight});
  HF_CHECK(layout.ok(), "%s", layout.status().ToString());
  return *std::move(layout);
}

// tp x pp x dp x {tied, untied} x {padded, not}, and uneven stages.
inline std::vector<SampleLayout> SampleLayouts() {
  std::vector<SampleLayout> all;
  const auto add = [&](SampleLayout sample) {
    sample.name = absl::StrFormat(
        "tp%d-pp%d-dp%d%s%s%s vocab %d to %d", sample.tp, sample.pp, sample.dp,
        sample.tied ? " tied" : "", sample.stages.empty() ? "" : " uneven",
        sample.weight == DType::kF32 ? " f32" : "", sample.vocab,
        sample.vocab_pad);
    all.push_back(sample);
  };
  for (const int tp : {1, 2, 3, 4}) {
    for (const int pp : {1, 2, 3, 4}) {
      for (const int dp : {1, 3, 7}) {
        add({.tp = tp, .pp = pp, .dp = dp, .tied = (tp + pp + dp) % 2 == 0});
        add({.tp = tp,
             .pp = pp,
             .dp = dp,
             .tied = (tp + pp + dp) % 2 == 1,
             .vocab_pad = 24,
             .vocab = 49});
      }
    }
  }
  add({.tp = 2, .pp = 2, .dp = 2, .stages = {1, 3}, .tied = true});
  add({.tp = 2, .pp = 3, .dp = 2, .stages = {1, 2, 1}, .vocab_pad = 1});
  add({.pp = 4, .dp = 200});  // More ranks than blocks.
  add({.tp = 12, .dp = 2, .vocab_pad = 48, .vocab = 5, .weight = DType::kF32});
  return all;
}

// Calls `visit(index, length)` for each row of `box`, in the box's order: its
// elements are `length` consecutive ones of `whole`, from `index` on.
template <typename Visit>
void ForEachRow(const Box& whole, const Box& box, Visit visit) {
  const int last = box.dimensions - 1;
  const int64_t length = box.dimensions == 0 ? 1 : box.count[last];
  std::array<int64_t, kDimensionsMax> at = box.first;
  for (int64_t rows = box.elements() / length; rows > 0; --rows) {
    int64_t index = 0;
    for (int d = 0; d <= last; ++d) index = index * whole.count[d] + at[d];
    visit(index, length);
    for (int d = last - 1; d >= 0; --d) {
      if (++at[d] < box.first[d] + box.count[d]) break;
      at[d] = box.first[d];
    }
  }
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_UNIT_CKPT_LAYOUT_SAMPLE_LAYOUTS_H_
