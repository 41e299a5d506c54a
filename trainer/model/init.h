// trainer/model/init.h: the first value of every parameter, as a pure function
// of (seed, tensor name, logical element index). Which rank holds an element,
// and how the vocabulary is padded, changes nothing.
//
//   norms                  1
//   o_proj, down_proj      normal(0, init_std / sqrt(2 layers)): each layer
//   adds
//                          two terms to the residual stream, and the sum's
//                          variance should not grow with depth (Radford et al.,
//                          "Language models are unsupervised multitask
//                          learners", 2019, section 2.3)
//   the rest               normal(0, init_std)
//
// Normals come in fours from one Philox block by the Box-Muller transform in
// FP64, rounded once to FP32. About 60 ns an element and thread.

#ifndef HOLDFAST_TRAINER_MODEL_INIT_H_
#define HOLDFAST_TRAINER_MODEL_INIT_H_

#include <cstdint>
#include <string_view>

#include "ckpt/layout/box.h"
#include "ckpt/layout/tensor.h"
#include "trainer/model/model_config.h"

namespace holdfast::trainer {

// Fills out[0, box.elements()) with the initial values of the logical elements
// in `box`, in its row-major order. Divides long boxes over OpenMP threads; the
// values do not depend on that.
void InitialValues(const ModelConfig& model, uint64_t seed,
                   const ckpt::TensorSpec& spec, const ckpt::Box& box,
                   float* out);

// FNV-1a of 64 bits: what a tensor's random stream is keyed by.
uint64_t HashName(std::string_view name);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_MODEL_INIT_H_
