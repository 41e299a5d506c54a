// tests/support/bare_checkpoint.h: one small checkpoint in a directory of its
// own, for tests of what converts it, and a look at what a source of state
// gives.

#ifndef HOLDFAST_TESTS_SUPPORT_BARE_CHECKPOINT_H_
#define HOLDFAST_TESTS_SUPPORT_BARE_CHECKPOINT_H_

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ckpt/convert/state_source.h"
#include "ckpt/storage/open_storage.h"
#include "gtest/gtest.h"
#include "tests/support/saved_run.h"

namespace holdfast::tests {

inline constexpr uint64_t kBareSeed = 7;

// Step 300 of kTestRun, with the values of kBareSeed, as FOLDER/NAME; its path.
inline std::string SaveBare(
    const std::string& folder, const std::string& name,
    const ckpt::JobLayout& layout,
    std::map<std::string, std::string> attributes = {{"step", "300"}},
    int zstd_level = -1) {
  const auto storage = ckpt::OpenStorage({.location = folder});
  EXPECT_TRUE(storage.ok()) << storage.status();
  if (!storage.ok()) return "";
  CheckpointSpec spec;
  spec.run_id = kTestRun;
  spec.id = {300, 2, 1};
  spec.seed = kBareSeed;
  spec.zstd_level = zstd_level;
  spec.attributes = std::move(attributes);
  const absl::Status status = WriteCheckpoint(**storage, layout, spec, name);
  EXPECT_TRUE(status.ok()) << status;
  return folder + "/" + name;
}

// Asks for all that the ranks of `layout` want, a fragment a run, `at_once` of
// them in a call; expects the values of kBareSeed. The first error of a call.
inline absl::Status FillAll(
    ckpt::StateSource& source, const ckpt::JobLayout& layout,
    size_t at_once = std::numeric_limits<size_t>::max()) {
  for (int rank = 0; rank < layout.world(); ++rank) {
    const ckpt::Holding wanted = layout.WantedBy(ckpt::Rank{rank});
    JobMemory memory(wanted);
    const auto regions = memory.spans();
    std::vector<ckpt::WantedRun> wants;
    for (const ckpt::Fragment& f : wanted.fragments) {
      const uint64_t bytes = ckpt::BytesOf(layout.items()[f.item], f.count);
      wants.push_back({f.item, f.part, f.first, f.count,
                       regions[f.region].subspan(f.offset, bytes)});
    }
    for (std::span<const ckpt::WantedRun> left = wants; !left.empty();) {
      const size_t count = std::min(at_once, left.size());
      const absl::Status status = source.Fill(left.first(count));
      if (!status.ok()) return status;
      left = left.subspan(count);
    }
    EXPECT_EQ(memory.Differs(layout, wanted, kBareSeed), "") << "rank " << rank;
  }
  return absl::OkStatus();
}

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_BARE_CHECKPOINT_H_
