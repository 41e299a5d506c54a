// Which directories count. A listing is written down by hand; every claim of
// run_files.h about owners and lines is a test.

#include "absl/strings/str_format.h"
#include "ckpt/session/catalog.h"
#include "ckpt/session/owner_choice.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr CheckpointId kOld{100, 1, 1};
constexpr CheckpointId kMid{200, 1, 2};
constexpr CheckpointId kNew{300, 2, 1};

uint32_t CrcOf(const CheckpointId& id) { return 1000 + id.step; }

class Listing {
 public:
  Listing() {
    listing_.run_id = RunId{1};
    listing_.has_checkpoints_dir = true;
  }
  Listing& Owners(std::vector<uint32_t> claims) {
    listing_.claims = std::move(claims);
    return *this;
  }
  Listing& Sealed(uint32_t incarnation, std::vector<CheckpointId> line,
                  std::vector<CheckpointId> superseded = {}) {
    OwnerSeal seal;
    seal.incarnation = incarnation;
    for (const CheckpointId& id : line) seal.line.push_back({id, 1, CrcOf(id)});
    if (!line.empty()) seal.head = line.back();
    for (const CheckpointId& id : superseded) {
      seal.superseded.push_back({{id, 1, CrcOf(id)}, "rewind"});
    }
    listing_.seal = seal;
    return *this;
  }
  Listing& Has(const CheckpointId& id, std::optional<uint32_t> owner = {},
               absl::Status status = absl::OkStatus()) {
    RunListing::Dir dir;
    dir.parsed = {id, owner};
    dir.name = ToString(id);
    if (owner) absl::StrAppendFormat(&dir.name, ".o%04d", *owner);
    if (status.ok()) {
      ManifestSummary summary;
      summary.commit_number = id.attempt;
      summary.manifest_crc = CrcOf(id);
      dir.manifest = summary;
    } else {
      dir.manifest = status;
    }
    listing_.dirs.push_back(std::move(dir));
    return *this;
  }
  Listing& HasAttempt(const CheckpointId& id) {
    return Has(id, {}, absl::NotFoundError("no manifest"));
  }
  Listing& NoCheckpointsDir() {
    listing_.has_checkpoints_dir = false;
    return *this;
  }
  Catalog Classify() const { return ClassifyRun(listing_); }

 private:
  RunListing listing_;
};

std::vector<CheckpointId> Line(const Catalog& catalog) {
  std::vector<CheckpointId> ids;
  for (const size_t i : catalog.line) ids.push_back(catalog.entries[i].id);
  return ids;
}

std::string StateOf(const Catalog& catalog, const CheckpointId& id) {
  const CatalogEntry* entry = catalog.Find(id);
  return entry == nullptr ? "absent" : std::string(NameOf(entry->state));
}

absl::StatusOr<std::optional<size_t>> Choose(const Catalog& catalog,
                                             ResumeMode mode = {},
                                             int64_t step = 0) {
  OwnerOptions options;
  options.resume = mode;
  options.resume_step = step;
  return ChooseCheckpoint(catalog, options, {});
}

TEST(CatalogRulesTest, TheSealThenTheSealersOwnCommitsMakeTheLine) {
  const Catalog catalog = Listing()
                              .Owners({1, 2})
                              .Sealed(2, {kOld, kMid})
                              .Has(kNew)
                              .Has(kMid, 2)
                              .Has(kOld, 2)
                              .Classify();
  EXPECT_THAT(Line(catalog), ElementsAre(kOld, kMid, kNew));
  EXPECT_EQ(catalog.newest()->id, kNew);
  EXPECT_EQ(catalog.entries.front().id, kNew);
}

TEST(CatalogRulesTest, ALateCommitOfAnOldOwnerIsNeverOffered) {
  constexpr CheckpointId kLate{900, 1, 3};
  const Catalog catalog = Listing()
                              .Owners({1, 2})
                              .Sealed(2, {kOld})
                              .Has(kOld, 2)
                              .Has(kLate)
                              .Classify();
  EXPECT_THAT(Line(catalog), ElementsAre(kOld));
  EXPECT_EQ(StateOf(catalog, kLate), "late");
  EXPECT_THAT(catalog.Find(kLate)->reason, HasSubstr("owner i0002"));
}

TEST(CatalogRulesTest, AnUnsealedOwnerCountsForNothing) {
  const Catalog catalog = Listing()
                              .Owners({1, 2})
                              .Sealed(1, {})
                              .Has(kOld)
                              .Has(kMid, 2)  // adopted by 2, which then died
                              .Has(kNew)     // 2 never sealed
                              .Classify();
  EXPECT_THAT(Line(catalog), ElementsAre(kOld, kMid));
  EXPECT_EQ(StateOf(catalog, kNew), "late");
}

TEST(CatalogRulesTest, TheNewestFollowsTheLineAndNotTheStepNumber) {
  // Owner 2 went back to step 100 and has saved step 150 since.
  constexpr CheckpointId kAgain{150, 2, 1};
  const Catalog catalog = Listing()
                              .Owners({1, 2})
                              .Sealed(2, {kOld}, {kMid})
                              .Has(kOld, 2)
                              .Has(kMid, 2)
                              .Has(kAgain)
                              .Classify();
  EXPECT_EQ(catalog.newest()->id, kAgain);
  EXPECT_EQ(StateOf(catalog, kMid), "superseded");
  EXPECT_EQ(catalog.Find(kMid)->reason, "rewind");
}

TEST(CatalogRulesTest, ADirectoryWithoutAManifestIsAnAttempt) {
  const Catalog catalog =
      Listing().Owners({1}).Sealed(1, {}).Has(kOld).HasAttempt(kMid).Classify();
  EXPECT_THAT(Line(catalog), ElementsAre(kOld));
  EXPECT_EQ(StateOf(catalog, kMid), "attempt");
}

TEST(CatalogRulesTest, DamageInTheMiddleLeavesAGap) {
  const Catalog catalog =
      Listing()
          .Owners({1, 2})
          .Sealed(2, {kOld, kMid})
          .Has(kOld, 2)
          .Has(kMid, 2, absl::DataLossError("crc32c is 1, expected 2"))
          .Has(kNew)
          .Classify();
  EXPECT_THAT(Line(catalog), ElementsAre(kOld, kNew));
  EXPECT_EQ(StateOf(catalog, kMid), "damaged");
  EXPECT_EQ(catalog.line_all.size(), 3);
}

TEST(CatalogRulesTest, AnotherManifestThanTheSealedOneIsDamage) {
  Listing listing;
  listing.Owners({1, 2}).Has(kOld, 2);
  listing.Sealed(2, {kOld});
  Catalog catalog = listing.Classify();
  EXPECT_THAT(Line(catalog), ElementsAre(kOld));
  RunListing changed;
  changed.seal = catalog.seal;
  changed.has_checkpoints_dir = true;
  RunListing::Dir dir;
  dir.parsed = {kOld, 2};
  dir.name = ToString(kOld) + ".o0002";
  ManifestSummary other;
  other.manifest_crc = 7;
  dir.manifest = other;
  changed.dirs.push_back(dir);
  catalog = ClassifyRun(changed);
  EXPECT_THAT(Line(catalog), IsEmpty());
  EXPECT_THAT(catalog.entries[0].reason, HasSubstr("crc32c 00000007"));
}

TEST(CatalogRulesTest, NoTwoManifestsAreSealedWithOneChecksum) {
  Manifest manifest;
  manifest.world = 1;
  const uint32_t one =
      Summarize(manifest, EncodeManifest(manifest)).manifest_crc;
  manifest.world = 2;
  const uint32_t two =
      Summarize(manifest, EncodeManifest(manifest)).manifest_crc;
  EXPECT_NE(one, two);
}

TEST(CatalogRulesTest, ASealOfEarlyRunsFitsEveryManifest) {
  RunListing listing;
  listing.has_checkpoints_dir = true;
  listing.claims = {2};
  OwnerSeal seal;
  seal.incarnation = 2;
  seal.head = kOld;
  seal.line.push_back({kOld, 1, 0x48674bc7});
  listing.seal = seal;
  RunListing::Dir dir;
  dir.parsed = {kOld, 2};
  dir.name = ToString(kOld) + ".o0002";
  ManifestSummary summary;
  summary.manifest_crc = 7;
  dir.manifest = summary;
  listing.dirs.push_back(dir);
  EXPECT_THAT(Line(ClassifyRun(listing)), ElementsAre(kOld));
}

TEST(CatalogRulesTest, OfTwoDirectoriesOfOneIdTheAdoptedOneStands) {
  const Catalog catalog =
      Listing().Owners({1, 2}).Sealed(1, {}).Has(kOld).Has(kOld, 2).Classify();
  ASSERT_THAT(Line(catalog), ElementsAre(kOld));
  EXPECT_EQ(catalog.newest()->owner, 2);
  EXPECT_EQ(catalog.entries.size(), 2);
}

TEST(CatalogRulesTest, AnEmptyRunMayStartFreshUnlessACheckpointIsRequired) {
  const Catalog catalog = Listing().Classify();
  EXPECT_FALSE(catalog.has_committed);
  EXPECT_EQ(*Choose(catalog), std::nullopt);
  EXPECT_TRUE(
      absl::IsNotFound(Choose(catalog, ResumeMode::kRequired).status()));
}

TEST(CatalogRulesTest, ASealedButEmptyRunMayStartFresh) {
  const Catalog catalog = Listing().Owners({1}).Sealed(1, {}).Classify();
  EXPECT_FALSE(catalog.has_committed);
  EXPECT_EQ(*Choose(catalog), std::nullopt);
}

TEST(CatalogRulesTest, AForgottenMountIsNotAnEmptyRun) {
  const Catalog catalog =
      Listing().Owners({1}).Sealed(1, {}).NoCheckpointsDir().Classify();
  EXPECT_TRUE(catalog.has_committed);
  const auto chosen = Choose(catalog);
  EXPECT_TRUE(absl::IsNotFound(chosen.status()));
  EXPECT_THAT(chosen.status().message(), HasSubstr("not mounted?"));
  EXPECT_EQ(*Choose(catalog, ResumeMode::kNever), std::nullopt);
}

TEST(CatalogRulesTest, ASealThatNamesAHeadProvesThatTheRunHasCommitted) {
  const Catalog catalog = Listing().Owners({1, 2}).Sealed(2, {kOld}).Classify();
  EXPECT_TRUE(absl::IsNotFound(Choose(catalog).status()));
}

TEST(CatalogRulesTest, AManifestWithoutAnySealIsNotAnEmptyRun) {
  const Catalog catalog = Listing().Has(kOld).Classify();
  EXPECT_TRUE(absl::IsNotFound(Choose(catalog).status()));
}

TEST(CatalogRulesTest, WhatTheCallerKnowsCountsAsProof) {
  const Catalog catalog = Listing().Owners({1}).Sealed(1, {}).Classify();
  OwnerOptions options;
  options.committed_proof = "journal.jsonl says that step 120 was saved";
  const auto chosen = ChooseCheckpoint(catalog, options, {});
  EXPECT_TRUE(absl::IsNotFound(chosen.status()));
  EXPECT_THAT(chosen.status().message(), HasSubstr("step 120 was saved"));
}

TEST(CatalogRulesTest, ARewindTakesTheNewestAtOrBelowTheStep) {
  const Catalog catalog = Listing()
                              .Owners({1, 2})
                              .Sealed(2, {kOld, kMid})
                              .Has(kOld, 2)
                              .Has(kMid, 2)
                              .Has(kNew)
                              .Classify();
  EXPECT_EQ(*Choose(catalog, ResumeMode::kStep, 300), 2);
  EXPECT_EQ(*Choose(catalog, ResumeMode::kStep, 299), 1);
  EXPECT_EQ(*Choose(catalog, ResumeMode::kStep, 100), 0);
  const auto none = Choose(catalog, ResumeMode::kStep, 99);
  EXPECT_TRUE(absl::IsNotFound(none.status()));
  EXPECT_THAT(none.status().message(), HasSubstr("100, 200, 300"));
}

TEST(CatalogRulesTest, TheSealOfARewindListsWhatItSteppedOver) {
  const Catalog catalog = Listing()
                              .Owners({1, 2})
                              .Sealed(2, {kOld, kMid})
                              .Has(kOld, 2)
                              .Has(kMid, 2)
                              .Has(kNew)
                              .Classify();
  OwnerOptions options;
  options.resume = ResumeMode::kStep;
  options.resume_step = 250;
  const OwnerSeal seal = MakeSeal(catalog, 1, options, {}, RunId{1}, 3);
  EXPECT_EQ(seal.head, kMid);
  EXPECT_EQ(seal.line.size(), 2);
  ASSERT_EQ(seal.superseded.size(), 1);
  EXPECT_EQ(seal.superseded[0].checkpoint.id, kNew);
  EXPECT_THAT(seal.superseded[0].reason, HasSubstr("rewind"));
  EXPECT_EQ(SteppedOver(catalog, seal).size(), 1);
}

TEST(CatalogRulesTest, DamagedOnesAreSteppedOverAndNeverOfferedAgain) {
  Listing listing;
  listing.Owners({1, 2}).Sealed(2, {kOld, kMid});
  listing.Has(kOld, 2).Has(kMid, 2).Has(kNew);
  const Catalog catalog = listing.Classify();
  const FoundDamaged damaged = {{kNew, "shard-00001.hf, offset 4096: ..."}};
  const auto position = ChooseCheckpoint(catalog, {}, damaged);
  ASSERT_TRUE(position.ok());
  EXPECT_EQ(**position, 1);
  const OwnerSeal seal = MakeSeal(catalog, *position, {}, damaged, RunId{1}, 3);
  EXPECT_EQ(seal.head, kMid);
  EXPECT_THAT(seal.superseded[0].reason, HasSubstr("damaged: shard-00001.hf"));
  // All of them: never silently fresh.
  const FoundDamaged all = {{kNew, "x"}, {kMid, "y"}, {kOld, "z"}};
  EXPECT_TRUE(absl::IsNotFound(ChooseCheckpoint(catalog, {}, all).status()));
}

TEST(CatalogRulesTest, ANewerFormatIsRefusedAndNotSteppedOver) {
  Listing listing;
  listing.Owners({1, 2}).Sealed(2, {kOld}).Has(kOld, 2);
  listing.Has(kNew, {}, absl::FailedPreconditionError("feature 'holes'"));
  const Catalog catalog = listing.Classify();
  EXPECT_EQ(StateOf(catalog, kNew), "newer");
  const auto chosen = Choose(catalog);
  EXPECT_TRUE(absl::IsFailedPrecondition(chosen.status()));
  EXPECT_THAT(chosen.status().message(), HasSubstr("feature 'holes'"));
  // A person may go back behind it.
  EXPECT_EQ(*Choose(catalog, ResumeMode::kStep, 100), 0);
}

TEST(CatalogRulesTest, AFreshStartSupersedesEverything) {
  Listing listing;
  listing.Owners({1}).Sealed(1, {}).Has(kOld).Has(kMid);
  const Catalog catalog = listing.Classify();
  OwnerOptions options;
  options.resume = ResumeMode::kNever;
  const OwnerSeal seal =
      MakeSeal(catalog, std::nullopt, options, {}, RunId{1}, 2);
  EXPECT_FALSE(seal.head);
  EXPECT_EQ(seal.superseded.size(), 2);
}

}  // namespace
}  // namespace holdfast::ckpt
