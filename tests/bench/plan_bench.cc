// tests/bench/plan_bench.cc: the full-size target planned in one process: 500B
// parameters on TP8 x PP8 x DP80 = 5,120 ranks.
//
// Three rows: seconds for the save plans of all ranks (rank 0 makes them while
// its first save is being written), the manifest's bytes, and the slowest load
// plan of a rank among a sample of ranks of other layouts.
//
//   bench_plan [--rounds 5]

#include <getopt.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "ckpt/base/check.h"
#include "ckpt/plan/load_plan.h"
#include "ckpt/plan/save_plan.h"
#include "tests/bench/support/raw_file.h"
#include "tests/bench/support/row.h"
#include "tests/unit/ckpt/layout/full_size.h"
#include "tests/unit/ckpt/plan/memory_job.h"

namespace holdfast::bench {
namespace {

// Another number of servers, another TP and PP, and growth.
const ckpt::Mesh kOthers[] = {
    {.tp = 8, .pp = 8, .dp = 40},  {.tp = 4, .pp = 16, .dp = 40},
    {.tp = 8, .pp = 16, .dp = 40}, {.tp = 4, .pp = 8, .dp = 160},
    {.tp = 2, .pp = 32, .dp = 64}, {.tp = 8, .pp = 4, .dp = 128},
    {.tp = 1, .pp = 64, .dp = 64},
};
constexpr int kRanksSampled = 64;  // of each

int Run(int rounds) {
  const auto layout = ckpt::FullSizeLayout({.tp = 8, .pp = 8, .dp = 80});
  std::vector<double> save_seconds;
  ckpt::Manifest manifest;
  uint64_t data_bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    manifest = ckpt::BlankManifest(*layout);
    data_bytes = 0;
    double seconds = 0;
    for (int rank = 0; rank < layout->world(); ++rank) {
      const double begin = Now();
      const ckpt::SavePlan plan =
          ckpt::PlanSave(layout->items(), layout->StoredBy(ckpt::Rank{rank}));
      seconds += Now() - begin;
      data_bytes += plan.data_bytes;
      manifest.files.push_back(
          {.name = ckpt::ShardName(rank),
           .bytes = plan.file_bytes,
           .unit_count = static_cast<uint32_t>(plan.units.size()),
           .crc_index = static_cast<uint32_t>(rank) * 2654435761u,
           .chunks = plan.chunks});
    }
    save_seconds.push_back(seconds);
  }
  Row saves("plan-saves", "500B on 5,120 ranks, all save plans in one process");
  saves.SetAtMost(MedianInterval(save_seconds), 1, "s");
  saves.json()["bytes"] = data_bytes;
  saves.Print();

  for (size_t i = 0; i < manifest.items.size(); ++i) {
    manifest.item_digests[i] = ckpt::DigestBytes(manifest.items[i].name);
  }
  const double megabytes =
      static_cast<double>(ckpt::EncodeManifest(manifest).size()) / 1e6;
  Row size("plan-manifest", "its manifest");
  size.SetAtMost({megabytes, megabytes, megabytes, 1}, 10, "MB");
  size.Print();

  std::vector<double> slowest;
  std::string slowest_layout;
  double most = 0;
  for (int round = 0; round < rounds; ++round) {
    double round_most = 0;
    for (const ckpt::Mesh& mesh : kOthers) {
      const auto target = ckpt::FullSizeLayout(mesh);
      const int stride = std::max(1, target->world() / kRanksSampled);
      for (int rank = 0; rank < target->world(); rank += stride) {
        const ckpt::Holding wanted = target->WantedBy(ckpt::Rank{rank});
        const double begin = Now();
        const auto plan = ckpt::PlanLoad(manifest, target->items(), wanted);
        const double seconds = Now() - begin;
        HF_CHECK(plan.ok(), "%s", plan.status().ToString());
        round_most = std::max(round_most, seconds);
        if (seconds > most) {
          most = seconds;
          slowest_layout = target->description();
        }
      }
    }
    slowest.push_back(round_most);
  }
  Row loads("plan-load", "the slowest load plan of a rank on another layout");
  loads.SetAtMost(MedianInterval(slowest), 1, "s");
  loads.json()["layouts"] = std::size(kOthers);
  loads.json()["ranks_of_each"] = kRanksSampled;
  loads.json()["slowest_on"] = slowest_layout;
  loads.Print();
  return 0;
}

}  // namespace
}  // namespace holdfast::bench

int main(int argc, char** argv) {
  int rounds = 5;
  const option options[] = {{"rounds", required_argument, nullptr, 'r'},
                            {nullptr, 0, nullptr, 0}};
  for (int c; (c = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    if (c == '?' || !absl::SimpleAtoi(optarg, &rounds) || rounds < 1) return 64;
  }
  return holdfast::bench::Run(rounds);
}
