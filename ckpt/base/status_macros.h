// ckpt/base/status_macros.h: leave a function early with its error.
//
//   HF_RETURN_IF_ERROR(storage.Sync(file));
//   HF_ASSIGN_OR_RETURN(Manifest manifest, DecodeManifest(bytes));
//
// Abseil 20220623 has no such macros of its own.

#ifndef HOLDFAST_CKPT_BASE_STATUS_MACROS_H_
#define HOLDFAST_CKPT_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define HF_CONCAT_INNER_(a, b) a##b
#define HF_CONCAT_(a, b) HF_CONCAT_INNER_(a, b)

#define HF_RETURN_IF_ERROR(expression)       \
  do {                                       \
    absl::Status hf_status_ = (expression);  \
    if (!hf_status_.ok()) return hf_status_; \
  } while (false)

#define HF_ASSIGN_OR_RETURN(target, expression)                         \
  HF_ASSIGN_OR_RETURN_IMPL_(HF_CONCAT_(hf_statusor_, __LINE__), target, \
                            expression)

#define HF_ASSIGN_OR_RETURN_IMPL_(statusor, target, expression) \
  auto statusor = (expression);                                 \
  if (!statusor.ok()) return std::move(statusor).status();      \
  target = std::move(statusor).value()

#endif  // HOLDFAST_CKPT_BASE_STATUS_MACROS_H_
