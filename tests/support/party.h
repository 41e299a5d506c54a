// tests/support/party.h: one rank of a small job over a real Checkpointer: its
// memory, a step thread's life, and whether what it holds is what was saved.
//
//   OnRanks(4, options, [&](Party& party) {      ranks are threads
//     party.checkpointer().ClaimAndLoad({});
//     party.Fill(1);
//     party.checkpointer().BeginSave({1, {}});
//     party.StepTo(2);                           beside the save
//     Finish(party.checkpointer());
//     party.Compare(2)  ->  "" or the first element that is wrong
//   });
//
// Thread: a Party is its step thread's.

#ifndef HOLDFAST_TESTS_SUPPORT_PARTY_H_
#define HOLDFAST_TESTS_SUPPORT_PARTY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/checkpointer.h"
#include "ckpt/group/group.h"
#include "tests/support/sim_layout.h"

namespace holdfast::tests {

class Party {
 public:
  Party(std::shared_ptr<const SimLayout> layout,
        std::unique_ptr<ckpt::Group> group,
        const ckpt::CheckpointerOptions& options);

  // Of Open.
  const absl::Status& status() const { return status_; }
  ckpt::Rank rank() const { return rank_; }
  ckpt::Checkpointer& checkpointer() { return *checkpointer_; }

  void Fill(int64_t step);
  // The optimizer's walk to `step`, beside a save.
  void StepTo(int64_t step);
  std::string Compare(int64_t step) const;

 private:
  std::shared_ptr<const SimLayout> layout_;
  ckpt::Rank rank_;
  absl::Status status_;
  ckpt::Holding stored_;
  std::vector<ckpt::AlignedBuffer> memory_;
  std::vector<std::span<std::byte>> regions_;
  std::unique_ptr<ckpt::Checkpointer> checkpointer_;
};

// Runs `body` on one thread a rank.
void OnRanks(int ranks, const ckpt::CheckpointerOptions& options,
             const std::function<void(Party&)>& body);

// The report of the save in flight; a failure of the test after a minute.
ckpt::SaveReport Finish(ckpt::Checkpointer& checkpointer);

}  // namespace holdfast::tests

#endif  // HOLDFAST_TESTS_SUPPORT_PARTY_H_
