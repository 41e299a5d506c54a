// ckpt/storage/names.cc: what a caller of Storage may pass.

#include "ckpt/storage/names.h"

#include "ckpt/base/check.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

void CheckName(std::string_view name) {
  HF_CHECK(!name.empty() && name.size() < 4096, "a name of %d bytes",
           name.size());
  for (size_t begin = 0; begin <= name.size();) {
    size_t end = name.find('/', begin);
    if (end == std::string_view::npos) end = name.size();
    const std::string_view part = name.substr(begin, end - begin);
    HF_CHECK(!part.empty() && part != "." && part != "..",
             "'%s' is not a plain relative name", name);
    HF_CHECK(part.find('\0') == std::string_view::npos,
             "'%s' contains a zero byte", name);
    HF_CHECK(!IsTempName(part), "'%s' is a name that PutIfAbsent owns", name);
    begin = end + 1;
  }
}

void CheckDirName(std::string_view name) {
  if (name != ".") CheckName(name);
}

void CheckAligned(const void* memory, uint64_t offset, size_t size) {
  HF_CHECK(size > 0, "a transfer of no bytes at offset %d", offset);
  HF_CHECK(reinterpret_cast<uintptr_t>(memory) % kStorageAlignment == 0,
           "memory %p is not aligned to %d bytes", memory, kStorageAlignment);
  HF_CHECK(offset % kStorageAlignment == 0,
           "offset %d is not aligned to %d bytes", offset, kStorageAlignment);
  HF_CHECK(size % kStorageAlignment == 0, "size %d is not aligned to %d bytes",
           size, kStorageAlignment);
  HF_CHECK(offset + size >= offset && offset + size <= INT64_MAX,
           "offset %d and size %d are beyond any file", offset, size);
}

SplitName Split(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string_view::npos) return {".", std::string(name)};
  return {std::string(name.substr(0, slash)),
          std::string(name.substr(slash + 1))};
}

}  // namespace holdfast::ckpt
