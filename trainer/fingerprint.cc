// trainer/fingerprint.cc: collects the facts.

#include "trainer/fingerprint.h"

#include "absl/strings/str_format.h"
#include "kernels/kernel_set.h"
#include "kernels/matmul.h"

namespace holdfast::trainer {

std::string NumericsFingerprint(const Config& config, kernels::Device& device) {
  const kernels::KernelSet* const set = device.NewStream()->kernel_set();
  return absl::StrFormat(
      "%s; compiler %s; compute %s; micro_seqs %d; invariant %s; virtual_dp %d",
      set != nullptr ? set->Description() : kernels::MatmulDescription(),
      __VERSION__,
      config.numerics.compute == ComputeType::kBf16 ? "bf16" : "f32",
      config.batch.micro_seqs, config.numerics.invariant ? "yes" : "no",
      config.numerics.virtual_dp);
}

}  // namespace holdfast::trainer
