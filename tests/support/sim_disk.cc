// tests/support/sim_disk.cc: names and bytes of the simulated disk. What a
// power cut leaves of them is in sim_disk_fate.cc.

#include "tests/support/sim_disk.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/storage/names.h"
#include "tests/support/sim_inode.h"

namespace holdfast::tests {
namespace {

absl::Status NotFound(std::string_view name) {
  return absl::NotFoundError(absl::StrFormat("sim: %s does not exist", name));
}
absl::Status Exists(std::string_view name) {
  return absl::AlreadyExistsError(absl::StrFormat("sim: %s exists", name));
}
absl::Status WrongKind(std::string_view name, std::string_view wanted) {
  return absl::FailedPreconditionError(
      absl::StrFormat("sim: %s is not %s", name, wanted));
}

}  // namespace

SimDisk::SimDisk(const SimDiskOptions& options)
    : options_(options), random_(options.seed, /*stream=*/0) {
  NewInode(Inode::kDir);  // The root is kRoot.
}

SimDisk::SimDisk(const SimDisk&) = default;
SimDisk::~SimDisk() = default;

std::unique_ptr<SimDisk> SimDisk::Clone() const {
  HF_CHECK(in_flight_.empty(), "clone with %d writes in flight",
           in_flight_.size());
  return std::unique_ptr<SimDisk>(new SimDisk(*this));
}

// --- Inodes ------------------------------------------------------------------

const SimDisk::Inode& SimDisk::Look(InodeId id) const {
  const auto found = inodes_.find(id);
  HF_CHECK(found != inodes_.end(), "no inode %d", static_cast<uint64_t>(id));
  return *found->second;
}

SimDisk::Inode& SimDisk::Change(InodeId id) {
  const auto found = inodes_.find(id);
  HF_CHECK(found != inodes_.end(), "no inode %d", static_cast<uint64_t>(id));
  // Shared with a clone: ours from here on.
  if (found->second.use_count() > 1) {
    found->second = std::make_shared<Inode>(*found->second);
  }
  return *found->second;
}

InodeId SimDisk::NewInode(int kind) {
  const InodeId id{++last_inode_};
  inodes_[id] = std::make_shared<Inode>();
  inodes_[id]->kind = static_cast<Inode::Kind>(kind);
  return id;
}

// --- Names -------------------------------------------------------------------

absl::StatusOr<SimDisk::Place> SimDisk::Find(std::string_view name) const {
  Place place{kRoot, std::string(name), kNoInode};
  if (!options_.object_store) {
    for (size_t slash; (slash = place.last.find('/')) != std::string::npos;) {
      const InodeId next =
          SeenIn(Look(place.parent), place.last.substr(0, slash));
      if (next == kNoInode) return NotFound(name);
      if (Look(next).kind != Inode::kDir) return WrongKind(name, "below one");
      place.parent = next;
      place.last.erase(0, slash + 1);
    }
  }
  const Inode& parent = Look(place.parent);
  place.inode = name == "." ? kRoot : parent.At(place.last);
  place.seen = name == "." ? kRoot : SeenIn(parent, place.last);
  return place;
}

InodeId SimDisk::FindExisting(std::string_view name) const {
  const absl::StatusOr<Place> place = Find(name);
  HF_CHECK(place.ok() && place->inode != kNoInode, "%s does not exist", name);
  return place->inode;
}

void SimDisk::SetEntry(const Place& place, InodeId to) {
  Entry& entry = Change(place.parent).entries[place.last];
  if (entry.history.empty()) entry.history.push_back({kNoInode, 0});
  NoteChange(entry, to);
  entry.history.push_back({to, ++last_change_});
}

std::vector<std::string> SimDisk::Names() const {
  std::vector<std::string> names;
  std::vector<std::pair<std::string, InodeId>> dirs = {{"", kRoot}};
  while (!dirs.empty()) {
    const auto [prefix, dir] = dirs.back();
    dirs.pop_back();
    for (const auto& [name, entry] : Look(dir).entries) {
      const InodeId id = entry.now();
      if (id == kNoInode) continue;
      const bool is_dir = Look(id).kind == Inode::kDir;
      names.push_back(prefix + name + (is_dir ? "/" : ""));
      if (is_dir) dirs.push_back({names.back(), id});
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// --- Trouble -----------------------------------------------------------------

void SimDisk::Kill(int process) {
  faults_.Kill(process);
  AbandonWrites(process);
}

void SimDisk::FlipBit(std::string_view name, uint64_t byte, int bit) {
  Inode& file = Change(FindExisting(name));
  HF_CHECK(byte < file.now.size(), "%s has %d bytes", name, file.now.size());
  file.now[byte] ^= static_cast<std::byte>(1 << bit);
  if (byte < file.safe.size()) {
    file.safe[byte] ^= static_cast<std::byte>(1 << bit);
  }
}

void SimDisk::Truncate(std::string_view name, uint64_t size) {
  Inode& file = Change(FindExisting(name));
  HF_CHECK(size <= file.now.size(), "%s has %d bytes", name, file.now.size());
  file.now.resize(size);
  file.safe.resize(std::min<uint64_t>(size, file.safe.size()));
  file.DropDirtyBeyondEnd();
}

void SimDisk::PlantSymlink(std::string_view name) {
  const absl::StatusOr<Place> place = Find(name);
  HF_CHECK(place.ok() && place->inode == kNoInode, "%s is taken", name);
  SetEntry(*place, NewInode(Inode::kSpecial));
}

// --- Processes ---------------------------------------------------------------

uint64_t SimDisk::Attach(int process) {
  faults_.Start(process);
  attached_[process] = {last_change_, tick_};
  return era_;
}

bool SimDisk::IsAlive(int process, uint64_t era) const {
  return era == era_ && !faults_.power_is_off() && !faults_.is_dead(process);
}

SimFaults::Decision SimDisk::Decide(int process, SimOp op,
                                    std::string_view name) {
  viewer_ = process;
  ++tick_;
  SimFaults::Decision decision = faults_.Decide(process, op, name);
  if (decision.verdict == SimFaults::Verdict::kProcessIsDead) {
    AbandonWrites(process);
  }
  if (decision.verdict == SimFaults::Verdict::kPowerIsOff) {
    AbandonAllWrites();
  }
  return decision;
}

// --- File data ---------------------------------------------------------------

uint64_t SimDisk::BeginWrite(int process, InodeId file, uint64_t offset,
                             std::span<const std::byte> data) {
  in_flight_[++last_write_] = {process, file, offset, data};
  return last_write_;
}

absl::Status SimDisk::EndWrite(uint64_t write, bool torn) {
  const auto found = in_flight_.find(write);
  HF_CHECK(found != in_flight_.end(), "write %d is not in flight", write);
  const InFlight in_flight = found->second;
  in_flight_.erase(found);
  if (!inodes_.contains(in_flight.file)) return absl::OkStatus();  // Removed.
  HF_RETURN_IF_ERROR(TakeSpace(Look(in_flight.file).now.size(),
                               in_flight.offset + in_flight.data.size()));
  const uint64_t before = Look(in_flight.file).now.size();
  Land(write, in_flight, torn);
  Inode& file = Change(in_flight.file);
  if (file.now.size() != before) NoteSize(file, before);
  return absl::OkStatus();
}

void SimDisk::AbandonWrites(int process) {
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    if (it->second.process == process) {
      Land(it->first, it->second, /*torn=*/true);
      it = in_flight_.erase(it);
    } else {
      ++it;
    }
  }
}

void SimDisk::AbandonAllWrites() {
  for (const auto& [write, in_flight] : in_flight_) {
    Land(write, in_flight, /*torn=*/true);
  }
  in_flight_.clear();
}

void SimDisk::Land(uint64_t write, const InFlight& in_flight, bool torn) {
  if (!inodes_.contains(in_flight.file)) return;  // Removed meanwhile.
  if (!inodes_.contains(in_flight.file)) return;  // Removed meanwhile.
  Inode& file = Change(in_flight.file);
  for (size_t done = 0; done < in_flight.data.size();) {
    const uint64_t at = in_flight.offset + done;
    const size_t size = std::min<uint64_t>(kSector - at % kSector,
                                           in_flight.data.size() - done);
    if (!torn || random_.Coin()) {
      if (file.now.size() < at + size) file.now.resize(at + size);
      std::memcpy(file.now.data() + at, in_flight.data.data() + done, size);
      const auto [it, is_new] =
          file.dirty.try_emplace(at / kSector, Dirty{write, write});
      if (!is_new) it->second.newest = write;
    }
    done += size;
  }
}

uint64_t SimDisk::UsedSpace() const {
  uint64_t used = 0;
  for (const auto& [id, inode] : inodes_) used += inode->now.size();
  return used;
}

absl::Status SimDisk::TakeSpace(uint64_t size_before,
                                uint64_t size_after) const {
  if (options_.capacity_bytes == UINT64_MAX || size_after <= size_before) {
    return absl::OkStatus();
  }
  const uint64_t used = UsedSpace();
  if (used + (size_after - size_before) <= options_.capacity_bytes) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrFormat(
      "sim: no space, %d of %d bytes are used", used, options_.capacity_bytes));
}

absl::StatusOr<InodeId> SimDisk::DoCreate(std::string_view name,
                                          uint64_t size_expected) {
  HF_ASSIGN_OR_RETURN(const Place place, Find(name));
  if (place.inode != kNoInode) {
    Learn(place);
    return Exists(name);
  }
  HF_RETURN_IF_ERROR(TakeSpace(0, size_expected));
  const InodeId id = NewInode(Inode::kFile);
  Change(id).now.resize(size_expected);
  NoteSize(Change(id), 0);
  SetEntry(place, id);
  return id;
}

void SimDisk::DoSync(InodeId id, const std::vector<uint64_t>& writes,
                     uint64_t end, uint64_t end_seen, bool fails) {
  if (!inodes_.contains(id)) return;  // Removed meanwhile.
  Inode& file = Change(id);
  if (!fails && file.now.size() > end_seen) {
    file.now.resize(end_seen);  // What was only reserved.
    file.DropDirtyBeyondEnd();
  }
  if (options_.ignore_file_sync && !fails) return;
  if (!fails && file.safe.size() < end) file.safe.resize(end);
  const std::set<uint64_t> covered(writes.begin(), writes.end());
  for (auto it = file.dirty.begin(); it != file.dirty.end();) {
    Dirty& dirty = it->second;
    if (!covered.contains(dirty.oldest)) {
      ++it;
      continue;
    }
    if (fails) {
      // The kernel drops the pages, or keeps them and forgets that they are
      // dirty: no later sync will write them.
      if (random_.Coin()) {
        file.Restore(it->first);
      } else {
        file.lost.insert(it->first);
      }
    } else {
      file.Keep(it->first);
    }
    if (covered.contains(dirty.newest)) {
      it = file.dirty.erase(it);
    } else {
      dirty.oldest = dirty.newest;
      ++it;
    }
  }
  // An object appears when it is complete, and its name with it.
  if (options_.object_store && !fails) {
    for (auto& [name, entry] : Change(kRoot).entries) {
      if (entry.now() == id) entry.Settle();
    }
  }
}

absl::StatusOr<InodeId> SimDisk::DoOpen(std::string_view name, uint64_t* size) {
  HF_ASSIGN_OR_RETURN(const Place place, Find(name));
  if (place.seen == kNoInode) return NotFound(name);
  const Inode& file = Look(place.seen);
  if (file.kind != Inode::kFile) return WrongKind(name, "a regular file");
  *size = SizeSeen(file);
  return place.seen;
}

absl::Status SimDisk::DoRead(InodeId id, uint64_t offset,
                             std::span<std::byte> out) {
  const auto found = inodes_.find(id);
  if (found == inodes_.end() ||
      offset + out.size() > found->second->now.size()) {
    return absl::OutOfRangeError(absl::StrFormat(
        "sim: the file has shrunk, %d bytes at offset %d are gone", out.size(),
        offset));
  }
  std::copy_n(found->second->now.begin() + static_cast<ptrdiff_t>(offset),
              out.size(), out.begin());
  return absl::OkStatus();
}

// --- Directories and names ---------------------------------------------------

absl::Status SimDisk::DoMakeDir(std::string_view name) {
  if (options_.object_store) return absl::OkStatus();
  HF_ASSIGN_OR_RETURN(const Place place, Find(name));
  if (place.inode != kNoInode) {
    Learn(place);
    return Exists(name);
  }
  SetEntry(place, NewInode(Inode::kDir));
  return absl::OkStatus();
}

absl::Status SimDisk::DoSyncDir(std::string_view name) {
  if (options_.object_store) return absl::OkStatus();
  HF_ASSIGN_OR_RETURN(const Place place, Find(name));
  if (place.seen == kNoInode) return NotFound(name);
  if (Look(place.seen).kind != Inode::kDir) {
    return WrongKind(name, "a directory");
  }
  if (options_.ignore_dir_sync) return absl::OkStatus();
  Inode& dir = Change(place.seen);
  bool dropped = false;
  for (auto it = dir.entries.begin(); it != dir.entries.end();) {
    synced_change_ = std::max(synced_change_, it->second.history.back().change);
    for (const Entry::Value& value : it->second.history) {
      dropped |= value.inode != kNoInode && value.inode != it->second.now();
    }
    it->second.Settle();
    // Somebody may still see what was there.
    const bool is_over =
        it->second.now() == kNoInode && it->second.shown.empty();
    it = is_over ? dir.entries.erase(it) : std::next(it);
  }
  if (dropped) DropUnreachable();
  return absl::OkStatus();
}

absl::Status SimDisk::DoLink(std::string_view from, std::string_view to) {
  HF_ASSIGN_OR_RETURN(const Place source, Find(from));
  HF_ASSIGN_OR_RETURN(const Place target, Find(to));
  if (source.inode == kNoInode) return NotFound(from);
  if (target.inode != kNoInode) {
    Learn(target);
    return Exists(to);
  }
  SetEntry(target, source.inode);
  return absl::OkStatus();
}

absl::Status SimDisk::DoRename(std::string_view from, std::string_view to) {
  HF_ASSIGN_OR_RETURN(const Place source, Find(from));
  HF_ASSIGN_OR_RETURN(const Place target, Find(to));
  if (source.inode == kNoInode || source.seen == kNoInode) {
    Learn(source);
    return NotFound(from);
  }
  if (target.inode != kNoInode) {
    Learn(target);
    return Exists(to);
  }
  if (to.starts_with(std::string(from) + "/")) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sim: rename %s to below itself, %s", from, to));
  }
  // One change, so that a journal keeps both sides or neither.
  SetEntry(source, kNoInode);
  --last_change_;
  SetEntry(target, source.inode);
  return absl::OkStatus();
}

absl::Status SimDisk::DoRemove(std::string_view name) {
  HF_ASSIGN_OR_RETURN(const Place place, Find(name));
  if (place.inode == kNoInode || place.seen == kNoInode) {
    Learn(place);
    return options_.object_store ? absl::OkStatus() : NotFound(name);
  }
  if (Look(place.inode).kind == Inode::kDir) {
    for (const auto& [part, entry] : Look(place.inode).entries) {
      if (entry.now() != kNoInode && !ckpt::IsTempName(part)) {
        return WrongKind(name, "an empty directory");
      }
    }
  }
  SetEntry(place, kNoInode);
  // An object store has no unsynced deletions.
  if (options_.object_store) {
    Change(kRoot).entries.erase(place.last);
    DropUnreachable();
  }
  return absl::OkStatus();
}

absl::Status SimDisk::DoList(std::string_view dir,
                             std::vector<ckpt::DirEntry>* entries) {
  entries->clear();
  if (!options_.object_store) {
    HF_ASSIGN_OR_RETURN(const Place place, Find(dir));
    if (place.seen == kNoInode) return NotFound(dir);
    const Inode& inode = Look(place.seen);
    if (inode.kind != Inode::kDir) return WrongKind(dir, "a directory");
    for (const auto& [name, entry] : inode.entries) {
      const InodeId seen = SeenIn(inode, name, /*listed=*/true);
      if (seen == kNoInode || ckpt::IsTempName(name)) continue;
      entries->push_back({name, Look(seen).kind == Inode::kDir});
    }
    return absl::OkStatus();
  }
  const std::string prefix = dir == "." ? "" : std::string(dir) + "/";
  std::map<std::string, bool> implied;
  for (const auto& [name, entry] : Look(kRoot).entries) {
    if (entry.now() == kNoInode || !name.starts_with(prefix)) continue;
    const std::string rest = name.substr(prefix.size());
    const size_t slash = rest.find('/');
    implied[rest.substr(0, slash)] |= slash != std::string::npos;
  }
  for (const auto& [name, is_directory] : implied) {
    entries->push_back({name, is_directory});
  }
  return absl::OkStatus();
}

absl::Status SimDisk::DoPut(std::string_view name,
                            std::span<const std::byte> data) {
  HF_ASSIGN_OR_RETURN(const Place place, Find(name));
  if (place.inode != kNoInode) return Exists(name);
  HF_RETURN_IF_ERROR(TakeSpace(0, data.size()));
  const InodeId id = NewInode(Inode::kFile);
  Inode& file = Change(id);
  file.now.assign(data.begin(), data.end());
  file.safe = file.now;
  SetEntry(place, id);
  Change(kRoot).entries[place.last].Settle();
  return absl::OkStatus();
}

absl::Status SimDisk::DoFreeSpace(std::string_view dir, uint64_t* bytes) const {
  if (options_.object_store) {
    return absl::UnimplementedError("sim: an object store has no size");
  }
  HF_ASSIGN_OR_RETURN(const Place place, Find(dir));
  if (place.seen == kNoInode) return NotFound(dir);
  if (Look(place.seen).kind != Inode::kDir)
    return WrongKind(dir, "a directory");
  const uint64_t used = UsedSpace();
  *bytes = options_.capacity_bytes > used ? options_.capacity_bytes - used : 0;
  return absl::OkStatus();
}

}  // namespace holdfast::tests
