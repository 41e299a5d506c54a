// tests/unit/kernels/cuda/fake_cudart.h: the part of the CUDA runtime that the
// device uses, over the host's memory, so that kernels/cuda_device.cu runs
// without a GPU.
//
// Streams run late: nothing that is enqueued runs before someone has asked
// kAsksMin times whether it is over, for a stream or for an event, which takes
// a wait; and not at all while `stuck`. Device memory is limited, full of
// garbage and aligned to 256 bytes and no more. A function can be made to fail.

#ifndef HOLDFAST_TESTS_UNIT_KERNELS_CUDA_FAKE_CUDART_H_
#define HOLDFAST_TESTS_UNIT_KERNELS_CUDA_FAKE_CUDART_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace holdfast::kernels {

struct FakeCudart {
  // --- What the machine has.
  int driver = 13000;  // 0: no driver
  int devices = 1;
  int capability_major = 9;
  size_t device_bytes = size_t{64} << 20;

  // --- What goes wrong: the next call of the function, or what a stream's next
  // wait finds.
  std::map<std::string, cudaError_t> fail_next;
  cudaError_t fault = cudaSuccess;
  bool stuck = false;  // A kernel hangs: nothing that was enqueued runs.
  std::set<cudaDeviceAttr> lacks;  // What it answers 0 to.

  // --- What was done.
  std::map<void*, size_t> device_memory;  // Not freed.
  std::set<void*> registered;
  int streams = 0;
  int events = 0;
  int events_made = 0;
  std::vector<int> current;  // Every device made current.
  int ends_without_teardown = 0;

  std::set<cudaStream_t> open_streams;
  std::set<cudaEvent_t> open_events;

  // The end of the process: gives back what a device has left behind, device
  // memory, streams and events. The heap's, if registered, is the test's.
  void TakeBackTheRest();

  // Enqueues work on a stream, as a kernel launch does.
  void Enqueue(cudaStream_t stream, std::function<void()> work);
};

// Of the process. Reset gives it back as new; nothing of the old may be alive.
FakeCudart& Fake();
void ResetFake();

}  // namespace holdfast::kernels

#endif  // HOLDFAST_TESTS_UNIT_KERNELS_CUDA_FAKE_CUDART_H_
