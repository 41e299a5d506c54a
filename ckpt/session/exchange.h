// ckpt/session/exchange.h: what one rank reads for others, and gets from them,
// during one try of a load.
//
//   reader                                   receiver
//     units read and checked
//     piece 1, 2, ...: its part     ->         checks, puts into place
//                                   <-         taken: so many
//     end: there were so many       ->
//     alive (when long silent and   ->         waits on
//       still reading)
//
// Which bytes travel is a plan that both sides have (plan/share_plan.h), so a
// piece says only which range of a file it is of. Every range comes once: what
// comes twice, in another size or with another checksum ends the try, as does a
// piece that is missing between two others.
//
// Memory, however many receivers there are: what waits to be sent is held once
// for all of them, in at most `bytes_max` (then the reader's gate closes) and
// one read more; as much again may be sent and not yet taken. So a rank that
// does not take for a while has at most a small piece there from each rank that
// reads for it. A receiver always takes: nobody waits for a rank that waits.
//
// Waits: a rank that says nothing for `silence` ends the try with kUnavailable,
// which names it and how far it had come. A try that has failed elsewhere ends
// by Fail.
//
// Thread: the one that polls. Cost: one copy of a piece into its message, one
// from there into place, one checksum on each side; one copy more of a read
// that cannot be sent at once.

#ifndef HOLDFAST_CKPT_SESSION_EXCHANGE_H_
#define HOLDFAST_CKPT_SESSION_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "ckpt/base/clock.h"
#include "ckpt/group/group.h"
#include "ckpt/plan/share_plan.h"

namespace holdfast::ckpt {

struct ExchangeOptions {
  ShareOptions plan;
  // Of one message, about; less where receivers are many.
  uint64_t piece_bytes = uint64_t{1} << 20;
  uint64_t bytes_max = uint64_t{16} << 20;
  absl::Duration silence = absl::Minutes(2);
};

class Exchange {
 public:
  // `tag` has the incarnation and, as its attempt, the try's number; pointers
  // outlive the exchange.
  Exchange(Group* group, Clock* clock, const MessageTag& tag,
           const ExchangeOptions& options);

  // --- The loader's side ---------------------------------------------------
  // Before it what arrives is kept, unanswered, which its senders' bounds
  // limit. All outlive the
  // exchange. What comes goes through `put`, or, when that is null, straight
  // into the regions.
  void Begin(const SharePlan* plan, const SharedReads* reads,
             std::span<const std::span<std::byte>> regions,
             PutBytes put = nullptr);
  // False: do not Take now.
  bool has_room() const { return bytes_queued_ < options_.bytes_max; }
  // Whole units, just read and checked: queues what others want of them.
  void Take(uint32_t file, uint64_t offset, std::span<const std::byte> bytes);
  // This rank has read all that it reads.
  void EndReads();
  // Everything was handed to the group.
  bool all_sent() const;
  // Everyone has said that nothing more will come.
  bool all_ended() const { return senders_left_ == 0; }
  // Not OK: the try is over for this rank.
  const absl::Status& status() const { return status_; }

  // --- The session's side ----------------------------------------------------
  const MessageTag& tag() const { return tag_; }
  // kPhasePiece or kPhasePieceTaken, with this tag.
  void OnMessage(const Message& message);
  // Sends what may be sent, looks at the clock.
  void Poll();
  // The try is over: nothing more is sent or taken. The first word stays.
  void Fail(absl::Status status);
  // It is this exchange that failed, not what was exchanged: reading alone may
  // succeed.
  bool at_fault() const { return at_fault_; }

  uint64_t bytes_sent() const { return bytes_sent_; }
  uint64_t bytes_received() const { return bytes_received_; }
  // The most that ever waited here or was under way, for tests.
  uint64_t bytes_held_most() const { return bytes_held_most_; }

 private:
  // Bytes of a file from `offset` on.
  struct Read {
    uint32_t file = 0;
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };
  // [begin, end) of the file, to be cut for one receiver.
  struct Piece {
    std::shared_ptr<const Read> read;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  struct Receiver {
    Rank rank{};
    std::deque<Piece> queue;         // not yet sent
    std::deque<uint64_t> under_way;  // sizes, sent and not taken
    uint64_t bytes_under_way = 0;
    uint64_t pieces = 0;  // sent
    uint64_t taken = 0;   // by the receiver
    bool ended = false;
    absl::Duration since;   // of the last word from it, while pieces are out
    absl::Duration spoken;  // to it
  };
  struct Sender {
    bool ended = false;
    uint64_t pieces = 0;  // taken
    uint64_t bytes = 0;
    absl::Duration since;  // of its last word
  };

  void OnPiece(const Message& message);
  void OnTaken(const Message& message);
  // May `receiver` be sent `size` bytes of a file now?
  bool MaySend(const Receiver& to, uint64_t size) const;
  // Cuts `bytes`, those of `file` from `offset` on, for a receiver.
  void SendPiece(size_t receiver, uint32_t file, uint64_t offset,
                 std::span<const std::byte> bytes);
  void Send(Receiver& to, std::span<const std::byte> body);
  void SendQueued();
  void LookAtTheClock();
  // Notes that [begin, end) of `file` has come; false if any of it had already.
  bool NoteRange(uint32_t file, uint64_t begin, uint64_t end);
  // This exchange does not work.
  void GiveUp(std::string why);
  std::string NameOf(Rank rank) const;

  Group* const group_;
  Clock* const clock_;
  const MessageTag tag_;
  const ExchangeOptions options_;
  const SharePlan* plan_ = nullptr;
  const SharedReads* reads_ = nullptr;
  std::vector<std::span<std::byte>> regions_;
  PutBytes put_;

  std::vector<Message> early_;
  std::vector<Receiver> receivers_;
  size_t first_ = 0;          // of them to be sent to
  uint64_t piece_bytes_ = 0;  // of one message, about
  std::map<Rank, Sender> senders_;
  size_t senders_left_ = 0;
  // Ranges that were read here or came, by (file, begin), neighbours joined.
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> ranges_;

  bool reads_ended_ = false;
  bool moved_ = false;  // since the last "alive"
  uint64_t bytes_queued_ = 0;
  uint64_t bytes_under_way_ = 0;
  uint64_t bytes_sent_ = 0;
  uint64_t bytes_received_ = 0;
  uint64_t bytes_held_most_ = 0;
  absl::Status status_;
  bool at_fault_ = false;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_SESSION_EXCHANGE_H_
