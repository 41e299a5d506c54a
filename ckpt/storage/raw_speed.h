// ckpt/storage/raw_speed.h: what a directory's disk gives to a loop that does
// nothing but write, so that a save can be compared with it.
//
// Blocks; costs about time_max for each direction and bytes_max of space, given
// back before it returns. Any thread, but measure nothing else meanwhile.

#ifndef HOLDFAST_CKPT_STORAGE_RAW_SPEED_H_
#define HOLDFAST_CKPT_STORAGE_RAW_SPEED_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"

namespace holdfast::ckpt {

struct RawSpeedOptions {
  uint64_t bytes_max = uint64_t{256} << 20;
  absl::Duration time_max = absl::Milliseconds(500);  // For each direction.
  size_t block_bytes = size_t{1} << 20;
  uint32_t depth = 32;  // Blocks in flight.
  bool read = true;     // Measure reading too.
};

struct RawSpeed {
  // Sequential, one fsync included, bytes a second.
  double write_bytes_per_s = 0;
  // Of what was just written, past the page cache; 0 when not measured, or when
  // the file system refuses O_DIRECT and only the cache would be measured.
  double read_bytes_per_s = 0;
  uint64_t bytes = 0;  // Written.
  // "io_uring, O_DIRECT, 32 x 1048576 bytes" or what took its place.
  std::string method;
};

// kNotFound, kPermissionDenied: no directory to write in. kResourceExhausted:
// less than 16 MiB of space.
absl::StatusOr<RawSpeed> MeasureRawSpeed(const std::string& dir,
                                         const RawSpeedOptions& options = {},
                                         const Clock& clock = RealClock());

// Bytes a second of a file that is there, read from its beginning past the page
// cache for time_max and up to bytes_max: what a load of it may be compared
// with. Writes nothing. kUnimplemented: the file system refuses O_DIRECT;
// kOutOfRange: the file has less than one block; kFailedPrecondition: it is no
// regular file.
absl::StatusOr<double> MeasureRawRead(const std::string& path,
                                      const RawSpeedOptions& options = {},
                                      const Clock& clock = RealClock());

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_RAW_SPEED_H_
