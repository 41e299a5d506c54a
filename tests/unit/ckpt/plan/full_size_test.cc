// The full-size target, 5,120 ranks, planned whole in one process. Times and
// sizes are printed; sizes have bounds.

#include "tests/unit/ckpt/layout/full_size.h"

#include <chrono>
#include <cstdio>

#include "gtest/gtest.h"
#include "tests/unit/ckpt/plan/memory_job.h"

namespace holdfast::ckpt {
namespace {

class Stopwatch {
 public:
  double Lap() {
    const auto now = std::chrono::steady_clock::now();
    const double ms =
        std::chrono::duration<double, std::milli>(now - last_).count();
    last_ = now;
    return ms;
  }

 private:
  std::chrono::steady_clock::time_point last_ =
      std::chrono::steady_clock::now();
};

TEST(FullSizePlanTest, SavesAndLoadsArePlannedForAllRanksInOneProcess) {
  Stopwatch watch;
  const auto layout = FullSizeLayout({.tp = 8, .pp = 8, .dp = 80});
  Manifest manifest = BlankManifest(*layout);
  for (size_t i = 0; i < manifest.items.size(); ++i) {
    manifest.item_digests[i] = DigestBytes(manifest.items[i].name);
  }
  uint64_t data_bytes = 0;
  uint64_t hash = 0;
  size_t units = 0;
  double plan_ms = 0;
  double hash_ms = 0;
  for (int rank = 0; rank < layout->world(); ++rank) {
    const SavePlan plan =
        PlanSave(layout->items(), layout->StoredBy(Rank{rank}));
    plan_ms += watch.Lap();
    hash ^= HashSavePlan(plan);
    hash_ms += watch.Lap();
    data_bytes += plan.data_bytes;
    units += plan.units.size();
    EXPECT_LT(plan.units.size(), 1400u);
    manifest.files.push_back(
        {.name = ShardName(rank),
         .bytes = plan.file_bytes,
         .unit_count = static_cast<uint32_t>(plan.units.size()),
         .crc_index = static_cast<uint32_t>(rank) * 2654435761u,
         .chunks = plan.chunks});
  }
  EXPECT_NEAR(data_bytes, 7e12, 0.01e12);
  EXPECT_NE(hash, 0u);
  watch.Lap();
  const std::vector<std::byte> bytes = EncodeManifest(manifest);
  const double encode_ms = watch.Lap();
  const auto decoded = DecodeManifest(bytes);
  const double decode_ms = watch.Lap();
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, manifest);
  EXPECT_LE(bytes.size(), 10u << 20);
  std::printf(
      "%zu units planned in %.0f ms, hashed in %.0f; the manifest of %d files "
      "and %zu items has %zu bytes, %.0f ms to encode, %.0f ms to decode\n",
      units, plan_ms, hash_ms, layout->world(), manifest.items.size(),
      bytes.size(), encode_ms, decode_ms);

  // Half the servers are gone: TP8 x PP8 x DP40; and another TP and PP.
  for (const Mesh mesh :
       {Mesh{.tp = 8, .pp = 8, .dp = 40}, Mesh{.tp = 4, .pp = 16, .dp = 40}}) {
    const auto target = FullSizeLayout(mesh);
    watch.Lap();
    size_t steps = 0;
    uint64_t wanted = 0;
    int ranks = 0;
    for (int rank = 0; rank < target->world(); rank += 20) {
      const auto plan =
          PlanLoad(*decoded, target->items(), target->WantedBy(Rank{rank}));
      ASSERT_TRUE(plan.ok()) << plan.status();
      steps += plan->steps.size();
      wanted += plan->bytes_wanted;
      ++ranks;
    }
    EXPECT_NEAR(wanted / ranks, 7e12 / target->world(), 0.05 * 2.7e9);
    std::printf("%s: a rank's load planned in %.2f ms, %.1f steps\n",
                target->description().c_str(), watch.Lap() / ranks,
                1.0 * steps / ranks);
  }
}

}  // namespace
}  // namespace holdfast::ckpt
