// `ckptctl prune`: what it lists, what it removes, and when it refuses.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/base/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cli/ckptctl_fixture.h"

namespace holdfast::tests {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CkptctlPruneTest : public CkptctlTest {
 protected:
  // Every name below the run, to see that nothing was touched.
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(run())) {
      names.push_back(entry.path().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  Outcome Prune(std::vector<std::string> more,
                const std::string& what = "") const {
    std::vector<std::string> arguments = {"prune", what.empty() ? run() : what};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Ckptctl(arguments);
  }
  std::vector<int> StepsLeft() const {
    std::vector<int> steps;
    const Json json = JsonOf(Ckptctl({"ls", run(), "--json"}));
    for (const Json& entry : json["checkpoints"])
      steps.push_back(entry["step"]);
    return steps;
  }
  // The last owner, as a process of this host.
  void ClaimAs(int64_t pid, const ckpt::ProcessMark& mark) const {
    ckpt::PosixOptions options;
    options.root = run();
    auto storage = ckpt::OpenPosixStorage(options);
    Check(storage.status());
    ckpt::OwnerClaim claim;
    claim.run_id = kTestRun;
    claim.incarnation = 3;
    char host[256] = {};
    ASSERT_EQ(gethostname(host, sizeof host - 1), 0);
    claim.host = host;
    claim.pid = pid;
    claim.time_unix_ms = absl::ToUnixMillis(absl::Now());
    claim.world = 2;
    claim.mark = mark;
    Check(ckpt::Blocking(**storage).PutIfAbsent(ckpt::ClaimName(3),
                                                ckpt::EncodeClaim(claim)));
  }
};

TEST_F(CkptctlPruneTest, WithoutYesItListsAndTouchesNothing) {
  const std::vector<std::string> before = Names();
  const Json json = JsonOf(Prune({"--keep-last=2", "--json"}));
  EXPECT_EQ(Names(), before);
  std::vector<std::pair<int, bool>> found;
  for (const Json& entry : json["checkpoints"]) {
    found.emplace_back(entry["step"], entry["goes"]);
  }
  EXPECT_THAT(found,
              ElementsAre(testing::Pair(300, false), testing::Pair(200, false),
                          testing::Pair(100, true), testing::Pair(400, true),
                          testing::Pair(150, true)));
  EXPECT_THAT(json["removed"], IsEmpty());
  EXPECT_GT(json["bytes"], 0);
  const Outcome text = Prune({});
  EXPECT_EQ(text.code, 0) << text;
  EXPECT_THAT(text.out, AllOf(HasSubstr("stays  the newest\n"),
                              HasSubstr("stays  one of the newest 3\n"),
                              HasSubstr("goes   rewind\n"),
                              HasSubstr("; --yes removes them\n")));
}

TEST_F(CkptctlPruneTest, WithYesItRemovesWhatItListed) {
  const Outcome outcome =
      Prune({"--keep-last=2", "--yes", "--owner-is-gone", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome;
  const Json json = JsonOf(outcome);
  EXPECT_THAT(json["removed"], ElementsAre(ToString(k100), ToString(kRewound)));
  EXPECT_THAT(json["swept"], ElementsAre(ToString(kAttempt)));
  EXPECT_THAT(StepsLeft(), ElementsAre(300, 200));
  // What is left is whole, and the line's: the next owner goes on from it.
  EXPECT_EQ(Ckptctl({"verify", run(), "--hash"}).code, 0);
  EXPECT_EQ(Ckptctl({"verify", run() + "@200"}).code, 0);
  const Json ls = JsonOf(Ckptctl({"ls", run(), "--json"}));
  EXPECT_EQ(ls["newest"], ToString(k300));
  EXPECT_EQ(ls["sealed_by"], 3);
  // The process that pruned was of this host, and is gone.
  const Outcome again = Prune({"--keep-last=1", "--yes", "--no-verify"});
  ASSERT_EQ(again.code, 0) << again;
  EXPECT_THAT(again.out, HasSubstr("removed 1 checkpoints and 0 attempts"));
  EXPECT_THAT(StepsLeft(), ElementsAre(300));
}

TEST_F(CkptctlPruneTest, MultiplesStay) {
  EXPECT_EQ(
      Prune({"--keep-last=1", "--keep-every=100", "--yes", "--owner-is-gone"})
          .code,
      0);
  EXPECT_THAT(StepsLeft(), ElementsAre(300, 200, 100));
}

TEST_F(CkptctlPruneTest, OneThatIsNamedGoesAlone) {
  const Outcome outcome = Prune({"--yes", "--owner-is-gone"}, run() + "@200");
  ASSERT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(StepsLeft(), ElementsAre(300, 100, 400, 150));
  const Outcome superseded = Prune({"--yes"}, run() + "@" + ToString(kRewound));
  ASSERT_EQ(superseded.code, 0) << superseded;
  EXPECT_THAT(StepsLeft(), ElementsAre(300, 100, 400));
}

TEST_F(CkptctlPruneTest, TheNewestNeverGoes) {
  const std::vector<std::string> before = Names();
  const Outcome outcome = Prune({"--yes", "--owner-is-gone"}, run() + "@300");
  EXPECT_EQ(outcome.code, 78) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("is the run's newest checkpoint"));
  EXPECT_EQ(Prune({"--yes", "--owner-is-gone"}, DirOf(k300)).code, 78);
  EXPECT_EQ(Names(), before);
}

TEST_F(CkptctlPruneTest, AnOwnerWhoseEndNobodyKnowsIsRespected) {
  const std::vector<std::string> before = Names();
  const Outcome outcome = Prune({"--keep-last=1", "--yes"});
  EXPECT_EQ(outcome.code, 78) << outcome;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("owner i0002, process 1002 of host somewhere"),
                    HasSubstr("--owner-is-gone")));
  EXPECT_EQ(Names(), before);
  // A last word of another incarnation's says nothing.
  std::ofstream(run() + "/status.json")
      << R"({"state": "finished", "incarnation": 1})";
  EXPECT_EQ(Prune({"--keep-last=1", "--yes"}).code, 78);
  std::ofstream(run() + "/status.json")
      << R"({"state": "finished", "incarnation": 2})";
  EXPECT_EQ(Prune({"--keep-last=1", "--yes"}).code, 0);
  EXPECT_THAT(StepsLeft(), ElementsAre(300));
}

TEST_F(CkptctlPruneTest, AnOwnerOfThisHostThatLivesIsRespected) {
  ClaimAs(getpid(), ckpt::MarkOfThisProcess());
  const std::vector<std::string> before = Names();
  const Outcome outcome = Prune({"--keep-last=1", "--yes", "--owner-is-gone"});
  EXPECT_EQ(outcome.code, 78) << outcome;
  EXPECT_THAT(outcome.err,
              AllOf(HasSubstr("owner i0003"), HasSubstr("is alive"),
                    HasSubstr("nothing was changed")));
  EXPECT_EQ(Names(), before);
}

TEST_F(CkptctlPruneTest, AProcessNumberThatIsUsedAgainIsNoOwner) {
  ckpt::ProcessMark mark = ckpt::MarkOfThisProcess();
  --mark.start_ticks;
  ClaimAs(getpid(), mark);
  const Outcome outcome = Prune({"--keep-last=1", "--yes"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(StepsLeft(), ElementsAre(300));
}

TEST_F(CkptctlPruneTest, AProcessThatHasEndedHereIsNoOwner) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ClaimAs(child, ckpt::MarkOfThisProcess());
  const Outcome outcome = Prune({"--keep-last=1", "--yes"});
  EXPECT_EQ(outcome.code, 0) << outcome;
  EXPECT_THAT(StepsLeft(), ElementsAre(300));
}

// Two containers, or two machines, with one host name; and claims of programs
// that did not say.
TEST_F(CkptctlPruneTest, AProcessOfAnotherContainerOrStartCannotBeToldGone) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const ckpt::ProcessMark here = ckpt::MarkOfThisProcess();
  ckpt::ProcessMark container = here;
  container.namespaces = "pid:[1]";
  ckpt::ProcessMark machine = here;
  machine.boot = "00000000-0000-0000-0000-000000000000";
  const std::vector<std::string> before = Names();
  for (const auto& [mark, why] :
       {std::pair{container, "another container of this machine"},
        std::pair{machine, "on another machine, or on this one before"},
        std::pair{ckpt::ProcessMark(), "its claim does not say"}}) {
    for (const pid_t pid : {child, getpid()}) {
      ClaimAs(pid, mark);
      const Outcome outcome = Prune({"--keep-last=1", "--yes"});
      EXPECT_EQ(outcome.code, 78) << outcome;
      EXPECT_THAT(outcome.err,
                  AllOf(HasSubstr(why), HasSubstr("--owner-is-gone"),
                        HasSubstr("nothing was changed")));
      std::filesystem::remove(run() + "/" + ckpt::ClaimName(3));
      EXPECT_EQ(Names(), before);
    }
  }
  ClaimAs(child, container);
  EXPECT_EQ(Prune({"--keep-last=1", "--yes", "--owner-is-gone"}).code, 0);
  EXPECT_THAT(StepsLeft(), ElementsAre(300));
}

// A real one, where the kernel lets this user make it.
TEST_F(CkptctlPruneTest, FromAnotherPidNamespaceNobodyIsToldGone) {
  ClaimAs(getpid(), ckpt::MarkOfThisProcess());
  const std::string command =
      "unshare --user --map-root-user --pid --fork --mount-proc ";
  if (std::system((command + "true >/dev/null 2>&1").c_str()) != 0) {
    GTEST_SKIP() << "no pid namespace can be made here";
  }
  const int status = std::system(
      (command + HOLDFAST_BIN_DIR "/ckptctl prune --keep-last=1 --yes " +
       run() + " 2>" + (folder_ / "said"))
          .c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 78);
  EXPECT_THAT(FileText(folder_ / "said"), HasSubstr("another container"));
}

TEST_F(CkptctlPruneTest, NothingGoesForANewestThatIsDamaged) {
  Flip(DirOf(k300) + "/shard-00001.hf", 5000);
  const std::vector<std::string> before = Names();
  const Outcome outcome = Prune({"--keep-last=1", "--yes", "--owner-is-gone"});
  EXPECT_EQ(outcome.code, 65) << outcome;
  EXPECT_THAT(outcome.err, HasSubstr("nothing was removed"));
  EXPECT_EQ(Names(), before);
}

TEST_F(CkptctlPruneTest, DamagedManifestsStayUnlessNamed) {
  Flip(DirOf(k100) + "/MANIFEST", 40);
  EXPECT_EQ(Prune({"--keep-last=1", "--yes", "--owner-is-gone"}).code, 0);
  EXPECT_THAT(StepsLeft(), ElementsAre(300, 100));
  const Outcome named = Prune({"--yes"}, run() + "@" + ToString(k100));
  EXPECT_EQ(named.code, 0) << named;
  EXPECT_THAT(StepsLeft(), ElementsAre(300));
}

TEST_F(CkptctlPruneTest, ARunNobodyKnowsTheLineOfIsLeftAlone) {
  std::filesystem::remove(run() + "/owners/i0002.seal");
  const std::vector<std::string> before = Names();
  EXPECT_EQ(Prune({"--yes", "--owner-is-gone"}).code, 78);
  EXPECT_EQ(Names(), before);
  EXPECT_EQ(Prune({}, folder_ / "nowhere").code, 66);
  std::filesystem::copy(DirOf(k300), folder_ / "copy");
  const Outcome copy = Prune({"--yes"}, folder_ / "copy");
  EXPECT_EQ(copy.code, 78) << copy;
  EXPECT_THAT(copy.err, HasSubstr("in no run"));
}

}  // namespace
}  // namespace holdfast::tests
