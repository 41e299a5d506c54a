// ckpt/c/guard.h: what stands between the C functions and C++: statuses become
// codes and words, exceptions end here.
//
// Private to ckpt/c. Any thread; the last error is the calling thread's.

#ifndef HOLDFAST_CKPT_C_GUARD_H_
#define HOLDFAST_CKPT_C_GUARD_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/c/holdfast_ckpt.h"

namespace holdfast::ckpt {

// Remembers the words of an error; the code of `status`.
hf_ckpt_code Keep(const absl::Status& status);

// The code that a C caller's number means; kUnknown for a number that is none.
absl::StatusCode CodeOf(hf_ckpt_code code);

// Runs `body`, a function that gives a status. The standard library may throw
// when memory or threads are short.
template <typename Body>
hf_ckpt_code Guard(const char* function, Body&& body) noexcept {
  try {
    try {
      return Keep(body());
    } catch (const std::bad_alloc&) {
      return Keep(absl::ResourceExhaustedError(
          absl::StrFormat("%s: no memory left", function)));
    } catch (const std::exception& error) {
      return Keep(absl::InternalError(
          absl::StrFormat("%s: %s", function, error.what())));
    } catch (...) {
      return Keep(absl::InternalError(function));
    }
  } catch (...) {
    return HF_CKPT_RESOURCE_EXHAUSTED;  // no memory for the words either
  }
}

inline absl::Status NullArgument(const char* function, const char* argument) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s is null", function, argument));
}

#define HF_REQUIRE_NOT_NULL(function, argument)                              \
  do {                                                                       \
    if ((argument) == nullptr) return NullArgument((function), (#argument)); \
  } while (false)

// Structs of callers that know fewer or more members than this library. `least`
// is the size of the first version.
template <typename Struct>
absl::Status CheckStruct(const char* function, const Struct* given,
                         size_t least) {
  if (given == nullptr) return NullArgument(function, "a struct");
  if (given->struct_bytes >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: struct_bytes is %d, at least %d are expected; start the struct with "
      "its _INIT macro",
      function, given->struct_bytes, least));
}

// What the caller has given, the rest zero.
template <typename Struct>
Struct TakeStruct(const Struct* given) {
  Struct taken{};
  std::memcpy(&taken, given,
              given->struct_bytes < sizeof(Struct)
                  ? static_cast<size_t>(given->struct_bytes)
                  : sizeof(Struct));
  return taken;
}

// As much of `filled` as the caller has room for; its struct_bytes stays.
template <typename Struct>
void GiveStruct(Struct filled, Struct* given) {
  filled.struct_bytes = given->struct_bytes;
  std::memcpy(given, &filled,
              given->struct_bytes < sizeof(Struct)
                  ? static_cast<size_t>(given->struct_bytes)
                  : sizeof(Struct));
}

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_C_GUARD_H_
