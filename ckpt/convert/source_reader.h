// ckpt/convert/source_reader.h: one thread's way to the units of a checkpoint's
// files: many reads of many files at once, each unit's checksum compared.
//
// What UnitReader does file by file for a load, this does for a window that
// wants a little of many files: their frames and indexes are read once (by a
// UnitReader, which checks them) and files stay open. Whatever goes wrong is
// read once more by the UnitReader, whose words and repetitions it then has.
//
// Thread: one at a time. Memory: reads_in_flight x read_bytes_max.

#ifndef HOLDFAST_CKPT_CONVERT_SOURCE_READER_H_
#define HOLDFAST_CKPT_CONVERT_SOURCE_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/format/manifest.h"
#include "ckpt/format/shard.h"
#include "ckpt/session/io.h"
#include "ckpt/session/unit_reader.h"
#include "ckpt/storage/storage.h"

namespace holdfast::ckpt {

// The indexes of a checkpoint's files, as far as they were used lately. Any
// thread.
class UnitIndexes {
 public:
  using Index = std::shared_ptr<const std::vector<Unit>>;

  UnitIndexes(size_t files, uint64_t bytes_max)
      : entries_(files), bytes_max_(bytes_max) {}
  Index Find(uint32_t file);
  void Put(uint32_t file, Index index);

 private:
  struct Entry {
    Index index;
    uint64_t used = 0;
  };
  static uint64_t BytesOf(const Index& index) {
    return index->size() * sizeof(Unit);
  }

  std::mutex lock_;
  std::vector<Entry> entries_;
  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  uint64_t uses_ = 0;
};

class SourceReader {
 public:
  // All pointers outlive it.
  SourceReader(std::unique_ptr<Storage> storage, Clock* clock, std::string dir,
               const Manifest* manifest, UnitIndexes* indexes,
               const UnitReaderOptions& options);

  // The index of a file in its plain image; reads it if need be.
  absl::StatusOr<UnitIndexes::Index> IndexOf(uint32_t file);

  // Units of one file, by number, ascending.
  struct Wanted {
    uint32_t file = 0;
    UnitIndexes::Index index;
    std::vector<uint32_t> units;
  };
  // Calls `deliver` once for each unit, in no particular order, with its plain
  // bytes.
  using Deliver = std::function<void(uint32_t file, uint32_t unit,
                                     std::span<const std::byte> bytes)>;
  absl::Status Read(std::span<const Wanted> wanted, const Deliver& deliver);

  uint64_t bytes_read() const { return units_.bytes_read() + bytes_read_; }

 private:
  struct Planned {
    const Wanted* wanted = nullptr;
    UnitRead run;
  };
  struct Slot {
    AlignedBuffer buffer;
    const Planned* read = nullptr;
  };

  static SessionEnv EnvOf(Storage* storage, Clock* clock);
  Task<bool> RunUnits(std::vector<FileWant> wants, UnitReader::Sink sink,
                      absl::Status* result);
  absl::Status ReadByUnits(std::vector<FileWant> wants, UnitReader::Sink sink);
  absl::Status ReadSlowly(const Planned& read, const Deliver& deliver);
  absl::Status ReadPlain(std::span<const Planned> reads,
                         const Deliver& deliver);
  // Open for reading here; kNotFound and others as the storage says.
  absl::StatusOr<FileId> OpenFile(uint32_t file);
  bool CheckAndDeliver(const Slot& slot, const Deliver& deliver);
  std::string PathOf(uint32_t file) const;

  const std::unique_ptr<Storage> storage_;
  Io io_;
  const std::string dir_;
  const Manifest* const manifest_;
  UnitIndexes* const indexes_;
  const UnitReaderOptions options_;
  UnitReader units_;

  std::vector<Slot> slots_;
  struct Opened {
    FileId id{};
    uint64_t used = 0;
  };
  std::map<uint32_t, Opened> open_;
  std::vector<FileId> free_ids_;
  uint64_t uses_ = 0;
  uint64_t bytes_read_ = 0;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_SOURCE_READER_H_
