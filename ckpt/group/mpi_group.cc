// ckpt/group/mpi_group.cc: one MPI message per Message, a header before its
// body.

#include "ckpt/group/mpi_group.h"

#include <unistd.h>

#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"

// The C++ bindings of Open MPI 4 are deprecated and pull in another library.
#define OMPI_SKIP_MPICXX 1
#include "mpi.h"

namespace holdfast::ckpt {
namespace {

constexpr int kWireTag = 1;
// The destructor gives sends this long to leave: rank 0's last word may still
// be under way when it is done. In steps of one millisecond.
constexpr int kFarewellMs = 1000;

absl::Status FromMpi(int code, const char* doing) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return absl::UnavailableError(
      absl::StrFormat("checkpoint group: %s: %s", doing, text));
}

class MpiGroup final : public Group {
 public:
  MpiGroup(MPI_Comm communicator, int rank, std::vector<std::string> hosts)
      : communicator_(communicator), rank_(rank), hosts_(std::move(hosts)) {}

  ~MpiGroup() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0) return;
    for (int ms = 0; ms < kFarewellMs && !sends_.empty(); ++ms) {
      AdvanceSends();
      if (!sends_.empty()) usleep(1000);
    }
    if (sends_.empty() && receives_.empty()) {
      MPI_Comm_free(&communicator_);
      return;
    }
    // MPI may still read and write this memory.
    HF_LOG_WARNING("checkpoint group: %d sends and %d receives never ended",
                   sends_.size(), receives_.size());
    new std::deque<Transfer>(std::move(sends_));
    new std::deque<Transfer>(std::move(receives_));
  }

  Rank rank() const override { return Rank{rank_}; }
  int size() const override { return static_cast<int>(hosts_.size()); }
  std::string HostOf(Rank rank) const override {
    HF_CHECK(Index(rank) >= 0 && Index(rank) < size(), "host of rank %d of %d",
             Index(rank), size());
    return hosts_[Index(rank)];
  }

  void Send(Rank to, const MessageTag& tag,
            std::span<const std::byte> body) override {
    HF_CHECK(Index(to) >= 0 && Index(to) < size(), "send to rank %d of %d",
             Index(to), size());
    HF_CHECK(body.size() <= kMessageBytesMax, "a message of %d bytes",
             body.size());
    Transfer& transfer = sends_.emplace_back();
    transfer.bytes.resize(sizeof(tag) + body.size());
    std::memcpy(transfer.bytes.data(), &tag, sizeof(tag));
    if (!body.empty()) {
      std::memcpy(transfer.bytes.data() + sizeof(tag), body.data(),
                  body.size());
    }
    const int code = MPI_Isend(
        transfer.bytes.data(), static_cast<int>(transfer.bytes.size()),
        MPI_BYTE, Index(to), kWireTag, communicator_, &transfer.request);
    if (code != MPI_SUCCESS) {
      // To the caller the same as a dead peer: the deadline finds out.
      HF_LOG_WARNING("%s", FromMpi(code, "sending").ToString());
      sends_.pop_back();
    }
  }

  bool moving() const override { return !sends_.empty() || !receives_.empty(); }

  std::optional<Message> Poll() override {
    AdvanceSends();
    StartReceives();
    // In the order of their beginning, which keeps the order of each pair: a
    // finished message waits behind an unfinished one from the same rank.
    for (size_t i = 0; i < receives_.size(); ++i) {
      bool waits = false;
      for (size_t j = 0; j < i && !waits; ++j) {
        waits = receives_[j].peer == receives_[i].peer;
      }
      if (waits) continue;
      int done = 0;
      const int code =
          MPI_Test(&receives_[i].request, &done, MPI_STATUS_IGNORE);
      if (code == MPI_SUCCESS && done == 0) continue;
      Transfer transfer = std::move(receives_[i]);
      receives_.erase(receives_.begin() + static_cast<std::ptrdiff_t>(i));
      if (code != MPI_SUCCESS) {
        HF_LOG_WARNING("%s", FromMpi(code, "receiving").ToString());
        return std::nullopt;
      }
      Message message;
      message.from = Rank{transfer.peer};
      if (transfer.bytes.size() < sizeof(message.tag)) {
        HF_LOG_WARNING("checkpoint group: %d bytes from rank %d are no message",
                       transfer.bytes.size(), transfer.peer);
        return std::nullopt;
      }
      std::memcpy(&message.tag, transfer.bytes.data(), sizeof(message.tag));
      transfer.bytes.erase(transfer.bytes.begin(),
                           transfer.bytes.begin() + sizeof(message.tag));
      message.body = std::move(transfer.bytes);
      return message;
    }
    return std::nullopt;
  }

 private:
  // The memory of `bytes` stays where it is when a Transfer moves.
  struct Transfer {
    std::vector<std::byte> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
    int peer = 0;
  };

  void AdvanceSends() {
    for (size_t i = 0; i < sends_.size();) {
      int done = 0;
      const int code = MPI_Test(&sends_[i].request, &done, MPI_STATUS_IGNORE);
      if (code != MPI_SUCCESS) {
        HF_LOG_WARNING("%s", FromMpi(code, "sending").ToString());
      }
      if (code != MPI_SUCCESS || done != 0) {
        sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
  }

  // Takes up what has been announced, one message a call, so that a flood
  // cannot hold the caller.
  void StartReceives() {
    int there = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int code = MPI_Improbe(MPI_ANY_SOURCE, kWireTag, communicator_,
                                 &there, &handle, &status);
    if (code != MPI_SUCCESS || there == 0) return;
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    Transfer& transfer = receives_.emplace_back();
    transfer.peer = status.MPI_SOURCE;
    transfer.bytes.resize(static_cast<size_t>(count));
    MPI_Imrecv(transfer.bytes.data(), count, MPI_BYTE, &handle,
               &transfer.request);
  }

  MPI_Comm communicator_;
  const int rank_;
  const std::vector<std::string> hosts_;
  std::deque<Transfer> sends_;
  std::deque<Transfer> receives_;
};

absl::StatusOr<std::unique_ptr<Group>> OpenOn(MPI_Comm communicator) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level != MPI_THREAD_MULTIPLE) {
    return absl::FailedPreconditionError(
        absl::StrFormat("checkpoint group: MPI gives thread level %d, %d "
                        "(MPI_THREAD_MULTIPLE) is needed",
                        level, MPI_THREAD_MULTIPLE));
  }
  MPI_Comm made = MPI_COMM_NULL;
  if (absl::Status status = FromMpi(MPI_Comm_dup(communicator, &made),
                                    "duplicating the communicator");
      !status.ok()) {
    return status;
  }
  MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(made, &rank);
  MPI_Comm_size(made, &size);

  char mine[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_Get_processor_name(mine, &length);
  std::vector<char> all(size_t{MPI_MAX_PROCESSOR_NAME} *
                        static_cast<size_t>(size));
  if (absl::Status status =
          FromMpi(MPI_Allgather(mine, sizeof(mine), MPI_CHAR, all.data(),
                                sizeof(mine), MPI_CHAR, made),
                  "exchanging host names");
      !status.ok()) {
    return status;
  }
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) {
    const char* name = all.data() + size_t{MPI_MAX_PROCESSOR_NAME} * r;
    hosts.emplace_back(name, strnlen(name, MPI_MAX_PROCESSOR_NAME));
    if (hosts.back().empty()) hosts.back() = "unknown-host";
  }
  return std::make_unique<MpiGroup>(made, rank, std::move(hosts));
}

absl::Status CheckStarted() {
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (started != 0 && ended == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("checkpoint group: MPI %s; call MPI_Init_thread with "
                      "MPI_THREAD_MULTIPLE first",
                      started == 0 ? "has not been started" : "is finalized"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Group>> OpenMpiGroup() {
  HF_RETURN_IF_ERROR(CheckStarted());
  return OpenOn(MPI_COMM_WORLD);
}

absl::StatusOr<std::unique_ptr<Group>> OpenMpiGroup(int fortran_communicator) {
  HF_RETURN_IF_ERROR(CheckStarted());
  const MPI_Comm communicator =
      MPI_Comm_f2c(static_cast<MPI_Fint>(fortran_communicator));
  if (communicator == MPI_COMM_NULL) {
    return absl::InvalidArgumentError(
        absl::StrFormat("checkpoint group: %d is no communicator; give what "
                        "MPI_Comm_c2f gives",
                        fortran_communicator));
  }
  return OpenOn(communicator);
}

}  // namespace holdfast::ckpt
