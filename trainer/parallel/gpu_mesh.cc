// trainer/parallel/gpu_mesh.cc: who makes which id, and in which order.

#include "trainer/parallel/gpu_mesh.h"

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "trainer/parallel/communication_memory.h"

namespace holdfast::trainer {
namespace {

// Apart from the tags of the step.
constexpr int kIdTag = 2000;

// An id, or that its maker has none.
struct Offer {
  std::byte good{0};
  NcclId id = {};

  std::span<std::byte> bytes() {
    return std::as_writable_bytes(std::span<Offer>(this, 1));
  }
};

absl::Status NoId(const Collectives& group, int maker) {
  return absl::UnavailableError(absl::StrFormat(
      "rank %d of a group of %d could make no id for NCCL; its own log says "
      "why",
      maker, group.size()));
}

class HeartbeatNames final : public WaitNames {
 public:
  explicit HeartbeatNames(Heartbeat* heartbeat) : heartbeat_(heartbeat) {}
  void Begin(std::string_view operation) override {
    scope_.emplace(heartbeat_, operation);
  }
  void End() override { scope_.reset(); }

 private:
  Heartbeat* const heartbeat_;
  std::optional<Heartbeat::Scope> scope_;
};

// The id of a lane, made by the lower of two neighbours.
absl::StatusOr<NcclId> LaneId(const CollectivesPluginEntry& entry,
                              Collectives& pp, int peer) {
  Offer offer;
  absl::Status made;
  const bool maker = pp.rank() < peer;
  if (maker) {
    const absl::StatusOr<NcclId> id = entry.make_id();
    made = id.status();
    if (id.ok()) {
      offer.good = std::byte{1};
      offer.id = *id;
    }
  }
  HF_ASSIGN_OR_RETURN(const RequestId request,
                      maker ? pp.Isend(offer.bytes(), peer, kIdTag)
                            : pp.Irecv(offer.bytes(), peer, kIdTag));
  HF_RETURN_IF_ERROR(pp.Wait(request));
  HF_RETURN_IF_ERROR(made);
  if (offer.good == std::byte{0}) return NoId(pp, peer);
  return offer.id;
}

// Between neighbours, pairs that begin at even ranks first, so that nobody
// waits in a row.
absl::StatusOr<std::vector<NcclJob::Lane>> LanesOf(
    const CollectivesPluginEntry& entry, Collectives& pp,
    const std::vector<int>& tags) {
  std::vector<NcclJob::Lane> lanes;
  for (const int parity : {0, 1}) {
    const bool first = pp.rank() % 2 == parity;
    const int peer = pp.rank() + (first ? 1 : -1);
    if (peer < 0 || peer >= pp.size()) continue;
    for (const int tag : tags) {
      HF_ASSIGN_OR_RETURN(const NcclId id, LaneId(entry, pp, peer));
      lanes.push_back({peer, tag, id});
    }
  }
  return lanes;
}

}  // namespace

absl::StatusOr<const CollectivesPluginEntry*> FindCollectivesPlugin(
    const kernels::DevicePlugin& plugin) {
  const auto function = reinterpret_cast<CollectivesPluginFunction*>(
      plugin.Symbol(kCollectivesPluginSymbol));
  const CollectivesPluginEntry* const entry =
      function == nullptr ? nullptr : function();
  if (entry == nullptr || entry->build == nullptr ||
      entry->build != kernels::DevicePluginBuild()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has no collectives of this build (%s); install program and plug-in "
        "from one build",
        plugin.path(), std::string(kernels::DevicePluginBuild())));
  }
  return entry;
}

absl::StatusOr<NcclId> ShareNcclId(const CollectivesPluginEntry& entry,
                                   Collectives& group) {
  Offer offer;
  absl::Status made;
  if (group.rank() == 0) {
    const absl::StatusOr<NcclId> id = entry.make_id();
    made = id.status();
    if (id.ok()) {
      offer.good = std::byte{1};
      offer.id = *id;
    }
  }
  HF_RETURN_IF_ERROR(group.Broadcast(offer.bytes(), 0));
  HF_RETURN_IF_ERROR(made);
  if (offer.good == std::byte{0}) return NoId(group, 0);
  return offer.id;
}

absl::StatusOr<DeviceMesh> OpenGpuMesh(const MeshCollectives& mesh,
                                       const kernels::DevicePlugin& plugin,
                                       kernels::Device& device,
                                       const GpuMeshOptions& options) {
  HF_ASSIGN_OR_RETURN(const CollectivesPluginEntry* const entry,
                      FindCollectivesPlugin(plugin));
  DeviceMesh made;
  made.names = std::make_unique<HeartbeatNames>(options.heartbeat);
  HF_ASSIGN_OR_RETURN(made.job,
                      entry->open_job({.where = options.where,
                                       .timeout_ms = options.timeout_ms,
                                       .device = &device,
                                       .names = made.names.get()}));
  const auto open = [&](Collectives& group, const std::string& name,
                        const std::vector<int>& tags, size_t scratch_bytes)
      -> absl::StatusOr<std::unique_ptr<DeviceCollectives>> {
    NcclJob::WireOptions wire;
    wire.name = name;
    wire.rank = group.rank();
    wire.size = group.size();
    if (group.size() > 1) {
      HF_ASSIGN_OR_RETURN(wire.id, ShareNcclId(*entry, group));
      HF_ASSIGN_OR_RETURN(wire.lanes, LanesOf(*entry, group, tags));
    }
    HF_ASSIGN_OR_RETURN(std::unique_ptr<NcclWire> opened,
                        made.job->OpenWire(wire));
    return NewWireCollectives(std::move(opened), device, scratch_bytes);
  };
  HF_ASSIGN_OR_RETURN(made.tp, open(*mesh.tp, "tp", {}, kWireScratchBytes));
  HF_ASSIGN_OR_RETURN(made.dp, open(*mesh.dp, "dp", {}, kLittleScratchBytes));
  HF_ASSIGN_OR_RETURN(made.pp, open(*mesh.pp, "pp", options.pipeline_tags,
                                    kLittleScratchBytes));
  return made;
}

}  // namespace holdfast::trainer
