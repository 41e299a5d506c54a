// tests/support/golden_file.h: reads the numbers that
// tests/golden/make_model_golden.py writes; its docstring has the format.

#ifndef HOLDFAST_TESTS_SUPPORT_GOLDEN_FILE_H_
#define HOLDFAST_TESTS_SUPPORT_GOLDEN_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace holdfast::tests {

struct GoldenArray {
  std::vector<int64_t> shape;
  std::vector<float> floats;  // dtype f32
  std::vector<int32_t> ints;  // dtype i32
};

class GoldenFile {
 public:
  // CHECK-fails when the file is not whole.
  explicit GoldenFile(const std::string& path);

  const std::vector<float>& floats(const std::string& name) const;
  const std::vector<int32_t>& ints(const std::string& name) const;
  const std::map<std::string, GoldenArray>& arrays() const { return arrays_; }

 private:
  const GoldenArray& at(const std::string& name) const;

  std::map<std::string, GoldenArray> arrays_;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_GOLDEN_FILE_H_
