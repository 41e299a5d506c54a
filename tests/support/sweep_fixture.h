// tests/support/sweep_fixture.h: the run of start_fixture.h for sweeps over
// what removes checkpoints: it is driven, disturbed, and what is left is looked
// at.

#ifndef HOLDFAST_TESTS_SUPPORT_SWEEP_FIXTURE_H_
#define HOLDFAST_TESTS_SUPPORT_SWEEP_FIXTURE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ckpt/session/verify_session.h"
#include "tests/support/start_fixture.h"

namespace holdfast::ckpt {

class SweepTest : public StartTest {
 protected:
  static SessionEnv EnvOf(tests::SimStorage& storage, tests::SimClock& clock,
                          uint16_t space, int ops_max = 8) {
    SessionEnv env;
    env.storage = &storage;
    env.clock = &clock;
    env.space = space;
    env.ops_max = ops_max;
    return env;
  }

  // False: its process or the power was gone before it had ended.
  static bool Drive(tests::SimStorage& storage, tests::SimClock& clock,
                    Session& session) {
    while (!storage.dead()) {
      session.Poll();
      if (session.done()) return true;
      Completion answer;
      if (storage.Poll({&answer, 1}) > 0) {
        session.OnCompletion(answer);
      } else {
        clock.Sleep(absl::Milliseconds(1));
      }
    }
    return false;
  }

  // What one that is not disturbed does on a copy of the disk; true: it ended.
  int64_t OpsOf(const std::function<bool(tests::SimDisk&)>& run) {
    const auto disk = disk_.Clone();
    const int64_t before = disk->ops();
    EXPECT_TRUE(run(*disk));
    return disk->ops() - before;
  }

  // Files of a save that has not finished.
  void MakeAttempt(const CheckpointId& id) {
    tests::SimStorage storage(disk_, {.process = 90});
    tests::CheckpointSpec spec;
    spec.run_id = tests::kTestRun;
    spec.id = id;
    Check(tests::WriteShards(storage, *saved_layout_, spec, AttemptDir(id))
              .status());
  }

  static Catalog LookAt(tests::SimDisk& disk) {
    tests::SimStorage storage(disk, {.process = 92});
    tests::SimClock clock;
    CatalogSession session(EnvOf(storage, clock, 9));
    RunAlone(&storage, &clock, &session);
    Check(session.result().status());
    return *session.result();
  }

  // "" when every byte of all that a reader is offered is good.
  static std::string Damage(tests::SimDisk& disk) {
    const Catalog catalog = LookAt(disk);
    tests::SimStorage storage(disk, {.process = 91});
    tests::SimClock clock;
    for (const size_t i : catalog.line) {
      const std::string dir = catalog.entries[i].dir;
      auto bytes = Blocking(storage).Get(dir + "/MANIFEST", kManifestBytesMax);
      if (!bytes.ok()) return bytes.status().ToString();
      const auto manifest = DecodeManifest(*bytes);
      if (!manifest.ok()) return manifest.status().ToString();
      UnitReaderOptions options;
      options.read_bytes_max = kUnitBytesMax;
      VerifySession verify(EnvOf(storage, clock, 9), dir, &*manifest,
                           /*hash=*/false, options);
      RunAlone(&storage, &clock, &verify);
      if (!verify.outcome().status.ok()) {
        return dir + ": " + verify.outcome().status.ToString();
      }
    }
    return "";
  }

  // A new job starts; "" when it has exactly the state of `step`.
  std::string LoadedOn(tests::SimDisk& disk, int64_t step) {
    tests::StartWorld::Options options;
    options.first_process = 40;
    tests::StartWorld world(disk, *layout_, options);
    world.Run();
    return world.LoadedBy(step);
  }
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_TESTS_SUPPORT_SWEEP_FIXTURE_H_
