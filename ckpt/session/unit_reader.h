// ckpt/session/unit_reader.h: checked bytes of a checkpoint's shard files.
//
// The one place that reads shard files: loads, verification, comparison and
// reshard all stand on it. For each file it is asked about, in order: the size,
// the header, the footer and the index are checked against the manifest
// (identity, crc_index), then the wanted units are read, neighbours together,
// and each unit's checksum is compared before anybody sees a byte of it. Units
// of a coded file are read in the order in which they are stored, checked as
// stored, then decompressed one by one.
//
// A large unit whose bytes all belong to one place in memory, in this order, is
// read (or decompressed) straight to there (FileWant::place): no buffer, no
// copy, and from registered memory where the storage has it registered. Damaged
// bytes may then lie in that place when Read fails.
//
// Memory: read_bytes_max x reads_in_flight, allocated once, one file's index,
// and for coded files two units; kept for ever when it is destroyed while reads
// hang (places are the caller's). Thread: the storage's owner; checksums and
// decompression run inside Poll.

#ifndef HOLDFAST_CKPT_SESSION_UNIT_READER_H_
#define HOLDFAST_CKPT_SESSION_UNIT_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/shard.h"
#include "ckpt/plan/scatter.h"
#include "ckpt/session/io.h"

namespace holdfast::ckpt {

struct UnitReaderOptions {
  // Reads go into this memory, cut into read_bytes_max; it outlives the reader.
  // Empty: the reader takes its own.
  std::span<std::byte> memory;
  size_t read_bytes_max = size_t{4} << 20;  // at least kUnitBytesMax
  int reads_in_flight = 4;
  // Beside them, reads of one unit straight into place. 32 MiB in flight keep
  // the disks that we have measured at their full speed.
  int placed_in_flight = 32;
  // Smaller units are cheaper to read with their neighbours, and to copy.
  uint64_t placed_bytes_min = uint64_t{128} << 10;
  // false: the first damage ends the reading. true: all of it is collected, up
  // to damage_max places.
  bool read_past_damage = false;
  size_t damage_max = 1000;
  RetryPolicy retry;
};

// A place where stored bytes are not what they should be, or that the device
// does not give although it gives others of the file.
struct UnitDamage {
  uint32_t file = 0;  // index into the manifest's files
  std::string file_name;
  uint64_t offset = 0;  // of the unit or block; 0 for the file as a whole
  // The unit's place in the plain image, where PickRange finds it; no bytes
  // outside of the data area.
  uint64_t image_offset = 0;
  uint64_t bytes = 0;
  std::string what;  // "crc32c is 9f3a01c7, the index records 1b44e20d"
  // In the state's terms: "weight of 'model.norm.weight', rows 0-63"; ""
  // outside the data area.
  std::string item;
  friend bool operator==(const UnitDamage&, const UnitDamage&) = default;
};
// "shard-00003.hf, offset 4096 (weight of ...): crc32c is ..."
std::string ToString(const UnitDamage& damage);

// What is wanted of one file: the reads that `pick` makes of its index (sorted,
// apart, and covering every chunk of the manifest), each at most `bytes_max`.
// The index is that of the plain image, also of a coded file. Without `pick`
// only the blocks around the data are looked at.
struct FileWant {
  using Pick = std::function<std::vector<UnitRead>(std::span<const Unit> units,
                                                   uint64_t bytes_max)>;
  // Where bytes [offset, offset + size) of the file belong, if all of them
  // belong into one aligned piece of memory; empty: they do not.
  using Place =
      std::function<std::span<std::byte>(uint64_t offset, uint64_t size)>;
  uint32_t file = 0;
  Pick pick;
  Place place = nullptr;
};

// Every unit; every unit that has a byte of [first, end).
FileWant::Pick PickAll();
FileWant::Pick PickRange(uint64_t first, uint64_t end);

class UnitReader {
 public:
  // Called once for each run of verified plain bytes, in no particular order.
  // Runs consist of whole units. Offsets are those of the plain image. `bytes`
  // of a placed run are in place already.
  using Sink = std::function<void(uint32_t file, uint64_t offset,
                                  std::span<const std::byte> bytes)>;

  // All pointers outlive the reader. `dir` as in LoadSession.
  UnitReader(Io* io, std::string dir, const Manifest* manifest,
             const UnitReaderOptions& options);
  ~UnitReader();

  // Reads and delivers. kDataLoss: damage() says where. Await it to its end:
  // when it returns no read is in flight.
  Task<absl::Status> Read(std::vector<FileWant> wants, Sink sink);

  // A finished read is taken up, and its bytes delivered, only while `gate`
  // says so: for a sink that is full for a while. Nothing is read meanwhile
  // beyond reads_in_flight.
  void SetGate(std::function<bool()> gate);

  // The sink may lend the bytes of a run: `event` is asked when it has had
  // them, and their memory is not read into before `passed` says so. When Read
  // returns nothing is lent.
  void SetLending(std::function<uint64_t()> event,
                  std::function<bool(uint64_t)> passed);

  // Read ends soon, with kAborted.
  void Cancel();

  const std::vector<UnitDamage>& damage() const;
  uint64_t bytes_done() const;    // of wanted units, as stored
  uint64_t bytes_total() const;   // grows as files are opened
  uint64_t bytes_read() const;    // everything, blocks around the data included
  uint64_t bytes_placed() const;  // of these, those read straight into place

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_UNIT_READER_H_
