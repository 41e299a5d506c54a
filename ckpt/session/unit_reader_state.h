// ckpt/session/unit_reader_state.h: the inside of UnitReader, for its three
// files.

#ifndef HOLDFAST_CKPT_SESSION_UNIT_READER_STATE_H_
#define HOLDFAST_CKPT_SESSION_UNIT_READER_STATE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/format/coded_units.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/shard.h"
#include "ckpt/session/io.h"
#include "ckpt/session/unit_reader.h"

namespace holdfast::ckpt {

struct UnitReader::State {
  State(Io* io, std::string dir, const Manifest* manifest,
        const UnitReaderOptions& options)
      : io(io),
        dir(std::move(dir)),
        manifest(manifest),
        options(options),
        file_id(io->NewFileId()),
        frame(2 * kShardBlockBytes) {
    HF_CHECK(options.read_bytes_max >= kUnitBytesMax &&
                 options.read_bytes_max % kShardBlockBytes == 0,
             "reads of %d bytes cannot hold a unit", options.read_bytes_max);
    HF_CHECK(options.reads_in_flight > 0, "no read may be in flight");
    HF_CHECK(options.memory.empty() ||
                 options.memory.size() >=
                     options.read_bytes_max * options.reads_in_flight,
             "%d bytes for %d reads of %d", options.memory.size(),
             options.reads_in_flight, options.read_bytes_max);
  }

  // A read to be made; without `memory` it goes into a slot's buffer.
  struct PlannedRead {
    UnitRead run;
    std::span<std::byte> memory;
  };
  struct Slot {
    AlignedBuffer owned;
    std::span<std::byte> buffer;  // none: for reads that go into place
    std::span<std::byte> memory;  // of the run, wherever it is
    std::optional<UnitRead> run;
    Io::Ref op;
    std::optional<uint64_t> lent;  // until this event has passed
    int tries = 0;
    absl::Duration retry_at;
  };

  // --- One call with repetition; OK or what came last.
  Task<absl::Status> Repeat(std::function<Io::Ref()> call, uint64_t* bytes);

  // --- Steps of one file. Damage is noted, and the file left.
  Task<absl::Status> ReadFile(const FileWant& want, const Sink& sink);
  Task<absl::Status> ReadFrame(uint32_t file);
  void BeginIndex(uint32_t file);
  Task<absl::Status> ReadIndex(uint32_t file);
  Task<absl::Status> ReadRuns(uint32_t file, const Sink& sink);
  void PlanReads(const std::vector<UnitRead>& runs,
                 const FileWant::Place& place);
  // The next read may begin in this free slot; it does.
  bool TakeRead(Slot& slot);

  absl::Status CheckCovered(uint32_t file);
  void Finish(uint32_t file, Slot& slot, const Sink& sink,
              absl::Status* failed);
  void CheckRun(uint32_t file, const Slot& slot, const Sink& sink);
  void Deliver(uint32_t file, const Slot& slot, size_t first, size_t end,
               const Sink& sink);
  // Notes the damage; the status that ends the reading, or OK to go on.
  absl::Status Damaged(uint32_t file, uint64_t offset, std::string what);
  absl::Status DamagedUnit(uint32_t file, size_t unit, uint64_t offset,
                           std::string what);
  absl::Status NoteDamage(UnitDamage entry);
  // The same for bytes that the device does not give, whereas it gives others
  // of this file. Where nothing of it can be read, the storage is at fault.
  absl::Status Unreadable(uint32_t file, uint64_t offset,
                          const absl::Status& status);
  absl::Status UnreadableRun(uint32_t file, const UnitRead& run,
                             const absl::Status& status);

  // --- Of a coded file (unit_reader_coded.cc).
  absl::Status TakeCodedIndex(uint32_t file);
  void PlanCodedReads(const std::vector<UnitRead>& runs,
                      const FileWant::Place& where);
  void CheckCodedRun(uint32_t file, const Slot& slot, const Sink& sink);
  std::string DecodeUnit(const CodedUnit& unit,
                         std::span<const std::byte> stored,
                         std::span<std::byte> plain);

  std::string PathOf(uint32_t file) const {
    const std::string& name = manifest->files[file].name;
    return dir == "." ? name : dir + "/" + name;
  }
  ShardIdentity IdentityOf(uint32_t file) const {
    return {manifest->run_id, manifest->id, file,
            static_cast<uint32_t>(manifest->files.size())};
  }
  bool stopped() const {
    return cancelled || (!options.read_past_damage && !damage.empty());
  }

  Io* const io;
  const std::string dir;
  const Manifest* const manifest;
  const UnitReaderOptions options;
  const FileId file_id;  // one file is open at a time
  AlignedBuffer frame;   // header and footer
  AlignedBuffer index;
  std::vector<Slot> slots;

  std::vector<Unit> units;  // of the open file, in its plain image
  std::vector<PlannedRead> reads;
  size_t reads_begun = 0;
  // Of a coded file: its units in the same order; their numbers in the order in
  // which they are stored, of which reads speak then; where plain bytes belong;
  // what decodes them.
  std::vector<CodedUnit> coded;
  std::vector<uint32_t> by_place;
  FileWant::Place place;
  std::optional<ZstdDecoder> decoder;
  AlignedBuffer plain_unit;
  uint64_t index_offset = 0;
  Io::Ref index_read;  // begun with the frame

  std::function<bool()> gate;
  std::function<uint64_t()> lend;
  std::function<bool(uint64_t)> lent_passed;
  bool cancelled = false;
  std::vector<UnitDamage> damage;
  uint64_t bytes_done = 0;
  uint64_t bytes_total = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_placed = 0;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_UNIT_READER_STATE_H_
