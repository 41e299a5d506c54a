// tests/device/device_array.h: arrays in device memory, filled from and read
// back into vectors; seeds that differ from run to run.
//
//   const uint64_t seed = FreshSeed();
//   SCOPED_TRACE(seed);   // HOLDFAST_TEST_SEED=... repeats a failure
//   DeviceArray<float> x(device(), RandomValues<float>(count, seed));
//   kernels::Scale(*stream, x.data(), 2.0f, count);
//   ExpectNear(x.Get(*stream), expected, 1e-6);

#ifndef HOLDFAST_TESTS_DEVICE_DEVICE_ARRAY_H_
#define HOLDFAST_TESTS_DEVICE_DEVICE_ARRAY_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "ckpt/base/check.h"
#include "kernels/device.h"

namespace holdfast::tests {

// Another number for each call, or HOLDFAST_TEST_SEED.
inline uint64_t FreshSeed() {
  if (const char* const given = std::getenv("HOLDFAST_TEST_SEED")) {
    return std::strtoull(given, nullptr, 10);
  }
  return std::random_device()();
}

template <typename T>
class DeviceArray {
 public:
  // `offset` elements lie before the first one: for pointers that are aligned
  // to no more than their type.
  DeviceArray(kernels::Device& device, const std::vector<T>& values,
              size_t offset = 0)
      : device_(device), count_(values.size()), offset_(offset) {
    owned_ = Allocate(kernels::MemorySpace::kDevice);
    host_ = Allocate(kernels::MemorySpace::kPinned);
    Set(values);
  }
  DeviceArray(kernels::Device& device, size_t count)
      : DeviceArray(device, std::vector<T>(count)) {}

  T* data() { return owned_.as<T>() + offset_; }
  size_t size() const { return count_; }

  void Set(const std::vector<T>& values) {
    HF_CHECK(values.size() == count_, "%d values for %d", values.size(),
             count_);
    if (count_ > 0) {
      std::memcpy(host_.as<T>() + offset_, values.data(), count_ * sizeof(T));
    }
    const auto stream = device_.NewStream();
    device_.Copy(owned_.buffer(), host_.buffer(), *stream);
    device_.Sync(*stream);
  }

  // What the work enqueued on `stream` so far leaves; waits for it.
  std::vector<T> Get(kernels::Stream& stream) {
    device_.Copy(host_.buffer(), owned_.buffer(), stream);
    device_.Sync(stream);
    HF_CHECK(device_.status().ok(), "%s", device_.status().ToString());
    const T* const begin = host_.as<T>() + offset_;
    return std::vector<T>(begin, begin + count_);
  }

 private:
  kernels::OwnedBuffer Allocate(kernels::MemorySpace space) const {
    auto buffer = kernels::AllocateOwned(device_, space,
                                         (count_ + offset_ + 1) * sizeof(T));
    HF_CHECK(buffer.ok(), "%s", buffer.status().ToString());
    return *std::move(buffer);
  }

  kernels::Device& device_;
  const size_t count_;
  const size_t offset_;
  kernels::OwnedBuffer owned_;
  kernels::OwnedBuffer host_;
};

// Seconds of one of `repeats` calls of `work`, which enqueues on `stream`; the
// best of three rounds after one that warms up.
template <typename Work>
double SecondsOnDevice(kernels::Device& device, kernels::Stream& stream,
                       int repeats, const Work& work) {
  double best = 1e30;
  for (int round = 0; round < 4; ++round) {
    device.Sync(stream);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) work();
    device.Sync(stream);
    const std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - begin;
    if (round > 0) best = std::min(best, taken.count() / repeats);
  }
  return best;
}

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_DEVICE_DEVICE_ARRAY_H_
