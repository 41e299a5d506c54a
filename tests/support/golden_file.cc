// tests/support/golden_file.cc: see golden_file.h.

#include "tests/support/golden_file.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "ckpt/base/check.h"

namespace holdfast::tests {
namespace {

class Reader {
 public:
  Reader(const std::string& path, const std::string& bytes)
      : path_(path), bytes_(bytes) {}

  std::string_view Take(size_t count) {
    HF_CHECK(count <= bytes_.size() - at_, "%s ends at byte %d", path_,
             bytes_.size());
    const std::string_view piece(bytes_.data() + at_, count);
    at_ += count;
    return piece;
  }

  template <class T>
  T Value() {
    T value;
    std::memcpy(&value, Take(sizeof(T)).data(), sizeof(T));
    return value;
  }

  template <class T>
  std::vector<T> Values(int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    const std::string_view bytes = Take(values.size() * sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  bool done() const { return at_ == bytes_.size(); }

 private:
  const std::string& path_;
  const std::string& bytes_;
  size_t at_ = 0;
};

}  // namespace

GoldenFile::GoldenFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  HF_CHECK(file.good(), "%s cannot be read", path);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  Reader reader(path, bytes);
  HF_CHECK(reader.Take(8) == "HFGOLD01", "%s is no golden file", path);
  const auto count = reader.Value<uint32_t>();
  for (uint32_t entry = 0; entry < count; ++entry) {
    const std::string name(reader.Take(reader.Value<uint32_t>()));
    const auto dtype = reader.Value<uint8_t>();
    const auto dimensions = reader.Value<uint32_t>();
    GoldenArray array;
    array.shape = reader.Values<int64_t>(dimensions);
    int64_t elements = 1;
    for (const int64_t length : array.shape) elements *= length;
    if (dtype == 1) {
      array.floats = reader.Values<float>(elements);
    } else {
      HF_CHECK(dtype == 2, "%s: '%s' has dtype %d", path, name, dtype);
      array.ints = reader.Values<int32_t>(elements);
    }
    arrays_[name] = std::move(array);
  }
  HF_CHECK(reader.done(), "%s is longer than its entries", path);
}

const GoldenArray& GoldenFile::at(const std::string& name) const {
  const auto found = arrays_.find(name);
  HF_CHECK(found != arrays_.end(), "no golden array '%s'", name);
  return found->second;
}

const std::vector<float>& GoldenFile::floats(const std::string& name) const {
  return at(name).floats;
}

const std::vector<int32_t>& GoldenFile::ints(const std::string& name) const {
  return at(name).ints;
}

}  // namespace holdfast::tests
