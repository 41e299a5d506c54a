// tests/support/temp_dir.h: a directory of its own for a test, removed with all
// that is in it.

#ifndef HOLDFAST_TESTS_SUPPORT_TEMP_DIR_H_
#define HOLDFAST_TESTS_SUPPORT_TEMP_DIR_H_

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "ckpt/base/check.h"
#include "gtest/gtest.h"

namespace holdfast::tests {

class TempDir {
 public:
  TempDir() : TempDir(::testing::TempDir()) {}
  // In `parent`, which ends with '/'.
  explicit TempDir(const std::string& parent)
      : path_(parent + "holdfast.XXXXXX") {
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

// For tests that sync often and cut no power: files in memory where there are
// some, else where other tests have theirs.
inline std::string MemoryFolder() {
  return ::access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm/"
                                                : ::testing::TempDir();
}

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_TEMP_DIR_H_
