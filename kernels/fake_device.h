// kernels/fake_device.h: a device that punishes missing synchronisation.
//
// Its device memory is an address space of its own: the pages are PROT_NONE
// except while enqueued operations run, so host code that reads or writes
// them dies with SIGSEGV on the spot. Its completions are late: Launch only
// queues, and later calls run a number of queued operations drawn from the
// seed, none included, so a host that looks at shared or pinned memory without
// synchronising finds yesterday's bytes, and in the pinned destination of a
// copy that may run by now, and has not, garbage. Several streams advance in an
// order drawn from the seed; WaitFor is the only order between them.
//
// Equal seeds and equal calls give the same interleaving.
//
// Thread: any; one lock guards it all. Operations run on the thread whose call
//     happens to run them (Launch, Record, Query, Sync, Pump, the destructor),
//     under the lock, so an operation must not call its device.
// Memory: `device_bytes` of address space, backed by pages once touched.
// Cost: two mprotect calls for each call that runs operations. For tests.

#ifndef HOLDFAST_KERNELS_FAKE_DEVICE_H_
#define HOLDFAST_KERNELS_FAKE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace holdfast::kernels {

struct FakeDeviceOptions {
  uint64_t seed = 1;
  size_t device_bytes = size_t{256} << 20;  // What Allocate(kDevice) can give.
  // Most operations that one call may run in passing. 0: nothing runs before a
  // Sync or a Pump, the latest completion there is.
  int eager_max = 3;
};

class FakeDevice : public Device {
 public:
  // Runs up to `operations` of those that may run; returns how many ran.
  virtual int64_t Pump(int64_t operations) = 0;

  // Operations launched and not yet run, over all streams.
  virtual int64_t pending() const = 0;

  // From now on the stream goes on only when no other can: a wait for it that
  // is missing shows.
  virtual void Delay(Stream& stream) = 0;

  // From now on it is a device that has failed: status() says so, nothing that
  // was launched runs, and nothing waits.
  virtual void Fail(absl::Status why) = 0;

  // Bytes of device memory handed out and not freed.
  virtual size_t device_bytes_used() const = 0;
};

// kResourceExhausted: the address space was refused.
absl::StatusOr<std::unique_ptr<FakeDevice>> NewFakeDevice(
    const FakeDeviceOptions& options);

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_FAKE_DEVICE_H_
