// trainer/parallel/hosted_collectives.h: DeviceCollectives over any
// Collectives.
//
// Where the host may touch the device's memory (the CPU) each call is the
// Collectives' own, in place. Elsewhere bytes go through pinned memory, and a
// call that sends waits for the stream first: correct everywhere, fast nowhere.
//
// Thread: the step thread. Memory: pinned, in pieces that are used again; none
// on the CPU.

#ifndef HOLDFAST_TRAINER_PARALLEL_HOSTED_COLLECTIVES_H_
#define HOLDFAST_TRAINER_PARALLEL_HOSTED_COLLECTIVES_H_

#include <cstddef>
#include <memory>

#include "kernels/device.h"
#include "trainer/parallel/collectives.h"
#include "trainer/parallel/device_collectives.h"

namespace holdfast::trainer {

// Bytes of a reduction or gather that are in pinned memory at once.
inline constexpr size_t kHostedWindowBytes = size_t{8} << 20;

// Both outlive the result.
std::unique_ptr<DeviceCollectives> NewHostedCollectives(
    Collectives& host, kernels::Device& device);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_HOSTED_COLLECTIVES_H_
