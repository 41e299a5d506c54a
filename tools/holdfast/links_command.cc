// tools/holdfast/links_command.cc: measures the links of a layout as one rank
// of a job; rank 0 says what was found.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "tools/common/json_output.h"
#include "tools/common/progress.h"
#include "tools/common/text.h"
#include "tools/holdfast/commands.h"
#include "tools/holdfast/rank_process.h"
#include "trainer/fault/exit_codes.h"
#include "trainer/links/measure_links.h"
#include "trainer/run_device.h"
#include "trainer/startup.h"

namespace holdfast::tools {
namespace {

using trainer::GroupRecord;
using trainer::LinkKind;
using trainer::LinkReport;
using trainer::PairRecord;
using trainer::SlowPair;

constexpr char kProgram[] = "holdfast links";
constexpr absl::Duration kLeaveTimeout = absl::Minutes(1);

absl::StatusOr<ckpt::Mesh> MeshOf(const LinksOptions& options, int ranks) {
  ckpt::Mesh mesh{.tp = options.tp, .pp = options.pp};
  const int64_t model = int64_t{options.tp} * options.pp;
  if (ranks < 2) {
    return absl::FailedPreconditionError(
        "one rank has no links; start several with `holdfast launch -n N -- "
        "links ...`, mpirun or srun --mpi=pmix");
  }
  if (ranks % model != 0) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "tp %d x pp %d is %d ranks, which %d ranks are no multiple of; start "
        "another number, or change --tp and --pp",
        options.tp, options.pp, model, ranks));
  }
  mesh.dp = static_cast<int>(ranks / model);
  return mesh;
}

absl::StatusOr<int64_t> SizeOf(const char* option, const std::string& text) {
  const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
  constexpr uint64_t kMax = uint64_t{1} << 30;
  if (!bytes.ok() || *bytes < sizeof(float) || *bytes > kMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: expected a size from 4 B to 1 GiB, found '%s'", option, text));
  }
  return static_cast<int64_t>(*bytes / sizeof(float) * sizeof(float));
}

// The device that is measured between, and its communicators; nothing of both
// for host memory.
struct Devices {
  trainer::RunDevice device;
  std::unique_ptr<trainer::DeviceMesh> mesh;
};

// Collective.
absl::StatusOr<Devices> OpenDevices(const LinksOptions& options,
                                    const trainer::MeshCollectives& mesh,
                                    const trainer::Job& job,
                                    trainer::Heartbeat& heartbeat) {
  Devices opened;
  if (options.device == "cpu") return opened;
  trainer::Config config;
  config.device = trainer::DeviceChoice::kCuda;
  const std::string host = job.HostOf(job.rank());
  const trainer::Heartbeat::Scope scope(&heartbeat, "links: opening the GPUs",
                                        kJoinTimeout);
  absl::StatusOr<trainer::RunDevice> device =
      trainer::OpenRunDevice(config, job.local_rank());
  // Rank 0's own is said at the end.
  if (!device.ok() && job.rank() != 0) {
    HF_LOG_ERROR("%s", std::string(device.status().message()));
  }
  HF_RETURN_IF_ERROR(
      trainer::Agree(*mesh.world, device.status(), "opening the GPU"));
  opened.device = *std::move(device);
  trainer::WatchWaits(opened.device, &heartbeat,
                      static_cast<int64_t>(options.round_timeout_s));
  HF_RETURN_IF_ERROR(trainer::CountSharing(*mesh.world, host, opened.device));
  HF_ASSIGN_OR_RETURN(
      opened.mesh,
      trainer::OpenRunMesh(mesh, opened.device, host,
                           static_cast<int64_t>(options.round_timeout_s),
                           &heartbeat));
  if (opened.mesh == nullptr) {
    return absl::FailedPreconditionError(
        "several ranks have the same GPU, and NCCL takes one rank a GPU; start "
        "as many ranks a host as it has GPUs");
  }
  return opened;
}

// Everything that rank 0 says.
struct Findings {
  ckpt::Mesh mesh;
  int64_t hosts = 0;
  std::string memory;
  trainer::LinkTestOptions test;
  trainer::LinkExpectations expected;
  trainer::LinkMeasurements measured;
  LinkReport report;
  std::function<std::string(int)> host_of;
};

std::string RankText(const Findings& found, int rank) {
  return absl::StrFormat("rank %d on %s", rank, found.host_of(rank));
}

std::string Rate(double bytes_per_s) {
  return absl::StrFormat("%.3g", bytes_per_s / 1e9);
}

std::string Micros(double us) { return absl::StrFormat("%.3g", us); }

void PrintAsText(const Findings& found) {
  std::printf(
      "links of %s, %d ranks on %ld %s, %s; messages of %s, sums of %s\n\n",
      ckpt::ToString(found.mesh).c_str(), found.mesh.world(),
      static_cast<long>(found.hosts), found.hosts == 1 ? "host" : "hosts",
      found.memory.c_str(),
      BytesText(static_cast<double>(found.test.message_bytes)).c_str(),
      BytesText(static_cast<double>(found.test.sum_bytes)).c_str());
  std::vector<std::vector<std::string>> rows = {
      {"axis", "where", "operation", "of them", "GB/s median", "slowest",
       "us median", "longest"}};
  for (const LinkKind& kind : found.report.kinds) {
    const std::string axis = ToString(kind.axis);
    const std::string where = kind.across ? "across hosts" : "inside a host";
    if (kind.groups > 0) {
      rows.push_back({axis, where, "all-reduce (bus)",
                      CountText(static_cast<uint64_t>(kind.groups)),
                      Rate(kind.group_bus_bytes_per_s_median),
                      Rate(kind.group_bus_bytes_per_s_min),
                      Micros(kind.group_latency_us_median), ""});
    }
    if (kind.pairs > 0) {
      rows.push_back({axis, where, "send, receive",
                      CountText(static_cast<uint64_t>(kind.pairs)),
                      Rate(kind.pair_bytes_per_s_median),
                      Rate(kind.pair_bytes_per_s_min),
                      Micros(kind.pair_latency_us_median),
                      Micros(kind.pair_latency_us_max)});
    }
  }
  std::printf("%s\n",
              TableText(rows, {Align::kLeft, Align::kLeft, Align::kLeft,
                               Align::kRight, Align::kRight, Align::kRight,
                               Align::kRight, Align::kRight})
                  .c_str());
  constexpr size_t kNamed = 20;
  for (size_t i = 0; i < found.report.slow.size(); ++i) {
    const SlowPair& slow = found.report.slow[i];
    if (i == kNamed) {
      std::printf("and %zu more; --json has them all\n",
                  found.report.slow.size() - kNamed);
      break;
    }
    std::printf("slow: %s, %s and %s: %s\n", ToString(slow.pair.axis),
                Printable(RankText(found, slow.pair.a)).c_str(),
                Printable(RankText(found, slow.pair.b)).c_str(),
                slow.why.c_str());
  }
  if (found.report.suspect_rank != trainer::kNoSuspect) {
    std::printf("%s is in %ld of the %zu slow pairs: look there first\n",
                Printable(RankText(found, found.report.suspect_rank)).c_str(),
                static_cast<long>(found.report.suspect_pairs),
                found.report.slow.size());
  }
  if (!found.report.meets_expectations()) {
    std::printf("result: not as expected\n");
  } else if (found.expected.inside.any() || found.expected.across.any()) {
    std::printf("result: as expected\n");
  } else if (found.report.slow.empty()) {
    std::printf(
        "result: no pair stands out; --expect-inside and --expect-across make "
        "it a test\n");
  }
}

void PrintAsJson(const Findings& found) {
  Json json;
  json["layout"] = ckpt::ToString(found.mesh);
  json["ranks"] = found.mesh.world();
  json["hosts"] = found.hosts;
  json["memory"] = found.memory;
  json["message_bytes"] = found.test.message_bytes;
  json["sum_bytes"] = found.test.sum_bytes;
  json["as_expected"] = found.report.meets_expectations();
  json["kinds"] = Json::array();
  for (const LinkKind& kind : found.report.kinds) {
    json["kinds"].push_back(
        {{"axis", ToString(kind.axis)},
         {"across_hosts", kind.across},
         {"groups", kind.groups},
         {"bus_bytes_per_s_median", kind.group_bus_bytes_per_s_median},
         {"bus_bytes_per_s_min", kind.group_bus_bytes_per_s_min},
         {"all_reduce_us_median", kind.group_latency_us_median},
         {"pairs", kind.pairs},
         {"pair_bytes_per_s_median", kind.pair_bytes_per_s_median},
         {"pair_bytes_per_s_min", kind.pair_bytes_per_s_min},
         {"pair_us_median", kind.pair_latency_us_median},
         {"pair_us_max", kind.pair_latency_us_max}});
  }
  const auto pair_json = [&](const PairRecord& pair) {
    return Json{{"axis", ToString(pair.axis)},
                {"ranks", {pair.a, pair.b}},
                {"hosts", {found.host_of(pair.a), found.host_of(pair.b)}},
                {"bytes_per_s", pair.bytes_per_s},
                {"us", pair.latency_us}};
  };
  json["slow"] = Json::array();
  for (const SlowPair& slow : found.report.slow) {
    Json entry = pair_json(slow.pair);
    entry["misses_expectation"] = slow.misses_expectation;
    entry["why"] = slow.why;
    json["slow"].push_back(std::move(entry));
  }
  if (found.report.suspect_rank != trainer::kNoSuspect) {
    json["suspect_rank"] = found.report.suspect_rank;
  }
  json["groups"] = Json::array();
  for (const GroupRecord& group : found.measured.groups) {
    json["groups"].push_back(
        {{"axis", ToString(group.axis)},
         {"ranks", trainer::RanksOfGroup(found.mesh, group)},
         {"bus_bytes_per_s", group.bus_bytes_per_s},
         {"us", group.latency_us}});
  }
  json["pairs"] = Json::array();
  for (const PairRecord& pair : found.measured.pairs) {
    json["pairs"].push_back(pair_json(pair));
  }
  PrintJson(json);
}

int64_t HostCount(const ckpt::Mesh& mesh,
                  const std::function<std::string(int)>& host_of) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    hosts.push_back(host_of(rank));
  }
  std::sort(hosts.begin(), hosts.end());
  return std::unique(hosts.begin(), hosts.end()) - hosts.begin();
}

// Collective. The exit code.
absl::StatusOr<int> MeasureAndSay(const LinksOptions& options,
                                  trainer::Job& job,
                                  trainer::Heartbeat& heartbeat) {
  Findings found;
  HF_ASSIGN_OR_RETURN(found.mesh, MeshOf(options, job.size()));
  found.host_of = [&job](int rank) { return job.HostOf(rank); };
  found.test.repeats = options.repeats;
  found.test.round_timeout = absl::Seconds(options.round_timeout_s);
  found.test.heartbeat = &heartbeat;
  HF_ASSIGN_OR_RETURN(found.test.message_bytes,
                      SizeOf("--message", options.message));
  HF_ASSIGN_OR_RETURN(found.test.sum_bytes, SizeOf("--sum", options.sum));
  Progress progress({.doing = "measuring", .unit = "rounds"},
                    ckpt::RealClock());
  found.test.progress = [&](int64_t done, int64_t of) {
    progress.Update(static_cast<uint64_t>(done), static_cast<uint64_t>(of));
  };
  trainer::MeshCollectives mesh;
  {
    const trainer::Heartbeat::Scope scope(&heartbeat, "links: making groups",
                                          kJoinTimeout);
    HF_ASSIGN_OR_RETURN(mesh, trainer::SplitMesh(job.world(), found.mesh));
  }
  HF_ASSIGN_OR_RETURN(const Devices devices,
                      OpenDevices(options, mesh, job, heartbeat));
  if (devices.mesh != nullptr) {
    found.test.open_ops = [&](trainer::Collectives&, trainer::LinkAxis axis,
                              int64_t bytes_max) {
      const trainer::DeviceMesh& over = *devices.mesh;
      return trainer::NewDeviceLinkOps(axis == trainer::LinkAxis::kTp ? *over.tp
                                       : axis == trainer::LinkAxis::kPp
                                           ? *over.pp
                                           : *over.dp,
                                       *devices.device.device, bytes_max);
    };
  }
  found.memory =
      devices.mesh == nullptr ? "host memory, by MPI" : "GPU memory, by NCCL";
  HF_ASSIGN_OR_RETURN(found.measured, trainer::MeasureLinks(mesh, found.test));

  found.expected.inside = {options.inside_gb_per_s * 1e9, options.inside_us};
  found.expected.across = {options.across_gb_per_s * 1e9, options.across_us};
  found.report = trainer::JudgeLinks(
      found.measured.pairs, found.measured.groups, found.expected,
      found.host_of, [&](const GroupRecord& group) {
        return trainer::RanksOfGroup(found.mesh, group);
      });
  const int code = found.report.meets_expectations() ? trainer::kExitFinished
                                                     : trainer::kExitDifferent;
  if (job.rank() != 0) return code;
  progress.Finish();
  found.hosts = HostCount(found.mesh, found.host_of);
  if (options.json) {
    PrintAsJson(found);
  } else {
    PrintAsText(found);
  }
  return FinishOutput(kProgram, code);
}

}  // namespace

int RunLinks(const LinksOptions& options) {
  trainer::Heartbeat heartbeat;
  const absl::StatusOr<std::unique_ptr<trainer::Job>> job = JoinJob(heartbeat);
  if (!job.ok()) return ReportFailure(kProgram, job.status());
  InitRankLog((*job)->rank());
  const auto watchdog = trainer::Watchdog::Start(heartbeat, WatchOf(**job));
  const absl::StatusOr<int> code =
      watchdog.ok() ? MeasureAndSay(options, **job, heartbeat)
                    : watchdog.status();
  const trainer::Heartbeat::Scope scope(&heartbeat, "leaving the job",
                                        kLeaveTimeout);
  if (!code.ok()) {
    // All ranks agree on what is wrong with the command line: rank 0 says it.
    const bool agreed = absl::IsFailedPrecondition(code.status()) ||
                        absl::IsInvalidArgument(code.status());
    if (!agreed || (*job)->rank() == 0) ReportFailure(kProgram, code.status());
    const int exit_code = trainer::ExitCodeOf(code.status());
    if (!agreed) (*job)->Abort(exit_code);
    (*job)->Finalize().IgnoreError();
    return exit_code;
  }
  if (const absl::Status left = (*job)->Finalize(); !left.ok()) {
    return ReportFailure(kProgram, left);
  }
  return *code;
}

}  // namespace holdfast::tools
