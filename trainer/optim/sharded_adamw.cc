// trainer/optim/sharded_adamw.cc: groups of blocks, gate, kernel.

#include "trainer/optim/sharded_adamw.h"

#include <algorithm>
#include <utility>

#include "kernels/adamw.h"
#include "trainer/model/tensor_table.h"

namespace holdfast::trainer {

using ckpt::kBlockElements;

std::vector<OwnedRun> OwnedRuns(const ckpt::TrainLayout& layout,
                                const ckpt::Coordinates& at) {
  const ckpt::BlockRange owned = layout.OwnedBlocks(at.tp, at.pp, at.dp);
  std::vector<OwnedRun> runs;
  for (const ckpt::LocalTensor& local : layout.TensorsOf(at.tp, at.pp)) {
    if (!local.updated_here) continue;
    const int64_t first = std::max(local.first_block, owned.first);
    const int64_t end = std::min(local.first_block + local.block_count,
                                 owned.first + owned.count);
    if (first >= end) continue;
    runs.push_back({.first = first - owned.first,
                    .count = end - first,
                    .decayed = IsDecayed(layout.tensors()[local.tensor]),
                    .replica = !local.stored_here});
  }
  return runs;
}

ShardedAdamW::ShardedAdamW(const OptimConfig& optim, ComputeType compute,
                           std::vector<OwnedRun> runs)
    : optim_(optim), compute_(compute), runs_(std::move(runs)) {}

template <typename T>
void ShardedAdamW::UpdateAs(kernels::Stream& stream, const OwnedMemory& memory,
                            int64_t step, double lr, float scale,
                            UpdateGate* gate) const {
  for (const OwnedRun& run : runs_) {
    const int64_t end = run.first + run.count;
    for (int64_t first = run.first; first < end; first += kGroupBlocks) {
      const int64_t count = std::min(kGroupBlocks, end - first);
      if (gate != nullptr) gate->BeforeUpdate(first, count);
      const int64_t offset = first * kBlockElements;
      kernels::AdamWArgs<T> args;
      args.weight = static_cast<T*>(memory.weight) + offset;
      args.master = memory.master + offset;
      args.moment1 = memory.exp_avg + offset;
      args.moment2 = memory.exp_avg_sq + offset;
      args.grad = memory.gradient + offset;
      args.count = count * kBlockElements;
      args.step = step;
      args.grad_scale = scale;
      args.lr = static_cast<float>(lr);
      args.beta1 = static_cast<float>(optim_.beta1);
      args.beta2 = static_cast<float>(optim_.beta2);
      args.eps = static_cast<float>(optim_.eps);
      args.weight_decay =
          run.decayed ? static_cast<float>(optim_.weight_decay) : 0.0f;
      kernels::AdamW(stream, args);
    }
  }
}

void ShardedAdamW::Update(kernels::Stream& stream, const OwnedMemory& memory,
                          int64_t step, double lr, float scale,
                          UpdateGate* gate) const {
  if (compute_ == ComputeType::kBf16) {
    UpdateAs<kernels::Bf16>(stream, memory, step, lr, scale, gate);
  } else {
    UpdateAs<float>(stream, memory, step, lr, scale, gate);
  }
}

}  // namespace holdfast::trainer
