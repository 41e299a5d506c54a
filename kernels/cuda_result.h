// kernels/cuda_result.h: results of the runtime that are looked at later.
//
// For the launchers of kernels/cuda_launch.h; plain C++: the runtime's own
// header stays in the .cu files. Thread: any.

#ifndef HOLDFAST_KERNELS_CUDA_RESULT_H_
#define HOLDFAST_KERNELS_CUDA_RESULT_H_

namespace holdfast::kernels {

// True where the call went well: `Error` is cudaError_t, whose 0 says so. An
// error stays the calling thread's last one, which CudaDevice::CheckLaunch asks
// for behind every launcher: nothing is lost where this answer is not needed.
template <typename Error>
bool LeaveToCheckLaunch(Error error) {
  return error == Error{};
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_RESULT_H_
