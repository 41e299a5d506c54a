// tests/device/kernel_case.h: what the cases of single kernels share: results
// compared with the processor's, and bytes a second.

#ifndef HOLDFAST_TESTS_DEVICE_KERNEL_CASE_H_
#define HOLDFAST_TESTS_DEVICE_KERNEL_CASE_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/bf16.h"
#include "kernels/device.h"
#include "tests/device/device_array.h"
#include "tests/device/test_device.h"
#include "tests/unit/kernels/cuda_helpers.h"

namespace holdfast::tests {

using kernels::Bf16;
using kernels::BytesOf;
using kernels::CpuStream;
using kernels::RandomValues;
using kernels::ToFloat;

// The same bits, NaNs excepted: a GPU has one.
template <typename T>
void ExpectSameBits(const std::vector<T>& got, const std::vector<T>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  if (BytesOf(got) == BytesOf(expected)) return;
  for (size_t i = 0; i < got.size(); ++i) {
    if constexpr (std::is_same_v<T, Bf16> || std::is_same_v<T, float>) {
      if (std::isnan(ToFloat(got[i])) && std::isnan(ToFloat(expected[i]))) {
        continue;
      }
    }
    ASSERT_EQ(std::memcmp(&got[i], &expected[i], sizeof(T)), 0)
        << "at " << i << ": " << double(ToFloat(got[i])) << " is not "
        << double(ToFloat(expected[i]));
  }
}

// Every element i within tolerance * scale(i) and one unit in the last place
// of T.
template <typename T, typename Scale>
void ExpectClose(const std::vector<T>& got, const std::vector<T>& expected,
                 double tolerance, const Scale& scale) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double want = ToFloat(expected[i]);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(ToFloat(got[i]))) << "at " << i;
      continue;
    }
    if (ToFloat(got[i]) == want) continue;  // Infinities too.
    ASSERT_NEAR(ToFloat(got[i]), want,
                tolerance * scale(i) + kernels::kUnit<T> * std::abs(want))
        << "at " << i;
  }
}

inline bool HasSpeed(const kernels::Device& device) {
  return device.name() == "cuda";
}

// Fewer where only the tests themselves are tried.
inline int64_t Many(int64_t count) {
  return TestDeviceIsFake() ? count / 16 : count;
}

// Device memory of zeros for measuring, freed at the end.
class Zeros {
 public:
  explicit Zeros(kernels::Device& device) : device_(device) {}

  template <typename T>
  T* Of(int64_t count) {
    auto buffer =
        kernels::AllocateOwned(device_, kernels::MemorySpace::kDevice,
                               static_cast<size_t>(count) * sizeof(T));
    HF_CHECK(buffer.ok(), "%s", buffer.status().ToString());
    owned_.push_back(*std::move(buffer));
    return owned_.back().template as<T>();
  }

 private:
  kernels::Device& device_;
  std::vector<kernels::OwnedBuffer> owned_;
};

// Records 10^9 bytes a second of `work`, which moves `bytes`.
template <typename Work>
void RecordBandwidth(kernels::Device& device, kernels::Stream& stream,
                     const std::string& name, double bytes, const Work& work) {
  const double seconds = SecondsOnDevice(device, stream, 20, work);
  ASSERT_TRUE(device.status().ok()) << device.status();
  RecordFigure(name, "GB/s", bytes / seconds / 1e9);
}

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_DEVICE_KERNEL_CASE_H_
