// tests/cli/ckptctl_fixture.h: a small run for the tests of `ckptctl`.
//
// The runs are real, written by tests/support/saved_run. One thread.

#ifndef HOLDFAST_TESTS_CLI_CKPTCTL_FIXTURE_H_
#define HOLDFAST_TESTS_CLI_CKPTCTL_FIXTURE_H_

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/shard.h"
#include "ckpt/storage/blocking.h"
#include "ckpt/storage/posix_storage.h"
#include "gtest/gtest.h"
#include "tests/cli/run_program.h"
#include "tests/support/saved_run.h"

namespace holdfast::tests {

using ckpt::CheckpointId;
using Json = nlohmann::json;

inline constexpr CheckpointId k100{100, 1, 1};
inline constexpr CheckpointId k200{200, 2, 1};
inline constexpr CheckpointId k300{300, 2, 2};
inline constexpr CheckpointId kRewound{150, 1, 2};
inline constexpr CheckpointId kAttempt{400, 2, 3};
inline constexpr CheckpointId kCoded{500, 2, 4};

inline void Check(const absl::Status& status) {
  HF_CHECK(status.ok(), "%s", status.ToString());
}

inline Outcome Ckptctl(const std::vector<std::string>& arguments) {
  return RunProgram("ckptctl", arguments);
}

inline Json JsonOf(const Outcome& outcome) {
  const Json json = Json::parse(outcome.out, nullptr, /*exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << outcome;
  return json;
}

// A run whose line is 100, 200, 300; step 150 was superseded by a rewind, and
// the save of step 400 did not finish.
class CkptctlTest : public testing::Test {
 protected:
  CkptctlTest() {
    std::filesystem::create_directories(run());
    ckpt::PosixOptions options;
    options.root = run();
    auto storage = ckpt::OpenPosixStorage(options);
    Check(storage.status());
    Check(MakeRun(**storage));
    Check(Claim(**storage, 1));
    ckpt::OwnerSeal seal;
    seal.incarnation = 1;
    Check(Seal(**storage, seal));
    const ckpt::Manifest first = Write(**storage, k100, 1, *layout_);
    const ckpt::Manifest rewound = Write(**storage, kRewound, 2, *layout_);
    Check(Claim(**storage, 2));
    seal.incarnation = 2;
    seal.head = k100;
    seal.line = {{k100, 1, CrcOf(first)}};
    seal.superseded = {{{kRewound, 2, CrcOf(rewound)}, "rewind"}};
    Check(Seal(**storage, seal));
    Write(**storage, k200, 1, *layout_);
    Write(**storage, k300, 2, *layout_);
    CheckpointSpec attempt = Spec(kAttempt, 3);
    Check(WriteShards(**storage, *layout_, attempt, AttemptDir(kAttempt))
              .status());
  }

  static uint32_t CrcOf(const ckpt::Manifest& manifest) {
    return ckpt::Crc32c(ckpt::EncodeManifest(manifest));
  }
  static CheckpointSpec Spec(const CheckpointId& id, uint64_t commit) {
    CheckpointSpec spec;
    spec.run_id = kTestRun;
    spec.id = id;
    spec.commit_number = commit;
    spec.attributes = {{"step", absl::StrFormat("%d", id.step)},
                       {".saved_by", absl::StrFormat("%d", commit)}};
    spec.seed = 7;
    return spec;
  }
  static ckpt::Manifest Write(ckpt::Storage& storage, const CheckpointId& id,
                              uint64_t commit, const ckpt::JobLayout& layout) {
    auto manifest =
        WriteShards(storage, layout, Spec(id, commit), AttemptDir(id));
    Check(manifest.status());
    Check(WriteManifest(storage, AttemptDir(id), *manifest));
    return *std::move(manifest);
  }

  // A newer one of the same state, coded.
  void WriteCoded() const {
    ckpt::PosixOptions options;
    options.root = run();
    auto storage = ckpt::OpenPosixStorage(options);
    Check(storage.status());
    CheckpointSpec spec = Spec(kCoded, 3);
    spec.zstd_level = 0;
    Check(WriteCheckpoint(**storage, *layout_, spec, AttemptDir(kCoded)));
  }

  std::string run() const { return folder_ / "run"; }
  std::string DirOf(const CheckpointId& id) const {
    return run() + "/" + AttemptDir(id);
  }
  void Flip(const std::string& path, size_t byte) const {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(byte);
    const int before = file.get();
    file.seekp(byte);
    file.put(static_cast<char>(before ^ 1));
    HF_CHECK(file.good(), "cannot damage %s", path);
  }

  TestFolder folder_;
  std::unique_ptr<ckpt::TrainLayout> layout_ = SmallLayout(2, 1, 2);
};

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_CLI_CKPTCTL_FIXTURE_H_
