// Messages of a save come back as they were; others are refused.

#include "ckpt/session/save_messages.h"

#include <vector>

#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

TEST(SaveMessagesTest, ComeBackAsTheyWere) {
  const BeginMessage begin{{-7, 3, 9}, 2, absl::UnavailableError("busy")};
  const auto begin_back = DecodeBegin(Encode(begin));
  ASSERT_TRUE(begin_back.ok());
  EXPECT_EQ(begin_back->id, begin.id);
  EXPECT_EQ(begin_back->key(), begin.key());
  EXPECT_EQ(begin_back->status, begin.status);

  VoteMessage vote;
  vote.plan_hash = 0x0123456789abcdef;
  vote.file_bytes = uint64_t{1} << 40;
  vote.plain_bytes = uint64_t{3} << 40;
  vote.unit_count = 17;
  vote.crc_index = 0xdeadbeef;
  vote.digests = {{4, {1, 2}}, {900, {~uint64_t{0}, 0}}};
  const auto vote_back = DecodeVote(Encode(vote));
  ASSERT_TRUE(vote_back.ok());
  EXPECT_EQ(vote_back->plan_hash, vote.plan_hash);
  EXPECT_EQ(vote_back->file_bytes, vote.file_bytes);
  EXPECT_EQ(vote_back->plain_bytes, vote.plain_bytes);
  EXPECT_EQ(vote_back->unit_count, vote.unit_count);
  EXPECT_EQ(vote_back->crc_index, vote.crc_index);
  EXPECT_EQ(vote_back->digests, vote.digests);
  EXPECT_FALSE(vote_back->busy);

  const PartMessage part{{{4096, 8192, 1}, {12288, 4096, 0xffffffff}}};
  const auto part_back = DecodePart(Encode(part));
  ASSERT_TRUE(part_back.ok());
  EXPECT_EQ(part_back->units, part.units);
  EXPECT_TRUE(DecodePart(Encode(PartMessage{})).ok());

  const OutcomeMessage outcome{SaveOutcome::kUnknown,
                               absl::UnknownError("perhaps")};
  const auto outcome_back = DecodeOutcome(Encode(outcome));
  ASSERT_TRUE(outcome_back.ok());
  EXPECT_EQ(outcome_back->outcome, outcome.outcome);
  EXPECT_EQ(outcome_back->status, outcome.status);
}

TEST(SaveMessagesTest, AreRefusedWhenAByteIsMissingOrTooMany) {
  VoteMessage vote;
  vote.status = absl::AbortedError("no");
  vote.digests = {{1, {2, 3}}};
  for (const std::vector<std::byte>& whole :
       {Encode(BeginMessage{}), Encode(vote), Encode(OutcomeMessage{})}) {
    for (size_t size = 0; size < whole.size(); ++size) {
      const std::span<const std::byte> cut(whole.data(), size);
      EXPECT_FALSE(DecodeBegin(cut).ok() && DecodeVote(cut).ok() &&
                   DecodeOutcome(cut).ok());
    }
  }
  const std::vector<std::byte> part = Encode(PartMessage{{{4096, 4096, 1}}});
  for (size_t size = 0; size < part.size(); ++size) {
    EXPECT_FALSE(DecodePart({part.data(), size}).ok());
  }
  std::vector<std::byte> longer = Encode(vote);
  longer.push_back(std::byte{0});
  EXPECT_FALSE(DecodeVote(longer).ok());
  std::vector<std::byte> shorter = Encode(vote);
  shorter.pop_back();
  EXPECT_FALSE(DecodeVote(shorter).ok());
}

TEST(SaveMessagesTest, ACountBeyondTheBodyTakesNoMemory) {
  VoteMessage vote;
  std::vector<std::byte> body = Encode(vote);
  // The last four bytes are the number of digests.
  for (size_t i = body.size() - 4; i < body.size(); ++i) {
    body[i] = std::byte{0xff};
  }
  EXPECT_EQ(DecodeVote(body).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace holdfast::ckpt
