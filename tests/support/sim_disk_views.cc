// tests/support/sim_disk_views.cc: what a process sees of what others did, on a
// disk that shows it late (SimDiskOptions::late_ops).

#include "tests/support/sim_disk.h"
#include "tests/support/sim_inode.h"

namespace holdfast::tests {

// Another number for each change and process, always the same.
int64_t SimDisk::LateOps(uint64_t change, int process) const {
  SimRandom random(options_.seed ^ change * 0x9E3779B97F4A7C15,
                   static_cast<uint64_t>(process));
  return static_cast<int64_t>(random.Below(options_.late_ops + 1));
}

InodeId SimDisk::SeenIn(const Inode& dir, const std::string& name,
                        bool listed) const {
  const auto found = dir.entries.find(name);
  if (found == dir.entries.end()) return kNoInode;
  const Entry& entry = found->second;
  if (entry.shown.empty() || viewer_ < 0) return entry.now();
  const Attached& viewer = attached_.at(viewer_);
  for (auto shown = entry.shown.rbegin(); shown != entry.shown.rend();
       ++shown) {
    const int64_t late = LateOps(shown->value.change, viewer_);
    const bool is_seen = shown->process == viewer_ || shown->process < 0 ||
                         shown->value.change <= viewer.change ||
                         shown->learned.contains(viewer_) ||
                         tick_ - shown->tick >= (listed ? 2 * late : late);
    if (!is_seen) continue;
    // What is gone for good is not to be had from any cache.
    return inodes_.contains(shown->value.inode) ? shown->value.inode : kNoInode;
  }
  return kNoInode;
}

void SimDisk::NoteChange(Entry& entry, InodeId to) {
  if (options_.late_ops == 0 || options_.object_store) return;
  auto& shown = entry.shown;
  // By now everybody has seen the second one, so the first is of no use.
  while (shown.size() > 1 && tick_ - shown[1].tick > 2 * options_.late_ops) {
    shown.erase(shown.begin());
  }
  if (shown.empty()) shown.push_back({{entry.now(), 0}, -1, 0, {}});
  shown.push_back({{to, last_change_ + 1}, viewer_, tick_, {}});
}

uint64_t SimDisk::SizeSeen(const Inode& file) const {
  const uint64_t now = file.now.size();
  if (options_.late_ops == 0 || file.size_tick == 0 || viewer_ < 0 ||
      viewer_ == file.size_process ||
      file.size_tick <= attached_.at(viewer_).tick ||
      tick_ - file.size_tick >= LateOps(file.size_change, viewer_)) {
    return now;
  }
  return std::min(file.size_before, now);
}

void SimDisk::NoteSize(Inode& file, uint64_t before) {
  if (options_.late_ops == 0) return;
  // Within one run of changes the oldest size is the one that lingers.
  if (tick_ - file.size_tick > options_.late_ops || file.size_tick == 0) {
    file.size_before = before;
  }
  file.size_tick = tick_;
  file.size_change = last_change_ ^ before;
  file.size_process = viewer_;
}

void SimDisk::Learn(const Place& place) {
  if (options_.late_ops == 0) return;
  const auto found = Look(place.parent).entries.find(place.last);
  if (found == Look(place.parent).entries.end()) return;
  Entry& entry = Change(place.parent).entries[place.last];
  if (!entry.shown.empty()) entry.shown.back().learned.insert(viewer_);
}

void SimDisk::ForgetViews() {
  viewer_ = -1;
  for (auto& [id, inode] : inodes_) {
    if (options_.late_ops == 0 || inode->kind != Inode::kDir) continue;
    for (auto& [name, entry] : Change(id).entries) entry.shown.clear();
  }
}

}  // namespace holdfast::tests
