// ckpt/c/group.cc: the kinds of groups that a C caller can have.

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/c/callback_group.h"
#include "ckpt/c/guard.h"
#include "ckpt/c/holdfast_ckpt.h"
#include "ckpt/group/inproc_group.h"
#include "ckpt/group/local_group.h"
#ifdef HOLDFAST_WITH_MPI
#include "ckpt/group/mpi_group.h"
#endif

using holdfast::ckpt::CheckStruct;
using holdfast::ckpt::Guard;
using holdfast::ckpt::NullArgument;
using holdfast::ckpt::TakeStruct;

namespace {

// Far more threads than a process has use for; keeps a wrong number from taking
// all memory.
constexpr int32_t kThreadRanksMax = 4096;
constexpr size_t kTransportBytes1 =
    offsetof(hf_ckpt_transport, host) + sizeof(hf_ckpt_transport::host);

absl::Status Give(absl::StatusOr<std::unique_ptr<holdfast::ckpt::Group>> opened,
                  hf_ckpt_group** group) {
  HF_RETURN_IF_ERROR(opened.status());
  *group = new hf_ckpt_group{*std::move(opened)};
  return absl::OkStatus();
}

}  // namespace

extern "C" {

hf_ckpt_code hf_ckpt_group_single(hf_ckpt_group** group) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_group_single", group);
    return Give(std::move(holdfast::ckpt::MakeInprocGroups(1)[0]), group);
  });
}

hf_ckpt_code hf_ckpt_group_threads(int32_t ranks, hf_ckpt_group** groups) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_group_threads", groups);
    if (ranks < 1 || ranks > kThreadRanksMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("hf_ckpt_group_threads: %d ranks; 1 to %d are "
                          "possible",
                          ranks, kThreadRanksMax));
    }
    auto made = holdfast::ckpt::MakeInprocGroups(ranks);
    for (int32_t r = 0; r < ranks; ++r) {
      groups[r] = new hf_ckpt_group{std::move(made[r])};
    }
    return absl::OkStatus();
  });
}

hf_ckpt_code hf_ckpt_group_local(const char* dir, int32_t rank, int32_t size,
                                 hf_ckpt_group** group) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_group_local", dir);
    HF_REQUIRE_NOT_NULL("hf_ckpt_group_local", group);
    return Give(holdfast::ckpt::OpenLocalGroup(dir, rank, size), group);
  });
}

hf_ckpt_code hf_ckpt_group_mpi(int32_t fortran_communicator,
                               hf_ckpt_group** group) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_group_mpi", group);
#ifdef HOLDFAST_WITH_MPI
    return Give(holdfast::ckpt::OpenMpiGroup(fortran_communicator), group);
#else
    return absl::UnimplementedError(absl::StrFormat(
        "hf_ckpt_group_mpi(%d): this library was built without MPI; use another "
        "hf_ckpt_group_* function",
        fortran_communicator));
#endif
  });
}

hf_ckpt_code hf_ckpt_group_transport(const hf_ckpt_transport* transport,
                                     hf_ckpt_group** group) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_RETURN_IF_ERROR(
        CheckStruct("hf_ckpt_group_transport", transport, kTransportBytes1));
    HF_REQUIRE_NOT_NULL("hf_ckpt_group_transport", group);
    return Give(holdfast::ckpt::MakeCallbackGroup(TakeStruct(transport)),
                group);
  });
}

int32_t hf_ckpt_group_rank(const hf_ckpt_group* group) {
  return group == nullptr || group->group == nullptr
             ? -1
             : Index(group->group->rank());
}

int32_t hf_ckpt_group_size(const hf_ckpt_group* group) {
  return group == nullptr || group->group == nullptr ? -1
                                                     : group->group->size();
}

void hf_ckpt_group_free(hf_ckpt_group* group) { delete group; }

}  // extern "C"
