// tests/bench/exchange_bench.cc: bytes that a whole job reads at a load, over
// the bytes that are stored.
//
// Real loads: a decoder with the proportions of dense-500b, 1/32 as wide, is
// saved on one layout and loaded on another, each rank a thread of this process
// with a Checkpointer of its own. Then the full size as planned: 500B
// parameters on 5,120 ranks, the reads of every 37th rank worked out, with and
// without sharing, and the slowest plan of a rank.
//
//   bench_exchange [--dir DIR]      DIR: where the runs may lie (some 300 MB)

#include <getopt.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/check.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/checkpointer.h"
#include "ckpt/group/inproc_group.h"
#include "ckpt/layout/train_layout.h"
#include "ckpt/plan/share_plan.h"
#include "tests/bench/support/bench_ranks.h"
#include "tests/bench/support/raw_file.h"
#include "tests/bench/support/row.h"
#include "tests/unit/ckpt/layout/full_size.h"
#include "tests/unit/ckpt/plan/memory_job.h"

namespace holdfast::bench {
namespace {

using ckpt::Checkpointer;
using ckpt::Index;
using ckpt::JobLayout;
using ckpt::Mesh;
using ckpt::Rank;

constexpr double kGoal = 1.1;

struct Change {
  const char* name;
  Mesh from;
  Mesh to;
};

// dense-500b's tensors with every length divided by 32, 8 layers.
std::shared_ptr<const JobLayout> SmallerLayout(const Mesh& mesh) {
  constexpr int kLayers = 8;
  std::vector<ckpt::TensorSpec> tensors;
  for (ckpt::TensorSpec tensor : ckpt::FullSizeTensors()) {
    if (tensor.layer >= kLayers) continue;
    for (int64_t& length : tensor.shape) length /= 32;
    tensors.push_back(std::move(tensor));
  }
  ckpt::TrainLayoutOptions options;
  options.mesh = mesh;
  const auto stages = ckpt::EvenStages(kLayers, mesh.pp, 0.67, 0.67);
  Must(stages.status());
  options.stages = *stages;
  auto layout = ckpt::TrainLayout::Create(std::move(tensors), options);
  Must(layout.status());
  return *std::move(layout);
}

// All ranks of a job, each on a thread of its own. `use` is called on that.
template <typename Use>
void OnAllRanks(const std::shared_ptr<const JobLayout>& layout,
                const std::string& run, Use use) {
  auto groups = ckpt::MakeInprocGroups(layout->world());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < layout->world(); ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<ckpt::AlignedBuffer> buffers;
      std::vector<std::span<std::byte>> regions;
      for (const uint64_t bytes : layout->WantedBy(Rank{rank}).region_bytes) {
        buffers.emplace_back(bytes);
        regions.push_back(buffers.back().span());
      }
      ckpt::CheckpointerOptions options;
      options.run_dir = run;
      options.queue_depth = 16;
      auto opened = Checkpointer::Open(options, std::move(groups[rank]), layout,
                                       regions, ckpt::RealClock());
      Must(opened.status());
      use(rank, **opened, regions);
      Must((*opened)->Close());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void Save(const std::shared_ptr<const JobLayout>& layout,
          const std::string& run) {
  OnAllRanks(layout, run, [](int rank, Checkpointer& checkpointer, auto& all) {
    for (const std::span<std::byte> region : all) {
      for (size_t i = 0; i < region.size(); ++i) {
        region[i] = static_cast<std::byte>(i * 31 + rank);
      }
    }
    Must(checkpointer.ClaimAndLoad({}).status());
    Must(checkpointer.BeginSave({1, {}}));
    const auto saved = checkpointer.WaitForSave(absl::Minutes(5));
    HF_CHECK(saved.has_value(), "the save takes longer than 5 minutes");
    Must(saved->status);
  });
}

ckpt::LoadReport Load(const std::shared_ptr<const JobLayout>& layout,
                      const std::string& run) {
  ckpt::LoadReport lead;
  OnAllRanks(layout, run, [&](int rank, Checkpointer& checkpointer, auto&) {
    const auto loaded = checkpointer.ClaimAndLoad({});
    Must(loaded.status());
    HF_CHECK(loaded->loaded, "nothing was loaded");
    if (rank == 0) lead = *loaded;
  });
  return lead;
}

void RealLoads(const std::string& dir) {
  for (const Change& change :
       std::vector<Change>{{"tp8-tp4", {.tp = 8}, {.tp = 4}},
                           {"tp4-tp8", {.tp = 4}, {.tp = 8}},
                           {"tp1-tp8", {.tp = 1}, {.tp = 8}},
                           {"pp", {.tp = 2, .pp = 4}, {.tp = 2, .pp = 2}},
                           {"dp", {.tp = 2, .dp = 4}, {.tp = 2, .dp = 3}}}) {
    const auto from = SmallerLayout(change.from);
    const auto to = SmallerLayout(change.to);
    const std::string run = dir + "/exchange-" + change.name + ".run";
    std::filesystem::remove_all(run);
    std::filesystem::create_directories(run);
    Save(from, run);
    const ckpt::LoadReport load = Load(to, run);
    std::filesystem::remove_all(run);
    Row row(absl::StrFormat("exchange-%s", change.name),
            absl::StrFormat("bytes read over bytes stored, %s loads what %s "
                            "saved",
                            to->description(), from->description()));
    const double ratio =
        static_cast<double>(load.job_bytes_read) / load.bytes_stored;
    row.SetAtMost({ratio, ratio, ratio, 1}, kGoal, "x");
    row.json()["bytes_stored"] = load.bytes_stored;
    row.json()["bytes_read"] = load.job_bytes_read;
    row.json()["bytes_passed_on"] = load.job_bytes_received;
    row.json()["load_seconds"] = load.seconds;  // rank 0's
    row.Print();
  }
}

uint64_t Sum(const std::vector<ckpt::UnitRead>& reads) {
  uint64_t bytes = 0;
  for (const ckpt::UnitRead& read : reads) bytes += read.bytes;
  return bytes;
}

void FullSize() {
  const auto saved = ckpt::FullSizeLayout({.tp = 8, .pp = 8, .dp = 80});
  ckpt::Manifest manifest = ckpt::BlankManifest(*saved);
  uint64_t stored = 0;
  for (int rank = 0; rank < saved->world(); ++rank) {
    const ckpt::SavePlan plan =
        ckpt::PlanSave(saved->items(), saved->StoredBy(Rank{rank}));
    stored += plan.file_bytes;
    manifest.files.push_back(
        {.name = ckpt::ShardName(rank),
         .bytes = plan.file_bytes,
         .unit_count = static_cast<uint32_t>(plan.units.size()),
         .crc_index = static_cast<uint32_t>(rank) * 2654435761u,
         .chunks = plan.chunks});
  }
  const auto units_of = [&](uint32_t file) {
    const ckpt::SavePlan plan = ckpt::PlanSave(
        saved->items(), saved->StoredBy(Rank{static_cast<int>(file)}));
    std::vector<ckpt::Unit> units;
    for (const ckpt::WriteUnit& unit : plan.units) {
      units.push_back({unit.file_offset, unit.bytes, 0});
    }
    std::sort(units.begin(), units.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
    return units;
  };
  constexpr uint64_t kReadMax = uint64_t{4} << 20;
  for (const Change& change :
       std::vector<Change>{{"tp8-tp4", {}, {.tp = 4, .pp = 8, .dp = 80}},
                           {"tp8-tp16", {}, {.tp = 16, .pp = 8, .dp = 40}},
                           {"pp", {}, {.tp = 8, .pp = 16, .dp = 40}},
                           {"dp", {}, {.tp = 8, .pp = 8, .dp = 40}},
                           {"same", {}, {.tp = 8, .pp = 8, .dp = 80}}}) {
    const auto to = ckpt::FullSizeLayout(change.to);
    const auto wanted_by = [&](Rank rank) { return to->WantedBy(rank); };
    uint64_t shared = 0;
    uint64_t alone = 0;
    uint64_t passed_on = 0;
    double slowest = 0;
    int ranks = 0;
    for (int rank = 0; rank < to->world(); rank += 37) {
      const double begin = Now();
      const auto plan = ckpt::PlanShare(manifest, to->items(), to->world(),
                                        Rank{rank}, wanted_by);
      slowest = std::max(slowest, Now() - begin);
      Must(plan.status());
      const ckpt::SharedReads reads(*plan);
      const auto frame = [&](uint32_t file) {
        return 2 * ckpt::kShardBlockBytes +
               ckpt::ShardIndexBytes(manifest.files[file].unit_count);
      };
      for (const uint32_t file : reads.files()) {
        const std::vector<ckpt::Unit> units = units_of(file);
        const auto mine = reads.UnitsToRead(file, units, kReadMax);
        shared += frame(file) + Sum(mine);
        for (const ckpt::UnitRead& read : mine) {
          for (const ckpt::Scatter& receiver : reads.receivers()) {
            passed_on += receiver.PackedBytes(file, read.offset,
                                              read.offset + read.bytes);
          }
        }
      }
      for (const uint32_t file : reads.own().files()) {
        alone += frame(file) +
                 Sum(reads.own().UnitsToRead(file, units_of(file), kReadMax));
      }
      ++ranks;
    }
    const double part = static_cast<double>(stored) * ranks / to->world();
    Row row(absl::StrFormat("exchange-500b-%s", change.name),
            absl::StrFormat("bytes to be read over bytes stored, %s loads what "
                            "%s saved",
                            to->description(), saved->description()));
    row.SetAtMost({shared / part, shared / part, shared / part, 1}, kGoal, "x");
    row.json()["without_sharing"] = alone / part;
    row.json()["passed_on"] = passed_on / part;
    row.json()["ranks_looked_at"] = ranks;
    row.Print();
    Row seconds(absl::StrFormat("exchange-500b-%s-plan", change.name),
                absl::StrFormat("the slowest plan of a rank for that"));
    seconds.SetAtMost({slowest, slowest, slowest, 1}, 1, "s");
    seconds.Print();
  }
}

int Run(const std::string& dir) {
  Must(ckpt::InitLog(ckpt::LogLevel::kWarning, "", ""));
  RealLoads(dir);
  FullSize();
  return 0;
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) {
  std::string dir = std::filesystem::temp_directory_path();
  const option options[] = {{"dir", required_argument, nullptr, 'd'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    if (c == '?') return 64;
    dir = optarg;
  }
  return holdfast::bench::Run(dir);
}
