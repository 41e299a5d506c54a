// trainer/fingerprint.h: what the bits of a run depend on besides its
// configuration, as one line of text.
//
// Instruction set or GPU, library and compiler versions, the block of K, and
// the keys of the configuration that choose an order of summation. Equal
// fingerprints are a condition of every promise of equal bits
// (trainer/DESIGN.md); ranks vote theirs equal at the start, and a checkpoint
// carries it.

#ifndef HOLDFAST_TRAINER_FINGERPRINT_H_
#define HOLDFAST_TRAINER_FINGERPRINT_H_

#include <string>

#include "kernels/device.h"
#include "trainer/config.h"

namespace holdfast::trainer {

std::string NumericsFingerprint(const Config& config, kernels::Device& device);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_FINGERPRINT_H_
