// tests/support/storage_world.h: one place that Storages of one backend share,
// for tests that every backend must pass.

#ifndef HOLDFAST_TESTS_SUPPORT_STORAGE_WORLD_H_
#define HOLDFAST_TESTS_SUPPORT_STORAGE_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/storage/storage.h"

namespace holdfast::tests {

class StorageWorld {
 public:
  virtual ~StorageWorld() = default;

  // Why this backend cannot be tested here, or "".
  virtual std::string WhyNot() const { return ""; }

  // Another Storage on the same place.
  virtual std::unique_ptr<ckpt::Storage> Start(size_t queue_depth = 64) = 0;

  // A symbolic link to nothing.
  virtual void PlantSymlink(std::string_view name) = 0;
  // What a PutIfAbsent that was killed leaves in `dir`.
  virtual void PlantLeftover(std::string_view dir) = 0;

  // From here on no file gets larger than `bytes` (a multiple of 4096), and
  // what would is kResourceExhausted; until Unlimit.
  virtual void LimitFileSize(uint64_t bytes) = 0;
  virtual void Unlimit() = 0;
};

struct NamedWorld {
  std::string name;
  std::function<std::unique_ptr<StorageWorld>()> make;
};

// posix, io_uring (with O_DIRECT), io_uring_buffered, with_faults (io_uring
// behind a FaultStorage that has nothing to do), sim, sim_object_store.
std::vector<NamedWorld> AllStorageWorlds();

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_STORAGE_WORLD_H_
