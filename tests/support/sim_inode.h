// tests/support/sim_inode.h: what the simulated disk stores, each thing twice:
// as processes see it and as a power cut would find it. For sim_disk*.cc only.

#ifndef HOLDFAST_TESTS_SUPPORT_SIM_INODE_H_
#define HOLDFAST_TESTS_SUPPORT_SIM_INODE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/sim_disk.h"

namespace holdfast::tests {

// The unit in which a disk keeps or loses data.
inline constexpr uint64_t kSector = 512;

inline constexpr InodeId kNoInode{0};
inline constexpr InodeId kRoot{1};

// A sector that was written since it was last safe, by which writes.
struct Dirty {
  uint64_t oldest = 0;
  uint64_t newest = 0;
};

// A directory entry: what it was when last safe, then each value since.
struct SimDisk::Entry {
  struct Value {
    InodeId inode{};
    uint64_t change = 0;  // When, in the order of all names' changes.
  };
  std::vector<Value> history;
  // What was there before, and each change since that somebody may not see yet.
  struct Shown {
    Value value;
    int process = -1;  // Whose change it is.
    int64_t tick = 0;
    std::set<int> learned;  // Who was told by a refusal.
  };
  std::vector<Shown> shown;

  InodeId now() const { return history.back().inode; }
  void Settle() { history.erase(history.begin(), history.end() - 1); }
};

struct SimDisk::Inode {
  enum Kind { kFile, kDir, kSpecial };
  Kind kind = kFile;

  // Files.
  std::vector<std::byte> now;
  std::vector<std::byte> safe;
  std::map<uint64_t, Dirty> dirty;  // By sector.
  std::set<uint64_t> lost;          // Visible, but no sync will keep it.
  // For processes that do not see the newest size yet.
  uint64_t size_before = 0;
  int64_t size_tick = 0;  // 0: it never changed
  uint64_t size_change = 0;
  int size_process = -1;

  // Directories.
  std::map<std::string, Entry> entries;

  InodeId At(const std::string& name) const {
    const auto found = entries.find(name);
    return found == entries.end() ? kNoInode : found->second.now();
  }

  // Makes a sector safe as it is now.
  void Keep(uint64_t sector) {
    const uint64_t begin = sector * kSector;
    const uint64_t end = std::min<uint64_t>(begin + kSector, now.size());
    if (begin >= end) return;
    if (safe.size() < end) safe.resize(end);
    std::copy(now.begin() + begin, now.begin() + end, safe.begin() + begin);
  }

  // Makes a sector again what is safe of it, or zeros.
  void Restore(uint64_t sector) {
    const uint64_t end = std::min<uint64_t>((sector + 1) * kSector, now.size());
    for (uint64_t i = sector * kSector; i < end; ++i) {
      now[i] = i < safe.size() ? safe[i] : std::byte{0};
    }
  }

  void DropDirtyBeyondEnd() {
    const uint64_t sectors = (now.size() + kSector - 1) / kSector;
    dirty.erase(dirty.lower_bound(sectors), dirty.end());
    lost.erase(lost.lower_bound(sectors), lost.end());
  }
};

// Where a name stands: in which directory, and what is there.
struct SimDisk::Place {
  InodeId parent{};
  std::string last;
  InodeId inode{};  // what is there
  InodeId seen{};   // what the process sees
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SIM_INODE_H_
