// tests/unit/ckpt/layout/full_size.h: the full-size target, a dense decoder of
// 499.9e9 parameters on TP8 x PP8 x DP80 = 5,120 ranks. 158 layers are 19 on
// the first and on the last stage, beside embedding and head, and 20 on the
// others.

#ifndef HOLDFAST_TESTS_UNIT_CKPT_LAYOUT_FULL_SIZE_H_
#define HOLDFAST_TESTS_UNIT_CKPT_LAYOUT_FULL_SIZE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/layout/train_layout.h"

namespace holdfast::ckpt {

inline std::vector<TensorSpec> FullSizeTensors() {
  constexpr int64_t kVocab = 128256, kHidden = 16384, kKv = 1024, kFfn = 52224;
  std::vector<TensorSpec> tensors;
  tensors.push_back({.name = "model.embed_tokens.weight",
                     .shape = {kVocab, kHidden},
                     .tp_dimension = 0,
                     .tp_pad_multiple = 128});
  for (int layer = 0; layer < 158; ++layer) {
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
    add("post_attention_layernorm", {kHidden}, -1);
    add("mlp.gate_proj", {kFfn, kHidden}, 0);
    add("mlp.up_proj", {kFfn, kHidden}, 0);
    add("mlp.down_proj", {kHidden, kFfn}, 1);
  }
  tensors.push_back(
      {.name = "model.norm.weight", .shape = {kHidden}, .layer = kOnLastStage});
  tensors.push_back({.name = "lm_head.weight",
                     .shape = {kVocab, kHidden},
                     .tp_dimension = 0,
                     .tp_pad_multiple = 128,
                     .layer = kOnLastStage});
  return tensors;
}

inline std::unique_ptr<TrainLayout> FullSizeLayout(const Mesh& mesh) {
  // 2.1e9 parameters in the embedding and in the head, 3.14e9 in a layer.
  auto stages = EvenStages(158, mesh.pp, 0.67, 0.67);
  HF_CHECK(stages.ok(), "%s", stages.status().ToString());
  auto layout =
      TrainLayout::Create(FullSizeTensors(), {.mesh = mesh, .stages = *stages});
  HF_CHECK(layout.ok(), "%s", layout.status().ToString());
  return *std::move(layout);
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_UNIT_CKPT_LAYOUT_FULL_SIZE_H_
