// ckpt/c/options.h: options as a C caller sets them, by name. Private to
// ckpt/c.

#ifndef HOLDFAST_CKPT_C_OPTIONS_H_
#define HOLDFAST_CKPT_C_OPTIONS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "ckpt/checkpointer.h"

namespace holdfast::ckpt {

struct COptions {
  CheckpointerOptions checkpointer;
  int64_t open_timeout_ms = 60'000;
  std::string layout;  // "": made up from the number of ranks
};

// kInvalidArgument names the options there are, or what was expected.
absl::Status SetOption(std::string_view name, std::string_view value,
                       COptions* options);

}  // namespace holdfast::ckpt

struct hf_ckpt_options {
  holdfast::ckpt::COptions options;
};

#endif  // HOLDFAST_CKPT_C_OPTIONS_H_
