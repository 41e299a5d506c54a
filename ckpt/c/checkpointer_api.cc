// ckpt/c/checkpointer_api.cc: the C functions of a checkpointer: arguments
// checked, structs in and out.

#include <cstddef>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/c/callback_group.h"
#include "ckpt/c/checkpointer.h"
#include "ckpt/c/guard.h"
#include "ckpt/c/holdfast_ckpt.h"
#include "ckpt/c/options.h"
#include "ckpt/c/texts.h"

using holdfast::ckpt::AttributeList;
using holdfast::ckpt::Box;
using holdfast::ckpt::CCheckpointer;
using holdfast::ckpt::CheckStruct;
using holdfast::ckpt::COptions;
using holdfast::ckpt::GiveStruct;
using holdfast::ckpt::Guard;
using holdfast::ckpt::ItemSpec;
using holdfast::ckpt::LoadReport;
using holdfast::ckpt::LoadRequest;
using holdfast::ckpt::NullArgument;
using holdfast::ckpt::SaveReport;
using holdfast::ckpt::SaveRequest;
using holdfast::ckpt::TakeStruct;

struct hf_ckpt {
  hf_ckpt(std::unique_ptr<holdfast::ckpt::Group> group, const COptions& options)
      : checkpointer(std::move(group), options) {}

  CCheckpointer checkpointer;
  // Texts of the reports.
  std::string loaded_id;
  std::string run_id;
  std::string stepped_over;
  AttributeList loaded_attributes;
  std::string saved_id;
  std::string save_message;
};

namespace {

// They lie in the manifest, which every rank reads and which has a bound of its
// own (kManifestBytesMax).
constexpr uint64_t kAttributeBytesMax = uint64_t{16} << 20;

// Sizes of the structs in version 1.
constexpr size_t kLoadRequestBytes1 =
    offsetof(hf_ckpt_load_request, user) + sizeof(void*);
constexpr size_t kLoadReportBytes1 =
    offsetof(hf_ckpt_load_report, stepped_over_text) + sizeof(char*);
constexpr size_t kSaveReportBytes1 =
    offsetof(hf_ckpt_save_report, message) + sizeof(char*);
constexpr size_t kCountersBytes1 =
    offsetof(hf_ckpt_counters, staged_bytes) + sizeof(uint64_t);

// The numbers of the C interface are fixed; those of C++ may be sorted anew.
int32_t NumberOf(SaveReport::Outcome outcome) {
  switch (outcome) {
    case SaveReport::Outcome::kCommitted:
      return HF_CKPT_COMMITTED;
    case SaveReport::Outcome::kAborted:
      return HF_CKPT_SAVE_ABORTED;
    case SaveReport::Outcome::kFailed:
      return HF_CKPT_SAVE_FAILED;
    case SaveReport::Outcome::kUnknown:
      return HF_CKPT_SAVE_UNKNOWN;
    case SaveReport::Outcome::kSkipped:
      return HF_CKPT_SAVE_SKIPPED;
  }
  return HF_CKPT_SAVE_UNKNOWN;
}

absl::StatusOr<LoadRequest::Resume> ResumeOf(int32_t number) {
  switch (number) {
    case HF_CKPT_RESUME_AUTO:
      return LoadRequest::Resume::kAuto;
    case HF_CKPT_RESUME_NEVER:
      return LoadRequest::Resume::kNever;
    case HF_CKPT_RESUME_REQUIRED:
      return LoadRequest::Resume::kRequired;
    case HF_CKPT_RESUME_STEP:
      return LoadRequest::Resume::kStep;
    case HF_CKPT_RESUME_CLAIM:
      return LoadRequest::Resume::kClaim;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("loading: there is no way %d to resume", number));
  }
}

absl::Status Ask(const hf_ckpt_load_request& request,
                 const std::map<std::string, std::string>& attributes) {
  const AttributeList list(attributes);
  char message[1024] = "";
  const hf_ckpt_code code = request.validate(
      request.user, list.data(), list.size(), message, sizeof(message));
  message[sizeof(message) - 1] = '\0';
  if (code == HF_CKPT_OK) return absl::OkStatus();
  return absl::Status(
      holdfast::ckpt::CodeOf(code),
      message[0] != '\0' ? message : "the caller refused the checkpoint");
}

absl::StatusOr<LoadRequest> RequestOf(const hf_ckpt_load_request* given) {
  LoadRequest request;
  if (given == nullptr) return request;
  HF_RETURN_IF_ERROR(CheckStruct("hf_ckpt_load", given, kLoadRequestBytes1));
  const hf_ckpt_load_request taken = TakeStruct(given);
  HF_ASSIGN_OR_RETURN(request.resume, ResumeOf(taken.resume));
  request.step = taken.step;
  if (taken.init_from != nullptr) request.init_from = taken.init_from;
  if (request.resume == LoadRequest::Resume::kClaim &&
      !request.init_from.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "loading: HF_CKPT_RESUME_CLAIM loads nothing, and init_from is '%s'",
        request.init_from));
  }
  request.init_weights_only = taken.init_weights_only != 0;
  if (taken.fingerprint != nullptr) request.fingerprint = taken.fingerprint;
  if (taken.committed_proof != nullptr) {
    request.committed_proof = taken.committed_proof;
  }
  if (taken.validate != nullptr) {
    request.validate =
        [taken](const std::map<std::string, std::string>& attributes) {
          return Ask(taken, attributes);
        };
  }
  return request;
}

void Keep(const LoadReport& report, hf_ckpt* ckpt) {
  ckpt->loaded_id = report.loaded || report.claimed ? ToString(report.id) : "";
  ckpt->run_id = holdfast::ckpt::ToHex(report.run_id);
  ckpt->stepped_over.clear();
  for (const holdfast::ckpt::SteppedOver& over : report.stepped_over) {
    if (!ckpt->stepped_over.empty()) ckpt->stepped_over += "\n";
    ckpt->stepped_over +=
        absl::StrFormat("%s: %s", ToString(over.id), over.reason);
  }
  ckpt->loaded_attributes = AttributeList(report.attributes);
}

void Give(const LoadReport& report, const hf_ckpt& ckpt,
          hf_ckpt_load_report* given) {
  hf_ckpt_load_report filled{};
  filled.step = report.step;
  filled.loaded = report.loaded;
  filled.from_init = report.from_init;
  filled.bytes_read = report.bytes_read;
  filled.bytes_received = report.bytes_received;
  filled.job_bytes_read = report.job_bytes_read;
  filled.job_bytes_received = report.job_bytes_received;
  filled.bytes_stored = report.bytes_stored;
  filled.seconds = report.seconds;
  filled.bytes_per_s = report.bytes_per_s;
  filled.raw_share = report.raw_share;
  filled.incarnation = report.incarnation;
  filled.stepped_over = static_cast<uint32_t>(report.stepped_over.size());
  filled.id = ckpt.loaded_id.c_str();
  filled.run_id = ckpt.run_id.c_str();
  filled.layout_from = report.layout_from.c_str();
  filled.stepped_over_text = ckpt.stepped_over.c_str();
  GiveStruct(filled, given);
}

void Give(const SaveReport& report, hf_ckpt* ckpt, hf_ckpt_save_report* given) {
  ckpt->saved_id = ToString(report.id);
  ckpt->save_message = std::string(report.status.message());
  hf_ckpt_save_report filled{};
  filled.step = report.step;
  filled.outcome = NumberOf(report.outcome);
  filled.code = static_cast<hf_ckpt_code>(report.status.code());
  filled.bytes = report.bytes;
  filled.bytes_total = report.bytes_total;
  filled.seconds = report.seconds;
  filled.write_seconds = report.write_seconds;
  filled.bytes_per_s = report.bytes_per_s;
  filled.raw_share = report.raw_share;
  filled.stage_seconds = ckpt->checkpointer.stage_seconds();
  filled.bytes_copied = report.bytes_copied;
  filled.fence_wait_ms = report.fence_wait_ms;
  filled.fence_copy_ms = report.fence_copy_ms;
  filled.thread_cpu_seconds = report.thread_cpu_seconds;
  filled.id = ckpt->saved_id.c_str();
  filled.message = ckpt->save_message.c_str();
  GiveStruct(filled, given);
}

// Poll and wait.
absl::Status TakeReport(const char* function, hf_ckpt* ckpt,
                        std::optional<absl::Duration> wait,
                        hf_ckpt_save_report* report, int32_t* ready) {
  HF_REQUIRE_NOT_NULL(function, ckpt);
  HF_REQUIRE_NOT_NULL(function, ready);
  HF_RETURN_IF_ERROR(CheckStruct(function, report, kSaveReportBytes1));
  HF_ASSIGN_OR_RETURN(const SaveReport* const taken,
                      ckpt->checkpointer.TakeReport(wait));
  *ready = taken != nullptr;
  if (taken != nullptr) Give(*taken, ckpt, report);
  return absl::OkStatus();
}

// The box of an item; null arrays are for scalars. A box without elements has
// the count 0.
absl::StatusOr<Box> BoxOf(const ItemSpec& item, const int64_t* first,
                          const int64_t* count) {
  Box box;
  box.dimensions = static_cast<int>(item.shape.size());
  if (box.dimensions == 0) return box;
  HF_REQUIRE_NOT_NULL("adding a buffer", first);
  HF_REQUIRE_NOT_NULL("adding a buffer", count);
  for (int d = 0; d < box.dimensions; ++d) {
    box.first[d] = first[d];
    box.count[d] = count[d];
  }
  return box;
}

bool IsEmpty(const Box& box) {
  for (int d = 0; d < box.dimensions; ++d) {
    if (box.count[d] == 0) return true;
  }
  return false;
}

// `run`: [first, first + count) of the box; all of it without.
absl::Status AddBuffer(const char* function, hf_ckpt* ckpt, uint32_t item,
                       const int64_t* first, const int64_t* count,
                       std::optional<std::pair<int64_t, int64_t>> run,
                       void* memory, uint64_t memory_bytes, int32_t placement,
                       uint32_t* buffer) {
  HF_REQUIRE_NOT_NULL(function, ckpt);
  HF_ASSIGN_OR_RETURN(const ItemSpec* const spec,
                      ckpt->checkpointer.Item(item));
  if (placement != HF_CKPT_IN_PLACE && placement != HF_CKPT_STAGED) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: placement %d is neither HF_CKPT_IN_PLACE nor HF_CKPT_STAGED",
        function, placement));
  }
  HF_ASSIGN_OR_RETURN(const Box box, BoxOf(*spec, first, count));
  const bool is_empty = IsEmpty(box) || (run.has_value() && run->second == 0);
  if (!is_empty) {
    HF_REQUIRE_NOT_NULL(function, memory);
    // The box first: the number of its elements is bounded then.
    HF_RETURN_IF_ERROR(holdfast::ckpt::CheckDeclaredRun(*spec, box, 0, 1));
    if (!run.has_value()) run = {0, box.elements()};
    HF_RETURN_IF_ERROR(
        holdfast::ckpt::CheckDeclaredRun(*spec, box, run->first, run->second));
  } else {
    run = {0, 0};
  }
  HF_ASSIGN_OR_RETURN(
      const uint32_t number,
      ckpt->checkpointer.AddBuffer(item, box, run->first, run->second,
                                   static_cast<std::byte*>(memory),
                                   memory_bytes, placement == HF_CKPT_STAGED));
  if (buffer != nullptr) *buffer = number;
  return absl::OkStatus();
}

}  // namespace

extern "C" {

hf_ckpt_code hf_ckpt_new(const char* run_dir, hf_ckpt_group* group,
                         const hf_ckpt_options* options, hf_ckpt** ckpt) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_new", run_dir);
    HF_REQUIRE_NOT_NULL("hf_ckpt_new", group);
    HF_REQUIRE_NOT_NULL("hf_ckpt_new", ckpt);
    COptions chosen;
    if (options != nullptr) chosen = options->options;
    chosen.checkpointer.run_dir = run_dir;
    *ckpt = new hf_ckpt(std::move(group->group), chosen);
    delete group;
    return absl::OkStatus();
  });
}

hf_ckpt_code hf_ckpt_add_item(hf_ckpt* ckpt, const char* name, const char* kind,
                              int32_t dtype, int32_t dimensions,
                              const int64_t* shape, uint32_t* item) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_add_item", ckpt);
    HF_REQUIRE_NOT_NULL("hf_ckpt_add_item", name);
    HF_REQUIRE_NOT_NULL("hf_ckpt_add_item", kind);
    HF_REQUIRE_NOT_NULL("hf_ckpt_add_item", item);
    if (dimensions < 0 || dimensions > HF_CKPT_DIMENSIONS_MAX) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "item '%s' (%s): %d dimensions; 0 to %d are possible, so join some "
          "of them",
          name, kind, dimensions, HF_CKPT_DIMENSIONS_MAX));
    }
    if (dimensions > 0) HF_REQUIRE_NOT_NULL("hf_ckpt_add_item", shape);
    if (dtype < HF_CKPT_BF16 || dtype > HF_CKPT_U8) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "item '%s' (%s): there is no dtype %d", name, kind, dtype));
    }
    ItemSpec spec;
    spec.name = name;
    spec.kind = kind;
    spec.dtype = holdfast::ckpt::DType{static_cast<uint8_t>(dtype)};
    if (dimensions > 0) spec.shape.assign(shape, shape + dimensions);
    HF_ASSIGN_OR_RETURN(*item, ckpt->checkpointer.AddItem(std::move(spec)));
    return absl::OkStatus();
  });
}

hf_ckpt_code hf_ckpt_add_buffer(hf_ckpt* ckpt, uint32_t item,
                                const int64_t* first, const int64_t* count,
                                void* memory, uint64_t memory_bytes,
                                int32_t placement, uint32_t* buffer) {
  return Guard(__func__, [&]() -> absl::Status {
    return AddBuffer("hf_ckpt_add_buffer", ckpt, item, first, count,
                     std::nullopt, memory, memory_bytes, placement, buffer);
  });
}

hf_ckpt_code hf_ckpt_add_run(hf_ckpt* ckpt, uint32_t item, const int64_t* first,
                             const int64_t* count, int64_t run_first,
                             int64_t run_count, void* memory,
                             uint64_t memory_bytes, int32_t placement,
                             uint32_t* buffer) {
  return Guard(__func__, [&]() -> absl::Status {
    return AddBuffer("hf_ckpt_add_run", ckpt, item, first, count,
                     std::pair(run_first, run_count), memory, memory_bytes,
                     placement, buffer);
  });
}

hf_ckpt_code hf_ckpt_add_region(hf_ckpt* ckpt, void* memory, uint64_t bytes) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_add_region", ckpt);
    HF_REQUIRE_NOT_NULL("hf_ckpt_add_region", memory);
    return ckpt->checkpointer.AddRegion(static_cast<std::byte*>(memory), bytes);
  });
}

hf_ckpt_code hf_ckpt_open(hf_ckpt* ckpt) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_open", ckpt);
    return ckpt->checkpointer.Open();
  });
}

hf_ckpt_code hf_ckpt_load(hf_ckpt* ckpt, const hf_ckpt_load_request* request,
                          hf_ckpt_load_report* report) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_load", ckpt);
    if (report != nullptr) {
      HF_RETURN_IF_ERROR(
          CheckStruct("hf_ckpt_load", report, kLoadReportBytes1));
    }
    HF_ASSIGN_OR_RETURN(const LoadRequest wanted, RequestOf(request));
    HF_ASSIGN_OR_RETURN(const LoadReport* const loaded,
                        ckpt->checkpointer.Load(wanted));
    Keep(*loaded, ckpt);
    if (report != nullptr) Give(*loaded, *ckpt, report);
    return absl::OkStatus();
  });
}

hf_ckpt_code hf_ckpt_loaded_attribute(const hf_ckpt* ckpt, const char* name,
                                      const char** value) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_loaded_attribute", ckpt);
    HF_REQUIRE_NOT_NULL("hf_ckpt_loaded_attribute", name);
    HF_REQUIRE_NOT_NULL("hf_ckpt_loaded_attribute", value);
    return ckpt->loaded_attributes.Find(name, value);
  });
}

hf_ckpt_code hf_ckpt_loaded_attributes(const hf_ckpt* ckpt,
                                       const hf_ckpt_attribute** attributes,
                                       uint64_t* count) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_loaded_attributes", ckpt);
    HF_REQUIRE_NOT_NULL("hf_ckpt_loaded_attributes", attributes);
    HF_REQUIRE_NOT_NULL("hf_ckpt_loaded_attributes", count);
    *attributes = ckpt->loaded_attributes.data();
    *count = ckpt->loaded_attributes.size();
    return absl::OkStatus();
  });
}

hf_ckpt_code hf_ckpt_begin_save(hf_ckpt* ckpt, int64_t step,
                                const hf_ckpt_attribute* attributes,
                                uint64_t count) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_begin_save", ckpt);
    SaveRequest request;
    request.step = step;
    if (count > 0) HF_REQUIRE_NOT_NULL("hf_ckpt_begin_save", attributes);
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < count; ++i) {
      if (attributes[i].name == nullptr || attributes[i].value == nullptr ||
          attributes[i].name[0] == '\0') {
        return absl::InvalidArgumentError(absl::StrFormat(
            "hf_ckpt_begin_save: attribute %d has no name or no value", i));
      }
      bytes += std::strlen(attributes[i].name);
      bytes += std::strlen(attributes[i].value);
      if (bytes > kAttributeBytesMax) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "hf_ckpt_begin_save: the attributes up to number %d have %d bytes, "
            "at most %d are possible; save what is larger as an item",
            i, bytes, kAttributeBytesMax));
      }
      request.attributes[attributes[i].name] = attributes[i].value;
    }
    return ckpt->checkpointer.BeginSave(std::move(request));
  });
}

hf_ckpt_code hf_ckpt_before_write(hf_ckpt* ckpt, uint32_t buffer,
                                  uint64_t offset, uint64_t bytes) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_before_write", ckpt);
    return ckpt->checkpointer.BeforeWrite(buffer, offset, bytes);
  });
}

hf_ckpt_code hf_ckpt_poll_save(hf_ckpt* ckpt, hf_ckpt_save_report* report,
                               int32_t* ready) {
  return Guard(__func__, [&]() -> absl::Status {
    return TakeReport("hf_ckpt_poll_save", ckpt, std::nullopt, report, ready);
  });
}

hf_ckpt_code hf_ckpt_wait_save(hf_ckpt* ckpt, int64_t timeout_ms,
                               hf_ckpt_save_report* report, int32_t* ready) {
  return Guard(__func__, [&]() -> absl::Status {
    const absl::Duration wait = timeout_ms < 0 ? absl::InfiniteDuration()
                                               : absl::Milliseconds(timeout_ms);
    return TakeReport("hf_ckpt_wait_save", ckpt, wait, report, ready);
  });
}

int32_t hf_ckpt_save_in_flight(const hf_ckpt* ckpt) {
  return ckpt != nullptr && ckpt->checkpointer.save_in_flight();
}

hf_ckpt_code hf_ckpt_get_counters(const hf_ckpt* ckpt,
                                  hf_ckpt_counters* counters) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_get_counters", ckpt);
    HF_RETURN_IF_ERROR(
        CheckStruct("hf_ckpt_get_counters", counters, kCountersBytes1));
    HF_ASSIGN_OR_RETURN(const holdfast::ckpt::SaveCounters counted,
                        ckpt->checkpointer.counters());
    hf_ckpt_counters filled{};
    filled.committed = counted.committed;
    filled.failed = counted.failed;
    filled.failed_in_a_row = counted.failed_in_a_row;
    filled.skipped = counted.skipped;
    filled.last_durable_step = counted.last_durable_step;
    filled.arena_bytes = ckpt->checkpointer.arena_bytes();
    filled.staged_bytes = ckpt->checkpointer.staged_bytes();
    GiveStruct(filled, counters);
    return absl::OkStatus();
  });
}

hf_ckpt_code hf_ckpt_close(hf_ckpt* ckpt) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_close", ckpt);
    return ckpt->checkpointer.Close();
  });
}

void hf_ckpt_free(hf_ckpt* ckpt) {
  Guard(__func__, [&]() -> absl::Status {
    delete ckpt;
    return absl::OkStatus();
  });
}

}  // extern "C"
