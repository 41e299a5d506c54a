// A whole job, in memory: every rank of layout A saves, every rank of layout B
// loads what A saved, and each element that B wants is compared.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/ckpt/layout/sample_layouts.h"
#include "tests/unit/ckpt/plan/memory_job.h"

namespace holdfast::ckpt {
namespace {

// Layouts of one model: they differ in the mesh alone.
bool SameModel(const SampleLayout& a, const SampleLayout& b) {
  return a.tied == b.tied && a.vocab == b.vocab && a.weight == b.weight;
}

void ExpectLoads(const SavedJob& saved, const SampleLayout& to) {
  const auto layout = MakeLayout(to);
  // Reads of one block, of three and of everything: the cuts of reads must not
  // matter.
  const uint64_t read_bytes_max[] = {4096, 12288, 16 << 20};
  for (int rank = 0; rank < layout->world(); ++rank) {
    ASSERT_EQ(LoadRank(saved, *layout, rank, read_bytes_max[rank % 3]), "")
        << "rank " << rank;
  }
}

TEST(AnyLayoutTest, EveryLayoutIsLoadedAsAnother) {
  const std::vector<SampleLayout> samples = SampleLayouts();
  int pairs = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    SCOPED_TRACE("saved as " + samples[i].name);
    const auto layout = MakeLayout(samples[i]);
    const SavedJob saved = SaveJob(*layout);
    const absl::Status valid = ValidateManifest(saved.manifest);
    ASSERT_TRUE(valid.ok()) << valid;
    for (size_t step = 1; step < samples.size(); ++step) {
      const SampleLayout& to = samples[(i + step * 29) % samples.size()];
      if (!SameModel(samples[i], to)) continue;
      SCOPED_TRACE("loaded as " + to.name);
      ExpectLoads(saved, to);
      ++pairs;
      break;
    }
  }
  EXPECT_GE(pairs, 98);
}

TEST(AnyLayoutTest, ChangesOfOneAxisAtATimeInBothDirections) {
  const std::vector<SampleLayout> samples = {
      {.tp = 1},
      {.tp = 4},
      {.pp = 4},
      {.dp = 5},
      {.tp = 2, .pp = 2, .dp = 2},
      {.pp = 2, .dp = 3, .stages = {3, 1}}};
  for (const SampleLayout& from : samples) {
    const SavedJob saved = SaveJob(*MakeLayout(from));
    for (const SampleLayout& to : samples) ExpectLoads(saved, to);
  }
}

TEST(AnyLayoutTest, DigestsAreTheSameWhateverTheLayoutThatSaved) {
  const SavedJob one = SaveJob(*MakeLayout({}));
  for (const Digest128& digest : one.manifest.item_digests) {
    EXPECT_NE(digest, Digest128{});
  }
  for (const SampleLayout& sample :
       std::vector<SampleLayout>{{.tp = 2, .pp = 2, .dp = 2},
                                 {.tp = 3, .dp = 7, .vocab_pad = 24},
                                 {.tp = 4, .pp = 3},
                                 {.pp = 4, .dp = 200}}) {
    const SavedJob saved = SaveJob(*MakeLayout(sample));
    EXPECT_EQ(saved.manifest.item_digests, one.manifest.item_digests);
    EXPECT_EQ(LogicalDigest(saved.manifest), LogicalDigest(one.manifest));
  }
}

TEST(AnyLayoutTest, TheManifestSurvivesItsBytes) {
  const SavedJob saved = SaveJob(*MakeLayout({.tp = 2, .pp = 2, .dp = 3}));
  const auto decoded = DecodeManifest(EncodeManifest(saved.manifest));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, saved.manifest);
}

}  // namespace
}  // namespace holdfast::ckpt
