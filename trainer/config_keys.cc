// trainer/config_keys.cc: every key of a run, once.

#include "trainer/config_keys.h"

#include <algorithm>

namespace holdfast::trainer {
namespace {

constexpr Range kPositive{.low = 0, .low_open = true};
constexpr Range kNotNegative{.low = 0};
constexpr Range kOneUp{.low = 1};
// Upper bounds keep products of sizes within 64 bits, and lists in memory.
constexpr Range UpTo(double high) { return {.low = 1, .high = high}; }
constexpr Range kFraction{.low = 0, .high = 1, .high_open = true};

template <typename E>
Field Enum(E& field) {
  return EnumField{&field,
                   [](const void* target) {
                     return static_cast<int>(*static_cast<const E*>(target));
                   },
                   [](void* target, int choice) {
                     *static_cast<E*>(target) = static_cast<E>(choice);
                   }};
}

// Field of the Config `c`, as the table wants it.
#define HF_FIELD(member) [](Config& c) -> Field { return &c.member; }
#define HF_ENUM(member) [](Config& c) -> Field { return Enum(c.member); }

std::vector<Key> MakeKeys() {
  return {
      {"device",
       HF_ENUM(device),
       "",
       {},
       "where the model lives and is computed",
       "",
       false,
       {"cpu", "fake", "cuda"}},
      {"threads",
       HF_FIELD(threads),
       "threads",
       {.low = 0, .high = 4096},
       "of one rank's matrix products; 0: processors / ranks of the host"},

      {"model.layers", HF_FIELD(model.layers), "layers", UpTo(65536),
       "decoder layers", "model", true},
      {"model.hidden", HF_FIELD(model.hidden), "elements", UpTo(1 << 20),
       "width of the residual stream", "model", true},
      {"model.heads", HF_FIELD(model.heads), "heads", UpTo(65536),
       "query heads; hidden / heads is the size of one", "model", true},
      {"model.kv_heads",
       HF_FIELD(model.kv_heads),
       "heads",
       {.low = 0, .high = 65536},
       "key and value heads; 0: as many as query heads",
       "model"},
      {"model.ffn", HF_FIELD(model.ffn), "elements", UpTo(1 << 22),
       "width between the gate and down projections", "model", true},
      {"model.vocab",
       HF_FIELD(model.vocab),
       "tokens",
       {.low = 2, .high = 2147483647},
       "rows of the embedding, unpadded",
       "model",
       true},
      {"model.seq_len", HF_FIELD(model.seq_len), "tokens", UpTo(1 << 24),
       "tokens predicted in one sequence", "model", true},
      {"model.tied",
       HF_FIELD(model.tied),
       "",
       {},
       "one matrix serves as embedding and head",
       "model"},
      {"model.rope_theta", HF_FIELD(model.rope_theta), "", kPositive,
       "base of the rotary positions", "model"},
      {"model.norm_eps", HF_FIELD(model.norm_eps), "", kPositive,
       "added to the mean square in RMSNorm", "model"},
      {"model.init_std", HF_FIELD(model.init_std), "", kPositive,
       "standard deviation of the first weights; unused after a resume"},

      {"parallel.tp", HF_FIELD(parallel.tp), "ranks", UpTo(4096),
       "ranks that share each layer"},
      {"parallel.pp", HF_FIELD(parallel.pp), "stages", UpTo(4096),
       "pipeline stages"},
      {"parallel.cp", HF_FIELD(parallel.cp), "ranks", UpTo(4096),
       "ranks that share each sequence; only 1 is built"},
      {"parallel.ep", HF_FIELD(parallel.ep), "ranks", UpTo(4096),
       "ranks that share a layer's experts; only 1 is built"},
      {"parallel.dp",
       HF_FIELD(parallel.dp),
       "replicas",
       {.low = 0, .high = 1e6},
       "asserts world / (tp x pp x cp); 0 takes what follows"},
      {"parallel.stages", HF_FIELD(parallel.stages), "layers", kOneUp,
       "layers of each stage, such as [13, 14, 14, 13]; [] divides them, "
       "embedding and head counted as a layer each"},
      {"parallel.chunks", HF_FIELD(parallel.chunks), "runs of layers", kOneUp,
       "layer runs a stage in an interleaved schedule; only 1 is built"},
      {"parallel.sharding",
       HF_ENUM(parallel.sharding),
       "",
       {},
       "state divided over data-parallel ranks; only optimizer is built",
       "",
       false,
       {"optimizer", "full", "hybrid"}},
      {"parallel.sequence_parallel",
       HF_FIELD(parallel.sequence_parallel),
       "",
       {},
       "divides norms and residuals over tp; only false is built"},
      {"parallel.recompute",
       HF_ENUM(parallel.recompute),
       "",
       {},
       "activations computed again in the backward pass; only none is built",
       "",
       false,
       {"none", "selective", "full"}},
      {"overlap.grad_reduce",
       HF_FIELD(overlap.grad_reduce),
       "",
       {},
       "sends gradients to their owners during the last backward pass of a "
       "step; changes no bit"},
      {"overlap.param_gather",
       HF_FIELD(overlap.param_gather),
       "",
       {},
       "gathers weights beside the optimizer and the next step's forward pass; "
       "changes no bit"},
      {"overlap.bucket_kb", HF_FIELD(overlap.bucket_kb), "KiB", UpTo(1e9),
       "gradients or weights of a rank that travel at once"},

      {"batch.global_seqs", HF_FIELD(batch.global_seqs), "sequences", UpTo(1e9),
       "sequences of one update, over all ranks", "batch", true},
      {"batch.micro_seqs", HF_FIELD(batch.micro_seqs), "sequences", UpTo(1e6),
       "sequences of one forward pass", "batch"},

      {"train.steps", HF_FIELD(train.steps), "steps", UpTo(1e12),
       "updates of the whole run", "", true},
      {"train.seed", HF_FIELD(train.seed), "", kNotNegative,
       "of the weights and of the order of samples", "seed"},
      {"train.eval_interval", HF_FIELD(train.eval_interval), "steps",
       kNotNegative, "between evaluations on held-out tokens; 0: never"},
      {"train.eval_seqs", HF_FIELD(train.eval_seqs), "sequences", UpTo(1e9),
       "held-out sequences of one evaluation"},
      {"train.log_interval", HF_FIELD(train.log_interval), "steps", kOneUp,
       "between lines on the terminal"},

      {"optim.lr", HF_FIELD(optim.lr), "", kPositive, "peak learning rate",
       "optim"},
      {"optim.min_lr", HF_FIELD(optim.min_lr), "", kNotNegative,
       "learning rate at and after decay_steps", "optim"},
      {"optim.warmup_steps", HF_FIELD(optim.warmup_steps), "steps",
       kNotNegative, "of linear rise from 0 to lr", "optim"},
      {"optim.decay_steps", HF_FIELD(optim.decay_steps), "steps", kNotNegative,
       "where the cosine reaches min_lr, counted from step 0; 0: train.steps",
       "optim"},
      {"optim.beta1", HF_FIELD(optim.beta1), "", kFraction,
       "decay of the first moment", "optim"},
      {"optim.beta2", HF_FIELD(optim.beta2), "", kFraction,
       "decay of the second moment", "optim"},
      {"optim.eps", HF_FIELD(optim.eps), "", kPositive,
       "added to the root of the second moment", "optim"},
      {"optim.weight_decay", HF_FIELD(optim.weight_decay), "", kNotNegative,
       "decoupled; of matrices, never of norms", "optim"},
      {"optim.clip_norm", HF_FIELD(optim.clip_norm), "", kNotNegative,
       "largest global gradient norm; 0 does not clip", "optim"},

      {"data.paths",
       HF_FIELD(data.paths),
       "",
       {},
       "PREFIX of PREFIX.bin and PREFIX.idx, one for each data set",
       "",
       true},
      {"data.weights", HF_FIELD(data.weights), "", kNotNegative,
       "shares of the samples, in the order of paths; []: by size", "data"},
      {"data.eval_fraction", HF_FIELD(data.eval_fraction), "", kFraction,
       "of each data set's sequences, its last ones, held out", "data"},

      {"checkpoint.interval",
       HF_FIELD(checkpoint.interval),
       "steps, or a time such as \"30min\"",
       {},
       "between saves; 0 saves at the end and on signals; \"auto\" is not "
       "built"},
      {"checkpoint.keep_last", HF_FIELD(checkpoint.keep_last), "checkpoints",
       kOneUp, "newest ones kept"},
      {"checkpoint.keep_every", HF_FIELD(checkpoint.keep_every), "steps",
       kNotNegative, "keeps checkpoints at its multiples too; 0: none"},
      {"checkpoint.keep_older_s",
       HF_FIELD(checkpoint.keep_older_s),
       "s",
       {.low = 0, .high = 1e9},
       "keeps one checkpoint that is at least so old, and the one that will "
       "take its place; 0: none"},
      {"checkpoint.fence_ms",
       HF_FIELD(checkpoint.fence_ms),
       "ms",
       {.low = 0, .high = 86400000},
       "longest wait of the optimizer for a save, which is then "
       "abandoned"},
      {"checkpoint.arena_mb",
       HF_FIELD(checkpoint.arena_mb),
       "MiB",
       {.low = 0, .high = 1 << 24},
       "for copies of state that the optimizer overtakes; 0: 5 % of what a "
       "rank saves, at least 4; on a GPU for all of it, 0: at once"},
      {"checkpoint.vote_timeout_ms", HF_FIELD(checkpoint.vote_timeout_ms), "ms",
       UpTo(86400000), "until ranks that did not vote are named"},
      {"checkpoint.storage",
       HF_ENUM(checkpoint.storage),
       "",
       {},
       "auto is uring, or posix where the system refuses it",
       "",
       false,
       {"auto", "uring", "posix"}},
      {"checkpoint.direct_io",
       HF_FIELD(checkpoint.direct_io),
       "",
       {},
       "O_DIRECT, where the file system allows it"},
      {"checkpoint.queue_depth",
       HF_FIELD(checkpoint.queue_depth),
       "writes",
       {.low = 1, .high = 1024},
       "in flight on one rank"},
      {"checkpoint.files",
       HF_FIELD(checkpoint.files),
       "files",
       {.low = 1, .high = 1e6},
       "of a checkpoint; ranks that follow each other share one"},
      {"checkpoint.files_per_dir",
       HF_FIELD(checkpoint.files_per_dir),
       "files",
       {.low = 0, .high = 1e6},
       "of a checkpoint in one directory; more of them get directories inside "
       "it; 0: all in one"},
      {"checkpoint.codec",
       HF_ENUM(checkpoint.codec),
       "",
       {},
       "zstd: floating point in byte planes, each MiB by itself",
       "",
       false,
       {"none", "zstd"}},
      {"checkpoint.codec_level",
       HF_FIELD(checkpoint.codec_level),
       "",
       {.low = 0, .high = 22},
       "0: no search for repetitions, the fastest; 1 up: zstd's own"},
      {"checkpoint.codec_threads",
       HF_FIELD(checkpoint.codec_threads),
       "threads",
       {.low = 0, .high = 64},
       "of a rank that compress; 0: its checkpoint thread does"},
      {"checkpoint.failures_max", HF_FIELD(checkpoint.failures_max), "saves",
       kOneUp, "failed in a row that end the run"},

      {"numerics.compute",
       HF_ENUM(numerics.compute),
       "",
       {},
       "of matrix products and the residual stream; sums are FP32",
       "numerics",
       false,
       {"bf16", "f32"}},
      {"numerics.invariant",
       HF_FIELD(numerics.invariant),
       "",
       {},
       "same bits whatever the number of replicas and stages",
       "numerics"},
      {"numerics.virtual_dp",
       HF_FIELD(numerics.virtual_dp),
       "leaves",
       {.low = 0, .high = 1e6},
       "of the tree that sums gradients, at least the replicas; "
       "0: largest divisor of global_seqs / micro_seqs up to 8",
       "numerics"},

      {"fault.start_timeout_s", HF_FIELD(fault.start_timeout_s), "s",
       UpTo(31536000), "from the start to the first step, the load included"},
      {"fault.step_timeout_s", HF_FIELD(fault.step_timeout_s), "s",
       UpTo(31536000),
       "of one step or evaluation before the watchdog ends the job"},
      {"fault.grace_s", HF_FIELD(fault.grace_s), "s", UpTo(31536000),
       "the longest that leaving on SIGTERM waits for a save; what the "
       "scheduler "
       "allows before it kills"},
      {"fault.nonfinite_max", HF_FIELD(fault.nonfinite_max), "steps", kOneUp,
       "with a loss or gradient that is no number, in a row, that end the "
       "run"},
  };
}

#undef HF_FIELD
#undef HF_ENUM

}  // namespace

std::span<const Key> Keys() {
  static const std::vector<Key>* const keys = new std::vector<Key>(MakeKeys());
  return *keys;
}

const Key* FindKey(std::string_view name) {
  for (const Key& key : Keys()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

namespace {

// Levenshtein's distance.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string_view LastPart(std::string_view name) {
  return name.substr(name.rfind('.') + 1);  // All of it where there is no dot.
}

}  // namespace

std::string_view NearestKey(std::string_view name) {
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const Key& key : Keys()) {
    const size_t distance = EditDistance(name, key.name);
    if (distance < best_distance) {
      best_distance = distance;
      best = key.name;
    }
  }
  // Right word in the wrong section: "train.lr", "layers".
  if (best_distance > 2) {
    for (const Key& key : Keys()) {
      if (LastPart(key.name) == LastPart(name)) return key.name;
    }
  }
  return best;
}

}  // namespace holdfast::trainer
