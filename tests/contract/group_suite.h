// tests/contract/group_suite.h: what every Group must do.
//
// A case is run by all ranks of a group together, each with its own Group and a
// function that lets the others (and time) go on. group_test.cc runs the suite
// over threads and over the simulated network, tests/e2e over Open MPI.

#ifndef HOLDFAST_TESTS_CONTRACT_GROUP_SUITE_H_
#define HOLDFAST_TESTS_CONTRACT_GROUP_SUITE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/group/group.h"

#define GROUP_REQUIRE(condition, ...)                                      \
  do {                                                                     \
    if (!(condition)) {                                                    \
      return absl::FailedPreconditionError(absl::StrFormat(                \
          "%s:%d: rank %d: %s is false: %s", __FILE__, __LINE__,           \
          Index(group.rank()), #condition, absl::StrFormat(__VA_ARGS__))); \
    }                                                                      \
  } while (false)

namespace holdfast::ckpt {

// One rank's part in a case.
struct Party {
  Group& group;
  // Lets the others, and time, go on.
  std::function<void()> idle;
  // Ranks that are through with the case; counted by rank 0.
  int done = 0;
};

struct GroupCase {
  const char* name;
  absl::Status (*run)(Party& party);
};

// Phases of the suite's own messages.
inline constexpr uint32_t kData = 1;
inline constexpr uint32_t kDone = 2;
inline constexpr uint32_t kBye = 3;

inline absl::StatusOr<Message> NextMessage(Party& party) {
  for (int tries = 0; tries < 2'000'000; ++tries) {
    std::optional<Message> message = party.group.Poll();
    if (!message.has_value()) {
      party.idle();
    } else if (message->tag.phase == kDone) {
      ++party.done;  // Ahead of us.
    } else {
      return *std::move(message);
    }
  }
  return absl::DeadlineExceededError(
      absl::StrFormat("rank %d: no message came", Index(party.group.rank())));
}

// Ends a case: nobody leaves before all have what they waited for, since
// sending is driven by polling. Any other message now is one too many.
inline absl::Status PartTogether(Party& party) {
  Group& group = party.group;
  if (group.rank() != Rank{0}) {
    group.Send(Rank{0}, {.phase = kDone}, {});
    HF_ASSIGN_OR_RETURN(const Message message, NextMessage(party));
    GROUP_REQUIRE(message.tag.phase == kBye, "phase %d from rank %d",
                  message.tag.phase, Index(message.from));
    return absl::OkStatus();
  }
  for (int tries = 0; party.done < group.size() - 1; ++tries) {
    GROUP_REQUIRE(tries < 2'000'000, "%d of %d ranks are done", party.done,
                  group.size() - 1);
    const std::optional<Message> message = group.Poll();
    if (!message.has_value()) {
      party.idle();
      continue;
    }
    GROUP_REQUIRE(message->tag.phase == kDone, "phase %d from rank %d",
                  message->tag.phase, Index(message->from));
    ++party.done;
  }
  for (int r = 1; r < group.size(); ++r) {
    group.Send(Rank{r}, {.phase = kBye}, {});
  }
  // Drives the last words out.
  for (int i = 0; i < 100; ++i) {
    GROUP_REQUIRE(!group.Poll().has_value(), "an unexpected message");
    party.idle();
  }
  return absl::OkStatus();
}

inline std::vector<std::byte> BodyOf(int from, int to, int number,
                                     size_t size) {
  std::vector<std::byte> body(size);
  for (size_t i = 0; i < size; ++i) {
    body[i] = static_cast<std::byte>(from * 31 + to * 7 + number * 3 + i);
  }
  return body;
}

inline absl::Status KnowsItsRankSizeAndHosts(Party& party) {
  Group& group = party.group;
  GROUP_REQUIRE(Index(group.rank()) >= 0 && Index(group.rank()) < group.size(),
                "rank %d of %d", Index(group.rank()), group.size());
  for (int r = 0; r < group.size(); ++r) {
    GROUP_REQUIRE(!group.HostOf(Rank{r}).empty(), "rank %d has no host", r);
  }
  return PartTogether(party);
}

inline absl::Status AMessageToOneselfArrives(Party& party) {
  Group& group = party.group;
  const MessageTag tag{7, 8, kData};
  const std::vector<std::byte> body = BodyOf(1, 2, 3, 100);
  group.Send(group.rank(), tag, body);
  HF_ASSIGN_OR_RETURN(const Message message, NextMessage(party));
  GROUP_REQUIRE(message.from == group.rank() && message.tag == tag &&
                    message.body == body,
                "another message, of %d bytes", message.body.size());
  return PartTogether(party);
}

// Everybody sends numbered messages of growing size to everybody, itself
// included; every body, tag and order must be right and nothing may be lost.
inline absl::Status EveryPairKeepsItsOrder(Party& party) {
  Group& group = party.group;
  constexpr int kMessages = 40;
  const int mine = Index(group.rank());
  for (int number = 0; number < kMessages; ++number) {
    for (int to = 0; to < group.size(); ++to) {
      // Small and large by turns: 0 bytes to 120 KB.
      const size_t size = number % 4 == 3 ? 3000u * number : 5u * number;
      group.Send(Rank{to}, {1, static_cast<uint32_t>(number), kData},
                 BodyOf(mine, to, number, size));
    }
  }
  std::vector<int> next(group.size(), 0);
  for (int i = 0; i < kMessages * group.size(); ++i) {
    HF_ASSIGN_OR_RETURN(const Message message, NextMessage(party));
    const int from = Index(message.from);
    const int number = next[from]++;
    GROUP_REQUIRE(
        message.tag == (MessageTag{1, static_cast<uint32_t>(number), kData}),
        "message %d of rank %d has tag (%d, %d, %d)", number, from,
        message.tag.incarnation, message.tag.attempt, message.tag.phase);
    const size_t size = number % 4 == 3 ? 3000u * number : 5u * number;
    GROUP_REQUIRE(message.body == BodyOf(from, mine, number, size),
                  "message %d of rank %d has another body", number, from);
  }
  return PartTogether(party);
}

// A save's vote and outcome.
inline absl::Status VotesAreGatheredAndTheOutcomeIsTold(Party& party) {
  Group& group = party.group;
  for (uint32_t attempt = 1; attempt <= 5; ++attempt) {
    const auto vote = static_cast<std::byte>(Index(group.rank()));
    group.Send(Rank{0}, {1, attempt, kData}, {&vote, 1});
    if (group.rank() == Rank{0}) {
      int sum = 0;
      for (int i = 0; i < group.size(); ++i) {
        HF_ASSIGN_OR_RETURN(const Message message, NextMessage(party));
        GROUP_REQUIRE(
            message.tag.attempt == attempt && message.body.size() == 1,
            "attempt %d from rank %d", message.tag.attempt,
            Index(message.from));
        sum += static_cast<int>(message.body[0]);
      }
      GROUP_REQUIRE(sum == group.size() * (group.size() - 1) / 2, "sum %d",
                    sum);
      // Not to itself: its own word may come after a fast rank's next vote.
      for (int r = 1; r < group.size(); ++r) {
        group.Send(Rank{r}, {1, attempt, kData}, {});
      }
      continue;
    }
    HF_ASSIGN_OR_RETURN(const Message outcome, NextMessage(party));
    GROUP_REQUIRE(outcome.from == Rank{0} && outcome.tag.attempt == attempt &&
                      outcome.body.empty(),
                  "outcome of attempt %d", outcome.tag.attempt);
  }
  return PartTogether(party);
}

inline absl::Status TheBodyIsCopiedBySend(Party& party) {
  Group& group = party.group;
  const int next = (Index(group.rank()) + 1) % group.size();
  std::vector<std::byte> body = BodyOf(0, 0, 0, 2'000'000);
  group.Send(Rank{next}, {.phase = kData}, body);
  for (std::byte& b : body) b = std::byte{0xEE};
  HF_ASSIGN_OR_RETURN(const Message message, NextMessage(party));
  GROUP_REQUIRE(message.body == BodyOf(0, 0, 0, 2'000'000),
                "the body changed after Send");
  return PartTogether(party);
}

// A manifest of a large job.
inline absl::Status ALongMessageArrivesWholeBeforeAShortOne(Party& party) {
  Group& group = party.group;
  constexpr size_t kLong = 24'000'000;
  if (group.rank() == Rank{0}) {
    for (int r = 1; r < group.size(); ++r) {
      group.Send(Rank{r}, {1, 1, kData}, BodyOf(0, r, 1, kLong));
      group.Send(Rank{r}, {1, 2, kData}, BodyOf(0, r, 2, 1));
    }
    return PartTogether(party);
  }
  for (const uint32_t attempt : {1, 2}) {
    HF_ASSIGN_OR_RETURN(const Message message, NextMessage(party));
    GROUP_REQUIRE(message.tag.attempt == attempt, "attempt %d came first",
                  message.tag.attempt);
    GROUP_REQUIRE(message.body == BodyOf(0, Index(group.rank()),
                                         static_cast<int>(attempt),
                                         attempt == 1 ? kLong : 1),
                  "body of attempt %d", attempt);
  }
  return PartTogether(party);
}

inline constexpr GroupCase kGroupCases[] = {
    {"KnowsItsRankSizeAndHosts", KnowsItsRankSizeAndHosts},
    {"AMessageToOneselfArrives", AMessageToOneselfArrives},
    {"EveryPairKeepsItsOrder", EveryPairKeepsItsOrder},
    {"VotesAreGatheredAndTheOutcomeIsTold",
     VotesAreGatheredAndTheOutcomeIsTold},
    {"TheBodyIsCopiedBySend", TheBodyIsCopiedBySend},
    {"ALongMessageArrivesWholeBeforeAShortOne",
     ALongMessageArrivesWholeBeforeAShortOne},
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_CONTRACT_GROUP_SUITE_H_
