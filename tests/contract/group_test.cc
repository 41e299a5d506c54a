// The contract of Group over threads, over sockets and over the simulated
// network, and what only these promise about dead ranks, late and lost
// messages.

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "ckpt/group/inproc_group.h"
#include "ckpt/group/local_group.h"
#include "ckpt/group/tcp_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/contract/group_suite.h"
#include "tests/support/sim_group.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

using ::holdfast::tests::SimNetwork;
using ::holdfast::tests::SimNetworkOptions;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ManualClock final : public Clock {
 public:
  absl::Duration Monotonic() const override { return now_; }
  absl::Time WallTime() const override { return absl::UnixEpoch() + now_; }
  void Sleep(absl::Duration duration) override { now_ += duration; }

 private:
  absl::Duration now_;
};

// Runs `body` on one thread a rank; the first error.
absl::Status OnThreads(int ranks,
                       const std::function<absl::Status(int rank)>& body) {
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] { statuses[r] = body(r); });
  }
  for (std::thread& thread : threads) thread.join();
  absl::Status first;
  for (const absl::Status& status : statuses) first.Update(status);
  return first;
}

class GroupTest : public testing::TestWithParam<std::tuple<GroupCase, int>> {};

TEST_P(GroupTest, KeepsTheContractOverThreads) {
  const auto& [contract, ranks] = GetParam();
  const auto groups = MakeInprocGroups(ranks);
  const auto run = contract.run;
  const absl::Status status = OnThreads(ranks, [&](int r) {
    Party party{*groups[r], [] { std::this_thread::yield(); }};
    return run(party);
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_P(GroupTest, KeepsTheContractOverSockets) {
  const auto& [contract, ranks] = GetParam();
  const auto run = contract.run;
  tests::TempDir dir;
  const absl::Status status = OnThreads(ranks, [&](int r) {
    // Each opens when it gets there: the others wait for it.
    const auto group = OpenLocalGroup(dir.path(), r, ranks);
    if (!group.ok()) return group.status();
    Party party{**group, [] { std::this_thread::yield(); }};
    return run(party);
  });
  EXPECT_TRUE(status.ok()) << status;
}

constexpr char kSecret[] = "0123456789abcdef";

// One listener for each rank, and the addresses of all.
absl::StatusOr<std::vector<TcpListener>> Listen(
    int ranks, const std::string& host, std::vector<std::string>* addresses) {
  std::vector<TcpListener> listeners;
  for (int r = 0; r < ranks; ++r) {
    HF_ASSIGN_OR_RETURN(TcpListener listener, TcpListener::Open(host));
    addresses->push_back(listener.address());
    listeners.push_back(std::move(listener));
  }
  return listeners;
}

TEST_P(GroupTest, KeepsTheContractOverTcp) {
  const auto& [contract, ranks] = GetParam();
  const auto run = contract.run;
  std::vector<std::string> addresses;
  auto listeners = Listen(ranks, "127.0.0.1", &addresses);
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  const absl::Status status = OnThreads(ranks, [&](int r) {
    const auto group = OpenTcpGroup(&(*listeners)[r], r, addresses, kSecret);
    if (!group.ok()) return group.status();
    Party party{**group, [] { std::this_thread::yield(); }};
    return run(party);
  });
  EXPECT_TRUE(status.ok()) << status;
}

// The network belongs to one thread. Here it belongs to whichever rank holds
// the baton; letting go of it moves the clock.
TEST_P(GroupTest, KeepsTheContractOverTheSimulatedNetwork) {
  const auto& [contract, ranks] = GetParam();
  const auto run = contract.run;
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    ManualClock clock;
    SimNetwork network(ranks, clock, {.seed = seed});
    std::mutex baton;
    const absl::Status status = OnThreads(ranks, [&](int r) {
      std::unique_lock<std::mutex> lock(baton);
      const std::unique_ptr<Group> group = network.Open(Rank{r});
      Party party{*group, [&] {
                    clock.Sleep(absl::Microseconds(100));
                    lock.unlock();
                    std::this_thread::yield();
                    lock.lock();
                  }};
      return run(party);
    });
    EXPECT_TRUE(status.ok()) << status;
  }
}

INSTANTIATE_TEST_SUITE_P(Suite, GroupTest,
                         testing::Combine(testing::ValuesIn(kGroupCases),
                                          testing::Values(1, 2, 5)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  "On" +
                                  std::to_string(std::get<1>(info.param));
                         });

TEST(InprocGroupTest, SendingToARankThatIsGoneIsNotAnError) {
  auto groups = MakeInprocGroups(2);
  groups[1].reset();
  groups[0]->Send(Rank{1}, {1, 1, 1}, {});
  EXPECT_FALSE(groups[0]->Poll().has_value());
}

TEST(LocalGroupTest, WaitsForARankThatStartsLaterAndNotForOneThatIsGone) {
  tests::TempDir dir;
  auto zero = OpenLocalGroup(dir.path(), 0, 2);
  ASSERT_TRUE(zero.ok()) << zero.status();
  (*zero)->Send(Rank{1}, {1, 1, 1}, {});
  (*zero)->Send(Rank{1}, {1, 2, 1}, {});
  auto one = OpenLocalGroup(dir.path(), 1, 2);
  ASSERT_TRUE(one.ok()) << one.status();
  for (uint32_t attempt = 1; attempt <= 2; ++attempt) {
    std::optional<Message> message;
    while (!message.has_value()) {
      EXPECT_FALSE((*zero)->Poll().has_value());
      message = (*one)->Poll();
    }
    EXPECT_EQ(message->tag.attempt, attempt);
    EXPECT_EQ(message->from, Rank{0});
  }
  one->reset();
  const std::vector<std::byte> body(1 << 20);
  for (int i = 0; i < 3; ++i) (*zero)->Send(Rank{1}, {1, 3, 1}, body);
  EXPECT_FALSE((*zero)->Poll().has_value());
  // It starts again, as another process would: it hears nothing old.
  one = OpenLocalGroup(dir.path(), 1, 2);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_FALSE((*zero)->Poll().has_value());
  EXPECT_FALSE((*one)->Poll().has_value());
}

TEST(TcpGroupTest, WhoDoesNotKnowTheSecretIsNotHeard) {
  std::vector<std::string> addresses;
  auto listeners = Listen(2, "127.0.0.1", &addresses);
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  auto zero = OpenTcpGroup(&(*listeners)[0], 0, addresses, kSecret);
  ASSERT_TRUE(zero.ok()) << zero.status();
  // Another job's rank 1, with the address of this rank 0.
  auto stranger = TcpListener::Open("127.0.0.1");
  ASSERT_TRUE(stranger.ok()) << stranger.status();
  auto other = OpenTcpGroup(&*stranger, 1, {addresses[0], stranger->address()},
                            "0123456789abcdeF");
  ASSERT_TRUE(other.ok()) << other.status();
  auto one = OpenTcpGroup(&(*listeners)[1], 1, addresses, kSecret);
  ASSERT_TRUE(one.ok()) << one.status();
  (*other)->Send(Rank{0}, {1, 66, 1}, {});
  for (int i = 0; i < 200; ++i) {
    (*other)->Poll();
    EXPECT_FALSE((*zero)->Poll().has_value());
  }
  (*one)->Send(Rank{0}, {1, 1, 1}, {});
  std::optional<Message> message;
  while (!message.has_value()) {
    (*one)->Poll();
    message = (*zero)->Poll();
  }
  EXPECT_EQ(message->tag.attempt, 1);
}

TEST(TcpGroupTest, ManyRanksThatSpeakAtOnceAreAllHeard) {
  // Three descriptors each, below the usual limit of 1024.
  constexpr int kRanks = 300;
  std::vector<std::string> addresses;
  auto listeners = Listen(kRanks, "127.0.0.1", &addresses);
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  std::vector<std::unique_ptr<Group>> groups;
  for (int r = 0; r < kRanks; ++r) {
    auto group = OpenTcpGroup(&(*listeners)[r], r, addresses, kSecret);
    ASSERT_TRUE(group.ok()) << group.status();
    groups.push_back(*std::move(group));
  }
  // While rank 0 is busy with something else.
  for (int r = 1; r < kRanks; ++r) {
    groups[r]->Send(Rank{0}, {1, 1, 1}, {});
    groups[r]->Poll();
  }
  int heard = 0;
  for (int i = 0; i < 10'000 && heard < kRanks - 1; ++i) {
    if (groups[0]->Poll().has_value()) ++heard;
  }
  EXPECT_EQ(heard, kRanks - 1);
}

TEST(TcpGroupTest, ARankThatIsGoneHoldsNobody) {
  std::vector<std::string> addresses;
  auto listeners = Listen(2, "127.0.0.1", &addresses);
  ASSERT_TRUE(listeners.ok()) << listeners.status();
  auto zero = OpenTcpGroup(&(*listeners)[0], 0, addresses, kSecret);
  ASSERT_TRUE(zero.ok()) << zero.status();
  listeners->pop_back();  // nobody listens there any more
  const std::vector<std::byte> body(1 << 20);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 50; ++i) {
    (*zero)->Send(Rank{1}, {1, 1, 1}, body);
    EXPECT_FALSE((*zero)->Poll().has_value());
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, testing::HasSubstr("rank 1 at " + addresses[1]));
  EXPECT_THAT(said, testing::HasSubstr("until the job is started again"));
}

TEST(TcpGroupTest, RefusesWhatCannotBe) {
  using absl::StatusCode;
  EXPECT_EQ(TcpListener::Open("node17").status().code(),
            StatusCode::kInvalidArgument);
  for (const char* any : {"0.0.0.0", "::", "::ffff:0.0.0.0"}) {
    const absl::Status status = TcpListener::Open(any).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << any;
    EXPECT_THAT(status.message(), testing::HasSubstr("all addresses"));
  }
  // An address of documentation (RFC 5737), of no machine.
  EXPECT_FALSE(TcpListener::Open("192.0.2.1").ok());
  auto listener = TcpListener::Open("127.0.0.1");
  ASSERT_TRUE(listener.ok()) << listener.status();
  const std::string own = listener->address();
  const auto code = [&](int rank, const std::vector<std::string>& addresses,
                        const std::string& secret) {
    return OpenTcpGroup(&*listener, rank, addresses, secret).status().code();
  };
  EXPECT_EQ(code(1, {own}, kSecret), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, {}, kSecret), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, {"127.0.0.1:1"}, kSecret), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, {own, "127.0.0.1"}, kSecret), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, {own, "node17:80"}, kSecret), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, {own, "0.0.0.0:80"}, kSecret),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, {own}, "short"), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(0, {own}, kSecret), StatusCode::kOk);
}

TEST(LocalGroupTest, RefusesWhatCannotBe) {
  tests::TempDir dir;
  EXPECT_EQ(OpenLocalGroup(dir.path(), 2, 2).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(OpenLocalGroup(dir.path() + "/absent", 0, 1).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(
      OpenLocalGroup(dir.path() + std::string(100, 'x'), 0, 1).status().code(),
      absl::StatusCode::kInvalidArgument);
}

std::vector<uint32_t> AttemptsPolled(Group& group) {
  std::vector<uint32_t> attempts;
  while (std::optional<Message> message = group.Poll()) {
    attempts.push_back(message->tag.attempt);
  }
  return attempts;
}

TEST(SimNetworkTest, NothingArrivesBeforeItsTime) {
  ManualClock clock;
  SimNetwork network(
      2, clock,
      {.delay_min = absl::Milliseconds(5), .delay_max = absl::Milliseconds(5)});
  const auto zero = network.Open(Rank{0});
  const auto one = network.Open(Rank{1});
  zero->Send(Rank{1}, {1, 1, 1}, {});
  EXPECT_EQ(network.NextArrival(), absl::Milliseconds(5));
  clock.Sleep(absl::Milliseconds(4));
  EXPECT_THAT(AttemptsPolled(*one), IsEmpty());
  clock.Sleep(absl::Milliseconds(1));
  EXPECT_THAT(AttemptsPolled(*one), ElementsAre(1));
  EXPECT_EQ(network.NextArrival(), std::nullopt);
}

TEST(SimNetworkTest, TheSeedDecidesWhoseMessageComesFirst) {
  const auto order = [](uint64_t seed) {
    ManualClock clock;
    SimNetwork network(6, clock, {.seed = seed});
    for (int from = 1; from < 6; ++from) {
      network.Open(Rank{from})
          ->Send(Rank{0}, {1, static_cast<uint32_t>(from), 1}, {});
    }
    clock.Sleep(absl::Seconds(1));
    return AttemptsPolled(*network.Open(Rank{0}));
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST(SimNetworkTest, ALateMessageHoldsBackItsPairAndNobodyElse) {
  ManualClock clock;
  SimNetworkOptions options;
  options.late_share = 1;
  options.late_delay = absl::Seconds(100);
  SimNetwork network(2, clock, options);
  const auto zero = network.Open(Rank{0});
  const auto one = network.Open(Rank{1});
  one->Send(Rank{0}, {1, 1, 1}, {});
  one->Send(Rank{0}, {1, 2, 1}, {});
  EXPECT_EQ(network.late(), 2);
  clock.Sleep(absl::Seconds(99));
  EXPECT_THAT(AttemptsPolled(*zero), IsEmpty());
  clock.Sleep(absl::Seconds(2));
  EXPECT_THAT(AttemptsPolled(*zero), ElementsAre(1, 2));
}

TEST(SimNetworkTest, OfADeadRankAPrefixArrivesAndNothingElse) {
  bool saw_none = false;
  bool saw_some = false;
  bool saw_all = false;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    ManualClock clock;
    SimNetwork network(2, clock, {.seed = seed});
    const auto zero = network.Open(Rank{0});
    const auto one = network.Open(Rank{1});
    for (uint32_t i = 0; i < 4; ++i) one->Send(Rank{0}, {1, i, 1}, {});
    network.Kill(Rank{1});
    one->Send(Rank{0}, {1, 9, 1}, {});
    zero->Send(Rank{1}, {1, 9, 1}, {});
    clock.Sleep(absl::Seconds(1));
    const std::vector<uint32_t> attempts = AttemptsPolled(*zero);
    for (uint32_t i = 0; i < attempts.size(); ++i) EXPECT_EQ(attempts[i], i);
    EXPECT_THAT(AttemptsPolled(*one), IsEmpty());
    EXPECT_EQ(network.delivered() + network.lost(), 6);
    saw_none |= attempts.empty();
    saw_some |= attempts.size() == 2;
    saw_all |= attempts.size() == 4;
  }
  EXPECT_TRUE(saw_none && saw_some && saw_all);
}

TEST(SimNetworkTest, ACutLosesMessagesOneWayUntilItHeals) {
  ManualClock clock;
  SimNetwork network(2, clock, {});
  const auto zero = network.Open(Rank{0});
  const auto one = network.Open(Rank{1});
  network.Cut(Rank{0}, Rank{1});
  zero->Send(Rank{1}, {1, 1, 1}, {});
  one->Send(Rank{0}, {1, 2, 1}, {});
  network.Heal(Rank{0}, Rank{1});
  zero->Send(Rank{1}, {1, 3, 1}, {});
  clock.Sleep(absl::Seconds(1));
  EXPECT_THAT(AttemptsPolled(*one), ElementsAre(3));
  EXPECT_THAT(AttemptsPolled(*zero), ElementsAre(2));
}

}  // namespace
}  // namespace holdfast::ckpt
