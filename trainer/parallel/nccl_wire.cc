// trainer/parallel/nccl_wire.cc: communicators that are asked, never waited in.
// Part of the GPU plug-in.

#include "trainer/parallel/nccl_wire.h"

#include <nccl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/start_thread.h"
#include "ckpt/base/status_macros.h"
#include "kernels/check.h"
#include "kernels/cuda_device.h"
#include "kernels/plugin_build.h"

namespace holdfast::trainer {
namespace {

using kernels::CudaDevice;
using kernels::CudaPriority;
using kernels::CudaStream;
using kernels::Event;
using kernels::Stream;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// How a wait gives the processor away: it yields while an answer may be near,
// then sleeps.
constexpr auto kYieldFor = std::chrono::microseconds(200);
constexpr useconds_t kSleepUs = 50;
// A wait is named, and communicators are asked for errors, this often.
constexpr auto kAskEvery = milliseconds(10);
// What NCCL gets to abort or to finish before it is left behind.
constexpr auto kAbortTimeout = milliseconds(10'000);
// Streaming multiprocessors that the messages of one lane may take: they run
// beside the model's kernels.
constexpr int kLaneCtas = 4;
// Operations remembered for naming a wait.
constexpr size_t kRememberedMax = 64;

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));

class Pause {
 public:
  void Once() {
    if (Clock::now() - start_ < kYieldFor) {
      sched_yield();
    } else {
      usleep(kSleepUs);
    }
  }
  Clock::duration waited() const { return Clock::now() - start_; }

 private:
  const Clock::time_point start_ = Clock::now();
};

// One communicator and its stream.
struct Channel {
  std::string name;  // "dp", "pp, tag 1 with rank 2"
  ncclComm_t comm = nullptr;
  std::unique_ptr<CudaStream> stream;
  // What has been enqueued and may not be over, oldest first.
  struct Operation {
    const char* kind;
    Event done;
  };
  std::deque<Operation> operations;
};

class Job final : public NcclJob {
 public:
  explicit Job(const NcclJobOptions& options)
      : options_(options), device_(static_cast<CudaDevice&>(*options.device)) {}

  absl::StatusOr<std::unique_ptr<NcclWire>> OpenWire(
      const WireOptions& options) override;

  CudaDevice& device() { return device_; }

  // A communicator of `size` ranks; waits for all of them.
  absl::Status Open(Channel& channel, int size, int rank, const NcclId& id,
                    int max_ctas);
  void Close(Channel& channel);

  // The outcome of a call to NCCL on a channel; waits until NCCL has taken it.
  absl::Status Settle(Channel& channel, const char* doing, ncclResult_t result);
  // What ended all communication; OK while nothing has.
  const absl::Status& failed() const { return failed_; }
  // The first error of any channel, after which all are aborted.
  absl::Status Check();
  absl::Status Sync(Stream& stream);
  // Nothing of this rank is on the way afterwards.
  void GiveUp() {
    Keep(absl::AbortedError(absl::StrFormat(
             "%s: gave up with messages under way", options_.where)))
        .IgnoreError();
  }

  // The latest operation of a channel has been enqueued.
  Event Enqueued(Channel& channel, const char* kind) {
    if (channel.operations.size() >= kRememberedMax) {
      channel.operations.pop_front();
    }
    const Event done = device_.Record(*channel.stream);
    channel.operations.push_back({kind, done});
    return done;
  }

 private:
  absl::Status Error(const Channel& channel, const char* doing,
                     ncclResult_t result) const {
    return absl::UnavailableError(absl::StrFormat(
        "%s: %s %s: %s (%s); the job ends", options_.where, doing, channel.name,
        ncclGetErrorString(result), ncclGetLastError(channel.comm)));
  }
  absl::Status Keep(absl::Status status);
  void AbortAll();
  // The oldest operation that is not over; "" when there is none.
  std::string Unfinished();

  const NcclJobOptions options_;
  CudaDevice& device_;
  std::vector<Channel*> channels_;
  absl::Status failed_;
};

absl::Status Job::Keep(absl::Status status) {
  if (!status.ok() && failed_.ok()) {
    failed_ = status;
    AbortAll();
  }
  return status;
}

// ncclCommAbort may wait for a peer's network or for the GPU.
void Job::AbortAll() {
  struct Progress {
    std::mutex mutex;
    std::condition_variable over;
    bool done = false;
  };
  std::vector<ncclComm_t> comms;
  for (Channel* channel : channels_) {
    if (channel->comm != nullptr) comms.push_back(channel->comm);
    channel->comm = nullptr;
  }
  const auto progress = std::make_shared<Progress>();
  absl::StatusOr<std::thread> aborter =
      ckpt::StartThread("an abort of NCCL", [comms, progress] {
        for (const ncclComm_t comm : comms) ncclCommAbort(comm);
        const std::lock_guard lock(progress->mutex);
        progress->done = true;
        progress->over.notify_all();
      });
  if (!aborter.ok()) {
    // Then nobody but the watchdog ends a wait that does not end.
    for (const ncclComm_t comm : comms) ncclCommAbort(comm);
    return;
  }
  std::unique_lock lock(progress->mutex);
  const bool done = progress->over.wait_for(lock, kAbortTimeout,
                                            [&] { return progress->done; });
  lock.unlock();
  if (done) {
    aborter->join();
  } else {
    aborter->detach();
  }
}

absl::Status Job::Settle(Channel& channel, const char* doing,
                         ncclResult_t result) {
  HF_RETURN_IF_ERROR(failed_);
  Pause pause;
  std::optional<Clock::time_point> named;
  while (result == ncclInProgress &&
         pause.waited() < milliseconds(options_.timeout_ms)) {
    pause.Once();
    if (!named.has_value() && pause.waited() > kAskEvery &&
        options_.names != nullptr) {
      options_.names->Begin(
          absl::StrFormat("NCCL: %s %s", doing, channel.name));
      named = Clock::now();
    }
    ncclResult_t state = ncclSuccess;
    result = ncclCommGetAsyncError(channel.comm, &state);
    if (result == ncclSuccess) result = state;
  }
  if (named.has_value()) options_.names->End();
  if (result == ncclSuccess) return absl::OkStatus();
  if (result == ncclInProgress) {
    return Keep(absl::DeadlineExceededError(absl::StrFormat(
        "%s: %s %s: not over after %d ms; a rank of the group does not come "
        "along",
        options_.where, doing, channel.name, options_.timeout_ms)));
  }
  return Keep(Error(channel, doing, result));
}

absl::Status Job::Open(Channel& channel, int size, int rank, const NcclId& id,
                       int max_ctas) {
  HF_RETURN_IF_ERROR(failed_);
  device_.MakeCurrent();
  channel.stream = device_.NewCudaStream(CudaPriority::kHigh);
  ncclUniqueId unique;
  std::memcpy(&unique, id.data(), sizeof(unique));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (max_ctas > 0) config.maxCTAs = max_ctas;
  const ncclResult_t result =
      ncclCommInitRankConfig(&channel.comm, size, unique, rank, &config);
  channels_.push_back(&channel);
  return Settle(channel, "setting up", result);
}

void Job::Close(Channel& channel) {
  channels_.erase(std::remove(channels_.begin(), channels_.end(), &channel),
                  channels_.end());
  if (channel.comm == nullptr) return;  // Aborted.
  device_.MakeCurrent();
  ncclResult_t state = ncclCommFinalize(channel.comm);
  Pause pause;
  while (state == ncclInProgress && pause.waited() < kAbortTimeout) {
    pause.Once();
    if (ncclCommGetAsyncError(channel.comm, &state) != ncclSuccess) break;
  }
  if (state == ncclSuccess) {
    ncclCommDestroy(channel.comm);
  } else {
    ncclCommAbort(channel.comm);
  }
  channel.comm = nullptr;
}

absl::Status Job::Check() {
  HF_RETURN_IF_ERROR(failed_);
  for (const Channel* channel : channels_) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(channel->comm, &state);
    const ncclResult_t result = asked != ncclSuccess ? asked : state;
    if (result != ncclSuccess && result != ncclInProgress) {
      return Keep(Error(*channel, "work of", result));
    }
  }
  return absl::OkStatus();
}

std::string Job::Unfinished() {
  for (Channel* channel : channels_) {
    while (!channel->operations.empty() &&
           device_.Query(channel->operations.front().done)) {
      channel->operations.pop_front();
    }
    if (!channel->operations.empty()) {
      return absl::StrFormat("NCCL: %s %s", channel->operations.front().kind,
                             channel->name);
    }
  }
  return "";
}

absl::Status Job::Sync(Stream& stream) {
  HF_RETURN_IF_ERROR(failed_);
  const Event end = device_.Record(stream);
  Pause pause;
  auto asked = Clock::now();
  std::string named;
  absl::Status status;
  while (status.ok() && !device_.Query(end)) {
    pause.Once();
    if (Clock::now() - asked < kAskEvery) continue;
    asked = Clock::now();
    status = Check();
    if (options_.names == nullptr) continue;
    std::string name = Unfinished();
    if (name.empty()) name = "work of the device";
    if (name == named) continue;
    if (!named.empty()) options_.names->End();
    options_.names->Begin(name);
    named = std::move(name);
  }
  if (!named.empty()) options_.names->End();
  HF_RETURN_IF_ERROR(status);
  return device_.status();
}

class Wire final : public NcclWire {
 public:
  Wire(Job& job, int rank, int size)
      : job_(job), device_(job.device()), rank_(rank), size_(size) {}
  ~Wire() override {
    for (Lane& lane : lanes_) job_.Close(lane.channel);
    job_.Close(group_);
  }

  absl::Status Open(const NcclJob::WireOptions& options);

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::StatusOr<RequestId> Begin(std::span<const Transfer> transfers, int tag,
                                  Stream& stream) override;
  absl::Status End(RequestId request, Stream& stream) override;
  void Abandon(RequestId request, Stream& stream) override;
  absl::Status AllGatherV(std::span<std::byte> all,
                          std::span<const int64_t> first,
                          std::span<const int64_t> count,
                          Stream& stream) override;
  absl::Status Sync(Stream& stream) override { return job_.Sync(stream); }
  absl::Status LibraryReduceScatter(std::span<const float> in,
                                    std::span<float> out,
                                    Stream& stream) override;

 private:
  struct Lane {
    int peer = 0;
    int tag = 0;
    Channel channel;
  };

  // What `enqueue` gives to NCCL on the channel, as one group, after the work
  // on `stream`; the event that ends it.
  template <typename Enqueue>
  absl::StatusOr<Event> Run(Channel& channel, const char* kind, Stream& stream,
                            const Enqueue& enqueue) {
    HF_RETURN_IF_ERROR(job_.failed());
    device_.MakeCurrent();
    device_.WaitFor(*channel.stream, device_.Record(stream));
    ncclResult_t result = ncclGroupStart();
    if (result == ncclSuccess) result = enqueue(channel);
    const ncclResult_t ended = ncclGroupEnd();
    if (result == ncclSuccess || result == ncclInProgress) result = ended;
    HF_RETURN_IF_ERROR(job_.Settle(channel, kind, result));
    return job_.Enqueued(channel, kind);
  }

  Job& job_;
  CudaDevice& device_;
  const int rank_;
  const int size_;
  Channel group_;
  std::deque<Lane> lanes_;   // Channels keep their address.
  std::vector<Event> done_;  // Of requests.
  std::vector<size_t> free_;
};

absl::Status Wire::Open(const NcclJob::WireOptions& options) {
  if (size_ == 1) return absl::OkStatus();
  group_.name = options.name;
  HF_RETURN_IF_ERROR(job_.Open(group_, size_, rank_, options.id, 0));
  for (const NcclJob::Lane& lane : options.lanes) {
    Lane& made = lanes_.emplace_back();
    made.peer = lane.peer;
    made.tag = lane.tag;
    made.channel.name = absl::StrFormat("%s, tag %d with rank %d", options.name,
                                        lane.tag, lane.peer);
    HF_RETURN_IF_ERROR(job_.Open(made.channel, 2, rank_ < lane.peer ? 0 : 1,
                                 lane.id, kLaneCtas));
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestId> Wire::Begin(std::span<const Transfer> transfers,
                                      int tag, Stream& stream) {
  Channel* channel = &group_;
  const bool in_lane = tag != kGroup;
  if (in_lane) {
    const auto lane =
        std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& candidate) {
          return candidate.tag == tag && candidate.peer == transfers[0].peer;
        });
    KERNEL_CHECK(lane != lanes_.end() && transfers.size() == 1,
                 "%d messages of tag %d with rank %d, where no lane is",
                 transfers.size(), tag, transfers[0].peer);
    channel = &lane->channel;
  }
  absl::StatusOr<Event> done =
      Run(*channel, in_lane ? "a message of" : "an exchange of", stream,
          [&](const Channel& to) {
            ncclResult_t result = ncclSuccess;
            for (const Transfer& transfer : transfers) {
              const int peer =
                  in_lane ? (rank_ < transfer.peer ? 1 : 0) : transfer.peer;
              const std::span<std::byte> data = transfer.data;
              result = transfer.kind == Transfer::Kind::kSend
                           ? ncclSend(data.data(), data.size(), ncclInt8, peer,
                                      to.comm, to.stream->handle())
                           : ncclRecv(data.data(), data.size(), ncclInt8, peer,
                                      to.comm, to.stream->handle());
              if (result != ncclSuccess && result != ncclInProgress) break;
            }
            return result;
          });
  if (!done.ok()) return done.status();
  if (free_.empty()) {
    free_.push_back(done_.size());
    done_.emplace_back();
  }
  const size_t request = free_.back();
  free_.pop_back();
  done_[request] = *done;
  return RequestId{request};
}

absl::Status Wire::End(RequestId request, Stream& stream) {
  const auto index = static_cast<size_t>(request);
  device_.WaitFor(stream, done_[index]);
  free_.push_back(index);
  return absl::OkStatus();
}

void Wire::Abandon(RequestId request, Stream&) {
  // A message that nobody sends would keep the GPU, and with it the freeing of
  // any memory, waiting.
  job_.GiveUp();
  free_.push_back(static_cast<size_t>(request));
}

absl::Status Wire::AllGatherV(std::span<std::byte> all,
                              std::span<const int64_t> first,
                              std::span<const int64_t> count, Stream& stream) {
  // A broadcast by each rank: NCCL's routes between nodes, which sends of our
  // own would not have. Nothing is computed, so any order will do.
  HF_ASSIGN_OR_RETURN(
      const Event done,
      Run(group_, "a gather of", stream, [&](const Channel& to) {
        ncclResult_t result = ncclSuccess;
        for (int root = 0; root < size_; ++root) {
          if (count[root] == 0) continue;
          std::byte* const part = all.data() + first[root];
          result = ncclBroadcast(part, part, static_cast<size_t>(count[root]),
                                 ncclInt8, root, to.comm, to.stream->handle());
          if (result != ncclSuccess && result != ncclInProgress) break;
        }
        return result;
      }));
  device_.WaitFor(stream, done);
  return absl::OkStatus();
}

absl::Status Wire::LibraryReduceScatter(std::span<const float> in,
                                        std::span<float> out, Stream& stream) {
  KERNEL_CHECK(in.size() == out.size() * static_cast<size_t>(size_),
               "%d values for %d ranks of %d", in.size(), size_, out.size());
  HF_ASSIGN_OR_RETURN(
      const Event done,
      Run(group_, "a library sum of", stream, [&](const Channel& to) {
        return ncclReduceScatter(in.data(), out.data(), out.size(), ncclFloat,
                                 ncclSum, to.comm, to.stream->handle());
      }));
  device_.WaitFor(stream, done);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<NcclWire>> Job::OpenWire(
    const WireOptions& options) {
  auto wire = std::make_unique<Wire>(*this, options.rank, options.size);
  HF_RETURN_IF_ERROR(wire->Open(options));
  return std::unique_ptr<NcclWire>(std::move(wire));
}

absl::StatusOr<std::string> Version() {
  int version = 0;
  if (const ncclResult_t result = ncclGetVersion(&version);
      result != ncclSuccess) {
    return absl::UnavailableError(absl::StrFormat(
        "asking NCCL for its version: %s", ncclGetErrorString(result)));
  }
  // major * 10000 + minor * 100 + patch, as NCCL_VERSION makes it.
  return absl::StrFormat("NCCL %d.%d.%d", version / 10000, version / 100 % 100,
                         version % 100);
}

absl::StatusOr<NcclId> MakeId() {
  ncclUniqueId unique;
  if (const ncclResult_t result = ncclGetUniqueId(&unique);
      result != ncclSuccess) {
    return absl::UnavailableError(
        absl::StrFormat("making an id for a communicator of NCCL: %s (%s)",
                        ncclGetErrorString(result), ncclGetLastError(nullptr)));
  }
  NcclId id;
  std::memcpy(id.data(), &unique, sizeof(unique));
  return id;
}

absl::StatusOr<std::unique_ptr<NcclJob>> OpenJob(
    const NcclJobOptions& options) {
  if (options.device == nullptr || options.device->name() != "cuda") {
    return absl::InvalidArgumentError("NCCL needs the device of a GPU");
  }
  return std::make_unique<Job>(options);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const CollectivesPluginEntry*
holdfast_collectives_plugin() {
  static const CollectivesPluginEntry entry = {
      .build = HOLDFAST_PLUGIN_BUILD,
      .version = &Version,
      .make_id = &MakeId,
      .open_job = &OpenJob,
  };
  return &entry;
}

}  // namespace holdfast::trainer
