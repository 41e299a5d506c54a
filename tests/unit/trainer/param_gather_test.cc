// overlap.param_gather: weights that travel while the next forward runs. On
// devices that work late and out of order, what is trained, saved and loaded
// has the bits of a run without it; and a wait that is left out shows.

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fake_device.h"
#include "tests/support/step_rig.h"
#include "tests/support/train_job.h"
#include "tests/support/train_outcomes.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::trainer {
namespace {

using kernels::Buffer;
using kernels::Device;
using kernels::Event;
using kernels::MemorySpace;
using kernels::Stream;
using tests::AllEndWith;
using tests::FirstDifference;
using tests::RunOptions;
using tests::RunRecord;
using tests::TrainJob;
using tests::TrainTiny;

// Buckets of one or two blocks: a part of a stage has several, and they do not
// end where parts do.
constexpr OverlapConfig kSmallBuckets = {.param_gather = true, .bucket_kb = 12};

kernels::FakeDeviceOptions Late(uint64_t seed, int eager_max) {
  kernels::FakeDeviceOptions options;
  options.seed = seed;
  options.device_bytes = size_t{128} << 20;
  options.eager_max = eager_max;
  return options;
}

std::unique_ptr<kernels::FakeDevice> Fake(uint64_t seed, int eager_max) {
  auto device = kernels::NewFakeDevice(Late(seed, eager_max));
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

// A device for ranks that share it, each on a thread. It does nothing before it
// must, and is against one rank: the weights that travel to it come last of
// all, and one of its waits between streams is forgotten.
class Forgetful final : public Device {
 public:
  // `forget`: of the waits after Count, from 0.
  explicit Forgetful(int forget)
      : below_(Fake(/*seed=*/1, /*eager_max=*/0)), forget_(forget) {}

  // Before its first and its second step, by the thread of that rank.
  void Choose() { chosen_ = std::this_thread::get_id(); }
  void Count() { counted_ = 0; }
  // By another rank's: until the first loss after Count is there. What another
  // rank waits for would bring the weights along.
  void AwaitFirstLoss() { first_loss_.wait(); }

  std::string_view name() const override { return below_->name(); }
  absl::StatusOr<Buffer> Allocate(MemorySpace space, size_t bytes) override {
    return below_->Allocate(space, bytes);
  }
  void Free(const Buffer& buffer) override { below_->Free(buffer); }
  std::unique_ptr<Stream> NewStream() override { return below_->NewStream(); }
  void Copy(const Buffer& dst, const Buffer& src, Stream& stream) override {
    below_->Copy(dst, src, stream);
  }
  Event Record(Stream& stream) override { return below_->Record(stream); }
  void WaitFor(Stream& stream, Event event) override {
    if (std::this_thread::get_id() == chosen_) {
      // In a first step the stage's own stream waits for messages, and then the
      // weights' for the update.
      if (stage_ == nullptr) stage_ = &stream;
      if (weights_ == nullptr && &stream != stage_) {
        weights_ = &stream;
        below_->Delay(stream);
      }
      if (counted_ >= 0 && counted_++ == forget_) return;
    }
    below_->WaitFor(stream, event);
  }
  bool Query(Event event) override { return below_->Query(event); }
  void Sync(Event event) override { below_->Sync(event); }
  void Sync(Stream& stream) override {
    below_->Sync(stream);
    if (std::this_thread::get_id() == chosen_ && counted_ >= 0 && !lost_) {
      lost_ = true;
      loss_.set_value();
    }
  }
  absl::Status status() const override { return below_->status(); }

 private:
  const std::unique_ptr<kernels::FakeDevice> below_;
  const int forget_;
  std::atomic<std::thread::id> chosen_ = {};
  // Of the chosen rank's thread.
  const Stream* stage_ = nullptr;
  const Stream* weights_ = nullptr;
  int counted_ = -1;
  bool lost_ = false;
  std::promise<void> loss_;
  const std::shared_future<void> first_loss_ = loss_.get_future();
};

// Of the committed checkpoint of a step; "" when there is none.
std::string DigestOfStep(const TrainJob& job, int64_t step) {
  for (const auto& entry : std::filesystem::directory_iterator(
           job.options.run_dir + "/checkpoints")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(absl::StrFormat("step-%09d", step))) continue;
    if (std::string digest = job.DigestOf(name); !digest.empty()) return digest;
  }
  return "";
}

// Several microbatches a leaf, several leaves a member, owners that are cut
// inside a tensor.
RunOptions Options(bool tied, const ckpt::Mesh& mesh) {
  RunOptions options;
  options.model = tests::TinyModel(tied);
  options.model.layers = 3;
  options.model.vocab = 301;
  options.mesh = mesh;
  options.steps = 2;
  options.eval_microbatches = 3;
  return options;
}

void ExpectTheBitsOfOff(RunOptions options, int eager_max) {
  const RunRecord off = TrainTiny(options);
  options.overlap.param_gather = true;
  options.overlap.bucket_kb = kSmallBuckets.bucket_kb;
  const auto device = Fake(1, eager_max);
  options.shared_device = device.get();
  EXPECT_EQ(FirstDifference(off, TrainTiny(options)), "");
}

TEST(ParamGatherTest, RanksThatShareALateDeviceHaveTheBitsOfOff) {
  RunOptions options = Options(/*tied=*/true, {.tp = 2, .pp = 2, .dp = 2});
  options.overlap.grad_reduce = true;
  ExpectTheBitsOfOff(options, /*eager_max=*/0);
}

TEST(ParamGatherTest, UntiedAndWithoutGradientsBesideToo) {
  ExpectTheBitsOfOff(Options(/*tied=*/false, {.tp = 2, .pp = 2, .dp = 2}),
                     /*eager_max=*/2);
}

TEST(ParamGatherTest, RanksWithLateDevicesOfTheirOwnToo) {
  for (const ckpt::Mesh& mesh :
       {ckpt::Mesh{.dp = 3}, ckpt::Mesh{.pp = 3, .dp = 2}}) {
    RunOptions options = Options(/*tied=*/true, mesh);
    options.compute = ComputeType::kBf16;
    const RunRecord off = TrainTiny(options);
    options.overlap = kSmallBuckets;
    options.device = [](int rank) { return Fake(5 + rank, rank % 3); };
    EXPECT_EQ(FirstDifference(off, TrainTiny(options)), "")
        << ckpt::ToString(mesh);
  }
}

// Whether it shows in the bits when `rank` forgets the `forget`-th wait of its
// second step.
bool Noticed(RunOptions options, const RunRecord& off, int rank, int forget) {
  Forgetful device(forget);
  const int stage = ckpt::CoordinatesOf(options.mesh, ckpt::Rank{rank}).pp;
  options.overlap = kSmallBuckets;
  options.shared_device = &device;
  options.before_step = [&](int own, int64_t step, StepRunner&) {
    if (own == rank) {
      step == 1 ? device.Choose() : device.Count();
    } else if (step == 2 &&
               ckpt::CoordinatesOf(options.mesh, ckpt::Rank{own}).pp == stage) {
      device.AwaitFirstLoss();
    }
  };
  return !FirstDifference(off, TrainTiny(options)).empty();
}

TEST(ParamGatherTest, EachWaitOfAForwardThatIsForgottenShows) {
  RunOptions options = Options(/*tied=*/false, {.dp = 2});
  options.eval_microbatches = 0;
  const RunRecord off = TrainTiny(options);
  // Embedding, three layers, the head with its norm: the order in which a
  // forward waits, and nothing else waits before it. Member 1 owns the second
  // half, so only member 0 needs it to come.
  EXPECT_FALSE(Noticed(options, off, /*rank=*/0, /*forget=*/-1));
  for (int part = 0; part < 5; ++part) {
    EXPECT_TRUE(Noticed(options, off, /*rank=*/part < 2 ? 1 : 0, part))
        << "part " << part;
  }
}

TEST(ParamGatherTest, SoDoesTheOneForATiedTablesCopy) {
  const ckpt::Mesh mesh{.pp = 2, .dp = 2};
  RunOptions options = Options(/*tied=*/true, mesh);
  options.eval_microbatches = 0;
  const auto rank = static_cast<int>(ckpt::RankAt(mesh, {.dp = 1, .pp = 1}));
  // The first message, two layers, then the head.
  EXPECT_TRUE(Noticed(options, TrainTiny(options), rank, 3));
}

// The last stage has a tied copy on its way too. The other ranks wait while one
// looks, since their work would bring the weights along.
TEST(ParamGatherTest, AStepEndsWhileWeightsTravelAndWhoReadsThemWaits) {
  for (const bool overlapped : {false, true}) {
    RunOptions options = Options(/*tied=*/true, {.pp = 2, .dp = 2});
    if (overlapped) options.overlap = kSmallBuckets;
    options.eval_microbatches = 0;
    options.steps = 3;
    Forgetful device(/*forget=*/-1);
    options.shared_device = &device;
    Buffer region;
    const auto look = [&](Event after) {
      const auto stream = device.NewStream();
      std::vector<std::byte> copy(region.bytes);
      device.WaitFor(*stream, after);
      device.Copy({MemorySpace::kHost, copy.data(), copy.size()}, region,
                  *stream);
      device.Sync(*stream);
      return copy;
    };
    bool travelling[2] = {false, false};
    std::promise<void> look_over[2];
    const std::shared_future<void> looked[2] = {look_over[0].get_future(),
                                                look_over[1].get_future()};
    options.before_step = [&](int rank, int64_t step, StepRunner& runner) {
      if (step == 1) {
        if (rank != 3) return;
        device.Choose();
        region = runner.state().regions()[ckpt::kWeightRegion];
        return;
      }
      const int64_t of = step - 2;
      if (rank != 3) return looked[of].wait();
      const auto at_once = look(Event::kPassed);
      // A save first, then whoever asks for the state.
      if (step == 3) runner.state();
      const auto seen = look(step == 2 ? runner.StateEvent() : Event::kPassed);
      const auto at_last = look(runner.StateEvent());
      EXPECT_EQ(seen, at_last) << "before step " << step;
      travelling[of] = at_once != at_last;
      look_over[of].set_value();
    };
    TrainTiny(options);
    EXPECT_EQ(travelling[0], overlapped);
    EXPECT_EQ(travelling[1], overlapped);
  }
}

TEST(ParamGatherTest, SavedEveryStepAndResumedItIsTheRunWithoutIt) {
  const auto job_of = [](bool overlapped, TrainJob& job) {
    job.mesh = {.tp = 2, .pp = 2, .dp = 2};
    job.Set("checkpoint.interval=1");
    job.Set("checkpoint.keep_last=6");
    job.Set("train.steps=4");
    if (!overlapped) return;
    job.Set("overlap.param_gather=true");
    job.Set("overlap.grad_reduce=true");
    job.Set("overlap.bucket_kb=12");
    job.each = [](int rank, TrainOptions&, TrainEnv& env) {
      env.make_device = [rank] {
        return kernels::NewFakeDevice(
            Late(20 + static_cast<uint64_t>(rank), 1));
      };
    };
  };
  TrainJob off, on;
  for (TrainJob* job : {&off, &on}) {
    job_of(job == &on, *job);
    tests::LeaveAtLook(*job, 4);
    EXPECT_THAT(job->Run(), AllEndWith(kExitSavedRestart));
    job->signals = nullptr;
    EXPECT_THAT(job->Run(), AllEndWith(kExitFinished));
  }
  EXPECT_EQ(FirstDifference(off.Metrics(), on.Metrics()), "");
  EXPECT_EQ(DigestOfStep(on, 4), DigestOfStep(off, 4));
  EXPECT_EQ(DigestOfStep(on, 2), DigestOfStep(off, 2));
  EXPECT_NE(DigestOfStep(on, 4), "");
}

}  // namespace
}  // namespace holdfast::trainer
