// trainer/matmul_speed.h: the matrix-product speed of this rank, measured now,
// beside which a run's own speed is printed (`mfu`).

#ifndef HOLDFAST_TRAINER_MATMUL_SPEED_H_
#define HOLDFAST_TRAINER_MATMUL_SPEED_H_

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "trainer/model/model_config.h"

namespace holdfast::trainer {

// FLOP/s of kernels::Matmul in `compute` on a product of the model's kind,
// [rows, hidden] x [ffn, hidden]^T, best of several within about 0.2 s. All
// ranks of a host measure at the same time, so that they share its processors,
// or a GPU, as they will in training: call it between barriers.
absl::StatusOr<double> MeasureMatmulFlops(kernels::Device& device,
                                          ComputeType compute, int64_t rows,
                                          int64_t hidden, int64_t ffn);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_MATMUL_SPEED_H_
