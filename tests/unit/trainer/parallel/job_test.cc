// What a process learns about its job from the launcher's variables.

#include "trainer/parallel/job.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::trainer {
namespace {

absl::StatusOr<LauncherEnv> Read(
    const std::map<std::string, std::string>& variables) {
  return ReadLauncherEnv([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(LauncherEnvTest, WithoutALauncherTheProcessIsAlone) {
  const auto env = Read({{"PATH", "/bin"}});
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(env->launcher, LauncherEnv::Launcher::kNone);
  EXPECT_EQ(env->size, 1);
}

TEST(LauncherEnvTest, MpirunSaysRankAndPlaceOnTheHost) {
  const auto env = Read({{"OMPI_COMM_WORLD_RANK", "5"},
                         {"OMPI_COMM_WORLD_SIZE", "8"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"PMIX_RANK", "5"}});
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(env->launcher, LauncherEnv::Launcher::kMpirun);
  EXPECT_EQ(env->rank, 5);
  EXPECT_EQ(env->size, 8);
  EXPECT_EQ(env->local_rank, 1);
  EXPECT_EQ(env->local_size, 4);
}

TEST(LauncherEnvTest, SrunWithPmixSaysItThroughSlurm) {
  const auto env = Read({{"PMIX_RANK", "2"},
                         {"SLURM_STEP_NUM_TASKS", "6"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_CPUS_ON_NODE", "16"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}});
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(env->launcher, LauncherEnv::Launcher::kSrun);
  EXPECT_EQ(env->rank, 2);
  EXPECT_EQ(env->size, 6);
  EXPECT_EQ(env->local_rank, 1);
  EXPECT_EQ(env->local_size, 2);
  EXPECT_EQ(env->processors, 16);
}

// Ranks divide the processors of their host by it.
TEST(LauncherEnvTest, TasksOfANodeAreReadFromSlurmsShorthand) {
  const auto local_size = [](const char* tasks, const char* node) {
    const auto env = Read({{"PMIX_RANK", "0"},
                           {"SLURM_STEP_NUM_TASKS", "7"},
                           {"SLURM_NODEID", node},
                           {"SLURM_STEP_TASKS_PER_NODE", tasks}});
    return env.ok() ? env->local_size : -1;
  };
  EXPECT_EQ(local_size("8", "0"), 8);
  EXPECT_EQ(local_size("8(x640)", "639"), 8);
  EXPECT_EQ(local_size("2(x3),1", "2"), 2);
  EXPECT_EQ(local_size("2(x3),1", "3"), 1);
  EXPECT_EQ(local_size("1,4(x2)", "2"), 4);
  EXPECT_EQ(local_size("2(x3),1", "4"), 1);
  EXPECT_EQ(local_size("nonsense", "0"), 1);
}

TEST(ProcessorsOfRankTest, RanksDivideWhatIsNotDividedForThem) {
  // The launcher does not say: what the system allows is for all of the host.
  EXPECT_EQ(ProcessorsOfRank(32, 0, 8), 4);
  EXPECT_EQ(ProcessorsOfRank(2, 0, 8), 1);
  // 32 given, free to run on all of them or on all of a larger host.
  EXPECT_EQ(ProcessorsOfRank(32, 32, 8), 4);
  EXPECT_EQ(ProcessorsOfRank(128, 32, 8), 4);
  // Bound to four of the 32.
  EXPECT_EQ(ProcessorsOfRank(4, 32, 8), 4);
  EXPECT_EQ(ProcessorsOfRank(16, 16, 1), 16);
}

TEST(LauncherEnvTest, SrunWithoutPmixIsRefusedBeforeEachRankTrainsAlone) {
  const auto env = Read({{"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_PROCID", "3"}});
  EXPECT_TRUE(absl::IsFailedPrecondition(env.status()));
  EXPECT_THAT(std::string(env.status().message()),
              testing::HasSubstr("srun --mpi=pmix"));
}

TEST(LauncherEnvTest, ABatchScriptIsNotATaskOfAStep) {
  const auto env = Read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "6"}});
  ASSERT_TRUE(env.ok());
  EXPECT_EQ(env->size, 1);
}

TEST(JobTest, AJobOfOneHasAWorldAHostAndACheckpointGroup) {
  Heartbeat heartbeat;
  auto job = OpenJob(&heartbeat);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ((*job)->size(), 1);
  EXPECT_NE((*job)->HostOf(0), "");
  EXPECT_EQ((*job)->launcher(), "none");
  float value = 2;
  EXPECT_TRUE((*job)->world().AllReduceSum(std::span<float>(&value, 1)).ok());
  auto group = (*job)->OpenCheckpointGroup();
  ASSERT_TRUE(group.ok());
  EXPECT_EQ((*group)->size(), 1);
  EXPECT_TRUE((*job)->Finalize().ok());
}

}  // namespace
}  // namespace holdfast::trainer
