// trainer/startup.cc: from options to a run that is ready for its first step.

#include "trainer/startup.h"

#include <omp.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "kernels/bf16.h"
#include "kernels/elementwise.h"
#include "trainer/fingerprint.h"
#include "trainer/matmul_speed.h"
#include "trainer/parallel/job.h"
#include "trainer/process_memory.h"
#include "trainer/run_plan.h"
#include "trainer/start_history.h"
#include "trainer/startup_memory.h"

namespace holdfast::trainer {
namespace {

// DataSource::Fingerprint.
constexpr size_t kDataFingerprintDigits = 16;

absl::Status OpenData(TrainRun& run, const TrainEnv& env) {
  DataOptions options;
  options.seq_len = run.config.model.seq_len;
  options.vocab = run.config.model.vocab;
  options.seed = run.config.train.seed;
  options.check_tokens = env.first_on_host;
  HF_ASSIGN_OR_RETURN(run.data, DataSource::Open(run.config.data, options));
  run.train_data = BatchSource::ForTraining(*run.data, run.config.batch);
  if (run.config.train.eval_interval > 0) {
    run.eval_data = BatchSource::ForEvaluation(*run.data, run.config.batch,
                                               run.config.train.eval_seqs);
    if (run.eval_data->microbatches() == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "train.eval_interval is %d but fewer than batch.micro_seqs = %d "
          "sequences are held out; raise data.eval_fraction (%g) or set "
          "train.eval_interval = 0",
          run.config.train.eval_interval, run.config.batch.micro_seqs,
          run.config.data.eval_fraction));
    }
  }
  return absl::OkStatus();
}

// Lines of `mine` that `theirs` lacks, at most three.
std::string OwnLines(const std::string& mine, const std::string& theirs) {
  const std::vector<std::string> other = absl::StrSplit(theirs, '\n');
  std::vector<std::string> own;
  for (const auto line : absl::StrSplit(mine, '\n')) {
    if (std::find(other.begin(), other.end(), line) == other.end()) {
      own.emplace_back(line);
    }
  }
  if (own.size() > 3) {
    own.resize(3);
    own.push_back("...");
  }
  return absl::StrJoin(own, "; ");
}

// OK when all ranks pass the text of rank 0. Collective.
absl::Status AgreeEqual(Collectives& world, const std::string& text,
                        const std::string& what) {
  int64_t size = static_cast<int64_t>(text.size());
  HF_RETURN_IF_ERROR(world.Broadcast(Bytes(std::span<int64_t>(&size, 1)), 0));
  std::string first = text;
  first.resize(static_cast<size_t>(size));
  HF_RETURN_IF_ERROR(world.Broadcast(Bytes(std::span<char>(first)), 0));
  absl::Status mine;
  if (text != first) {
    mine = absl::FailedPreconditionError(absl::StrFormat(
        "%s differs between ranks: rank %d has '%s', rank 0 has '%s'", what,
        world.rank(), OwnLines(text, first), OwnLines(first, text)));
  }
  return Agree(world, mine, absl::StrFormat("comparing %s with rank 0", what));
}

// Threads change the speed only, never a bit.
void UseThreads(int64_t configured, const TrainEnv& env) {
  if (configured == 0 && std::getenv("OMP_NUM_THREADS") != nullptr) return;
  const int threads = configured > 0 ? static_cast<int>(configured)
                                     : ProcessorsOfRank(omp_get_num_procs(),
                                                        env.processors_on_host,
                                                        env.ranks_on_host);
  omp_set_num_threads(std::max(1, threads));
}

// The data's fingerprint, on every rank. One rank of each host reads its files;
// what they find must be the same.
absl::StatusOr<std::string> AgreeOnData(const TrainRun& run,
                                        const TrainEnv& env) {
  Collectives& world = *env.world;
  std::string mine;
  if (env.first_on_host) mine = run.data->Fingerprint();
  std::string fingerprint(kDataFingerprintDigits, '0');
  if (world.rank() == 0) fingerprint = mine;
  HF_RETURN_IF_ERROR(
      world.Broadcast(std::as_writable_bytes(std::span<char>(fingerprint)), 0));
  absl::Status status;
  if (env.first_on_host && mine != fingerprint) {
    status = absl::FailedPreconditionError(absl::StrFormat(
        "the data files on %s have fingerprint %s, those of rank 0 %s",
        env.host, mine, fingerprint));
  }
  HF_RETURN_IF_ERROR(Agree(world, status, "comparing the data files"));
  return fingerprint;
}

StepOptions StepOptionsOf(TrainRun& run, const TrainEnv& env) {
  StepOptions options;
  options.model = run.config.model;
  options.optim = run.config.optim;
  options.numerics = run.config.numerics;
  options.batch = run.config.batch;
  options.overlap = run.config.overlap;
  options.layout = run.layout.get();
  options.mesh = &run.collectives;
  options.device = run.device.device.get();
  options.clock = env.clock;
  options.device_mesh = run.device_mesh.get();
  return options;
}

absl::Status MakeRunner(TrainRun& run, const TrainEnv& env) {
  run.memory_base_bytes = ReadProcessMemory().anonymous_bytes;
  HF_ASSIGN_OR_RETURN(run.runner, StepRunner::Create(StepOptionsOf(run, env)));
  return absl::OkStatus();
}

absl::Status OpenCheckpointer(TrainRun& run, TrainEnv& env) {
  std::error_code error;
  std::filesystem::create_directories(run.options.run_dir, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrFormat("making the run directory %s: %s", run.options.run_dir,
                        error.message()));
  }
  const CheckpointConfig& config = run.config.checkpoint;
  ckpt::CheckpointerOptions options;
  options.run_dir = run.options.run_dir;
  options.keep_last = static_cast<int>(config.keep_last);
  options.keep_every = config.keep_every;
  options.keep_older_s = config.keep_older_s;
  options.files = config.files.count;
  options.files_per_dir = config.files_per_dir;
  options.fence_ms = config.fence_ms;
  options.arena_bytes = static_cast<uint64_t>(config.arena_mb) << 20;
  options.vote_timeout_ms = config.vote_timeout_ms;
  options.queue_depth = static_cast<int>(config.queue_depth);
  options.direct_io = config.direct_io;
  if (config.codec == CodecChoice::kZstd) options.codec = "zstd";
  options.codec_level = static_cast<int>(config.codec_level);
  options.codec_threads = static_cast<int>(config.codec_threads);
  // Before the watchdog, so that the load says who is missing.
  options.load_timeout_ms = run.config.fault.start_timeout_s * 900;
  switch (config.storage) {
    case StorageChoice::kAuto:
      options.storage = "auto";
      break;
    case StorageChoice::kUring:
      options.storage = "io_uring";
      break;
    case StorageChoice::kPosix:
      options.storage = "posix";
      break;
  }
  options.fault_spec = run.options.fault_spec;
  if (env.world->rank() == 0 && env.measure_speeds) {
    const absl::StatusOr<ckpt::RawDevice> raw =
        ckpt::MeasureRawDevice(run.options.run_dir);
    if (raw.ok()) {
      options.raw_write_bytes_per_s = raw->write_bytes_per_s;
      options.raw_read_bytes_per_s = raw->read_bytes_per_s;
      run.loading.raw_read_bytes_per_s = raw->read_bytes_per_s;
    } else if (absl::IsPermissionDenied(raw.status())) {
      return raw.status();
    } else {
      HF_LOG_WARNING("the raw speed of %s is unknown: %s", run.options.run_dir,
                     std::string(raw.status().message()));
    }
  }
  std::vector<std::span<std::byte>> regions;
  for (const kernels::Buffer& region : run.runner->state().regions()) {
    regions.emplace_back(region.data, region.bytes);
  }
  if (!run.device.device->NewStream()->immediate()) {
    run.copier = std::make_unique<DeviceCopier>(
        *run.device.device, run.runner->state().regions(),
        [runner = run.runner.get()] { return runner->StateEvent(); },
        env.copier_canary);
  }
  HF_ASSIGN_OR_RETURN(run.checkpointer,
                      ckpt::Checkpointer::Open(
                          options, std::move(env.checkpoint_group), run.layout,
                          std::move(regions), *env.clock, run.copier.get()));
  if (!run.device.on_gpu()) {  // the arena is the host's memory
    run.memory_planned_bytes +=
        static_cast<int64_t>(run.checkpointer->arena_bytes());
  }
  return absl::OkStatus();
}

absl::StatusOr<ckpt::LoadRequest> MakeLoadRequest(
    const TrainRun& run, const std::string& data_fingerprint,
    const std::string& numerics_fingerprint) {
  using Resume = ckpt::LoadRequest::Resume;
  ckpt::LoadRequest request;
  const std::string& resume = run.options.resume;
  if (resume == "auto") {
    request.resume = Resume::kAuto;
  } else if (resume == "never") {
    request.resume = Resume::kNever;
  } else if (resume == "required") {
    request.resume = Resume::kRequired;
  } else if (absl::SimpleAtoi(resume, &request.step) && request.step >= 0) {
    request.resume = Resume::kStep;
  } else {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--resume=%s: expected auto, never, required or a step", resume));
  }
  request.init_from = run.options.init_from;
  request.init_weights_only = run.options.init_weights_only;
  const Config config = run.config;
  std::vector<std::string> accepted;
  for (const std::string& name : run.options.accept_change) {
    if (name != kAcceptNoProgress) accepted.push_back(name);
  }
  request.validate = [=](const std::map<std::string, std::string>& attributes)
      -> absl::Status {
    HF_ASSIGN_OR_RETURN(const ResumeState saved, FromAttributes(attributes));
    HF_ASSIGN_OR_RETURN(const std::vector<ConfigDifference> differences,
                        CompareForResume(saved, config, data_fingerprint,
                                         numerics_fingerprint));
    return RefuseUnaccepted(differences, accepted);
  };
  return request;
}

// Masters from the weights of the owned blocks, which a load of weights alone
// has filled; the moments stay zero.
void AdoptWeights(TrainState& state, kernels::Device& device) {
  const int64_t elements = state.shape().owned.count * ckpt::kBlockElements;
  const int64_t first = state.shape().owned.first * ckpt::kBlockElements;
  float* const master = state.regions()[ckpt::kMasterRegion].as<float>();
  const kernels::Buffer& weight = state.regions()[ckpt::kWeightRegion];
  const std::unique_ptr<kernels::Stream> stream = device.NewStream();
  if (state.shape().weight_bytes == sizeof(float)) {
    kernels::Cast(*stream, weight.as<float>() + first, master, elements);
  } else {
    kernels::Cast(*stream, weight.as<kernels::Bf16>() + first, master,
                  elements);
  }
  device.Sync(*stream);
}

// The state that a loaded or a fresh run begins with.
absl::Status SetState(TrainRun& run, const std::string& data_fingerprint,
                      const std::string& numerics_fingerprint) {
  const bool continues =
      run.load.loaded && !(run.load.from_init && run.options.init_weights_only);
  if (continues) {
    HF_ASSIGN_OR_RETURN(run.state, FromAttributes(run.load.attributes));
  }
  run.state.seed = run.config.train.seed;
  run.state.data_fingerprint = data_fingerprint;
  run.state.numerics_fingerprint = numerics_fingerprint;
  run.state.config = CanonicalText(run.config);
  run.state.imported_from.clear();  // from here on it is this run's
  if (run.load.loaded && !continues) {
    AdoptWeights(run.runner->state(), *run.device.device);
  }
  if (run.load.loaded) return run.runner->RefreshWeights();
  return run.runner->Initialise(run.config.train.seed);
}

// What all ranks have read, and how long the slowest took. Collective.
absl::Status SumUpLoad(TrainRun& run, Collectives& world) {
  int64_t bytes = static_cast<int64_t>(run.load.bytes_read);
  int64_t microseconds = static_cast<int64_t>(run.load.seconds * 1e6);
  HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<int64_t>(&bytes, 1)));
  HF_RETURN_IF_ERROR(world.AllReduceMax(std::span<int64_t>(&microseconds, 1)));
  run.loading.bytes_total = bytes;
  run.loading.seconds = static_cast<double>(microseconds) / 1e6;
  return absl::OkStatus();
}

void SayWhereWeStart(const TrainRun& run) {
  for (const ckpt::SteppedOver& over : run.load.stepped_over) {
    // The checkpoint layer has said so on the terminal, before this log was
    // open.
    HF_LOG_DEBUG("stepped over %s: %s", ckpt::ToString(over.id), over.reason);
  }
  if (run.load.loaded) {
    const LoadFigures& loading = run.loading;
    std::string speed;
    if (loading.seconds > 0) {
      speed = absl::StrFormat(", %.2f GB/s",
                              loading.bytes_total / loading.seconds / 1e9);
    }
    if (loading.raw_share() > 0) {
      absl::StrAppendFormat(&speed, ", %.0f %% of the raw device",
                            100 * loading.raw_share());
    }
    HF_LOG_INFO(
        "%s %s of layout %s as layout %s: step %d, %.1f MB read, %.2f of what "
        "is stored, %.1f MB passed on among the ranks, in %.2f s%s",
        run.load.from_init ? "initialised from" : "resumed",
        ckpt::ToString(run.load.id), run.load.layout_from,
        run.layout->description(), run.load.step, loading.bytes_total / 1e6,
        static_cast<double>(run.load.job_bytes_read) / run.load.bytes_stored,
        run.load.job_bytes_received / 1e6, loading.seconds, speed);
  } else {
    HF_LOG_INFO("fresh start, layout %s, seed %d", run.layout->description(),
                run.config.train.seed);
  }
}

void SayWhatRuns(const TrainRun& run) {
  const NumericsConfig& numerics = run.config.numerics;
  const BatchConfig& batch = run.config.batch;
  HF_LOG_INFO(
      "%s: %.3fM parameters, %d steps of %d sequences x %d tokens (%d "
      "microbatches "
      "a step)",
      run.layout->description(), ParameterCount(run.config.model) / 1e6,
      run.config.train.steps, batch.global_seqs, run.config.model.seq_len,
      batch.global_seqs / batch.micro_seqs);
  if (run.device.on_gpu()) {
    HF_LOG_INFO("device: %s", DescribeDevice(run.device));
  }
  if (numerics.invariant) {
    const MemoryPlan memory = run.runner->memory();
    HF_LOG_INFO(
        "sums: %d leaves over DP %d, %.1f MB of partial sums a rank; the same "
        "bits on any DP and PP",
        numerics.virtual_dp, run.mesh.dp, memory.live_sums / 1e6);
  } else {
    HF_LOG_WARNING(
        "sums: numerics.invariant = false; no promise of equal bits on another "
        "DP");
  }
}

}  // namespace

TrainRun::~TrainRun() {
  // After an error messages may still be on the way into the runner's memory:
  // who could receive them goes first.
  checkpointer.reset();
  collectives.tp.reset();
  collectives.dp.reset();
  collectives.pp.reset();
}

absl::Status Agree(Collectives& world, const absl::Status& mine,
                   const std::string& phase) {
  // Rank and code in one number: the largest is the same for all.
  constexpr int64_t kCodes = 64;
  int64_t failed =
      mine.ok() ? 0
                : kCodes * (1 + world.rank()) + static_cast<int>(mine.code());
  HF_RETURN_IF_ERROR(world.AllReduceMax({&failed, 1}));
  if (!mine.ok()) return mine;
  if (failed == 0) return absl::OkStatus();
  // With the code of the rank that failed: whichever process is looked at, the
  // job's exit code is the same.
  return absl::Status(
      static_cast<absl::StatusCode>(failed % kCodes),
      absl::StrFormat("%s failed on rank %d, whose log has the reason", phase,
                      failed / kCodes - 1));
}

void FenceGate::BeforeUpdate(int64_t first, int64_t count) {
  constexpr int64_t kF32BlockBytes = ckpt::kBlockElements * 4;
  const int64_t weight_block_bytes = ckpt::kBlockElements * weight_bytes_;
  checkpointer_.FenceWrite(
      ckpt::kWeightRegion,
      static_cast<uint64_t>((owned_first_ + first) * weight_block_bytes),
      static_cast<uint64_t>(count * weight_block_bytes));
  for (const uint32_t region :
       {ckpt::kMasterRegion, ckpt::kExpAvgRegion, ckpt::kExpAvgSqRegion}) {
    checkpointer_.FenceWrite(region,
                             static_cast<uint64_t>(first * kF32BlockBytes),
                             static_cast<uint64_t>(count * kF32BlockBytes));
  }
}

absl::StatusOr<std::unique_ptr<TrainRun>> StartRun(const TrainOptions& options,
                                                   TrainEnv& env) {
  auto run = std::make_unique<TrainRun>();
  run->options = options;
  Collectives& world = *env.world;
  const bool is_root = world.rank() == 0;
  // Until the configuration is known.
  const Heartbeat::Scope scope(env.heartbeat, "reading the configuration",
                               absl::Seconds(FaultConfig{}.start_timeout_s));

  const auto configure = [&]() -> absl::Status {
    HF_ASSIGN_OR_RETURN(run->config,
                        LoadConfig(options.config_path, options.sets));
    HF_RETURN_IF_ERROR(ResolveConfig(run->config, world.size()));
    run->mesh = MeshOf(run->config);
    UseThreads(run->config.threads, env);
    return absl::OkStatus();
  };
  HF_RETURN_IF_ERROR(Agree(world, configure(), "reading the configuration"));
  const Heartbeat::Scope start_up(
      env.heartbeat, "start-up",
      absl::Seconds(run->config.fault.start_timeout_s));
  HF_RETURN_IF_ERROR(Agree(world, OpenData(*run, env), "opening the data"));
  const auto open_device = [&]() -> absl::Status {
    if (env.make_device != nullptr) {
      HF_ASSIGN_OR_RETURN(run->device.device, env.make_device());
      return absl::OkStatus();
    }
    HF_ASSIGN_OR_RETURN(run->device,
                        OpenRunDevice(run->config, env.local_rank));
    return absl::OkStatus();
  };
  HF_RETURN_IF_ERROR(Agree(world, open_device(), "opening the device"));
  WatchWaits(run->device, env.heartbeat,
             std::max<int64_t>(run->config.fault.start_timeout_s,
                               run->config.fault.step_timeout_s));
  HF_RETURN_IF_ERROR(CountSharing(world, env.host, run->device));

  // Every rank computes the same thing in the same way, or nobody starts.
  const std::string numerics =
      NumericsFingerprint(run->config, *run->device.device);
  HF_RETURN_IF_ERROR(
      AgreeEqual(world, CanonicalText(run->config), "the configuration"));
  HF_RETURN_IF_ERROR(AgreeEqual(world, numerics, "the numerics fingerprint"));
  HF_ASSIGN_OR_RETURN(const std::string data, AgreeOnData(*run, env));

  const auto make_layout = [&]() -> absl::Status {
    HF_ASSIGN_OR_RETURN(run->layout, LayoutOf(run->config));
    return absl::OkStatus();
  };
  HF_RETURN_IF_ERROR(Agree(world, make_layout(), "making the layout"));
  HF_ASSIGN_OR_RETURN(run->collectives, SplitMesh(world, run->mesh));
  const auto open_mesh = [&]() -> absl::Status {
    HF_ASSIGN_OR_RETURN(
        run->device_mesh,
        OpenRunMesh(run->collectives, run->device, env.host,
                    run->config.fault.start_timeout_s, env.heartbeat));
    return absl::OkStatus();
  };
  HF_RETURN_IF_ERROR(Agree(world, open_mesh(), "opening NCCL"));
  // Measured before the state is there, so that its memory is not counted.
  HF_RETURN_IF_ERROR(world.Barrier());
  double flops = 0;
  if (env.measure_speeds) {
    const auto measure = [&]() -> absl::Status {
      HF_ASSIGN_OR_RETURN(
          flops,
          MeasureMatmulFlops(
              *run->device.device, run->config.numerics.compute,
              run->config.batch.micro_seqs * run->config.model.seq_len,
              run->config.model.hidden, run->config.model.ffn / run->mesh.tp));
      return absl::OkStatus();
    };
    HF_RETURN_IF_ERROR(Agree(world, measure(), "timing a matrix product"));
  }
  int64_t megaflops = static_cast<int64_t>(flops / 1e6);
  HF_RETURN_IF_ERROR(world.AllReduceSum(std::span<int64_t>(&megaflops, 1)));
  run->matmul_flops = static_cast<double>(megaflops) * 1e6;
  HF_RETURN_IF_ERROR(Agree(world,
                           CheckRunMemory(*run, StepOptionsOf(*run, env), env),
                           "planning the memory"));
  HF_RETURN_IF_ERROR(Agree(world, MakeRunner(*run, env), "taking the memory"));
  HF_RETURN_IF_ERROR(
      Agree(world, OpenCheckpointer(*run, env), "opening the run directory"));

  int64_t leave = env.requested_action() == SignalAction::kSaveAndLeave;
  HF_RETURN_IF_ERROR(world.AllReduceMax(std::span<int64_t>(&leave, 1)));
  if (leave != 0) {
    run->asked_to_leave = true;
    return run;
  }
  absl::StatusOr<ckpt::LoadRequest> request =
      MakeLoadRequest(*run, data, numerics);
  HF_RETURN_IF_ERROR(Agree(world, request.status(), "reading the options"));
  if (is_root) request->committed_proof = CommittedProof(options.run_dir);
  absl::StatusOr<ckpt::LoadReport> load =
      run->checkpointer->ClaimAndLoad(*request);
  HF_RETURN_IF_ERROR(Agree(world, load.status(), "taking the run and loading"));
  run->load = *std::move(load);
  HF_RETURN_IF_ERROR(SumUpLoad(*run, world));
  if (env.on_claimed) env.on_claimed(run->load.incarnation);
  HF_RETURN_IF_ERROR(
      Agree(world, SetState(*run, data, numerics), "setting the state"));

  const auto open_records = [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(
        MakeIncarnationDirs(options.run_dir, run->load.incarnation));
    if (env.log_to_files) {
      HF_RETURN_IF_ERROR(ckpt::InitLog(
          is_root ? ckpt::LogLevel::kInfo : ckpt::LogLevel::kError,
          RankLogPath(options.run_dir, run->load.incarnation, world.rank()),
          is_root ? "" : absl::StrFormat("rank %d", world.rank())));
    }
    if (!is_root) return absl::OkStatus();
    HF_RETURN_IF_ERROR(RefuseWithoutProgress(options.run_dir, run->state.step,
                                             options.accept_change));
    HF_ASSIGN_OR_RETURN(
        run->records, RunRecords::Open(options.run_dir, run->load.incarnation));
    HF_RETURN_IF_ERROR(run->records->WriteConfig(CanonicalText(run->config)));
    HF_RETURN_IF_ERROR(
        run->records->WriteEnvironment({{"command", env.command},
                                        {"host", env.host},
                                        {"world", world.size()},
                                        {"layout", run->layout->description()},
                                        {"device", DescribeDevice(run->device)},
                                        {"numerics", numerics},
                                        {"data", data}}));
    HF_RETURN_IF_ERROR(run->records->WriteJournal(
        "start",
        {{"step", run->state.step},
         {"layout", run->layout->description()},
         {"world", world.size()},
         {"resumed", run->load.loaded},
         {"layout_from", run->load.layout_from},
         {"load_seconds", run->loading.seconds},
         {"load_bytes", run->loading.bytes_total},
         {"load_bytes_stored", static_cast<int64_t>(run->load.bytes_stored)},
         {"load_bytes_received",
          static_cast<int64_t>(run->load.job_bytes_received)},
         {"load_raw_share", run->loading.raw_share()}}));
    for (const ckpt::SteppedOver& over : run->load.stepped_over) {
      HF_RETURN_IF_ERROR(run->records->WriteJournal(
          "step_back", {{"step", over.id.step},
                        {"checkpoint", ckpt::ToString(over.id)},
                        {"reason", over.reason}}));
    }
    return run->records->WriteStatus("running", run->state.step, std::nullopt,
                                     "");
  };
  HF_RETURN_IF_ERROR(Agree(world, open_records(), "opening the run's records"));
  if (is_root) {
    SayWhatRuns(*run);
    SayWhereWeStart(*run);
  }
  return run;
}

}  // namespace holdfast::trainer
