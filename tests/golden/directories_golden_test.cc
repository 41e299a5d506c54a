// A checkpoint whose files lie in directories, written once: the one of
// tests/golden/format-v1 with its files in d0000/ and d0001/. Never written
// again.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "ckpt/format/manifest.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using Bytes = std::vector<std::byte>;

const std::string kGolden = HOLDFAST_SOURCE_DIR "/tests/golden/";
const std::string kFlat = kGolden + "format-v1/";
const std::string kInDirs = kGolden + "format-v1-directories/";

Bytes ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto* const data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

// The flat one, as it reads with its files in directories.
Manifest Expected() {
  auto manifest = DecodeManifest(ReadFile(kFlat + kManifestName));
  EXPECT_TRUE(manifest.ok()) << manifest.status();
  manifest->features_must = {"directories"};
  for (size_t f = 0; f < manifest->files.size(); ++f) {
    manifest->files[f].name =
        "d000" + std::to_string(f) + "/" + manifest->files[f].name;
  }
  return *std::move(manifest);
}

TEST(DirectoriesGoldenTest, TheManifestSaysWhatItSaid) {
  const Bytes bytes = ReadFile(kInDirs + kManifestName);
  const auto manifest = DecodeManifest(bytes);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(*manifest, Expected());
  EXPECT_EQ(EncodeManifest(*manifest), bytes);
}

TEST(DirectoriesGoldenTest, TheFilesAreWhereItSays) {
  for (const ShardFile& file : Expected().files) {
    const std::string last = file.name.substr(file.name.find('/') + 1);
    EXPECT_EQ(ReadFile(kInDirs + file.name), ReadFile(kFlat + last))
        << file.name;
  }
}

// How it was made: run once with --gtest_also_run_disabled_tests.
TEST(DirectoriesGoldenWriter, DISABLED_WritesItOnce) {
  ASSERT_FALSE(std::filesystem::exists(kInDirs));
  const Manifest manifest = Expected();
  for (const ShardFile& file : manifest.files) {
    const std::string last = file.name.substr(file.name.find('/') + 1);
    const std::filesystem::path to = kInDirs + file.name;
    std::filesystem::create_directories(to.parent_path());
    std::filesystem::copy_file(kFlat + last, to);
  }
  const Bytes bytes = EncodeManifest(manifest);
  std::ofstream out(kInDirs + kManifestName, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  ASSERT_TRUE(out.good());
}

}  // namespace
}  // namespace holdfast::ckpt
