// trainer/parallel/open_offers.h: memory of one rank that other ranks of this
// process may copy from. Private to shared_wire.cc.
//
// A rank that fails frees its memory while a peer, which knows nothing of it
// yet, holds the address. So the address is not told, but the offer's number:
// it is taken before the copy, and closed before the memory is freed.
//
// Thread: any. Cost: a lock and a look-up.

#ifndef HOLDFAST_TRAINER_PARALLEL_OPEN_OFFERS_H_
#define HOLDFAST_TRAINER_PARALLEL_OPEN_OFFERS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "kernels/device.h"

namespace holdfast::trainer {

class OpenOffers {
 public:
  // Never that of another offer, not even of one long closed.
  using Id = uint64_t;

  struct Offer {
    std::byte* data = nullptr;
    size_t bytes = 0;
    kernels::Event ready = kernels::Event::kPassed;
  };

  // For all ranks of the process: an offer may outlive the rank that made it.
  static OpenOffers& OfThisProcess();

  Id Open(const Offer& offer);

  // Nothing, if it was closed before; else the memory stays until Taken, which
  // follows without waiting for anybody: Close blocks meanwhile.
  std::optional<Offer> Take(Id id);
  // Whoever copies has enqueued that; it is over after `copied`.
  void Taken(Id id, kernels::Event copied);

  // Nobody takes the offer from here on. Returns the event after which the
  // memory may be written or freed. Exactly once for each offer.
  kernels::Event Close(Id id);

 private:
  struct Entry {
    Offer offer;
    bool in_use = false;
    kernels::Event copied = kernels::Event::kPassed;
  };

  std::mutex lock_;
  std::condition_variable taken_;
  absl::flat_hash_map<Id, Entry> entries_;
  Id next_ = 0;
};

}  // namespace holdfast::trainer

#endif  // HOLDFAST_TRAINER_PARALLEL_OPEN_OFFERS_H_
