// trainer/model/stage_layer.h: one decoder layer, forward and backward.
//
// Inside trainer/model only. Thread: the step thread.

#ifndef HOLDFAST_TRAINER_MODEL_STAGE_LAYER_H_
#define HOLDFAST_TRAINER_MODEL_STAGE_LAYER_H_

#include "absl/status/status.h"
#include "trainer/model/stage_core.h"

namespace holdfast::trainer {

// From stash.input to `output`, the stream after the layer; fills the rest of
// the stash.
template <typename T>
absl::Status LayerForward(StageCore<T>& core, const LayerOffsets& at,
                          const LayerStash<T>& stash, T* output);

// scratch.gradient is that of the layer's output and becomes that of its input;
// weight gradients are added. The stash is used up.
template <typename T>
absl::Status LayerBackward(StageCore<T>& core, const LayerOffsets& at,
                           const LayerStash<T>& stash);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_MODEL_STAGE_LAYER_H_
