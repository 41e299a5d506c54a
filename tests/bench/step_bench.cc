// tests/bench/step_bench.cc: a training step of one rank, and the share of the
// matrix-product speed that it reaches.
//
//   OMP_NUM_THREADS=2 build/release/bin/bench_step [--steps N] [--seqs N]
//
// The shape is gpt-124m's (trainer/configs): 12 layers, 768 wide, vocabulary
// 50,304, tied, 256 tokens a sequence, BF16. Steps and a large square product
// of our own matmul alternate, so that both see the same hour of a shared
// machine. One JSON line; medians.

#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <vector>

#include "CLI/CLI.hpp"
#include "ckpt/base/clock.h"
#include "ckpt/base/philox.h"
#include "ckpt/base/status_macros.h"
#include "kernels/matmul.h"
#include "trainer/model/tensor_table.h"
#include "trainer/parallel/inproc_collectives.h"
#include "trainer/parallel/mesh_collectives.h"
#include "trainer/step.h"

namespace holdfast::trainer {
namespace {

constexpr int64_t kSquare = 2048;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Random tokens; all of them count.
class RandomSource : public MicrobatchSource {
 public:
  RandomSource(const ModelConfig& model, int64_t micro_seqs)
      : tokens_(static_cast<size_t>(micro_seqs * model.seq_len)),
        mask_(tokens_.size(), 1) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<int32_t>(ckpt::Philox64(1, 1, i) %
                                        static_cast<uint64_t>(model.vocab));
    }
  }
  absl::StatusOr<Microbatch> Get(int64_t) override {
    return Microbatch{tokens_, tokens_, mask_};
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> mask_;
};

// Seconds of one BF16 product of kSquare cubed.
double SquareProduct(const ckpt::Clock& clock,
                     const std::vector<kernels::Bf16>& a,
                     const std::vector<kernels::Bf16>& b,
                     std::vector<kernels::Bf16>& c) {
  const absl::Duration start = clock.Monotonic();
  kernels::MatmulArgs<kernels::Bf16, kernels::Bf16> args;
  args.a = a.data();
  args.b = b.data();
  args.c = c.data();
  args.lda = args.ldb = args.ldc = kSquare;
  args.m = args.n = args.k = kSquare;
  args.transpose_b = true;
  kernels::Matmul(kernels::CpuStream(), args);
  return absl::ToDoubleSeconds(clock.Monotonic() - start);
}

absl::Status Measure(Collectives& world, int64_t steps, int64_t seqs) {
  StepOptions options;
  options.model = {.layers = 12,
                   .hidden = 768,
                   .heads = 12,
                   .kv_heads = 12,
                   .ffn = 2048,
                   .vocab = 50304,
                   .seq_len = 256,
                   .tied = true};
  options.optim = {.warmup_steps = 10, .decay_steps = 1000};
  options.batch = {.global_seqs = seqs, .micro_seqs = seqs};
  options.numerics.virtual_dp = 1;
  ckpt::TrainLayoutOptions layout_options;
  layout_options.stages = {{{0, 12}}};
  HF_ASSIGN_OR_RETURN(
      const std::unique_ptr<ckpt::TrainLayout> layout,
      ckpt::TrainLayout::Create(BuildTensorTable(options.model, 1).specs,
                                layout_options));
  HF_ASSIGN_OR_RETURN(MeshCollectives mesh, SplitMesh(world, {}));
  const std::unique_ptr<kernels::Device> device = kernels::NewCpuDevice();
  const ckpt::Clock& clock = ckpt::RealClock();
  options.layout = layout.get();
  options.mesh = &mesh;
  options.device = device.get();
  options.clock = &clock;
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<StepRunner> runner,
                      StepRunner::Create(options));
  HF_RETURN_IF_ERROR(runner->Initialise(1));

  RandomSource source(options.model, seqs);
  const int64_t tokens = seqs * options.model.seq_len;
  const std::vector<kernels::Bf16> a(kSquare * kSquare,
                                     kernels::RoundToBf16(0.5f));
  std::vector<kernels::Bf16> c(a.size());
  std::vector<double> step_s, product_s, fwd, bwd, reduce, update;
  SquareProduct(clock, a, a, c);
  for (int64_t step = 1; step <= steps + 1; ++step) {
    const absl::Duration start = clock.Monotonic();
    HF_ASSIGN_OR_RETURN(const StepResult result,
                        runner->RunStep(step, tokens, source, nullptr));
    const double seconds = absl::ToDoubleSeconds(clock.Monotonic() - start);
    if (step == 1) continue;  // Plans of products are made in the first.
    step_s.push_back(seconds);
    fwd.push_back(result.fwd_ms[0]);
    bwd.push_back(result.bwd_ms[0]);
    reduce.push_back(result.reduce_ms);
    update.push_back(result.update_ms);
    product_s.push_back(SquareProduct(clock, a, a, c));
  }
  const double flops = FlopsPerToken(options.model);
  const double tflops =
      flops * static_cast<double>(tokens) / Median(step_s) / 1e12;
  const double product_tflops =
      2.0 * kSquare * kSquare * kSquare / Median(product_s) / 1e12;
  std::printf(
      "{\"bench\": \"step\", \"model\": \"gpt-124m\", \"parameters\": %lld, "
      "\"threads\": %d, \"tokens\": %lld, \"tokens_per_s\": %.1f, "
      "\"flops_per_token\": %.4g, \"tflops\": %.3f, \"matmul_tflops\": %.3f, "
      "\"share\": %.3f, \"step_ms\": %.1f, \"fwd_ms\": %.1f, \"bwd_ms\": %.1f, "
      "\"reduce_ms\": %.1f, \"update_ms\": %.1f, \"planned_bytes\": %lld}\n",
      static_cast<long long>(ParameterCount(options.model)),
      omp_get_max_threads(), static_cast<long long>(tokens),
      static_cast<double>(tokens) / Median(step_s), flops, tflops,
      product_tflops, tflops / product_tflops, 1e3 * Median(step_s),
      Median(fwd), Median(bwd), Median(reduce), Median(update),
      static_cast<long long>(runner->memory().total()));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("A training step of one rank beside its matrix products.");
  int64_t steps = 5;
  int64_t seqs = 4;
  app.add_option("--steps", steps, "Measured steps");
  app.add_option("--seqs", seqs, "Sequences of the one microbatch");
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = RunInprocRanks(
      1, [&](Collectives& world) { return Measure(world, steps, seqs); });
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 70;
}

}  // namespace
}  // namespace holdfast::trainer

int main(int argc, char** argv) { return holdfast::trainer::Main(argc, argv); }
