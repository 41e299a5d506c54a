// Verification reads every byte and finds all of the damage.

#include "ckpt/session/verify_session.h"

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "ckpt/storage/open_storage.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_fixture.h"
#include "tests/support/temp_dir.h"

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

// What sessions find that take turns over parts, and the same from one.
TEST_P(VerifySessionTest, InPartsItReadsTheSameAndFindsTheSame) {
  const auto in_parts = [this](bool hash, int sessions) {
    SimStorage storage(disk_, {.process = 70});
    tests::SimClock clock;
    SessionEnv env;
    env.storage = &storage;
    env.clock = &clock;
    env.space = 5;
    env.ops_max = 2;
    UnitReaderOptions options;
    options.read_bytes_max = kUnitBytesMax;
    VerifyParts parts(&manifest_300_, /*part_bytes=*/4096);
    std::vector<std::unique_ptr<VerifySession>> running;
    std::vector<VerifyOutcome> found;
    for (int i = 0; i < sessions; ++i) {
      env.space = 5 + i;
      running.push_back(std::make_unique<VerifySession>(
          env, AttemptDir(manifest_300_.id), &manifest_300_, hash, options,
          &parts));
    }
    for (bool all_done = false; !all_done;) {
      all_done = true;
      for (auto& session : running) {
        session->Poll();
        all_done &= session->done();
      }
      Completion answer;
      if (storage.Poll({&answer, 1}) > 0) {
        running[SpaceOf(answer.tag) - 5]->OnCompletion(answer);
      }
    }
    for (auto& session : running) {
      EXPECT_GT(session->outcome().bytes_read, 0);
      found.push_back(session->outcome());
    }
    EXPECT_FALSE(parts.Next().has_value());
    return MergeVerified(manifest_300_, hash, found);
  };
  const VerifyOutcome whole = in_parts(/*hash=*/true, 3);
  EXPECT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_EQ(whole.bytes_read, Bytes());
  EXPECT_EQ(whole.item_digests, manifest_300_.item_digests);

  disk_.FlipBit(Shard(k300, 1), 5000, 3);
  disk_.FlipBit(Shard(k300, 3), 6, 0);
  const VerifyOutcome at_once = Verify(manifest_300_, /*hash=*/true);
  const VerifyOutcome damaged = in_parts(/*hash=*/true, 3);
  EXPECT_TRUE(absl::IsDataLoss(damaged.status));
  EXPECT_EQ(damaged.damage, at_once.damage);
  EXPECT_EQ(damaged.damage.size(), 2);
}

TEST_P(VerifySessionTest, PartsCoverEveryByteOnceAndAreNotListed) {
  VerifyParts parts(&manifest_300_, /*part_bytes=*/4096);
  size_t count = 0;
  std::optional<VerifyPart> before;
  while (const auto part = parts.Next()) {
    const bool first = !before || before->file != part->file;
    EXPECT_EQ(part->first, first ? 0 : before->end);
    if (first && before) {
      EXPECT_EQ(before->end, UINT64_MAX);
    }
    before = part;
    ++count;
  }
  EXPECT_EQ(before->end, UINT64_MAX);
  EXPECT_EQ(before->file + 1, manifest_300_.files.size());
  EXPECT_GT(count, manifest_300_.files.size());

  Manifest huge = manifest_300_;
  huge.files.resize(1);
  huge.files[0].bytes = uint64_t{1} << 59;
  VerifyParts few(&huge, /*part_bytes=*/4096);
  size_t of_huge = 0;
  while (few.Next()) ++of_huge;
  EXPECT_LE(of_huge, 257);
}

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

// As `ckptctl verify` does it; ThreadSanitizer watches.
TEST(VerifyThreadsTest, ThreadsWithAStorageEachFindTheSame) {
  tests::TempDir dir(tests::MemoryFolder());
  const auto open = [&dir] {
    auto storage = OpenStorage({.location = dir.path()});
    HF_CHECK(storage.ok(), "%s", storage.status().ToString());
    return *std::move(storage);
  };
  tests::CheckpointSpec spec;
  spec.run_id = tests::kTestRun;
  spec.id = k300;
  spec.seed = 7;
  const auto manifest =
      tests::WriteShards(*open(), *tests::SmallLayout(2, 1, 2), spec, "saved");
  ASSERT_TRUE(manifest.ok()) << manifest.status();

  constexpr int kThreads = 4;
  const auto verify = [&] {
    VerifyParts parts(&*manifest, /*part_bytes=*/16384);
    std::vector<VerifyOutcome> found(kThreads);
    std::vector<std::atomic<uint64_t>> read(kThreads);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        const std::unique_ptr<Storage> storage = open();
        SessionEnv env;
        env.storage = storage.get();
        env.clock = &RealClock();
        env.space = 5;
        env.ops_max = 4;
        UnitReaderOptions options;
        options.read_bytes_max = kUnitBytesMax;
        VerifySession session(env, "saved", &*manifest, /*hash=*/true, options,
                              &parts);
        while (true) {
          session.Poll();
          if (session.done()) break;
          Completion answer;
          if (storage->Poll({&answer, 1}) > 0) {
            session.OnCompletion(answer);
          } else {
            storage->WaitForCompletion(/*wait_ms=*/10);
          }
          read[i].store(session.progress().bytes_done,
                        std::memory_order_relaxed);
        }
        found[i] = session.outcome();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return MergeVerified(*manifest, /*hash=*/true, found);
  };
  const VerifyOutcome whole = verify();
  EXPECT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_EQ(whole.item_digests, manifest->item_digests);
  // All of a file is dropped by whoever finds it damaged, under the others.
  std::filesystem::resize_file(dir.path() + "/saved/shard-00002.hf", 8192);
  const VerifyOutcome damaged = verify();
  EXPECT_TRUE(absl::IsDataLoss(damaged.status)) << damaged.status;
  ASSERT_FALSE(damaged.damage.empty());
  for (const UnitDamage& damage : damaged.damage) EXPECT_EQ(damage.file, 2);
}

INSTANTIATE_TEST_SUITE_P(Plain, VerifySessionTest, testing::Values(-1));
INSTANTIATE_TEST_SUITE_P(Coded, VerifySessionTest, testing::Values(0));

}  // namespace
}  // namespace holdfast::ckpt
