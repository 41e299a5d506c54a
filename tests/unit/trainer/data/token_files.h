// tests/unit/trainer/data/token_files.h: small token sets in a directory of
// their own, and bytes of files, for the tests of this folder.

#ifndef HOLDFAST_TESTS_UNIT_TRAINER_DATA_TOKEN_FILES_H_
#define HOLDFAST_TESTS_UNIT_TRAINER_DATA_TOKEN_FILES_H_

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/data/token_writer.h"

namespace holdfast::trainer {

// Made empty, removed at the end.
class TempFolder {
 public:
  TempFolder() {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(testing::TempDir()) /
            (std::string(info->test_suite_name()) + "." + info->name() + "." +
             std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }

  std::string operator/(std::string_view name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// One document a list. `counts`, if given, has an entry a token of all of them.
inline void WriteTokens(const std::string& prefix, int64_t vocab,
                        const std::vector<std::vector<int32_t>>& documents,
                        const std::vector<bool>& counts = {}) {
  auto writer =
      TokenWriter::Create(prefix, {.vocab = vocab, .masked = !counts.empty()});
  ASSERT_TRUE(writer.ok()) << writer.status();
  size_t at = 0;
  for (const auto& document : documents) {
    for (const int32_t& token : document) {
      const bool count = counts.empty() || counts[at];
      ASSERT_TRUE((*writer)->Append({&token, 1}, count).ok());
      ++at;
    }
    (*writer)->EndDocument();
  }
  const absl::Status status = (*writer)->Finish();
  ASSERT_TRUE(status.ok()) << status;
}

// 0, 1, ..., so that a token says where it stands.
inline std::vector<int32_t> Counting(int32_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  for (int32_t i = 0; i < count; ++i) tokens[i] = first + i;
  return tokens;
}

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TESTS_UNIT_TRAINER_DATA_TOKEN_FILES_H_
