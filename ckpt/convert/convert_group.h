// ckpt/convert/convert_group.h: what the ranks of a conversion say to each
// other.
//
//   rank 0 (leads)                           the others
//   looks at OUT, begins it, verifies what
//   an earlier try has finished
//   Write {record, rounds}             ->    write, sync and record their share
//                                      <-    Answer {status}
//   finishes the files, commits
//   End {status}                       ->    leave with it
//                                      <-    Answer, when it was the first word
//
// Round i of a list is rank i mod size's. What a round has become is said by
// its record, which rank 0 reads. All say every second how far they are; who is
// silent for two minutes is named and ends the conversion, which then goes on
// when it is started again.
//
// Thread: the one that waits for the workers.

#ifndef HOLDFAST_CKPT_CONVERT_CONVERT_GROUP_H_
#define HOLDFAST_CKPT_CONVERT_CONVERT_GROUP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/group/group.h"

namespace holdfast::ckpt {

class ConvertGroup {
 public:
  // `group` may be null: alone.
  ConvertGroup(Group* group, Clock& clock);

  int size() const { return group_ == nullptr ? 1 : group_->size(); }
  int rank() const { return group_ == nullptr ? 0 : Index(group_->rank()); }
  bool leads() const { return rank() == 0; }
  // Of a list, those that are this rank's.
  std::vector<uint32_t> Share(const std::vector<uint32_t>& rounds) const;

  enum class Order : uint8_t { kWrite = 1, kEnd = 2 };
  struct Told {
    Order order{};
    absl::Status status;            // kEnd
    std::vector<std::byte> record;  // kWrite
    std::vector<uint32_t> rounds;
  };

  // --- Rank 0
  void Tell(const Told& told);
  // Waits until all others have answered or one has failed; `tick` meanwhile.
  // FirstError; kCancelled when `stop` becomes true.
  absl::Status Gather(const std::function<void()>& tick,
                      const std::atomic<bool>& stop);

  // Of the answers so far, with rank and host in front.
  absl::Status FirstError() const;

  // kEnd with `why`, and waits a little for the answers; true: all are here.
  bool Refuse(const absl::Status& why);

  // --- The others
  // Does rank 0 refuse? False: it is at work, or was not heard of in time.
  bool AwaitRefusal();
  absl::StatusOr<Told> Await(const std::function<void()>& tick);
  void Answer(const absl::Status& status);

  // --- All, some times a second. Says how far this rank is.
  void Tick(uint64_t bytes_done);
  // Somebody has failed, or rank 0 has ended it: stop working.
  bool must_stop() const { return must_stop_; }
  uint64_t bytes_of_others() const;

 private:
  void Poll();
  absl::Status Silent() const;

  Group* const group_;
  Clock& clock_;
  bool must_stop_ = false;
  absl::Duration told_at_;
  std::vector<absl::Duration> heard_at_;  // by rank
  std::vector<uint64_t> bytes_;           // by rank
  std::map<int, absl::Status> answers_;   // by rank
  std::optional<Told> told_;
  bool leader_works_ = false;  // rank 0 has said how far it is
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_CONVERT_CONVERT_GROUP_H_
