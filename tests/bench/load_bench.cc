// tests/bench/load_bench.cc: does a load read as fast as the disk allows?
//
// One rank saves --mib MiB of state once, through the whole stack. Then, in
// turn and --rounds times: a raw io_uring loop reads the shard file, a
// LoadSession loads it into place, a VerifySession checks it with digests, and
// the two ranks of a job with TP 2 (rows cut in the middle) load their halves,
// one after the other: every unit has bytes of both, so each reads all of it
// and half of what is read is wanted. One JSON line: the median GB/s of each,
// and the median over the rounds of each one's share of the raw loop beside it.
//
//   bench_load --dir DIR [--mib 512] [--rounds 5]

#include <fcntl.h>
#include <getopt.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/checkpointer.h"
#include "ckpt/format/manifest.h"
#include "ckpt/group/inproc_group.h"
#include "ckpt/layout/train_layout.h"
#include "ckpt/session/catalog_locate.h"
#include "ckpt/session/io.h"
#include "ckpt/session/load_session.h"
#include "ckpt/session/verify_session.h"
#include "ckpt/storage/blocking.h"
#include "ckpt/storage/fd.h"
#include "ckpt/storage/raw_transfer.h"

namespace holdfast::ckpt {
namespace {

constexpr int64_t kColumns = 4096;
constexpr int64_t kBytesPerParameter = 14;
constexpr size_t kBlock = size_t{1} << 20;
constexpr uint32_t kDepth = 32;

double Now() { return absl::ToDoubleSeconds(RealClock().Monotonic()); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Check(const absl::Status& status) {
  HF_CHECK(status.ok(), "%s", status.ToString());
}

std::shared_ptr<const JobLayout> Layout(int64_t mib, int tp) {
  TensorSpec tensor;
  tensor.name = "w";
  tensor.shape = {
      std::max<int64_t>(1, (mib << 20) / kBytesPerParameter / kColumns),
      kColumns};
  tensor.tp_dimension = 1;
  tensor.layer = 0;
  TrainLayoutOptions options;
  options.mesh.tp = tp;
  options.stages = {{{0, 1}}};
  auto layout = TrainLayout::Create({tensor}, options);
  Check(layout.status());
  return *std::move(layout);
}

struct Memory {
  explicit Memory(const Holding& holding) {
    for (const uint64_t bytes : holding.region_bytes) {
      buffers.emplace_back(bytes);
      spans.push_back(buffers.back().span());
    }
  }
  std::vector<AlignedBuffer> buffers;
  std::vector<std::span<std::byte>> spans;
};

// Reads the whole MiB of the file into `memory`, bytes a second.
double RawLoop(const std::string& path, std::span<std::byte> memory) {
  const double begin = Now();
  const Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECT));
  HF_CHECK(fd.valid(), "cannot open %s", path);
  Check(RawUringTransfer(fd.get(), /*is_write=*/false, memory, 0, memory.size(),
                         kBlock, kDepth));
  return memory.size() / (Now() - begin);
}

class Bench {
 public:
  Bench(const std::string& run, int64_t mib)
      : layout_(Layout(mib, 1)), halves_(Layout(mib, 2)) {
    const Holding holding = layout_->StoredBy(Rank{0});
    memory_ = std::make_unique<Memory>(holding);
    Save(run);
    auto located = LocateCheckpoint(run, {}, RealClock());
    Check(located.status());
    place_ = *std::move(located);
    auto bytes = Blocking(*place_.storage)
                     .Get(place_.dir + "/" + kManifestName, kManifestBytesMax);
    Check(bytes.status());
    auto manifest = DecodeManifest(*bytes);
    Check(manifest.status());
    manifest_ = *std::move(manifest);
  }

  double Raw() {
    const std::string path = place_.path() + "/" + manifest_.files[0].name;
    if (raw_memory_.size() == 0) {
      raw_memory_ = AlignedBuffer(manifest_.files[0].bytes / kBlock * kBlock);
    }
    return RawLoop(path, raw_memory_.span());
  }

  double Load() { return LoadOf(*layout_, Rank{0}); }

  // Both halves, one after the other: wanted bytes a second.
  double LoadHalves() {
    const double a = LoadOf(*halves_, Rank{0});
    const double b = LoadOf(*halves_, Rank{1});
    return 2 / (1 / a + 1 / b);
  }

  double Verify() {
    VerifySession session(Env(), place_.dir, &manifest_, /*hash=*/true);
    RunAlone(place_.storage.get(), &RealClock(), &session);
    Check(session.outcome().status);
    return session.outcome().bytes_read / session.outcome().seconds;
  }

 private:
  void Save(const std::string& run) {
    for (auto& region : memory_->spans) {
      uint64_t x = 1;
      for (uint64_t i = 0; i + 8 <= region.size(); i += 8) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        std::copy_n(reinterpret_cast<const std::byte*>(&x), 8,
                    region.data() + i);
      }
    }
    CheckpointerOptions options;
    options.run_dir = run;
    auto opened = Checkpointer::Open(options, std::move(MakeInprocGroups(1)[0]),
                                     layout_, memory_->spans, RealClock());
    Check(opened.status());
    Check((*opened)->ClaimAndLoad({}).status());
    Check((*opened)->BeginSave({1, {}}));
    const auto saved = (*opened)->WaitForSave(absl::Minutes(5));
    HF_CHECK(saved.has_value(), "the save takes longer than 5 minutes");
    Check(saved->status);
    Check((*opened)->Close());
  }

  SessionEnv Env() const {
    SessionEnv env;
    env.storage = place_.storage.get();
    env.clock = &RealClock();
    env.space = 1;
    env.ops_max = place_.storage->queue_depth();
    return env;
  }

  double LoadOf(const JobLayout& layout, Rank rank) {
    const Holding wanted = layout.WantedBy(rank);
    const LoadTarget target(memory_->spans);
    LoadSession session(Env(), place_.dir, &manifest_, &layout.items(), &wanted,
                        &target);
    RunAlone(place_.storage.get(), &RealClock(), &session);
    Check(session.outcome().status);
    return session.outcome().bytes_wanted / session.outcome().seconds;
  }

  const std::shared_ptr<const JobLayout> layout_;
  const std::shared_ptr<const JobLayout> halves_;
  std::unique_ptr<Memory> memory_;
  AlignedBuffer raw_memory_;
  LocatedCheckpoint place_;
  Manifest manifest_;
};

int Main(int argc, char** argv) {
  std::string dir;
  int64_t mib = 512;
  int rounds = 5;
  const option options[] = {{"dir", required_argument, nullptr, 'd'},
                            {"mib", required_argument, nullptr, 'm'},
                            {"rounds", required_argument, nullptr, 'r'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    bool good = true;
    if (c == 'd') dir = optarg;
    if (c == 'm') good = absl::SimpleAtoi(optarg, &mib);
    if (c == 'r') good = absl::SimpleAtoi(optarg, &rounds);
    if (c == '?' || !good) return 64;
  }
  if (dir.empty() || mib < 16 || rounds < 1) return 64;
  Check(InitLog(LogLevel::kWarning, "", ""));
  const std::string run = dir + "/bench_load.run";
  HF_CHECK(std::filesystem::create_directories(run), "%s is there", run);
  Bench bench(run, mib);

  std::vector<double> raw, load, halves, verify;
  std::vector<double> load_share, halves_share, verify_share;
  for (int round = 0; round <= rounds; ++round) {
    const double raw_speed = bench.Raw();
    const double load_speed = bench.Load();
    const double halves_speed = bench.LoadHalves();
    const double verify_speed = bench.Verify();
    if (round == 0) continue;  // memory is touched for the first time
    raw.push_back(raw_speed);
    load.push_back(load_speed);
    halves.push_back(halves_speed);
    verify.push_back(verify_speed);
    load_share.push_back(load_speed / raw_speed);
    halves_share.push_back(halves_speed / raw_speed);
    verify_share.push_back(verify_speed / raw_speed);
  }
  std::printf(
      "{\"bench\":\"load\",\"mib\":%lld,\"rounds\":%d,\"raw_gb_per_s\":%.3f,"
      "\"load_gb_per_s\":%.3f,\"load_of_raw\":%.3f,"
      "\"load_tp2_gb_per_s\":%.3f,\"load_tp2_of_raw\":%.3f,"
      "\"verify_hash_gb_per_s\":%.3f,\"verify_hash_of_raw\":%.3f}\n",
      static_cast<long long>(mib), rounds, Median(raw) / 1e9,
      Median(load) / 1e9, Median(load_share), Median(halves) / 1e9,
      Median(halves_share), Median(verify) / 1e9, Median(verify_share));
  std::filesystem::remove_all(run);
  return 0;
}

}  // namespace
}  // namespace holdfast::ckpt

int main(int argc, char** argv) { return holdfast::ckpt::Main(argc, argv); }
