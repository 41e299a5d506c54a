// Finding, loading and refusing plug-ins, over small libraries built for it.

#include "kernels/device_plugin.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::kernels {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class DevicePluginTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("HOLDFAST_PLUGIN_DIR", HOLDFAST_BIN_DIR "/../test-plugins", 1);
  }
  void TearDown() override { ::unsetenv("HOLDFAST_PLUGIN_DIR"); }
};

TEST_F(DevicePluginTest, OneOfThisBuildAnswers) {
  const auto plugin = LoadDevicePlugin("test_good");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  EXPECT_EQ(*(*plugin)->Driver(), "a driver");
  EXPECT_EQ(*(*plugin)->DeviceCount(), 2);
  EXPECT_EQ((*plugin)->Info(1)->ordinal, 1);
  EXPECT_EQ((*plugin)->Info(1)->name, "a device");
  EXPECT_EQ((*plugin)->Open(7).status().message(), "seven was asked for");
  EXPECT_THAT((*plugin)->path(), HasSubstr("libholdfast_test_good.so"));
}

TEST_F(DevicePluginTest, IsLoadedOnce) {
  const auto plugin = LoadDevicePlugin("test_good");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  ::setenv("HOLDFAST_PLUGIN_DIR", "/nowhere", 1);
  const auto again = LoadDevicePlugin("test_good");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *plugin);
}

TEST_F(DevicePluginTest, HasOtherFunctionsByName) {
  const auto plugin = LoadDevicePlugin("test_good");
  ASSERT_TRUE(plugin.ok()) << plugin.status();
  auto* const function =
      reinterpret_cast<int (*)()>((*plugin)->Symbol("holdfast_test_symbol"));
  ASSERT_NE(function, nullptr);
  EXPECT_EQ(function(), 41);
  EXPECT_EQ((*plugin)->Symbol("holdfast_no_such_symbol"), nullptr);
}

TEST_F(DevicePluginTest, WhereThereIsNoneThePlacesAreNamed) {
  const absl::Status status = LoadDevicePlugin("test_absent").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("libholdfast_test_absent.so"), HasSubstr("test-plugins"),
            HasSubstr("HOLDFAST_CUDA"), HasSubstr("use device = cpu")));
  ::unsetenv("HOLDFAST_PLUGIN_DIR");
  EXPECT_THAT(std::string(LoadDevicePlugin("test_absent").status().message()),
              AllOf(HasSubstr("/bin or "), HasSubstr("/bin/../lib")));
}

TEST_F(DevicePluginTest, OneOfAnotherBuildIsRefusedWithBothNamed) {
  const absl::Status status = LoadDevicePlugin("test_other_build").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("of another build"),
                    HasSubstr("holdfast 0.0.1, interface 00"),
                    HasSubstr(std::string(DevicePluginBuild()))));
}

TEST_F(DevicePluginTest, ALibraryWithoutTheEntryPointIsRefused) {
  const absl::Status status = LoadDevicePlugin("test_no_entry").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no function holdfast_device_plugin"));
}

TEST_F(DevicePluginTest, ALibraryThatIsMissingIsNamed) {
  const absl::Status status = LoadDevicePlugin("test_needs_gone").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libholdfast_test_gone.so"),
                    HasSubstr("cannot open shared object file")));
}

#ifdef HOLDFAST_WITH_CUDA
// The real plug-in, on a machine with or without a GPU.
TEST(CudaPluginTest, LoadsAndSaysWhatThisMachineHas) {
  const auto cuda = LoadDevicePlugin("cuda");
  ASSERT_TRUE(cuda.ok()) << cuda.status();
  const auto driver = (*cuda)->Driver();
  if (driver.ok()) {
    const auto count = (*cuda)->DeviceCount();
    ASSERT_TRUE(count.ok()) << count.status();
    EXPECT_GT(*count, 0);
    const absl::Status beyond = (*cuda)->Open(*count).status();
    EXPECT_EQ(beyond.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(beyond.message()), HasSubstr("does not exist"));
    return;
  }
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(driver.status().message()),
              AllOf(HasSubstr("driver"), HasSubstr("use device = cpu"),
                    Not(HasSubstr("\n"))));
  EXPECT_EQ((*cuda)->Open(0).status(), driver.status());
  EXPECT_EQ((*cuda)->Info(0).status(), driver.status());
  EXPECT_EQ((*cuda)->DeviceCount().status(), driver.status());
}
#endif

TEST_F(DevicePluginTest, OneThatWasCutShortIsRefusedBeforeTheLoaderMapsIt) {
  const std::string whole =
      HOLDFAST_BIN_DIR "/../test-plugins/libholdfast_test_good.so";
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) /
      ("cut_plugin_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const std::filesystem::path cut = folder / "libholdfast_test_cut.so";
  ::setenv("HOLDFAST_PLUGIN_DIR", folder.c_str(), 1);
  const uint64_t bytes = std::filesystem::file_size(whole);
  for (const uint64_t left :
       {uint64_t{0}, uint64_t{100}, bytes / 2, bytes - 1}) {
    std::filesystem::copy_file(
        whole, cut, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(cut, left);
    const absl::Status status = LoadDevicePlugin("test_cut").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(cut.string()));
    if (left < 1000) continue;  // the loader's own words
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("is cut short: it has " + std::to_string(left)),
                      HasSubstr("copy it again")));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace holdfast::kernels
