// tests/device/reduce_bench.cc: what the fixed tree of gradients costs on GPUs.
//
//   bench_device_reduce [--device cuda|fake] [--mib N]
//
// On one card: four members as threads share it; the exchange is copies on the
// card, the sums are our kernel. Beside it a plain copy on the card, in the
// same run. On two or more cards: one member a card over NCCL, the exchange and
// the sums in tree order against NCCL's own reduce-scatter of the same
// gradient, in turn. One JSON line, medians; exit 77 where there is no GPU.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "kernels/device_plugin.h"
#include "kernels/elementwise.h"
#include "kernels/fake_device.h"
#include "trainer/parallel/gpu_mesh.h"
#include "trainer/parallel/gradient_reduce.h"
#include "trainer/parallel/inproc_collectives.h"
#include "trainer/parallel/shared_wire.h"
#include "trainer/parallel/wire_collectives.h"

namespace holdfast::trainer {
namespace {

using kernels::Device;
using kernels::MemorySpace;

constexpr int kRounds = 7;
constexpr int kMembersOnOneCard = 4;
constexpr size_t kScratch = size_t{1} << 20;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Seconds of `work`, all ranks together, this one's view.
template <typename Work>
absl::StatusOr<double> Timed(Collectives& world, DeviceCollectives& on_device,
                             kernels::Stream& stream, const Work& work) {
  HF_RETURN_IF_ERROR(on_device.Sync(stream));
  HF_RETURN_IF_ERROR(world.Barrier());
  const auto begin = std::chrono::steady_clock::now();
  HF_RETURN_IF_ERROR(work());
  HF_RETURN_IF_ERROR(on_device.Sync(stream));
  HF_RETURN_IF_ERROR(world.Barrier());
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - begin;
  return taken.count();
}

struct Times {
  double tree_s = 0;
  double other_s = 0;  // One card: a plain copy. Several: NCCL's own sum.
};

// A member's gradient and its way to the owners. `elements` is a multiple of
// the members.
class Member {
 public:
  static absl::StatusOr<std::unique_ptr<Member>> Create(Device& device,
                                                        DeviceCollectives& dp,
                                                        int64_t elements) {
    auto member = std::make_unique<Member>();
    HF_ASSIGN_OR_RETURN(
        member->gradient_,
        kernels::AllocateOwned(device, MemorySpace::kDevice,
                               static_cast<size_t>(elements) * sizeof(float)));
    member->stream_ = device.NewStream();
    std::vector<ElementRange> owned;
    const int64_t share = elements / dp.size();
    for (int m = 0; m < dp.size(); ++m) owned.push_back({m * share, share});
    member->mine_ = owned[static_cast<size_t>(dp.rank())];
    HF_ASSIGN_OR_RETURN(
        member->reducer_,
        GradientReducer::Create(dp, PlanOwnerJoin(dp.size(), dp.size()), owned,
                                device, ReduceLimits::For(*member->stream_)));
    return member;
  }

  kernels::Stream& stream() { return *stream_; }
  std::span<float> all() {
    return {gradient_.as<float>(), gradient_.buffer().bytes / sizeof(float)};
  }
  std::span<float> share() {
    return all().subspan(static_cast<size_t>(mine_.first),
                         static_cast<size_t>(mine_.count));
  }
  absl::Status Reduce() {
    const std::span<float> piece = all();
    return reducer_->Reduce({&piece, 1}, share(), *stream_);
  }

 private:
  kernels::OwnedBuffer gradient_;
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<GradientReducer> reducer_;
  ElementRange mine_;
};

absl::Status OnOneCard(Device& device, Collectives& world, int64_t elements,
                       Times& times) {
  HF_ASSIGN_OR_RETURN(
      const std::unique_ptr<DeviceCollectives> dp,
      NewWireCollectives(NewSharedWire(world, device), device, kScratch));
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Member> member,
                      Member::Create(device, *dp, elements));
  // What the exchange copies, in one piece.
  const std::span<std::byte> whole = Bytes(member->all());
  const size_t bytes = whole.size() / 2;
  std::vector<double> tree, copy;
  for (int round = 0; round <= kRounds; ++round) {
    HF_ASSIGN_OR_RETURN(
        const double tree_s,
        Timed(world, *dp, member->stream(), [&] { return member->Reduce(); }));
    HF_ASSIGN_OR_RETURN(
        const double copy_s, Timed(world, *dp, member->stream(), [&] {
          if (world.rank() == 0) {
            device.Copy({MemorySpace::kDevice, whole.data() + bytes, bytes},
                        {MemorySpace::kDevice, whole.data(), bytes},
                        member->stream());
          }
          return absl::OkStatus();
        }));
    if (round == 0) continue;
    tree.push_back(tree_s);
    copy.push_back(copy_s);
  }
  if (world.rank() == 0) times = {Median(tree), Median(copy)};
  return absl::OkStatus();
}

absl::Status OnSeveralCards(const kernels::DevicePlugin& plugin,
                            Collectives& world, int64_t elements,
                            Times& times) {
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Device> device,
                      plugin.Open(world.rank()));
  HF_ASSIGN_OR_RETURN(const CollectivesPluginEntry* const entry,
                      FindCollectivesPlugin(plugin));
  HF_ASSIGN_OR_RETURN(
      const std::unique_ptr<NcclJob> job,
      entry->open_job({.where = absl::StrFormat("rank %d", world.rank()),
                       .timeout_ms = 60'000,
                       .device = device.get()}));
  NcclJob::WireOptions options{
      .name = "dp", .rank = world.rank(), .size = world.size()};
  HF_ASSIGN_OR_RETURN(options.id, ShareNcclId(*entry, world));
  HF_ASSIGN_OR_RETURN(std::unique_ptr<NcclWire> wire, job->OpenWire(options));
  NcclWire& library = *wire;
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceCollectives> dp,
                      NewWireCollectives(std::move(wire), *device, kScratch));
  HF_ASSIGN_OR_RETURN(const std::unique_ptr<Member> member,
                      Member::Create(*device, *dp, elements));
  std::vector<double> tree, ncclsum;
  for (int round = 0; round <= kRounds; ++round) {
    HF_ASSIGN_OR_RETURN(
        const double tree_s,
        Timed(world, *dp, member->stream(), [&] { return member->Reduce(); }));
    HF_ASSIGN_OR_RETURN(const double nccl_s,
                        Timed(world, *dp, member->stream(), [&] {
                          return library.LibraryReduceScatter(
                              member->all(), member->share(), member->stream());
                        }));
    if (round == 0) continue;
    tree.push_back(tree_s);
    ncclsum.push_back(nccl_s);
  }
  if (world.rank() == 0) times = {Median(tree), Median(ncclsum)};
  return absl::OkStatus();
}

absl::Status Measure(bool fake, int64_t mib) {
  std::unique_ptr<Device> device;
  const kernels::DevicePlugin* plugin = nullptr;
  int cards = 1;
  if (fake) {
    HF_ASSIGN_OR_RETURN(
        device, kernels::NewFakeDevice({.device_bytes = size_t{128} << 20}));
  } else {
    HF_ASSIGN_OR_RETURN(plugin, kernels::LoadDevicePlugin("cuda"));
    HF_ASSIGN_OR_RETURN(cards, plugin->DeviceCount());
    HF_ASSIGN_OR_RETURN(device, plugin->Open(0));
  }
  const int64_t unit = 1024 * std::max(cards, kMembersOnOneCard);
  const int64_t elements = (mib << 18) / unit * unit;
  const double bytes = 4.0 * static_cast<double>(elements);

  Times one;
  HF_RETURN_IF_ERROR(RunInprocRanks(kMembersOnOneCard, [&](Collectives& world) {
    return OnOneCard(*device, world, elements, one);
  }));
  // Every byte but the owners' own is copied once; a copy reads and writes.
  const double moved = bytes * (kMembersOnOneCard - 1);
  const double tree_gbps = moved / one.tree_s / 1e9;
  const double copy_gbps = bytes / 2 / one.other_s / 1e9;
  std::string several = "null";
  std::string summary = absl::StrFormat(
      "tree over %d members on one card %.0f GB/s exchanged, plain copy %.0f",
      kMembersOnOneCard, tree_gbps, copy_gbps);
  if (cards > 1) {
    device.reset();
    Times times;
    HF_RETURN_IF_ERROR(RunInprocRanks(cards, [&](Collectives& world) {
      return OnSeveralCards(*plugin, world, elements, times);
    }));
    several = absl::StrFormat("{\"tree_ms\": %.3f, \"nccl_sum_ms\": %.3f}",
                              1e3 * times.tree_s, 1e3 * times.other_s);
    absl::StrAppendFormat(&summary,
                          "; over NCCL on %d cards %.2f times NCCL's own sum",
                          cards, times.tree_s / times.other_s);
  } else {
    absl::StrAppendFormat(&summary, "; one card: not compared with NCCL's sum");
  }
  std::printf(
      "{\"bench\": \"device_reduce\", \"gradient_mib\": %lld, \"cards\": %d, "
      "\"one_card\": {\"members\": %d, \"tree_ms\": %.3f, \"exchanged_gbps\": "
      "%.1f, \"copy_gbps\": %.1f}, \"nccl\": %s, \"summary\": \"%s\"}\n",
      static_cast<long long>(mib), fake ? 0 : cards, kMembersOnOneCard,
      1e3 * one.tree_s, tree_gbps, copy_gbps, several.c_str(), summary.c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  bool fake = false;
  int64_t mib = 256;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--device") == 0) {
      fake = std::strcmp(argv[i + 1], "fake") == 0;
    } else if (std::strcmp(argv[i], "--mib") != 0 ||
               !absl::SimpleAtoi(argv[i + 1], &mib) || mib < 1) {
      std::fprintf(stderr,
                   "bench_device_reduce [--device cuda|fake] "
                   "[--mib N]\n");
      return 64;
    }
  }
  const absl::Status status = Measure(fake, mib);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  const bool no_gpu =
      absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
  return no_gpu ? 77 : 70;
}

}  // namespace
}  // namespace holdfast::trainer

int main(int argc, char** argv) { return holdfast::trainer::Main(argc, argv); }
