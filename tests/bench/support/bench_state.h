// tests/bench/support/bench_state.h: a state to save and to load, as large as
// one likes: a decoder of hidden size 1,024, 14 bytes a parameter, in the items
// that the trainer has.

#ifndef HOLDFAST_TESTS_BENCH_SUPPORT_BENCH_STATE_H_
#define HOLDFAST_TESTS_BENCH_SUPPORT_BENCH_STATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/layout/holding.h"

namespace holdfast::bench {

// At least `mib` MiB of state in layers of 168 MiB (or one smaller layer),
// divided over `dp` ranks.
std::shared_ptr<const ckpt::JobLayout> BenchLayout(int64_t mib, int dp);

// A rank's regions.
class BenchMemory {
 public:
  // Its fragments are filled with bytes that no disk can compress, different
  // ones for each seed.
  BenchMemory(const ckpt::JobLayout& layout, ckpt::Rank rank, uint64_t seed);

  const std::vector<std::span<std::byte>>& spans() const { return spans_; }
  // What `rank` stores, one item after the other, in whole blocks of `block`
  // bytes (the last one is left out): the bytes that a plain copy of its file
  // is written from, and room to read it into.
  ckpt::AlignedBuffer Stored(const ckpt::JobLayout& layout, ckpt::Rank rank,
                             size_t block) const;
  uint64_t bytes() const;
  // Of every byte.
  uint32_t Checksum() const;
  void Clear();

 private:
  std::vector<ckpt::AlignedBuffer> buffers_;
  std::vector<std::span<std::byte>> spans_;
};

}  // namespace holdfast::bench

#endif  // HOLDFAST_TESTS_BENCH_SUPPORT_BENCH_STATE_H_
