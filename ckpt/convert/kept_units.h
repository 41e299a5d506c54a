// ckpt/convert/kept_units.h: units that one call has read and the next one will
// want the rest of.
//
// Calls that follow each other through a tensor meet in the middle of a unit,
// of each file that they read. Whoever reads such a unit first says so, and
// gives its bytes to the others; who comes meanwhile waits for them. Nobody
// waits before he has read what he promised, so all waits end.
//
// Any thread. Memory: bytes_max.

#ifndef HOLDFAST_CKPT_CONVERT_KEPT_UNITS_H_
#define HOLDFAST_CKPT_CONVERT_KEPT_UNITS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace holdfast::ckpt {

class KeptUnits {
 public:
  using Key = std::pair<uint32_t, uint32_t>;  // file, unit
  using Bytes = std::shared_ptr<const std::vector<std::byte>>;

  explicit KeptUnits(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  enum class Found {
    kHere,    // `*bytes` has them
    kComing,  // another call reads it: Await
    kMine,    // this call reads it and says Put or GiveUp
    kNobody,  // this call reads it for itself: there is no room
  };
  // A unit of `unit_bytes`, of which `wants` of `data_bytes` are wanted now.
  Found Find(const Key& key, uint64_t unit_bytes, uint64_t wants,
             uint64_t data_bytes, Bytes* bytes);
  void Put(const Key& key, std::span<const std::byte> bytes);
  void GiveUp(const Key& key);
  // Null: the other call gave up.
  Bytes Await(const Key& key);

 private:
  struct Entry {
    Bytes bytes;  // none: it is being read
    uint64_t size = 0;
    uint64_t left = 0;  // not wanted by anyone so far
    int awaited = 0;    // by calls that have not got it
    bool given_up = false;
  };
  using Entries = std::map<Key, Entry>;

  void DropIfUsedUp(Entries::iterator entry);
  bool MakeRoom(uint64_t bytes);

  std::mutex lock_;
  std::condition_variable changed_;
  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  Entries entries_;
  std::deque<Key> order_;  // as they came; some may be gone
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_KEPT_UNITS_H_
