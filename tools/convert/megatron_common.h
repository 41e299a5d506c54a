// tools/convert/megatron_common.h: what a Megatron checkpoint says beside its
// tensors: arguments, iteration, steps of the optimizer.
//
// A pickled dictionary, read as data (tools/convert/dcp/pickle.h): the value
// "common_state/shard_0_1" of the checkpoint since megatron-core 0.17, the file
// common.pt before. Megatron-LM puts its arguments there, an
// argparse.Namespace; megatron-core alone does not.

#ifndef HOLDFAST_TOOLS_CONVERT_MEGATRON_COMMON_H_
#define HOLDFAST_TOOLS_CONVERT_MEGATRON_COMMON_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/convert/dcp/dcp_directory.h"
#include "trainer/model/model_config.h"

namespace holdfast::tools {

struct MegatronCommon {
  std::optional<int64_t> iteration;
  // Of every parameter group; kInvalidArgument when they differ.
  std::optional<int64_t> optimizer_steps;
  std::optional<int64_t> tokens;  // consumed samples x sequence length
  // From the arguments, checked: kInvalidArgument names an argument that asks
  // for what our model has not.
  std::optional<trainer::ModelConfig> model;
  bool rotary_interleaved = false;
};

// Nothing of it when the checkpoint has no common state.
absl::StatusOr<MegatronCommon> ReadMegatronCommon(DcpDirectory& directory);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_MEGATRON_COMMON_H_
