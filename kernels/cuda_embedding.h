// kernels/cuda_embedding.h: rows of the vocabulary, and their gradient, for a
// GPU.
//
// Against the CPU: bit-equal, NaNs excepted. Bytes moved: forward 2 sizeof(T)
// per element of out; backward sizeof(T) per element of dout and 8 per element
// of a row that occurs.
//
// The backward adds a row's tokens in token order, without atomics. So the
// tokens are sorted first, by (row, position), and a warp takes 128 columns of
// one row from its first token to its last. Sorting counts, for each token,
// those that stand before it: n^2 comparisons of one instruction, spread over
// the whole GPU, in a single launch that needs 4 bytes of scratch a token. At
// 8,192 tokens that is far less than the additions; from 32,768 on the tokens
// are taken in chunks, one after the other, so the cost stays linear (a radix
// sort would need some ten launches and be slower below that). A token that
// fills a chunk is its warps' serial work: 32,768 of one kind take about a
// millisecond.

#ifndef HOLDFAST_KERNELS_CUDA_EMBEDDING_H_
#define HOLDFAST_KERNELS_CUDA_EMBEDDING_H_

#include <algorithm>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda_block.h"
#include "kernels/cuda_pack.h"
#include "kernels/embedding.h"

namespace holdfast::kernels {

template <typename T, int kPack>
struct EmbeddingForwardOp {
  EmbeddingArgs<T> args;

  HF_HOST_DEVICE void Run(int64_t token, int64_t pack) const {
    const int64_t column = pack * kPack;
    const int64_t row = args.tokens[token] - args.vocab_begin;
    Pack<T, kPack> values = {};
    if (row >= 0 && row < args.vocab_rows) {
      values = LoadPack<kPack>(args.table + row * args.hidden + column);
    }
    StorePack(values, args.out + token * args.hidden + column);
  }
};

template <typename T, typename Runner>
void RunEmbeddingForward(const EmbeddingArgs<T>& args, const Runner& run) {
  constexpr int kPack = 16 / sizeof(T);
  if (args.hidden % kPack == 0 && PackAligned<kPack>(args.table) &&
      PackAligned<kPack>(args.out)) {
    RunRows(EmbeddingForwardOp<T, kPack>{args}, args.count, args.hidden / kPack,
            run);
  } else {
    RunRows(EmbeddingForwardOp<T, 1>{args}, args.count, args.hidden, run);
  }
}

// A token of a chunk as one number to sort by: its row here (vocab_rows where
// it has none) and, in the low bits, its position in the chunk.
struct TokenKeys {
  int64_t vocab_begin;
  int64_t vocab_rows;
  int log_chunk;

  static constexpr int kLogChunkMax = 15;

  // As many positions as the rows leave bits for, of 32.
  static int LogChunk(int64_t vocab_rows) {
    int log_chunk = kLogChunkMax;
    while (log_chunk > 0 && (vocab_rows + 1) << log_chunk > int64_t{1} << 32) {
      --log_chunk;
    }
    return log_chunk;
  }

  HF_HOST_DEVICE uint32_t Key(int32_t token, int64_t position) const {
    const int64_t row = token - vocab_begin;
    const int64_t known = row >= 0 && row < vocab_rows ? row : vocab_rows;
    return static_cast<uint32_t>(known << log_chunk | position);
  }
  HF_HOST_DEVICE int64_t Row(uint32_t key) const { return key >> log_chunk; }
  HF_HOST_DEVICE int64_t Position(uint32_t key) const {
    return key & ((uint32_t{1} << log_chunk) - 1);
  }
};

// sorted [count] = the keys of `tokens` in order. A block ranks 64 keys, two to
// each of a warp's threads; its eight warps compare them with an eighth of the
// tokens each.
struct SortTokensKernel {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarpThreads;
  static constexpr int kKeys = 2 * kWarpThreads;
  static constexpr int kTile = 2048;
  static constexpr int kSharedBytes =
      kTile * sizeof(uint32_t) + kWarps * kKeys * sizeof(int);
  const int32_t* tokens;
  int64_t count;
  TokenKeys keys;
  uint32_t* sorted;

  int64_t blocks() const { return CeilDivide(count, kKeys); }

  struct Ranks {
    int of[2];
  };

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    uint32_t* tile = block.template shared<uint32_t>();
    int* counts = block.template shared<int>(kTile * sizeof(uint32_t));
    for (int64_t first = block.index() * kKeys; first < count;
         first += block.count() * kKeys) {
      auto ranks = block.template PerThread<Ranks>();
      block.ForEachOnly([&](int thread) { ranks[thread] = Ranks{}; });
      for (int64_t begin = 0; begin < count; begin += kTile) {
        block.ForEach([&](int thread) {
          for (int i = thread; i < kTile; i += kThreads) {
            tile[i] = begin + i < count ? KeyAt(begin + i) : 0xffffffffu;
          }
        });
        block.ForEach([&](int thread) {
          const int lane = thread % kWarpThreads;
          const uint32_t own0 = OwnKey(first + lane);
          const uint32_t own1 = OwnKey(first + lane + kWarpThreads);
          const uint32_t* part =
              tile + thread / kWarpThreads * (kTile / kWarps);
          int rank0 = ranks[thread].of[0];
          int rank1 = ranks[thread].of[1];
          HF_UNROLL_BY(8)
          for (int i = 0; i < kTile / kWarps; i += 4) {
            const auto four = LoadPack<4>(part + i);
            HF_UNROLL
            for (int j = 0; j < 4; ++j) {
              rank0 += four.at[j] < own0 ? 1 : 0;
              rank1 += four.at[j] < own1 ? 1 : 0;
            }
          }
          ranks[thread] = Ranks{{rank0, rank1}};
        });
      }
      block.ForEach([&](int thread) {
        int* row = counts + thread / kWarpThreads * kKeys;
        row[thread % kWarpThreads] = ranks[thread].of[0];
        row[thread % kWarpThreads + kWarpThreads] = ranks[thread].of[1];
      });
      block.ForEach([&](int thread) {
        if (thread >= kKeys || first + thread >= count) return;
        int rank = 0;
        for (int w = 0; w < kWarps; ++w) rank += counts[w * kKeys + thread];
        sorted[rank] = KeyAt(first + thread);
      });
    }
  }

 private:
  HF_HOST_DEVICE uint32_t KeyAt(int64_t i) const {
    return keys.Key(tokens[i], i);
  }
  HF_HOST_DEVICE uint32_t OwnKey(int64_t i) const {
    return i < count ? KeyAt(i) : 0;
  }
};

// A warp for each sorted token and kColumns columns; those of a row's first
// token add all of the row's.
template <typename T, int kPack>
struct AddTokensKernel {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarpThreads;
  static constexpr int kSharedBytes = 0;
  static constexpr int kColumns = kWarpThreads * kPack;
  static constexpr int kBatch = 16;  // Rows of dout on their way at once.
  const uint32_t* sorted;
  int64_t count;
  TokenKeys keys;
  const T* dout;
  int64_t hidden;
  float* dtable;

  int64_t blocks() const {
    return CeilDivide(count * CeilDivide(hidden, kColumns), kWarps);
  }

  template <typename Block>
  HF_HOST_DEVICE void operator()(Block& block) const {
    const int64_t across = CeilDivide(hidden, kColumns);
    block.ForEachOnly([&](int thread) {
      for (int64_t unit = block.index() * kWarps + thread / kWarpThreads;
           unit < count * across; unit += block.count() * kWarps) {
        const int64_t k = unit / across;
        const int64_t column =
            (unit - k * across) * kColumns + (thread % kWarpThreads) * kPack;
        if (column < hidden) AddRow(k, column);
      }
    });
  }

 private:
  HF_HOST_DEVICE void AddRow(int64_t k, int64_t column) const {
    const int64_t row = keys.Row(sorted[k]);
    if (row >= keys.vocab_rows) return;
    if (k > 0 && keys.Row(sorted[k - 1]) == row) return;
    float* to = dtable + row * hidden + column;
    auto sum = LoadPack<kPack>(to);
    for (int64_t next = k; next < count;) {
      Pack<T, kPack> batch[kBatch];
      int length = 0;
      HF_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        const uint32_t key = next + i < count ? sorted[next + i] : 0;
        // The row's tokens stand together.
        if (next + i < count && keys.Row(key) == row) {
          batch[i] =
              LoadPack<kPack>(dout + keys.Position(key) * hidden + column);
          length = i + 1;
        }
      }
      HF_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        if (i >= length) break;
        HF_UNROLL
        for (int j = 0; j < kPack; ++j) sum.at[j] += ToFloat(batch[i].at[j]);
      }
      next += length;
      if (length < kBatch) break;
    }
    StorePack(sum, to);
  }
};

// Keys of scratch (4 bytes each) that the backward needs.
template <typename T>
int64_t EmbeddingBackwardScratch(const EmbeddingBackwardArgs<T>& args) {
  return std::min(args.count,
                  int64_t{1} << TokenKeys::LogChunk(args.vocab_rows));
}

template <typename T, typename Runner>
void RunEmbeddingBackward(const EmbeddingBackwardArgs<T>& args,
                          uint32_t* scratch, const Runner& run) {
  if (args.hidden == 0 || args.vocab_rows == 0) return;
  constexpr int kPack = 4;
  const TokenKeys keys{args.vocab_begin, args.vocab_rows,
                       TokenKeys::LogChunk(args.vocab_rows)};
  const bool aligned = args.hidden % kPack == 0 &&
                       PackAligned<kPack>(args.dout) &&
                       PackAligned<kPack>(args.dtable);
  const int64_t chunk = int64_t{1} << keys.log_chunk;
  const auto go = [&](const auto& kernel) { run(kernel, kernel.blocks()); };
  for (int64_t begin = 0; begin < args.count; begin += chunk) {
    const int64_t length = std::min(chunk, args.count - begin);
    go(SortTokensKernel{args.tokens + begin, length, keys, scratch});
    const T* dout = args.dout + begin * args.hidden;
    if (aligned) {
      go(AddTokensKernel<T, kPack>{scratch, length, keys, dout, args.hidden,
                                   args.dtable});
    } else {
      go(AddTokensKernel<T, 1>{scratch, length, keys, dout, args.hidden,
                               args.dtable});
    }
  }
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_CUDA_EMBEDDING_H_
