// trainer/parallel/nccl_wire.cc: communicators that are asked, never waited in.
// Part of the GPU plug-in.

#include "trainer/parallel/nccl_wire.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/start_thread.h"
#include "ckpt/base/status_macros.h"
#include "kernels/check.h"
#include "kernels/cuda_device.h"
#include "kernels/cuda_driver.h"
#include "kernels/cuda_wait.h"
#include "kernels/plugin_build.h"
#include "trainer/parallel/communication_memory.h"

namespace holdfast::trainer {
namespace {

using kernels::CudaDevice;
using kernels::CudaPriority;
using kernels::CudaStream;
using kernels::Event;
using kernels::Pause;
using kernels::Stream;
using std::chrono::milliseconds;

// What NCCL gets to abort or to finish before it is left behind; no more than
// for anything else.
constexpr auto kAbortTimeout = milliseconds(10'000);
// Operations remembered for naming a wait.
constexpr size_t kRememberedMax = 64;
// Of one group: NVIDIA's number (NCCL user guide, group calls), which releases
// up to 2.12 enforce (NCCL_MAX_OPS in src/include/device.h). Later ones take
// more and promise nothing.
constexpr size_t kGroupOperationsMax = 2048;

static_assert(sizeof(ncclUniqueId) == sizeof(NcclId));

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

class Job final : public NcclJob, private kernels::WaitListener {
 public:
  explicit Job(const NcclJobOptions& options)
      : options_(options), device_(static_cast<CudaDevice&>(*options.device)) {
    device_.AddWaitListener(this);
  }
  ~Job() override { device_.RemoveWaitListener(this); }

  void GiveUp(const absl::Status& why) override { Keep(why).IgnoreError(); }

  absl::StatusOr<std::unique_ptr<NcclWire>> OpenWire(
      const WireOptions& options) override;

  CudaDevice& device() { return device_; }
  const std::string& where() const { return options_.where; }

  // A communicator of `size` ranks; waits for all of them.
  absl::Status Open(Channel& channel, int size, int rank, const NcclId& id,
                    int max_ctas);
  // The work of the channel is over, or is aborted.
  void Close(Channel& channel);

  // The outcome of a call to NCCL on a channel; waits until NCCL has taken it.
  absl::Status Settle(Channel& channel, const char* doing, ncclResult_t result);
  // What ended all communication; OK while nothing has.
  const absl::Status& failed() const { return failed_; }
  // The first error of any channel, after which all are aborted.
  absl::Status Check();
  absl::Status Sync(Stream& stream);

  // The latest operation of a channel has been enqueued.
  Event Enqueued(Channel& channel, const char* kind) {
    if (channel.operations.size() >= kRememberedMax) {
      channel.operations.pop_front();
    }
    channel.stream->set_last_operation(kind);
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
  void Leave(Channel& channel);
  // The oldest operation that is not over; "" when there is none.
  std::string Unfinished();

  // --- WaitListener: while the device is waited for, communicators are asked
  // for errors. The first aborts them, and what is waited for ends.
  void OnWaiting(std::string_view what) override;
  void OnWaitOver() override {
    if (!named_.empty() && options_.names != nullptr) options_.names->End();
    named_.clear();
  }
  milliseconds abort_timeout() const {
    return std::min(kAbortTimeout, milliseconds(options_.timeout_ms));
  }

  const NcclJobOptions options_;
  CudaDevice& device_;
  std::vector<Channel*> channels_;
  absl::Status failed_;
  std::string named_;  // The wait of the device's under way.
};

absl::Status Job::Keep(absl::Status status) {
  if (!status.ok() && failed_.ok()) {
    failed_ = status;
    AbortAll();
  }
  return status;
}

// ncclCommAbort may wait for a peer's network or for the GPU; and what one
// communicator frees may wait for the kernels of another, so all are told to
// end before any is taken down: in one group.
void Job::AbortAll() {
  struct Progress {
    std::mutex mutex;
    std::condition_variable over;
    bool done = false;
    ncclResult_t result = ncclSuccess;
  };
  std::vector<ncclComm_t> comms;
  for (Channel* channel : channels_) {
    if (channel->comm != nullptr) comms.push_back(channel->comm);
    channel->comm = nullptr;
  }
  if (comms.empty()) return;
  const auto progress = std::make_shared<Progress>();
  const int ordinal = device_.processor().ordinal;
  absl::StatusOr<std::thread> aborter =
      ckpt::StartThread("an abort of NCCL", [comms, progress, ordinal] {
        ncclResult_t first = ncclSuccess;
        const auto keep = [&](ncclResult_t result) {
          if (first == ncclSuccess && result != ncclInProgress) first = result;
        };
        // A new thread's device is GPU 0. Where even this fails, NCCL says so
        // too.
        static_cast<void>(cudaSetDevice(ordinal));
        keep(ncclGroupStart());
        for (const ncclComm_t comm : comms) keep(ncclCommAbort(comm));
        keep(ncclGroupEnd());
        const std::lock_guard lock(progress->mutex);
        progress->done = true;
        progress->result = first;
        progress->over.notify_all();
      });
  if (!aborter.ok()) {
    // Not in this thread: it would wait without an end. The communicators stay.
    device_.Fail(absl::StrFormat("ending NCCL's communicators: %s",
                                 aborter.status().message()));
    return;
  }
  std::unique_lock lock(progress->mutex);
  const bool done = progress->over.wait_for(lock, abort_timeout(),
                                            [&] { return progress->done; });
  const ncclResult_t result = progress->result;
  lock.unlock();
  if (done) {
    aborter->join();
  } else {
    aborter->detach();
    // It is somewhere in NCCL, or in the driver.
    kernels::EndWithoutTeardown();
  }
  if (done && result == ncclSuccess) return;
  // Its kernels may stay on the GPU for ever: from here on nobody waits for
  // them, and what they use goes with the process.
  device_.Fail(
      done ? absl::StrFormat("ending NCCL's communicators: %s",
                             ncclGetErrorString(result))
           : absl::StrFormat("NCCL's communicators did not end within %d ms",
                             abort_timeout().count()));
}

absl::Status Job::Settle(Channel& channel, const char* doing,
                         ncclResult_t result) {
  HF_RETURN_IF_ERROR(failed_);
  Pause pause;
  bool named = false;
  while (result == ncclInProgress &&
         pause.waited() < milliseconds(options_.timeout_ms)) {
    pause.Once();
    if (!named && options_.names != nullptr && pause.IsTimeToTell()) {
      options_.names->Begin(
          absl::StrFormat("NCCL: %s %s", doing, channel.name));
      named = true;
    }
    ncclResult_t state = ncclSuccess;
    result = ncclCommGetAsyncError(channel.comm, &state);
    if (result == ncclSuccess) result = state;
  }
  if (named) options_.names->End();
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
  config.maxCTAs = max_ctas;
  const ncclResult_t result =
      ncclCommInitRankConfig(&channel.comm, size, unique, rank, &config);
  channels_.push_back(&channel);
  return Settle(channel, "setting up", result);
}

void Job::Close(Channel& channel) {
  if (channel.comm != nullptr) {  // Else aborted, or never opened.
    device_.MakeCurrent();
    Leave(channel);
  }
  channels_.erase(std::remove(channels_.begin(), channels_.end(), &channel),
                  channels_.end());
}

void Job::Leave(Channel& channel) {
  ncclResult_t state = ncclCommFinalize(channel.comm);
  Pause pause;
  bool named = false;
  while (state == ncclInProgress && pause.waited() < abort_timeout()) {
    pause.Once();
    if (!named && options_.names != nullptr && pause.IsTimeToTell()) {
      options_.names->Begin(absl::StrFormat("NCCL: leaving %s", channel.name));
      named = true;
    }
    const ncclResult_t asked = ncclCommGetAsyncError(channel.comm, &state);
    if (asked != ncclSuccess) state = asked;
  }
  if (named) options_.names->End();
  if (state == ncclSuccess) {
    // The communicator is at rest: what this says changes nothing.
    static_cast<void>(ncclCommDestroy(channel.comm));
    channel.comm = nullptr;
    return;
  }
  Keep(state == ncclInProgress
           ? absl::DeadlineExceededError(absl::StrFormat(
                 "%s: leaving %s: not over after %d ms", options_.where,
                 channel.name, abort_timeout().count()))
           : Error(channel, "leaving", state))
      .IgnoreError();
}

absl::Status Job::Check() {
  HF_RETURN_IF_ERROR(failed_);
  for (const Channel* channel : channels_) {
    if (channel->comm == nullptr) continue;  // Did not open, or is left.
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

void Job::OnWaiting(std::string_view what) {
  Check().IgnoreError();  // It stays, and Sync says it.
  if (options_.names == nullptr) return;
  std::string name = Unfinished();
  if (name.empty()) name = what;
  if (name == named_) return;
  if (!named_.empty()) options_.names->End();
  options_.names->Begin(name);
  named_ = std::move(name);
}

absl::Status Job::Sync(Stream& stream) {
  HF_RETURN_IF_ERROR(failed_);
  device_.Sync(stream);
  HF_RETURN_IF_ERROR(failed_);
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
  HF_RETURN_IF_ERROR(
      job_.Open(group_, size_, rank_, options.id, kNcclGroupCtas));
  for (const NcclJob::Lane& lane : options.lanes) {
    Lane& made = lanes_.emplace_back();
    made.peer = lane.peer;
    made.tag = lane.tag;
    made.channel.name = absl::StrFormat("%s, tag %d with rank %d", options.name,
                                        lane.tag, lane.peer);
    HF_RETURN_IF_ERROR(job_.Open(made.channel, 2, rank_ < lane.peer ? 0 : 1,
                                 lane.id, kNcclLaneCtas));
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestId> Wire::Begin(std::span<const Transfer> transfers,
                                      int tag, Stream& stream) {
  if (transfers.size() > kGroupOperationsMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "an exchange of %d messages at once in %s, of %d ranks: NCCL takes %d; "
        "use a layout with smaller groups",
        transfers.size(), group_.name, size_, kGroupOperationsMax));
  }
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
  job_.GiveUp(absl::AbortedError(
      absl::StrFormat("%s: gave up with messages under way", job_.where())));
  free_.push_back(static_cast<size_t>(request));
}

absl::Status Wire::AllGatherV(std::span<std::byte> all,
                              std::span<const int64_t> first,
                              std::span<const int64_t> count, Stream& stream) {
  // A broadcast by each rank: NCCL's routes between nodes, which sends of our
  // own would not have. Nothing is computed, so any order will do.
  // All ranks have the same counts, and so the same groups.
  constexpr int kRoots = static_cast<int>(kGroupOperationsMax);
  for (int begin = 0; begin < size_; begin += kRoots) {
    const int end = std::min(size_, begin + kRoots);
    HF_ASSIGN_OR_RETURN(
        const Event done,
        Run(group_, "a gather of", stream, [&](const Channel& to) {
          ncclResult_t result = ncclSuccess;
          for (int root = begin; root < end; ++root) {
            if (count[root] == 0) continue;
            std::byte* const part = all.data() + first[root];
            result =
                ncclBroadcast(part, part, static_cast<size_t>(count[root]),
                              ncclInt8, root, to.comm, to.stream->handle());
            if (result != ncclSuccess && result != ncclInProgress) break;
          }
          return result;
        }));
    device_.WaitFor(stream, done);
  }
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
