// tests/support/temp_dir.h: a directory of its own for a test, removed with all
// that is in it.

#ifndef HOLDFAST_TESTS_SUPPORT_TEMP_DIR_H_
#define HOLDFAST_TESTS_SUPPORT_TEMP_DIR_H_

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "ckpt/base/check.h"
#include "gtest/gtest.h"

namespace holdfast::tests {

class TempDir {
 public:
  TempDir() : path_(::testing::TempDir() + "holdfast.XXXXXX") {
    HF_CHECK(::mkdtemp(path_.data()) != nullptr, "cannot make %s", path_);
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_TEMP_DIR_H_
