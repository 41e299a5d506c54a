// Verification reads every byte and finds all of the damage.

#include "ckpt/session/verify_session.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_fixture.h"

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using tests::SimStorage;

class VerifySessionTest : public StartTest,
                          public testing::WithParamInterface<int> {
 protected:
  VerifySessionTest() : StartTest(GetParam()) {}

  VerifyOutcome Verify(const Manifest& manifest, bool hash) {
    SimStorage storage(disk_, {.process = 70});
    tests::SimClock clock;
    SessionEnv env;
    env.storage = &storage;
    env.clock = &clock;
    env.space = 5;
    env.ops_max = 8;
    UnitReaderOptions options;
    options.read_bytes_max = kUnitBytesMax;
    VerifySession session(env, AttemptDir(manifest.id), &manifest, hash,
                          options);
    RunAlone(&storage, &clock, &session);
    EXPECT_EQ(session.progress().bytes_done, session.outcome().bytes_read);
    return session.outcome();
  }
  uint64_t Bytes() const {
    uint64_t bytes = 0;
    for (const ShardFile& file : manifest_300_.files) bytes += file.bytes;
    return bytes;
  }
};

TEST_P(VerifySessionTest, AWholeCheckpointIsReadToTheLastByte) {
  const VerifyOutcome outcome = Verify(manifest_300_, /*hash=*/false);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.bytes_read, Bytes());
  EXPECT_THAT(outcome.item_digests, IsEmpty());
}

TEST_P(VerifySessionTest, DigestsFromTheBytesAreThoseOfTheManifest) {
  const VerifyOutcome outcome = Verify(manifest_300_, /*hash=*/true);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.item_digests, manifest_300_.item_digests);
}

TEST_P(VerifySessionTest, AnotherDigestInTheManifestIsNamed) {
  Manifest manifest = manifest_300_;
  manifest.item_digests[5].low ^= 1;
  const VerifyOutcome outcome = Verify(manifest, /*hash=*/true);
  EXPECT_TRUE(absl::IsDataLoss(outcome.status));
  EXPECT_THAT(outcome.digests_wrong, ElementsAre(5));
  EXPECT_THAT(outcome.status.message(),
              testing::HasSubstr(manifest.items[5].name));
}

TEST_P(VerifySessionTest, EveryDamagedPlaceIsReported) {
  disk_.FlipBit(Shard(k300, 0), 100, 0);
  disk_.FlipBit(Shard(k300, 3), 4096 + 5, 0);
  disk_.FlipBit(Shard(k300, 5), manifest_300_.files[5].bytes - 1, 0);
  disk_.Truncate(Shard(k300, 6), 8192);
  SimStorage storage(disk_, {.process = 92});
  Check(Blocking(storage).Remove(Shard(k300, 7)));
  const VerifyOutcome outcome = Verify(manifest_300_, /*hash=*/true);
  EXPECT_TRUE(absl::IsDataLoss(outcome.status));
  std::vector<uint32_t> files;
  for (const UnitDamage& damage : outcome.damage) files.push_back(damage.file);
  EXPECT_THAT(files, ElementsAre(0, 3, 5, 6, 7));
}

TEST_P(VerifySessionTest, NoFlippedBitAnywhereGoesUnseen) {
  const std::string name = Shard(k300, 1);
  const uint64_t size = manifest_300_.files[1].bytes;
  for (uint64_t byte = 0; byte < size; byte += 509) {
    disk_.FlipBit(name, byte, byte % 8);
    EXPECT_EQ(Verify(manifest_300_, /*hash=*/false).damage.size(), 1) << byte;
    disk_.FlipBit(name, byte, byte % 8);
  }
  EXPECT_TRUE(Verify(manifest_300_, /*hash=*/false).status.ok());
}

TEST_P(VerifySessionTest, ACodedCheckpointIsSmallerAndSaysSo) {
  const bool coded = GetParam() >= 0;
  EXPECT_EQ(manifest_300_.features_must.size(), coded ? 1 : 0);
  for (const ShardFile& file : manifest_300_.files) {
    EXPECT_EQ(file.coded(), coded);
    const uint64_t plain = file.data_end() + file.index_bytes() + 4096;
    EXPECT_EQ(file.bytes < plain, coded);
  }
}

INSTANTIATE_TEST_SUITE_P(Plain, VerifySessionTest, testing::Values(-1));
INSTANTIATE_TEST_SUITE_P(Coded, VerifySessionTest, testing::Values(0));

}  // namespace
}  // namespace holdfast::ckpt
