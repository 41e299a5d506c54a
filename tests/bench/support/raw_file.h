// tests/bench/support/raw_file.h: what a save and a load are compared with: a
// plain io_uring loop with O_DIRECT over one file, and fio.
//
// Blocks of 1 MiB, 32 in flight. Each returns seconds.

#ifndef HOLDFAST_TESTS_BENCH_SUPPORT_RAW_FILE_H_
#define HOLDFAST_TESTS_BENCH_SUPPORT_RAW_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace holdfast::bench {

inline constexpr size_t kRawBlock = size_t{1} << 20;
inline constexpr uint32_t kRawDepth = 32;

// The clock of every figure.
double Now();

// A fresh file of `memory`, whole blocks: create, reserve, write, sync, close,
// sync of the directory.
double RawWrite(const std::string& path, std::span<std::byte> memory);

// The beginning of a file, into `memory`, past the page cache.
double RawRead(const std::string& path, std::span<std::byte> memory);

// Drops what the page cache holds of a file.
void DropFromCache(const std::string& path);

// Removes a tree and waits until the file system has nothing left to do.
void RemoveAndSettle(const std::string& path);

// fio writes `files` fresh files of `bytes` each into `dir`, which exists and
// is empty, with the same blocks and depth, registered buffers and a final
// sync: the seconds it reports. kUnimplemented: fio is not installed.
absl::StatusOr<double> FioWrite(const std::string& dir, int files,
                                uint64_t bytes);

}  // namespace holdfast::bench

#endif  // HOLDFAST_TESTS_BENCH_SUPPORT_RAW_FILE_H_
