// tools/convert/running_jobs.h: training checkpoints of others, weights,
// masters and moments, all of which are directories of
// torch.distributed.checkpoint.

#ifndef HOLDFAST_TOOLS_CONVERT_RUNNING_JOBS_H_
#define HOLDFAST_TOOLS_CONVERT_RUNNING_JOBS_H_

#include "absl/status/statusor.h"
#include "tools/convert/formats.h"

namespace holdfast::tools {

// torchtitan's Llama 3 (torchtitan_import.cc). Needs request.model_file.
absl::StatusOr<ImportedState> OpenTorchtitan(const ImportRequest& request);

// Megatron Core's GPT model in the format torch_dist (megatron_import.cc). The
// model is that of request.model_file, or of the arguments that Megatron-LM
// keeps in the checkpoint.
absl::StatusOr<ImportedState> OpenMegatron(const ImportRequest& request);

// Any state, tensor by tensor: (name, "tensor") where the type is one of ours,
// else bytes (name, "torch.TYPE"); values that are no tensors as the bytes of
// torch.save (name, "torch.save"). No model, so it is cut by rows.
absl::StatusOr<ImportedState> OpenDcp(const ImportRequest& request);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_RUNNING_JOBS_H_
