// ckpt/storage/names.h: the rules of storage.h for names, sizes and offsets,
// as every backend checks them. Pure; any thread.

#ifndef HOLDFAST_CKPT_STORAGE_NAMES_H_
#define HOLDFAST_CKPT_STORAGE_NAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast::ckpt {

// Last parts that begin so belong to PutIfAbsent and are never listed.
inline constexpr std::string_view kTempPrefix = ".tmp.";
inline bool IsTempName(std::string_view last_part) {
  return last_part.starts_with(kTempPrefix);
}

// CHECK-fails unless `name` may name a file or directory below the root.
void CheckName(std::string_view name);
// The same, with "." for the root allowed.
void CheckDirName(std::string_view name);

// CHECK-fails unless memory, offset and size suit Write and Read.
void CheckAligned(const void* memory, uint64_t offset, size_t size);

// "a/b/c" is "a/b" and "c"; "c" is "." and "c".
struct SplitName {
  std::string parent;
  std::string last;
};
SplitName Split(std::string_view name);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_NAMES_H_
