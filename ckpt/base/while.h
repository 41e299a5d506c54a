// ckpt/base/while.h: an error with what was being done in front.

#ifndef HOLDFAST_CKPT_BASE_WHILE_H_
#define HOLDFAST_CKPT_BASE_WHILE_H_

#include <string_view>

#include "absl/status/status.h"

namespace holdfast::ckpt {

// "DOING: MESSAGE" with the code of `status`; OK stays OK.
absl::Status While(std::string_view doing, const absl::Status& status);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_BASE_WHILE_H_
