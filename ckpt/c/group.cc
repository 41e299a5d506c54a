// ckpt/c/group.cc: the kinds of groups that a C caller can have.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/c/callback_group.h"
#include "ckpt/c/guard.h"
#include "ckpt/c/holdfast_ckpt.h"
#include "ckpt/group/inproc_group.h"
#include "ckpt/group/local_group.h"
#include "ckpt/group/tcp_group.h"
#ifdef HOLDFAST_WITH_MPI
#include "ckpt/group/mpi_group.h"
#endif

using holdfast::ckpt::CheckStruct;
using holdfast::ckpt::Guard;
using holdfast::ckpt::NullArgument;
using holdfast::ckpt::TakeStruct;

struct hf_ckpt_listener {
  holdfast::ckpt::TcpListener listener;
  const std::string address = listener.address();
  bool spent = false;
};

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

hf_ckpt_code hf_ckpt_listen(const char* host, hf_ckpt_listener** listener) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_listen", host);
    HF_REQUIRE_NOT_NULL("hf_ckpt_listen", listener);
    HF_ASSIGN_OR_RETURN(holdfast::ckpt::TcpListener opened,
                        holdfast::ckpt::TcpListener::Open(host));
    *listener = new hf_ckpt_listener{std::move(opened)};
    return absl::OkStatus();
  });
}

const char* hf_ckpt_listener_address(const hf_ckpt_listener* listener) {
  return listener == nullptr ? "" : listener->address.c_str();
}

hf_ckpt_code hf_ckpt_group_tcp(hf_ckpt_listener* listener, int32_t rank,
                               int32_t size, const char* const* addresses,
                               const char* secret, hf_ckpt_group** group) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_group_tcp", listener);
    HF_REQUIRE_NOT_NULL("hf_ckpt_group_tcp", addresses);
    HF_REQUIRE_NOT_NULL("hf_ckpt_group_tcp", secret);
    HF_REQUIRE_NOT_NULL("hf_ckpt_group_tcp", group);
    if (listener->spent) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "hf_ckpt_group_tcp: %s has become a group already; listen anew",
          listener->address));
    }
    std::vector<std::string> all;
    for (int32_t r = 0; r < size; ++r) {
      HF_REQUIRE_NOT_NULL("hf_ckpt_group_tcp", addresses[r]);
      all.emplace_back(addresses[r]);
    }
    HF_RETURN_IF_ERROR(Give(
        holdfast::ckpt::OpenTcpGroup(&listener->listener, rank, all, secret),
        group));
    listener->spent = true;
    return absl::OkStatus();
  });
}

void hf_ckpt_listener_free(hf_ckpt_listener* listener) { delete listener; }

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
