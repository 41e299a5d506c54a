// ckpt/c/guard.cc: errors, versions, memory and logs of the C functions.

#include "ckpt/c/guard.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/log.h"
#include "ckpt/c/page_memory.h"

namespace holdfast::ckpt {
namespace {

constexpr const char* kCodeNames[] = {
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
};
constexpr int kCodes = sizeof(kCodeNames) / sizeof(kCodeNames[0]);

std::string& LastError() {
  thread_local std::string text;
  return text;
}

}  // namespace

hf_ckpt_code Keep(const absl::Status& status) {
  if (!status.ok()) {
    LastError().assign(status.message().data(), status.message().size());
  }
  return static_cast<hf_ckpt_code>(status.code());
}

absl::StatusCode CodeOf(hf_ckpt_code code) {
  return code >= 0 && code < kCodes ? static_cast<absl::StatusCode>(code)
                                    : absl::StatusCode::kUnknown;
}

PageMemory NewPageMemory(uint64_t bytes) {
  if (bytes > SIZE_MAX - 2 * AlignedBuffer::kAlignment) return nullptr;
  const size_t size = std::max(RoundUp(bytes, AlignedBuffer::kAlignment),
                               AlignedBuffer::kAlignment);
  void* memory = nullptr;
  if (::posix_memalign(&memory, AlignmentFor(size), size) != 0) return nullptr;
  PreferHugePages(memory, size);
  std::memset(memory, 0, size);
  return PageMemory(static_cast<std::byte*>(memory));
}

}  // namespace holdfast::ckpt

using holdfast::ckpt::CodeOf;
using holdfast::ckpt::Guard;
using holdfast::ckpt::NullArgument;

extern "C" {

uint32_t hf_ckpt_api_version(void) { return HF_CKPT_API_VERSION; }
const char* hf_ckpt_version(void) { return HOLDFAST_VERSION; }

const char* hf_ckpt_code_name(hf_ckpt_code code) {
  return holdfast::ckpt::kCodeNames[static_cast<int>(CodeOf(code))];
}

const char* hf_ckpt_last_error(void) {
  return holdfast::ckpt::LastError().c_str();
}

hf_ckpt_code hf_ckpt_log_init(int32_t level, const char* file,
                              const char* prefix) {
  return Guard(__func__, [&]() -> absl::Status {
    if (level < 0 || level > 3) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "hf_ckpt_log_init: level %d; 0 to 3 are expected", level));
    }
    return holdfast::ckpt::InitLog(static_cast<holdfast::ckpt::LogLevel>(level),
                                   file == nullptr ? "" : file,
                                   prefix == nullptr ? "" : prefix);
  });
}

hf_ckpt_code hf_ckpt_alloc(uint64_t bytes, void** memory) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_alloc", memory);
    holdfast::ckpt::PageMemory made = holdfast::ckpt::NewPageMemory(bytes);
    if (made == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("hf_ckpt_alloc: no memory left for %d bytes", bytes));
    }
    *memory = made.release();
    return absl::OkStatus();
  });
}

void hf_ckpt_dealloc(void* memory) { std::free(memory); }

}  // extern "C"
