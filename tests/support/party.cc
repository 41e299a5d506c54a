// tests/support/party.cc: see party.h.

#include "tests/support/party.h"

#include <optional>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/group/inproc_group.h"
#include "gtest/gtest.h"

namespace holdfast::tests {

using ckpt::Checkpointer;
using ckpt::CheckpointerOptions;
using ckpt::Fragment;
using ckpt::Group;
using ckpt::SaveReport;

Party::Party(std::shared_ptr<const SimLayout> layout,
             std::unique_ptr<Group> group, const CheckpointerOptions& options)
    : layout_(layout), rank_(group->rank()) {
  stored_ = layout->StoredBy(rank_);
  for (const uint64_t bytes : stored_.region_bytes) {
    memory_.emplace_back(bytes);
    regions_.push_back(memory_.back().span());
  }
  auto opened = Checkpointer::Open(options, std::move(group), layout, regions_,
                                   ckpt::RealClock());
  status_ = opened.status();
  if (opened.ok()) checkpointer_ = *std::move(opened);
}

void Party::Fill(int64_t step) {
  for (const Fragment& f : stored_.fragments) {
    FillFragment(*layout_, f, step, regions_);
  }
}

void Party::StepTo(int64_t step) {
  for (const Fragment& f : stored_.fragments) {
    checkpointer_->FenceWrite(
        f.region, f.offset,
        f.count * ckpt::SizeOf(layout_->items()[f.item].dtype));
    FillFragment(*layout_, f, step, regions_);
  }
}

std::string Party::Compare(int64_t step) const {
  for (const Fragment& f : stored_.fragments) {
    std::string difference = CompareFragment(*layout_, f, step, regions_);
    if (!difference.empty()) return difference;
  }
  return "";
}

void OnRanks(int ranks, const CheckpointerOptions& options,
             const std::function<void(Party&)>& body) {
  auto layout = std::make_shared<SimLayout>(ranks);
  std::vector<std::unique_ptr<Group>> groups = ckpt::MakeInprocGroups(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Party party(layout, std::move(groups[rank]), options);
      ASSERT_TRUE(party.status().ok()) << party.status();
      body(party);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

SaveReport Finish(Checkpointer& checkpointer) {
  std::optional<SaveReport> report =
      checkpointer.WaitForSave(absl::Seconds(60));
  EXPECT_TRUE(report.has_value());
  return report.value_or(SaveReport{});
}

}  // namespace holdfast::tests
