// tests/support/sim_disk.h: a disk that keeps no more than it promised.
//
// One SimDisk is what the processes of a simulated cluster share; each has a
// SimStorage (sim_storage.h) on it. File data (by 512-byte sector), file size
// and each directory entry are volatile until their own sync. When the power
// goes, each of them independently survives or is lost, as the seed decides;
// sectors that were never written safely may come back as garbage, and what was
// renamed may come back under both names or under none. Writes in flight land
// in part. When a process dies, only its calls vanish: what it had done stays
// visible to others.
//
// A sweep over power cuts:
//
//   for (int64_t cut = 0; cut <= ops_of_a_clean_run; ++cut) {
//     const std::unique_ptr<SimDisk> disk = prepared.Clone();
//     disk->CutPowerAfter(cut);
//     ... run processes until they are done or disk->power_is_off() ...
//     disk->PowerCycle();
//     ... start new processes, look at what they find ...
//   }
//
// Deterministic: equal seeds and equal calls give equal disks. One thread.

#ifndef HOLDFAST_TESTS_SUPPORT_SIM_DISK_H_
#define HOLDFAST_TESTS_SUPPORT_SIM_DISK_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/storage/storage.h"
#include "tests/support/sim_faults.h"

namespace holdfast::tests {

struct SimDiskOptions {
  uint64_t seed = 1;
  // No rename, no directories, PutIfAbsent in one step.
  bool object_store = false;
  // Names survive in the order in which they were changed, as in a journal: a
  // cut leaves a prefix of the changes, and a rename is whole or absent.
  bool journaled_names = false;
  // As network file systems cache: what one process does to names and sizes is
  // seen by those that live already only up to so many operations later (up to
  // twice as many in listings), and each at another time. What must be
  // exclusive is decided by what is there, not by what is seen. Not for object
  // stores.
  int64_t late_ops = 0;
  // Files may hold so many bytes together; more is kResourceExhausted.
  uint64_t capacity_bytes = UINT64_MAX;
  // Canaries, promises broken on purpose: sweeps must notice.
  bool ignore_file_sync = false;
  bool ignore_dir_sync = false;
};

enum class InodeId : uint64_t {};

class SimDisk {
 public:
  explicit SimDisk(const SimDiskOptions& options);
  ~SimDisk();

  // The same disk in the same state, to try another future on. No write is in
  // flight (CHECK). Cheap: file contents are shared until one side changes
  // them.
  std::unique_ptr<SimDisk> Clone() const;

  // --- Trouble ---------------------------------------------------------------

  void CutPowerAfter(int64_t ops) { faults_.CutPowerAfter(ops); }
  void KillAfter(int process, int64_t ops) { faults_.KillAfter(process, ops); }
  void Kill(int process);
  void Inject(SimFault fault) { faults_.Inject(std::move(fault)); }
  void ClearFaults() { faults_.ClearFaults(); }
  // Another capacity from now on; see SimDiskOptions.
  void LimitSpace(uint64_t bytes) { options_.capacity_bytes = bytes; }
  // From now on; see SimDiskOptions.
  void SetLateOps(int64_t ops) { options_.late_ops = ops; }

  // Cuts the power, unless it is off already, decides what survived, and
  // switches on again. Every SimStorage made before is dead. Other values of
  // `fate` give other survivors of the same cut.
  void PowerCycle(uint64_t fate = 0);

  // Damage to what is there (CHECK), as of bad media; visible and permanent.
  void FlipBit(std::string_view name, uint64_t byte, int bit);
  void Truncate(std::string_view name, uint64_t size);
  // A name that is neither file nor directory.
  void PlantSymlink(std::string_view name);

  // --- What can be seen ------------------------------------------------------

  const SimFaults& faults() const { return faults_; }
  const SimDiskOptions& options() const { return options_; }
  int64_t ops() const { return faults_.ops(); }
  bool power_is_off() const { return faults_.power_is_off(); }
  std::string Log(size_t lines = 40) const { return faults_.Log(lines); }
  // Every file and, with a '/' behind it, every directory; temporary names
  // included; sorted.
  std::vector<std::string> Names() const;

  // --- For SimStorage --------------------------------------------------------
  // Each of the calls that begin with Do has the effect of one operation at
  // once; ask Decide() first.

  // A process begins; its number of the start, by which it knows later whether
  // it has been replaced by a power cycle.
  uint64_t Attach(int process);
  bool IsAlive(int process, uint64_t era) const;
  SimFaults::Decision Decide(int process, SimOp op, std::string_view name);
  uint64_t NewStream() { return ++streams_; }

  // A write under way, whose data must stay until EndWrite or AbandonWrites.
  uint64_t BeginWrite(int process, InodeId file, uint64_t offset,
                      std::span<const std::byte> data);
  // The whole of it becomes visible, or (`torn`) some sectors.
  // kResourceExhausted when the disk is full; nothing is visible then.
  absl::Status EndWrite(uint64_t write, bool torn);
  // Those of a process that ends land in part.
  void AbandonWrites(int process);

  absl::StatusOr<InodeId> DoCreate(std::string_view name,
                                   uint64_t size_expected);
  // `writes` are the answered writes to cover, `end` the end of the furthest,
  // `end_seen` that of the furthest that has taken effect. With `fails` the
  // data may be gone for good.
  void DoSync(InodeId file, const std::vector<uint64_t>& writes, uint64_t end,
              uint64_t end_seen, bool fails);
  absl::StatusOr<InodeId> DoOpen(std::string_view name, uint64_t* size);
  absl::Status DoRead(InodeId file, uint64_t offset, std::span<std::byte> out);
  absl::Status DoMakeDir(std::string_view name);
  absl::Status DoSyncDir(std::string_view name);
  absl::Status DoLink(std::string_view from, std::string_view to);
  absl::Status DoRename(std::string_view from, std::string_view to);
  absl::Status DoRemove(std::string_view name);
  absl::Status DoList(std::string_view dir,
                      std::vector<ckpt::DirEntry>* entries);
  absl::Status DoPut(std::string_view name, std::span<const std::byte> data);
  absl::Status DoFreeSpace(std::string_view dir, uint64_t* bytes) const;

 private:
  struct Entry;
  struct Inode;
  struct Place;
  struct InFlight {
    int process = 0;
    InodeId file{};
    uint64_t offset = 0;
    std::span<const std::byte> data;
  };

  SimDisk(const SimDisk& other);

  const Inode& Look(InodeId id) const;
  Inode& Change(InodeId id);
  InodeId NewInode(int kind);
  // By what the process of the last Decide sees; Place has both at its end.
  absl::StatusOr<Place> Find(std::string_view name) const;
  // sim_disk_views.cc
  int64_t LateOps(uint64_t change, int process) const;
  InodeId SeenIn(const Inode& dir, const std::string& name,
                 bool listed = false) const;
  uint64_t SizeSeen(const Inode& file) const;
  void NoteChange(Entry& entry, InodeId to);
  void NoteSize(Inode& file, uint64_t before);
  void Learn(const Place& place);
  void ForgetViews();
  InodeId FindExisting(std::string_view name) const;
  void SetEntry(const Place& place, InodeId to);
  uint64_t UsedSpace() const;
  absl::Status TakeSpace(uint64_t size_before, uint64_t size_after) const;
  void AbandonAllWrites();
  void Land(uint64_t write, const InFlight& in_flight, bool torn);
  void SettleFile(Inode& file, SimRandom& random);
  void SettleEntries(SimRandom& random);
  void DropUnreachable();

  SimDiskOptions options_;
  SimFaults faults_;
  SimRandom random_;
  std::map<InodeId, std::shared_ptr<Inode>> inodes_;
  std::map<uint64_t, InFlight> in_flight_;
  uint64_t last_inode_ = 0;
  uint64_t last_write_ = 0;
  uint64_t last_change_ = 0;  // Of a name; the journal's position.
  uint64_t synced_change_ = 0;
  uint64_t era_ = 1;  // Power cycles so far, and one.
  uint64_t streams_ = 0;
  // Views, with late_ops.
  int viewer_ = -1;   // of the last Decide; -1: sees all
  int64_t tick_ = 0;  // decisions so far
  struct Attached {
    uint64_t change = 0;
    int64_t tick = 0;
  };
  std::map<int, Attached> attached_;
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_SIM_DISK_H_
