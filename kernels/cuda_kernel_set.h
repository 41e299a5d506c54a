// kernels/cuda_kernel_set.h: the KernelSet of a CUDA device.
//
// Each method makes the stream's device current, calls the function of its name
// in kernels/cuda_launch.h and asks for launch errors, which become the
// device's with the method's name.

#ifndef HOLDFAST_KERNELS_CUDA_KERNEL_SET_H_
#define HOLDFAST_KERNELS_CUDA_KERNEL_SET_H_

#include <memory>

#include "kernels/device_plugin.h"
#include "kernels/kernel_set.h"

namespace holdfast::kernels {

// `info` is the device's, for Description.
std::unique_ptr<KernelSet> NewCudaKernelSet(const DeviceInfo& info);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_KERNEL_SET_H_
