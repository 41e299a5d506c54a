// tests/support/start_fixture.h: a run of two owners on a simulated
// disk, for the tests of starts.
//
//   owner 1   sealed fresh, committed step 100
//   owner 2   sealed {100}, committed step 200 and step 300

#ifndef HOLDFAST_TESTS_SUPPORT_START_FIXTURE_H_
#define HOLDFAST_TESTS_SUPPORT_START_FIXTURE_H_

#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/format/checksum.h"
#include "ckpt/session/catalog.h"
#include "ckpt/storage/blocking.h"
#include "gtest/gtest.h"
#include "tests/support/saved_run.h"
#include "tests/support/sim_clock.h"
#include "tests/support/sim_disk.h"
#include "tests/support/sim_storage.h"
#include "tests/support/start_world.h"

namespace holdfast::ckpt {

inline constexpr CheckpointId k100{100, 1, 1};
inline constexpr CheckpointId k200{200, 2, 1};
inline constexpr CheckpointId k300{300, 2, 2};

class StartTest : public testing::Test {
 protected:
  // From level 0 on the shard files are coded.
  explicit StartTest(int zstd_level = -1)
      : disk_(DiskOptions()), zstd_level_(zstd_level) {
    tests::SimStorage storage(disk_, {.process = 90});
    Check(tests::MakeRun(storage));
    Check(tests::Claim(storage, 1));
    OwnerSeal seal;
    seal.incarnation = 1;
    Check(tests::Seal(storage, seal));
    const Manifest first = Write(storage, k100, 1, std::nullopt);
    Check(tests::Claim(storage, 2));
    seal.incarnation = 2;
    seal.head = k100;
    seal.line = {{k100, 1, Crc32c(EncodeManifest(first))}};
    Check(tests::Seal(storage, seal));
    Write(storage, k200, 1, k100);
    manifest_300_ = Write(storage, k300, 2, k200);
  }

  static tests::SimDiskOptions DiskOptions() {
    tests::SimDiskOptions options;
    options.journaled_names = true;
    return options;
  }
  static void Check(const absl::Status& status) {
    HF_CHECK(status.ok(), "%s", status.ToString());
  }

  Manifest Write(Storage& storage, const CheckpointId& id, uint64_t commit,
                 std::optional<CheckpointId> parent) {
    tests::CheckpointSpec spec;
    spec.run_id = tests::kTestRun;
    spec.id = id;
    spec.commit_number = commit;
    spec.parent = parent;
    spec.attributes["step"] = absl::StrFormat("%d", id.step);
    spec.seed = id.step;
    spec.zstd_level = zstd_level_;
    auto manifest =
        tests::WriteShards(storage, *saved_layout_, spec, AttemptDir(id));
    Check(manifest.status());
    Check(tests::WriteManifest(storage, AttemptDir(id), *manifest));
    return *std::move(manifest);
  }

  // A start of `layout` that has ended.
  std::unique_ptr<tests::StartWorld> Start(
      const JobLayout& layout, tests::StartWorld::Options options = {}) {
    auto world =
        std::make_unique<tests::StartWorld>(disk_, layout, std::move(options));
    world->Run();
    return world;
  }
  std::unique_ptr<tests::StartWorld> Start(
      tests::StartWorld::Options options = {}) {
    return Start(*layout_, std::move(options));
  }

  Catalog Look() {
    tests::SimStorage storage(disk_, {.process = 91});
    tests::SimClock clock;
    SessionEnv env;
    env.storage = &storage;
    env.clock = &clock;
    env.space = 9;
    CatalogSession session(env);
    RunAlone(&storage, &clock, &session);
    Check(session.result().status());
    return *session.result();
  }

  std::string Shard(const CheckpointId& id, int file) const {
    return absl::StrFormat("%s/shard-%05d.hf", AttemptDir(id), file);
  }

  tests::SimDisk disk_;
  const int zstd_level_;
  std::unique_ptr<TrainLayout> saved_layout_ = tests::SmallLayout(2, 2, 2);
  std::unique_ptr<TrainLayout> layout_ = tests::SmallLayout(2, 1, 2);
  Manifest manifest_300_;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_SUPPORT_START_FIXTURE_H_
