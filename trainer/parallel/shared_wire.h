// trainer/parallel/shared_wire.h: messages between ranks that are threads of
// one process and use one device.
//
// NCCL refuses two ranks on one GPU; this is how a whole mesh trains on a
// single card. A sender offers its bytes and the event that makes them ready
// (open_offers.h); the receiver copies them to its own memory, in the order of
// its own stream, and answers; the sender's stream goes on after that copy.
// Offer and answer are told through the ranks' host communicator, so that a
// rank that gives up, and a deadlock, are found there. A sender that gives up
// takes its offer back before its memory goes.
//
// Thread: the step thread of each rank. Cost: two small host messages and one
// copy on the device for each message.

#ifndef HOLDFAST_TRAINER_PARALLEL_SHARED_WIRE_H_
#define HOLDFAST_TRAINER_PARALLEL_SHARED_WIRE_H_

#include <memory>

#include "kernels/device.h"
#include "trainer/parallel/collectives.h"
#include "trainer/parallel/device_wire.h"

namespace holdfast::trainer {

// `host`'s ranks are threads of this process (InprocWorld) and use `device`,
// the same object. Both outlive the result, which has `host`'s point-to-point
// messages to itself.
std::unique_ptr<DeviceWire> NewSharedWire(Collectives& host,
                                          kernels::Device& device);

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_SHARED_WIRE_H_
