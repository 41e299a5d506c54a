// trainer/parallel/wire_collectives.h: DeviceCollectives over messages from
// device to device.
//
// Bytes are moved by the wire, sums are made by kernels on the caller's stream:
//
//   all-reduce   short: everybody sends everything to everybody; long: rank r
//                gets slice r of all contributions, adds them up in rank order,
//                and sends the slice to all; window by window
//
// Both add in rank order and give the bits of collectives.h.
//
// Thread: the step thread. Memory: the scratch given at Create, on the device;
// calls allocate nothing.

#ifndef HOLDFAST_TRAINER_PARALLEL_WIRE_COLLECTIVES_H_
#define HOLDFAST_TRAINER_PARALLEL_WIRE_COLLECTIVES_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "trainer/parallel/device_collectives.h"
#include "trainer/parallel/device_wire.h"

namespace holdfast::trainer {

// What a TP group's joins want: 16 Mi floats of contributions at once.
inline constexpr size_t kWireScratchBytes = size_t{64} << 20;

// `device` outlives the result. `scratch_bytes` bounds the windows of
// all-reduces; at least 128 for each other rank. kResourceExhausted: the device
// has no such memory.
absl::StatusOr<std::unique_ptr<DeviceCollectives>> NewWireCollectives(
    std::unique_ptr<DeviceWire> wire, kernels::Device& device,
    size_t scratch_bytes = kWireScratchBytes);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_WIRE_COLLECTIVES_H_
