// ckpt/c/holdfast_ckpt/core.h: what all of the C interface shares: versions,
// codes and errors, the log, memory, types. Included by <holdfast_ckpt.h>,
// where the rules for calls, ownership and threads are.

#ifndef HOLDFAST_CKPT_C_HOLDFAST_CKPT_CORE_H_
#define HOLDFAST_CKPT_C_HOLDFAST_CKPT_CORE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HF_CKPT_API __attribute__((visibility("default")))
#else
#define HF_CKPT_API
#endif

// Grows when something is added here.
#define HF_CKPT_API_VERSION 2

// HF_CKPT_API_VERSION of the library that is loaded, and "0.1.0".
HF_CKPT_API uint32_t hf_ckpt_api_version(void);
HF_CKPT_API const char* hf_ckpt_version(void);

// --- Codes
// The numbers of absl::StatusCode and of gRPC.

typedef int32_t hf_ckpt_code;

enum {
  HF_CKPT_OK = 0,
  HF_CKPT_CANCELLED = 1,
  HF_CKPT_UNKNOWN = 2,
  HF_CKPT_INVALID_ARGUMENT = 3,   // the caller's mistake; a bad option
  HF_CKPT_DEADLINE_EXCEEDED = 4,  // a rank or the storage did not answer
  HF_CKPT_NOT_FOUND = 5,          // no (whole) checkpoint
  HF_CKPT_ALREADY_EXISTS = 6,
  HF_CKPT_PERMISSION_DENIED = 7,
  HF_CKPT_RESOURCE_EXHAUSTED = 8,   // disk or memory full
  HF_CKPT_FAILED_PRECONDITION = 9,  // checkpoint and job disagree; wrong order
                                    // of calls; the run was lost to another job
  HF_CKPT_ABORTED = 10,             // a save: another rank voted no
  HF_CKPT_OUT_OF_RANGE = 11,
  HF_CKPT_UNIMPLEMENTED = 12,  // not in this build of the library
  HF_CKPT_INTERNAL = 13,
  HF_CKPT_UNAVAILABLE = 14,  // I/O or a rank; may come back. A save that
                             // was skipped
  HF_CKPT_DATA_LOSS = 15,    // stored bytes are damaged
  HF_CKPT_UNAUTHENTICATED = 16
};

// "NOT_FOUND"; "UNKNOWN" for a number that is none.
HF_CKPT_API const char* hf_ckpt_code_name(hf_ckpt_code code);

// What the last call of this thread that failed says; "" before the first.
// Stays until the next one fails.
HF_CKPT_API const char* hf_ckpt_last_error(void);

// Where log lines go. `level`, 0 (debug) to 3 (errors): the lowest one that
// reaches stderr. `file`: also appended to it; null for none. `prefix`, such as
// "rank 3", precedes each message; may be null. Without this call: stderr, from
// level 1 up.
HF_CKPT_API hf_ckpt_code hf_ckpt_log_init(int32_t level, const char* file,
                                          const char* prefix);

// A name and a value; both end with a zero byte.
typedef struct hf_ckpt_attribute {
  const char* name;
  const char* value;
} hf_ckpt_attribute;

// --- Memory

// Zeroed memory that a save writes from where it is: page aligned, and rounded
// up to whole pages.
HF_CKPT_API hf_ckpt_code hf_ckpt_alloc(uint64_t bytes, void** memory);
HF_CKPT_API void hf_ckpt_dealloc(void* memory);

// --- Items

#define HF_CKPT_DIMENSIONS_MAX 4

enum {
  HF_CKPT_BF16 = 1,
  HF_CKPT_F16 = 2,
  HF_CKPT_F32 = 3,
  HF_CKPT_F64 = 4,
  HF_CKPT_I32 = 5,
  HF_CKPT_I64 = 6,
  HF_CKPT_U8 = 7  // also for what has no number here: bool, fp8, bytes
};

#ifdef __cplusplus
}
#endif

#endif  // HOLDFAST_CKPT_C_HOLDFAST_CKPT_CORE_H_
