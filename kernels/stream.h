// kernels/stream.h: the order in which one device does its work.
//
// Every kernel takes a Stream first. Work launched on one stream runs in launch
// order. On the CPU device it has finished when Launch returns; on any other
// device Launch only promises that it will run, and the host must not look at
// the results before Device::Sync, or before an event recorded after the
// work has passed.
//
// A kernel captures its arguments by value: pointers and sizes, never
// references to the caller's variables.
//
//   stream.Launch([=] { AddOnCpu(x, y, out, count); });
//
// A GPU's streams run no host code: they have a kernel set, and each kernel
// hands its arguments to that instead of launching (kernels/kernel_set.h).
//
// Thread: one thread at a time launches on a stream.

#ifndef HOLDFAST_KERNELS_STREAM_H_
#define HOLDFAST_KERNELS_STREAM_H_

#include <functional>
#include <utility>

namespace holdfast::kernels {

class KernelSet;

class Stream {
 public:
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  // True on the CPU device: Launch runs the work before it returns.
  bool immediate() const { return immediate_; }

  // The kernels of the stream's device; null where kernels run on the
  // processor, at once (CPU) or late (FakeDevice).
  KernelSet* kernel_set() const { return kernel_set_; }

  // Costs one predictable branch when the stream is immediate, and allocates
  // nothing then.
  template <typename Work>
  void Launch(Work&& work) {
    if (immediate_) {
      work();
    } else {
      Enqueue(std::forward<Work>(work));
    }
  }

 protected:
  explicit Stream(bool immediate, KernelSet* kernel_set = nullptr)
      : immediate_(immediate), kernel_set_(kernel_set) {}

 private:
  virtual void Enqueue(std::function<void()> work) = 0;

  const bool immediate_;
  KernelSet* const kernel_set_;
};

// The stream of the processor that calls it. Has no state, so all threads may
// use the same one.
Stream& CpuStream();

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_STREAM_H_
