// tests/support/sim_disk_fate.cc: what a power cut leaves.
//
// Files and directories draw a mood first, all kept, all lost or mixed, so that
// sweeps see the extremes often; mixed decides sector by sector and entry by
// entry.

#include <algorithm>

#include "tests/support/sim_disk.h"
#include "tests/support/sim_inode.h"

namespace holdfast::tests {
namespace {

enum class Mood { kAllKept, kAllLost, kMixed };

Mood DrawMood(SimRandom& random) {
  switch (random.Below(4)) {
    case 0:
      return Mood::kAllKept;
    case 1:
      return Mood::kAllLost;
    default:
      return Mood::kMixed;
  }
}

}  // namespace

void SimDisk::PowerCycle(uint64_t fate) {
  AbandonAllWrites();
  ForgetViews();
  SimRandom random(options_.seed ^ fate * 0x9E3779B97F4A7C15,
                   /*stream=*/0xFA7E0000 + era_);
  SettleEntries(random);
  DropUnreachable();
  for (auto& [id, inode] : inodes_) {
    if (inode->kind == Inode::kFile) SettleFile(Change(id), random);
  }
  synced_change_ = last_change_;
  ++era_;
  faults_.PowerIsBack();
}

void SimDisk::SettleFile(Inode& file, SimRandom& random) {
  const Mood mood = DrawMood(random);
  uint64_t size = file.now.size();
  if (size != file.safe.size() && mood != Mood::kAllKept) {
    const uint64_t low = std::min<uint64_t>(file.safe.size(), size);
    const uint64_t high = std::max<uint64_t>(file.safe.size(), size);
    const uint64_t between =
        low + random.Below((high - low) / kSector + 1) * kSector;
    const uint64_t choices[] = {file.safe.size(), file.safe.size(), size,
                                between};
    size = choices[mood == Mood::kAllLost ? 0 : random.Below(4)];
  }
  std::set<uint64_t> unsafe = file.lost;
  for (const auto& [sector, dirty] : file.dirty) unsafe.insert(sector);
  for (const uint64_t sector : unsafe) {
    const bool kept =
        mood == Mood::kAllKept || (mood == Mood::kMixed && random.Coin());
    if (kept) continue;
    file.Restore(sector);
    // A sector that was never safe may hold what was there before the file.
    if (sector * kSector < file.safe.size() || !random.Coin()) continue;
    const uint64_t end =
        std::min<uint64_t>((sector + 1) * kSector, file.now.size());
    for (uint64_t i = sector * kSector; i < end; ++i) {
      file.now[i] = static_cast<std::byte>(random.Below(256));
    }
  }
  file.now.resize(size);
  file.safe = file.now;
  file.dirty.clear();
  file.lost.clear();
}

void SimDisk::SettleEntries(SimRandom& random) {
  // A journal keeps a prefix of the changes, at least what was synced.
  const uint64_t kept_changes =
      synced_change_ + random.Below(last_change_ - synced_change_ + 1);
  for (auto& [id, inode] : inodes_) {
    if (inode->kind != Inode::kDir) continue;
    Inode& dir = Change(id);
    const Mood mood = DrawMood(random);
    for (auto& [name, entry] : dir.entries) {
      auto& history = entry.history;
      size_t chosen = 0;
      if (options_.journaled_names) {
        while (chosen + 1 < history.size() &&
               history[chosen + 1].change <= kept_changes) {
          ++chosen;
        }
      } else if (mood == Mood::kAllKept) {
        chosen = history.size() - 1;
      } else if (mood == Mood::kMixed) {
        chosen = random.Below(history.size());
      }
      history = {history[chosen]};
    }
    std::erase_if(dir.entries, [](const auto& item) {
      return item.second.now() == kNoInode;
    });
  }
  // A directory found under two names keeps one, as a repair would leave it.
  std::map<InodeId, std::vector<std::pair<InodeId, std::string>>> names_of;
  for (const auto& [id, inode] : inodes_) {
    for (const auto& [name, entry] : inode->entries) {
      if (Look(entry.now()).kind == Inode::kDir) {
        names_of[entry.now()].push_back({id, name});
      }
    }
  }
  for (const auto& [dir, names] : names_of) {
    const size_t kept = random.Below(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      if (i != kept) Change(names[i].first).entries.erase(names[i].second);
    }
  }
}

void SimDisk::DropUnreachable() {
  std::set<InodeId> reachable = {kRoot};
  std::vector<InodeId> dirs = {kRoot};
  while (!dirs.empty()) {
    const InodeId dir = dirs.back();
    dirs.pop_back();
    for (const auto& [name, entry] : Look(dir).entries) {
      for (const Entry::Value& value : entry.history) {
        if (value.inode == kNoInode || !reachable.insert(value.inode).second) {
          continue;
        }
        if (Look(value.inode).kind == Inode::kDir) dirs.push_back(value.inode);
      }
    }
  }
  std::erase_if(inodes_, [&](const auto& item) {
    return !reachable.contains(item.first);
  });
}

}  // namespace holdfast::tests
