// tests/device/test_device.h: the device that tests_device tries, and the
// figures that it leaves.
//
// HOLDFAST_TEST_DEVICE is "cuda" (the default: GPU 0, by the plug-in beside the
// program), "fake", which tries the tests themselves where there is no GPU, or
// "host": the GPU's kernels, which the host runs (slowly), to try tolerances.

#ifndef HOLDFAST_TESTS_DEVICE_TEST_DEVICE_H_
#define HOLDFAST_TESTS_DEVICE_TEST_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/device.h"

namespace holdfast::tests {

// A device of its own for each call; all of one GPU. The error is the reason to
// skip: no plug-in, no driver, no GPU.
absl::StatusOr<std::unique_ptr<kernels::Device>> OpenTestDevice();

// True with HOLDFAST_TEST_DEVICE=fake: results are the processor's, to the bit.
bool TestDeviceIsFake();

// Skips every case where OpenTestDevice has an error.
class OnDevice : public testing::Test {
 protected:
  void SetUp() override;

  kernels::Device& device() { return *device_; }

 private:
  std::unique_ptr<kernels::Device> device_;
};

// A measured value for the table and the JSON that tests_device prints last.
// Kept in order; any thread.
void RecordFigure(const std::string& name, const std::string& unit,
                  double value);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_DEVICE_TEST_DEVICE_H_
