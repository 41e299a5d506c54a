// trainer/model/stage_core.cc: memory, products, norms, joins.

#include "trainer/model/stage_core.h"

#include "ckpt/base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/matmul.h"
#include "kernels/rmsnorm.h"
#include "kernels/rope.h"

namespace holdfast::trainer {
namespace {

using kernels::Matmul;
using kernels::MatmulArgs;
using kernels::MemorySpace;

// y = x w^T
template <typename T, typename Out>
MatmulArgs<T, Out> ForwardArgs(const Linear& linear, int64_t rows, const T* x,
                               const T* w, Out* y, int64_t ldy) {
  MatmulArgs<T, Out> args;
  args.a = x;
  args.lda = linear.in;
  args.b = w;
  args.ldb = linear.in;
  args.transpose_b = true;
  args.c = y;
  args.ldc = ldy;
  args.m = rows;
  args.n = linear.out;
  args.k = linear.in;
  return args;
}

// dx = dy w
template <typename T, typename Out>
MatmulArgs<T, Out> InputArgs(const Linear& linear, int64_t rows, const T* dy,
                             int64_t lddy, const T* w, Out* dx) {
  MatmulArgs<T, Out> args;
  args.a = dy;
  args.lda = lddy;
  args.b = w;
  args.ldb = linear.in;
  args.c = dx;
  args.ldc = linear.in;
  args.m = rows;
  args.n = linear.in;
  args.k = linear.out;
  return args;
}

}  // namespace

template <typename T>
StageCore<T>::StageCore(const StageOptions& options_in,
                        const StageOffsets& offsets_in,
                        const std::byte* weights, DeviceCollectives* tp,
                        kernels::Device& device_in)
    : options(options_in),
      shape(StageShape::Of(options_in)),
      offsets(offsets_in),
      device(device_in),
      stream(device_in.NewStream()),
      weights_(reinterpret_cast<const T*>(weights)),
      tp_(tp) {}

template <typename T>
absl::Status StageCore<T>::Open() {
  Carver count_slots(nullptr);
  for (int slot = 0; slot < options.slots; ++slot) {
    CarveSlot<T>(options, shape, count_slots);
  }
  Carver count_scratch(nullptr);
  CarveScratch<T>(options, shape, count_scratch);
  Carver count_host(nullptr);
  CarveHostMemory(options, shape, count_host);

  HF_ASSIGN_OR_RETURN(
      activations_memory_,
      kernels::AllocateOwned(device, MemorySpace::kDevice, count_slots.used()));
  HF_ASSIGN_OR_RETURN(scratch_memory_,
                      kernels::AllocateOwned(device, MemorySpace::kDevice,
                                             count_scratch.used()));
  if (count_host.used() > 0) {
    HF_ASSIGN_OR_RETURN(host_memory_,
                        kernels::AllocateOwned(device, MemorySpace::kPinned,
                                               count_host.used()));
  }
  memory.activations = static_cast<int64_t>(activations_memory_.buffer().bytes);
  memory.buffers = static_cast<int64_t>(scratch_memory_.buffer().bytes +
                                        host_memory_.buffer().bytes);
  memory.gpu_scratch = GpuScratchBytes<T>(options, shape);

  Carver carve_slots(activations_memory_.buffer().data);
  for (int slot = 0; slot < options.slots; ++slot) {
    slots.push_back(CarveSlot<T>(options, shape, carve_slots));
  }
  Carver carve_scratch(scratch_memory_.buffer().data);
  scratch = CarveScratch<T>(options, shape, carve_scratch);
  Carver carve_host(host_memory_.buffer().data);
  host = CarveHostMemory(options, shape, carve_host);

  kernels::RopeFillTable(*stream, scratch.rope, 0, options.model.seq_len,
                         shape.head_dim,
                         static_cast<float>(options.model.rope_theta));
  return Sync();
}

template <typename T>
absl::Status StageCore<T>::Sync() {
  if (tp_ != nullptr) return tp_->Sync(*stream);
  device.Sync(*stream);
  return device.status();
}

template <typename T>
void StageCore<T>::ColumnForward(const Linear& linear, const T* x, T* y,
                                 int64_t ldy) {
  Matmul(*stream, ForwardArgs<T, T>(linear, shape.rows, x,
                                    weight(linear.offset), y, ldy));
}

template <typename T>
absl::Status StageCore<T>::RowForward(const Linear& linear, const T* x, T* y) {
  if (options.tp == 1) {
    ColumnForward(linear, x, y, linear.out);
    return absl::OkStatus();
  }
  Matmul(*stream,
         ForwardArgs<T, float>(linear, shape.rows, x, weight(linear.offset),
                               scratch.partial, linear.out));
  return JoinPartial(y);
}

template <typename T>
void StageCore<T>::RowBackwardInput(const Linear& linear, const T* dy, T* dx) {
  Matmul(*stream, InputArgs<T, T>(linear, shape.rows, dy, linear.out,
                                  weight(linear.offset), dx));
}

template <typename T>
void StageCore<T>::ColumnBackwardInput(const Linear& linear, const T* dy,
                                       int64_t lddy, bool accumulate) {
  auto args = InputArgs<T, float>(linear, shape.rows, dy, lddy,
                                  weight(linear.offset), scratch.partial);
  args.accumulate = accumulate;
  Matmul(*stream, args);
}

template <typename T>
void StageCore<T>::BackwardWeight(const Linear& linear, const T* dy,
                                  int64_t lddy, const T* x) {
  MatmulArgs<T, float> args;
  args.a = dy;
  args.lda = lddy;
  args.transpose_a = true;
  args.b = x;
  args.ldb = linear.in;
  args.c = gradient(linear.offset);
  args.ldc = linear.in;
  args.m = linear.out;
  args.n = linear.in;
  args.k = shape.rows;
  args.accumulate = true;
  Matmul(*stream, args);
}

template <typename T>
absl::Status StageCore<T>::JoinPartial(T* out) {
  const int64_t count = shape.rows * shape.hidden;
  HF_RETURN_IF_ERROR(JoinSum(scratch.partial, count));
  kernels::Cast(*stream, scratch.partial, out, count);
  return absl::OkStatus();
}

template <typename T>
absl::Status StageCore<T>::JoinSum(float* values, int64_t count) {
  if (options.tp == 1) return absl::OkStatus();
  return tp_->AllReduceSum({values, static_cast<size_t>(count)}, *stream);
}

template <typename T>
absl::Status StageCore<T>::JoinMax(float* values, int64_t count) {
  if (options.tp == 1) return absl::OkStatus();
  return tp_->AllReduceMax({values, static_cast<size_t>(count)}, *stream);
}

template <typename T>
void StageCore<T>::NormForward(int64_t weight_offset, const T* x, T* y,
                               float* rstd) {
  kernels::RmsNormArgs<T> args;
  args.x = x;
  args.weight = weight(weight_offset);
  args.y = y;
  args.rstd = rstd;
  args.rows = shape.rows;
  args.hidden = shape.hidden;
  args.eps = static_cast<float>(options.model.norm_eps);
  kernels::RmsNormForward(*stream, args);
}

template <typename T>
void StageCore<T>::NormBackward(int64_t weight_offset, const T* x,
                                const float* rstd, const T* dy,
                                const T* residual, T* dx) {
  kernels::RmsNormBackwardArgs<T> args;
  args.x = x;
  args.weight = weight(weight_offset);
  args.rstd = rstd;
  args.dy = dy;
  args.residual = residual;
  args.dx = dx;
  args.dweight = gradient(weight_offset);
  args.rows = shape.rows;
  args.hidden = shape.hidden;
  kernels::RmsNormBackward(*stream, args);
}

template class StageCore<float>;
template class StageCore<kernels::Bf16>;

}  // namespace holdfast::trainer
