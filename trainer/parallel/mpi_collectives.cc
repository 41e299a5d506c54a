// trainer/parallel/mpi_collectives.cc: requests, polite waiting, communicators.

#include "trainer/parallel/mpi_collectives.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "trainer/parallel/message_collectives.h"

// The C++ bindings of Open MPI 4 are deprecated and pull in another library.
#define OMPI_SKIP_MPICXX 1
#include "mpi.h"

namespace holdfast::trainer {
namespace {

// MPI counts are int; longer messages go in pieces.
constexpr size_t kPieceBytes = size_t{1} << 30;

// How a wait that is not over gives the core away. Ranks that compute should
// not be disturbed by ranks that wait, and a rank that shares its core with its
// partner must let it run at once.
constexpr int kYields = 200;
// A large message moves only while somebody tests it: sleeping between its
// pieces would be most of the time.
constexpr size_t kLargeBytes = size_t{64} << 10;
constexpr int kYieldsLarge = 50'000;
constexpr useconds_t kSleepFirstUs = 20;
constexpr useconds_t kSleepMaxUs = 200;
// An abandoned receive that is being filled: about a second.
constexpr int kAbandonTries = 5'000;

absl::Status FromMpi(int code, const std::string& doing) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  int error_class = MPI_ERR_UNKNOWN;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &error_class);
  const std::string message =
      absl::StrFormat("%s: %s", doing, std::string(text, length));
  if (error_class == MPI_ERR_TRUNCATE) {
    return absl::InternalError(message + " (the two sides' sizes differ)");
  }
  return absl::UnavailableError(message);
}

class MpiCollectives final : public MessageCollectives {
 public:
  // Takes `communicator`. `world_ranks[r]` is what rank r here is in the world.
  MpiCollectives(MPI_Comm communicator, int rank, int tag_max,
                 std::vector<int> world_ranks, std::string name,
                 Heartbeat* heartbeat)
      : MessageCollectives(rank, static_cast<int>(world_ranks.size()),
                           std::move(name), heartbeat),
        communicator_(communicator),
        tag_max_(tag_max),
        world_ranks_(std::move(world_ranks)) {}

  ~MpiCollectives() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0 || abandoned_) return;
    // Requests left over after an error keep their communicator for ever.
    if (free_.size() == slots_.size()) MPI_Comm_free(&communicator_);
  }

  absl::StatusOr<std::unique_ptr<Collectives>> Split(
      int color, int key, const std::string& split_name) override {
    HF_CHECK(color >= 0, "split of %s by color %d", name(), color);
    // The wait for the others happens here, politely and under the watchdog;
    // inside MPI there is little left to wait for.
    HF_RETURN_IF_ERROR(Barrier());
    const Heartbeat::Scope scope(heartbeat(), "split " + name());
    MPI_Comm made = MPI_COMM_NULL;
    HF_RETURN_IF_ERROR(
        FromMpi(MPI_Comm_split(communicator_, color, key, &made),
                absl::StrFormat("splitting %s into %s", name(), split_name)));
    return Adopt(made, tag_max_, world_ranks_[rank()], split_name, heartbeat());
  }

  // Wraps a new communicator; collective over it.
  static absl::StatusOr<std::unique_ptr<Collectives>> Adopt(
      MPI_Comm made, int tag_max, int world_rank, const std::string& name,
      Heartbeat* heartbeat) {
    MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(made, &rank);
    MPI_Comm_size(made, &size);
    std::vector<int> world_ranks(size);
    HF_RETURN_IF_ERROR(
        FromMpi(MPI_Allgather(&world_rank, 1, MPI_INT, world_ranks.data(), 1,
                              MPI_INT, made),
                absl::StrFormat("asking who is in %s", name)));
    return std::make_unique<MpiCollectives>(
        made, rank, tag_max, std::move(world_ranks), name, heartbeat);
  }

  void Abandon(RequestId id) override {
    const size_t index = static_cast<size_t>(id);
    HF_CHECK(index < slots_.size() && slots_[index].in_use,
             "request %d is not under way in %s", index, name());
    abandoned_ = true;
    Slot& slot = slots_[index];
    for (MPI_Request& piece : slot.pieces) AbandonPiece(slot, &piece);
    slot.in_use = false;
    free_.push_back(index);
  }

 protected:
  absl::StatusOr<RequestId> StartSend(std::span<const std::byte> data, int to,
                                      Channel channel, int tag) override {
    const size_t index = TakeSlot(/*is_send=*/true, to, tag, data.size());
    Slot& slot = slots_[index];
    for (size_t first = 0; first == 0 || first < data.size();
         first += kPieceBytes) {
      const size_t length = std::min(kPieceBytes, data.size() - first);
      const int code =
          MPI_Isend(data.data() + first, static_cast<int>(length), MPI_BYTE, to,
                    WireTag(channel, tag), communicator_,
                    &slot.pieces.emplace_back(MPI_REQUEST_NULL));
      if (code != MPI_SUCCESS) return FromMpi(code, Describe(slot));
    }
    return static_cast<RequestId>(index);
  }

  absl::StatusOr<RequestId> StartReceive(std::span<std::byte> data, int from,
                                         Channel channel, int tag) override {
    const size_t index = TakeSlot(/*is_send=*/false, from, tag, data.size());
    Slot& slot = slots_[index];
    for (size_t first = 0; first == 0 || first < data.size();
         first += kPieceBytes) {
      const size_t length = std::min(kPieceBytes, data.size() - first);
      const int code =
          MPI_Irecv(data.data() + first, static_cast<int>(length), MPI_BYTE,
                    from, WireTag(channel, tag), communicator_,
                    &slot.pieces.emplace_back(MPI_REQUEST_NULL));
      if (code != MPI_SUCCESS) return FromMpi(code, Describe(slot));
    }
    return static_cast<RequestId>(index);
  }

  absl::Status Finish(RequestId id) override {
    const size_t index = static_cast<size_t>(id);
    HF_CHECK(index < slots_.size() && slots_[index].in_use,
             "request %d is not under way in %s", index, name());
    Slot& slot = slots_[index];
    absl::Status status;
    size_t received = 0;
    for (MPI_Request& piece : slot.pieces) {
      status.Update(FinishPiece(slot, &piece, &received));
    }
    if (status.ok() && !slot.is_send && received != slot.bytes) {
      status = absl::InternalError(
          absl::StrFormat("%s: %d bytes came", Describe(slot), received));
    }
    slot.in_use = false;
    free_.push_back(index);
    return status;
  }

 private:
  struct Slot {
    std::vector<MPI_Request> pieces;
    size_t bytes = 0;
    int peer = 0;
    int tag = 0;
    bool is_send = false;
    bool in_use = false;
  };

  int WireTag(Channel channel, int tag) const {
    HF_CHECK(tag <= tag_max_ / 2, "tag %d is above %d", tag, tag_max_ / 2);
    return 2 * tag + static_cast<int>(channel);
  }

  std::string Describe(const Slot& slot) const {
    return absl::StrFormat(
        "%s: rank %d %s rank %d (of the world), tag %d, %d "
        "bytes",
        operation(), world_ranks_[rank()],
        slot.is_send ? "sends to" : "receives from", world_ranks_[slot.peer],
        slot.tag, slot.bytes);
  }

  size_t TakeSlot(bool is_send, int peer, int tag, size_t bytes) {
    if (free_.empty()) {
      free_.push_back(slots_.size());
      slots_.emplace_back();
    }
    const size_t index = free_.back();
    free_.pop_back();
    Slot& slot = slots_[index];
    slot.pieces.clear();
    slot.bytes = bytes;
    slot.peer = peer;
    slot.tag = tag;
    slot.is_send = is_send;
    slot.in_use = true;
    return index;
  }

  absl::Status FinishPiece(const Slot& slot, MPI_Request* piece,
                           size_t* received) {
    const int yields = slot.bytes >= kLargeBytes ? kYieldsLarge : kYields;
    useconds_t sleep_us = kSleepFirstUs;
    for (int tries = 0;; ++tries) {
      int done = 0;
      MPI_Status status;
      const int code = MPI_Test(piece, &done, &status);
      if (code != MPI_SUCCESS || done != 0) {
        if (tries > 0 && heartbeat() != nullptr) {
          heartbeat()->SetWaitingFor(Heartbeat::kNobody);
        }
        if (code != MPI_SUCCESS) return FromMpi(code, Describe(slot));
        if (!slot.is_send) {
          int count = 0;
          MPI_Get_count(&status, MPI_BYTE, &count);
          *received += static_cast<size_t>(count);
        }
        return absl::OkStatus();
      }
      if (tries == 0 && heartbeat() != nullptr) {
        heartbeat()->SetWaitingFor(world_ranks_[slot.peer]);
      }
      if (tries < yields) {
        sched_yield();
      } else {
        usleep(sleep_us);
        sleep_us = std::min(2 * sleep_us, kSleepMaxUs);
      }
    }
  }

  // A receive that nobody has sent to is over at once; one that is being filled
  // gets a moment. A send cannot be taken back: its memory is read by the calls
  // that move it on, of which there are none after this.
  static void AbandonPiece(const Slot& slot, MPI_Request* piece) {
    if (!slot.is_send) MPI_Cancel(piece);
    for (int tries = 0; tries < kAbandonTries; ++tries) {
      int done = 0;
      if (MPI_Test(piece, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
      if (done != 0 || slot.is_send) return;
      usleep(kSleepMaxUs);
    }
  }

  // A request of this process was abandoned: no communicator is freed, and so
  // nothing moved on, after that.
  static inline bool abandoned_ = false;

  MPI_Comm communicator_;
  const int tag_max_;
  const std::vector<int> world_ranks_;
  std::vector<Slot> slots_;
  std::vector<size_t> free_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Collectives>> OpenMpiWorld(
    Heartbeat* heartbeat) {
  MPI_Comm made = MPI_COMM_NULL;
  HF_RETURN_IF_ERROR(FromMpi(MPI_Comm_dup(MPI_COMM_WORLD, &made),
                             "duplicating MPI_COMM_WORLD"));
  // The standard promises at least 32767.
  int tag_max = 32767;
  int* attribute = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &attribute, &found);
  if (found != 0) tag_max = *attribute;
  int rank = 0;
  MPI_Comm_rank(made, &rank);
  return MpiCollectives::Adopt(made, tag_max, rank, "world", heartbeat);
}

}  // namespace holdfast::trainer
