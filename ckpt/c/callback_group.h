// ckpt/c/callback_group.h: a Group over functions of a C caller. Private to
// ckpt/c.
//
// Each message goes as one piece of bytes, its tag before its body. Thread: the
// owner's, which is where the functions are called.

#ifndef HOLDFAST_CKPT_C_CALLBACK_GROUP_H_
#define HOLDFAST_CKPT_C_CALLBACK_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "ckpt/c/holdfast_ckpt.h"
#include "ckpt/group/group.h"

struct hf_ckpt_group {
  std::unique_ptr<holdfast::ckpt::Group> group;
};

namespace holdfast::ckpt {

// kInvalidArgument: a function that is null, a rank that is none.
absl::StatusOr<std::unique_ptr<Group>> MakeCallbackGroup(
    const hf_ckpt_transport& transport);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_C_CALLBACK_GROUP_H_
