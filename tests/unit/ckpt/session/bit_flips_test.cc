// Every single bit of every file of a small run: of a shard, its manifest, the
// seal, the claim and run.id, flipped one at a time. No flip goes unseen.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/session/catalog.h"
#include "ckpt/session/run_files.h"
#include "ckpt/session/verify_session.h"
#include "ckpt/storage/blocking.h"
#include "gtest/gtest.h"
#include "tests/support/saved_run.h"
#include "tests/support/sim_clock.h"
#include "tests/support/sim_disk.h"
#include "tests/support/sim_storage.h"
#include "tests/support/start_world.h"

namespace holdfast::ckpt {
namespace {

constexpr CheckpointId kId{100, 1, 1};

// Each look is ten times as slow under a sanitizer, which asks something else.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kStride = 13;
#else
constexpr uint64_t kStride = 1;
#endif

// One tensor of 6 x 10 on one rank: a shard of one unit between its header,
// index and footer.
class OneTensor final : public JobLayout {
 public:
  int world() const override { return 1; }
  const std::vector<ItemSpec>& items() const override { return items_; }
  Holding StoredBy(Rank) const override {
    Holding holding;
    holding.region_bytes = {4096};
    holding.fragments.push_back({0, WholeBox(items_[0].shape), 0, 60, 0, 0});
    return holding;
  }
  Holding WantedBy(Rank rank) const override { return StoredBy(rank); }
  std::string description() const override { return "one"; }

 private:
  const std::vector<ItemSpec> items_ = {{"w", "weight", DType::kF32, {6, 10}}};
};

class BitFlipsTest : public testing::Test {
 protected:
  void SetUp() override {
    Expect(tests::MakeRun(storage_));
    Expect(tests::Claim(storage_, 1));
    OwnerSeal seal;
    seal.incarnation = 1;
    Expect(tests::Seal(storage_, seal));
    tests::CheckpointSpec spec;
    spec.run_id = tests::kTestRun;
    spec.id = kId;
    spec.attributes["step"] = "100";
    spec.seed = 100;
    auto manifest =
        tests::WriteShards(storage_, OneTensor(), spec, AttemptDir(kId));
    Expect(manifest.status());
    manifest_ = *std::move(manifest);
    Expect(tests::WriteManifest(storage_, AttemptDir(kId), manifest_));
  }
  static void Expect(const absl::Status& status) {
    ASSERT_TRUE(status.ok()) << status;
  }

  uint64_t SizeOfFile(const std::string& name) {
    return Blocking(storage_).Get(name, 1 << 20)->size();
  }
  // Calls `look`, which says whether damage was seen, under each flip.
  template <typename Look>
  void ForEachBit(const std::string& name, Look look) {
    const uint64_t size = SizeOfFile(name);
    uint64_t unseen = 0;
    for (uint64_t place = 0; place < size * 8; place += kStride) {
      const uint64_t byte = place / 8;
      const int bit = static_cast<int>(place % 8);
      disk_.FlipBit(name, byte, bit);
      if (!look(byte) && ++unseen < 10) {
        ADD_FAILURE() << name << ", byte " << byte << ", bit " << bit;
      }
      disk_.FlipBit(name, byte, bit);
    }
    EXPECT_EQ(unseen, 0u) << "of " << size * 8 / kStride << " bits";
  }

  SessionEnv Env() {
    SessionEnv env;
    env.storage = &storage_;
    env.clock = &clock_;
    env.space = 9;
    env.ops_max = 8;
    return env;
  }
  VerifyOutcome Verify() {
    UnitReaderOptions options;
    options.read_bytes_max = kUnitBytesMax;
    VerifySession session(Env(), AttemptDir(kId), &manifest_, /*hash=*/false,
                          options);
    RunAlone(&storage_, &clock_, &session);
    return session.outcome();
  }
  absl::StatusOr<Catalog> Look() {
    CatalogSession session(Env());
    RunAlone(&storage_, &clock_, &session);
    return session.result();
  }

  tests::SimDisk disk_{tests::SimDiskOptions()};
  tests::SimStorage storage_{disk_, {.process = 1}};
  tests::SimClock clock_;
  Manifest manifest_;
};

TEST_F(BitFlipsTest, OfAShard) {
  ASSERT_TRUE(Verify().status.ok()) << Verify().status;
  ForEachBit(AttemptDir(kId) + "/shard-00000.hf", [&](uint64_t byte) {
    const VerifyOutcome outcome = Verify();
    if (!absl::IsDataLoss(outcome.status) || outcome.damage.size() != 1) {
      return false;
    }
    // It is the block or the unit around the bit that is named.
    const UnitDamage& damage = outcome.damage[0];
    return damage.offset <= byte && byte < damage.offset + 4096 &&
           damage.item.empty() == (damage.bytes == 0);
  });
}

TEST_F(BitFlipsTest, OfAManifest) {
  ASSERT_EQ(Look()->newest()->id, kId);
  ForEachBit(AttemptDir(kId) + "/MANIFEST", [&](uint64_t) {
    const auto catalog = Look();
    return catalog.ok() && catalog->newest() == nullptr &&
           catalog->entries.size() == 1 &&
           catalog->entries[0].state == EntryState::kDamaged;
  });
}

TEST_F(BitFlipsTest, OfTheRecordsOfARun) {
  for (const std::string& name :
       {std::string(kRunIdName), std::string("owners/i0001.seal")}) {
    ForEachBit(name, [&](uint64_t) { return !Look().ok(); });
  }
  // What a claim says is for people; that it is there is what counts.
  ForEachBit("owners/i0001.claim", [&](uint64_t) {
    const auto bytes = Blocking(storage_).Get("owners/i0001.claim", 1 << 20);
    return !DecodeClaim(*bytes).ok();
  });
}

}  // namespace
}  // namespace holdfast::ckpt
