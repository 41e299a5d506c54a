// tests/device/test_device.cc: opening it, and the main of tests_device.

#include "tests/device/test_device.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/device_plugin.h"
#include "kernels/fake_device.h"
#include "nlohmann/json.hpp"
#include "tests/support/gpu_kernels_on_host.h"

namespace holdfast::tests {
namespace {

// What run and CTest take for "could not be run here".
constexpr int kExitSkipped = 77;

struct Figure {
  std::string name;
  std::string unit;
  double value;
};

std::mutex figures_mutex;
std::vector<Figure> figures;  // guarded by figures_mutex

// The last line on stderr is the reason that tests/device/run shows.
class SkipReason : public testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const testing::TestPartResult& part) override {
    if (part.skipped()) reason_ = part.message();
  }
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

std::string_view TestDeviceName() {
  const char* const name = std::getenv("HOLDFAST_TEST_DEVICE");
  return name == nullptr ? "cuda" : name;
}

}  // namespace

bool TestDeviceIsFake() { return TestDeviceName() == "fake"; }

absl::StatusOr<std::unique_ptr<kernels::Device>> OpenTestDevice() {
  if (TestDeviceIsFake()) {
    kernels::FakeDeviceOptions options;
    options.device_bytes = size_t{256} << 20;
    return kernels::NewFakeDevice(options);
  }
  if (TestDeviceName() == "host") return NewGpuKernelsOnHost();
  const absl::StatusOr<kernels::DevicePlugin*> plugin =
      kernels::LoadDevicePlugin("cuda");
  if (!plugin.ok()) return plugin.status();
  return (*plugin)->Open(0);
}

void OnDevice::SetUp() {
  auto device = OpenTestDevice();
  if (!device.ok()) {
    GTEST_SKIP() << std::string(device.status().message());
  }
  device_ = *std::move(device);
}

void RecordFigure(const std::string& name, const std::string& unit,
                  double value) {
  const std::lock_guard<std::mutex> lock(figures_mutex);
  figures.push_back({name, unit, value});
}

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  auto* const skips = new SkipReason;  // owned by the listeners
  testing::UnitTest::GetInstance()->listeners().Append(skips);
  const int code = RUN_ALL_TESTS();
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  if (testing::GTEST_FLAG(list_tests)) return code;
  nlohmann::ordered_json json;
  json["passed"] = all.successful_test_count();
  json["failed"] = all.failed_test_count();
  json["skipped"] = all.skipped_test_count();
  std::string summary = absl::StrFormat(
      "%d of %d cases", all.successful_test_count(), all.test_to_run_count());
  json["figures"] = nlohmann::ordered_json::array();
  for (const Figure& figure : figures) {
    json["figures"].push_back({{"name", figure.name},
                               {"unit", figure.unit},
                               {"value", figure.value}});
    if (figures.size() <= 4) {
      summary += absl::StrFormat("; %s %.3g %s", figure.name, figure.value,
                                 figure.unit);
    }
  }
  json["summary"] = summary;
  std::printf("%s\n", json.dump().c_str());
  std::fflush(stdout);
  if (code == 0 && all.successful_test_count() == 0) {
    std::fprintf(stderr, "%s\n",
                 skips->reason().empty() ? "no case of that name"
                                         : skips->reason().c_str());
    return kExitSkipped;
  }
  return code;
}

}  // namespace holdfast::tests

int main(int argc, char** argv) { return holdfast::tests::Main(argc, argv); }
