// tests/bench/step_bench.cc: a training step of one rank, and the share of the
// matrix-product speed that it reaches.
//
//   OMP_NUM_THREADS=2 build/release/bin/bench_step [--steps N] [--seqs N]
//   bench_step --device cuda --config trainer/configs/llama-1b.toml --seqs 4
//
// The default is trainer/configs/gpt-124m.toml. Steps and a large square
// product of our own matmul alternate, so that both see the same hour of a
// shared machine. One JSON line; medians. On a GPU also the share of the card's
// dense BF16 peak as its maker states it (model FLOPs utilisation). Exit 77 and
// a reason where the device is not to be had.

#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/philox.h"
#include "ckpt/base/status_macros.h"
#include "kernels/device_plugin.h"
#include "kernels/matmul.h"
#include "nlohmann/json.hpp"
#include "tests/bench/support/random_source.h"
#include "trainer/config.h"
#include "trainer/model/tensor_table.h"
#include "trainer/parallel/inproc_collectives.h"
#include "trainer/parallel/mesh_collectives.h"
#include "trainer/step.h"

namespace holdfast::trainer {
namespace {

// On the processor, and on a GPU, where less does not fill it.
constexpr int64_t kSquareCpu = 2048;
constexpr int64_t kSquareGpu = 8192;
constexpr int kExitSkipped = 77;

struct BenchOptions {
  std::string config = HOLDFAST_SOURCE_DIR "/trainer/configs/gpt-124m.toml";
  std::vector<std::string> sets;
  std::string device = "cpu";
  int64_t steps = 5;
  int64_t seqs = 4;
};

// Dense BF16 TFLOP/s that NVIDIA's data sheets state (half of what they give
// with sparsity): H100 and H200 SXM 1,979, B200 4,500. 0: not known here.
double StatedPeak(const std::string& card) {
  if (card.find("H100") != std::string::npos) return 989.5;
  if (card.find("H200") != std::string::npos) return 989.5;
  if (card.find("B200") != std::string::npos) return 2250.0;
  return 0.0;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A large BF16 product on random numbers: zeros would let a GPU clock higher.
class SquareProduct {
 public:
  static absl::StatusOr<SquareProduct> Create(kernels::Device& device,
                                              int64_t size) {
    SquareProduct product(device, size);
    const auto bytes = static_cast<size_t>(size * size) * sizeof(kernels::Bf16);
    HF_ASSIGN_OR_RETURN(product.memory_,
                        kernels::AllocateOwned(
                            device, kernels::MemorySpace::kDevice, 3 * bytes));
    HF_ASSIGN_OR_RETURN(
        const kernels::OwnedBuffer host,
        kernels::AllocateOwned(device, kernels::MemorySpace::kPinned, bytes));
    for (int64_t i = 0; i < size * size; ++i) {
      const auto draw = ckpt::Philox64(2, 1, static_cast<uint64_t>(i) / 1024);
      host.as<kernels::Bf16>()[i] = kernels::RoundToBf16(
          static_cast<float>(static_cast<int64_t>((draw >> (i % 48)) & 0xff) -
                             128) /
          128.0f);
    }
    for (const size_t at : {size_t{0}, bytes}) {
      device.Copy(product.memory_.buffer().Part(at, bytes), host.buffer(),
                  *product.stream_);
    }
    device.Sync(*product.stream_);
    return product;
  }

  double Seconds(const ckpt::Clock& clock) {
    const absl::Duration start = clock.Monotonic();
    kernels::MatmulArgs<kernels::Bf16, kernels::Bf16> args;
    args.a = memory_.as<kernels::Bf16>();
    args.b = args.a + size_ * size_;
    args.c = memory_.as<kernels::Bf16>() + 2 * size_ * size_;
    args.lda = args.ldb = args.ldc = size_;
    args.m = args.n = args.k = size_;
    args.transpose_b = true;
    kernels::Matmul(*stream_, args);
    device_->Sync(*stream_);
    return absl::ToDoubleSeconds(clock.Monotonic() - start);
  }

  double flops() const {
    const auto size = static_cast<double>(size_);
    return 2.0 * size * size * size;
  }

 private:
  SquareProduct(kernels::Device& device, int64_t size)
      : device_(&device), size_(size), stream_(device.NewStream()) {}

  kernels::Device* device_;
  int64_t size_;
  std::unique_ptr<kernels::Stream> stream_;
  kernels::OwnedBuffer memory_;
};

struct BenchDevice {
  std::unique_ptr<kernels::Device> device;
  std::string card = "processor";
};

absl::StatusOr<BenchDevice> OpenDevice(const std::string& name) {
  BenchDevice opened;
  if (name == "cpu") {
    opened.device = kernels::NewCpuDevice();
    return opened;
  }
  HF_ASSIGN_OR_RETURN(kernels::DevicePlugin* const plugin,
                      kernels::LoadDevicePlugin(name));
  HF_ASSIGN_OR_RETURN(const kernels::DeviceInfo info, plugin->Info(0));
  opened.card = info.name;
  HF_ASSIGN_OR_RETURN(opened.device, plugin->Open(0));
  return opened;
}

absl::Status Measure(Collectives& world, const BenchOptions& bench,
                     BenchDevice& opened) {
  HF_ASSIGN_OR_RETURN(const Config config,
                      LoadConfig(bench.config, bench.sets));
  StepOptions options;
  options.model = config.model;
  options.optim = {.warmup_steps = 10, .decay_steps = 1000};
  options.batch = {.global_seqs = bench.seqs, .micro_seqs = bench.seqs};
  options.numerics.virtual_dp = 1;
  ckpt::TrainLayoutOptions layout_options;
  layout_options.stages = {{{0, static_cast<int>(options.model.layers)}}};
  HF_ASSIGN_OR_RETURN(
      const std::unique_ptr<ckpt::TrainLayout> layout,
      ckpt::TrainLayout::Create(BuildTensorTable(options.model, 1).specs,
                                layout_options));
  HF_ASSIGN_OR_RETURN(MeshCollectives mesh, SplitMesh(world, {}));
  kernels::Device& device = *opened.device;
  const ckpt::Clock& clock = ckpt::RealClock();
  options.layout = layout.get();
  options.mesh = &mesh;
  options.device = &device;
  options.clock = &clock;
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<StepRunner> runner,
                      StepRunner::Create(options));
  HF_RETURN_IF_ERROR(runner->Initialise(1));

  RandomSource source(options.model, bench.seqs);
  const int64_t tokens = bench.seqs * options.model.seq_len;
  HF_ASSIGN_OR_RETURN(
      SquareProduct product,
      SquareProduct::Create(device,
                            bench.device == "cpu" ? kSquareCpu : kSquareGpu));
  std::vector<double> step_s, product_s, fwd, bwd, reduce, update;
  product.Seconds(clock);
  for (int64_t step = 1; step <= bench.steps + 1; ++step) {
    const absl::Duration start = clock.Monotonic();
    HF_ASSIGN_OR_RETURN(const StepResult result,
                        runner->RunStep(step, tokens, source, nullptr));
    const double seconds = absl::ToDoubleSeconds(clock.Monotonic() - start);
    HF_RETURN_IF_ERROR(device.status());
    if (step == 1) continue;  // Plans of products are made in the first.
    step_s.push_back(seconds);
    fwd.push_back(result.fwd_ms[0]);
    bwd.push_back(result.bwd_ms[0]);
    reduce.push_back(result.reduce_ms);
    update.push_back(result.update_ms);
    product_s.push_back(product.Seconds(clock));
  }
  HF_RETURN_IF_ERROR(device.status());
  const double tokens_per_s = static_cast<double>(tokens) / Median(step_s);
  const double tflops = FlopsPerToken(options.model) * tokens_per_s / 1e12;
  const double product_tflops = product.flops() / Median(product_s) / 1e12;
  const double peak = StatedPeak(opened.card);

  nlohmann::ordered_json json;
  json["bench"] = "step";
  json["model"] = std::filesystem::path(bench.config).stem().string();
  json["device"] = opened.card;
  json["parameters"] = ParameterCount(options.model);
  json["threads"] = omp_get_max_threads();
  json["tokens"] = tokens;
  json["tokens_per_s"] = tokens_per_s;
  json["flops_per_token"] = FlopsPerToken(options.model);
  json["tflops"] = tflops;
  json["matmul_tflops"] = product_tflops;
  json["share"] = tflops / product_tflops;
  std::string summary = absl::StrFormat(
      "%.0f tokens/s, %.3g TFLOP/s, %.2f of a large product's %.3g",
      tokens_per_s, tflops, tflops / product_tflops, product_tflops);
  if (peak > 0) {
    json["peak_tflops"] = peak;
    json["mfu"] = tflops / peak;
    summary += absl::StrFormat(", MFU %.2f", tflops / peak);
  }
  json["step_ms"] = 1e3 * Median(step_s);
  json["fwd_ms"] = Median(fwd);
  json["bwd_ms"] = Median(bwd);
  json["reduce_ms"] = Median(reduce);
  json["update_ms"] = Median(update);
  json["planned_bytes"] = runner->memory().total();
  json["summary"] = summary;
  std::printf("%s\n", json.dump().c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("A training step of one rank beside its matrix products.");
  BenchOptions bench;
  app.add_option("--config", bench.config, "The model");
  app.add_option("--set", bench.sets, "KEY=VALUE over the file")
      ->allow_extra_args(false);
  app.add_option("--device", bench.device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--steps", bench.steps, "Measured steps");
  app.add_option("--seqs", bench.seqs, "Sequences of the one microbatch");
  CLI11_PARSE(app, argc, argv);
  absl::StatusOr<BenchDevice> device = OpenDevice(bench.device);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n",
                 std::string(device.status().message()).c_str());
    return kExitSkipped;
  }
  const absl::Status status = RunInprocRanks(
      1, [&](Collectives& world) { return Measure(world, bench, *device); });
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 70;
}

}  // namespace
}  // namespace holdfast::trainer

int main(int argc, char** argv) { return holdfast::trainer::Main(argc, argv); }
