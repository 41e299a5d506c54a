// ckpt/c/holdfast_ckpt/group.h: the ranks of a job, and how they talk. Included
// by <holdfast_ckpt.h>. A group is made for hf_ckpt_new (job.h).

#ifndef HOLDFAST_CKPT_C_HOLDFAST_CKPT_GROUP_H_
#define HOLDFAST_CKPT_C_HOLDFAST_CKPT_GROUP_H_

#include <stdint.h>

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Groups: the ranks of a job, and how they talk.
// A group that was given to hf_ckpt_new belongs to that checkpointer.

typedef struct hf_ckpt_group hf_ckpt_group;

// A job of one rank.
HF_CKPT_API hf_ckpt_code hf_ckpt_group_single(hf_ckpt_group** group);

// Ranks that are threads of this process: fills `groups`, one for each rank.
HF_CKPT_API hf_ckpt_code hf_ckpt_group_threads(int32_t ranks,
                                               hf_ckpt_group** groups);

// Ranks that are processes of this machine and this user: they meet through
// sockets in `dir`, an existing directory of this job alone with a short name.
HF_CKPT_API hf_ckpt_code hf_ckpt_group_local(const char* dir, int32_t rank,
                                             int32_t size,
                                             hf_ckpt_group** group);

// Ranks that are processes of several machines, over TCP, where there is no
// MPI. (Version 2.) Each rank listens, the caller brings all addresses and a
// secret of 16 to 256 bytes to all ranks (by what has started the job), and
// then each opens its group. Whoever connects and does not say the secret is
// not listened to; nothing is encrypted, as inside a cluster.
typedef struct hf_ckpt_listener hf_ckpt_listener;

// `host`: a numeric address of this machine that the others reach, "10.0.0.3";
// "0.0.0.0" and "::" are refused, since nobody reaches them.
HF_CKPT_API hf_ckpt_code hf_ckpt_listen(const char* host,
                                        hf_ckpt_listener** listener);
// "10.0.0.3:40123". Stays until hf_ckpt_listener_free.
HF_CKPT_API const char* hf_ckpt_listener_address(
    const hf_ckpt_listener* listener);
// `addresses`: `size` of them, by rank. After HF_CKPT_OK the listener is spent,
// and still to be freed.
HF_CKPT_API hf_ckpt_code hf_ckpt_group_tcp(hf_ckpt_listener* listener,
                                           int32_t rank, int32_t size,
                                           const char* const* addresses,
                                           const char* secret,
                                           hf_ckpt_group** group);
HF_CKPT_API void hf_ckpt_listener_free(hf_ckpt_listener* listener);

// Open MPI: a duplicate of a communicator, given as MPI_Comm_c2f gives it.
// Collective over it. MPI was started with MPI_THREAD_MULTIPLE (else
// HF_CKPT_FAILED_PRECONDITION), and is finalized after hf_ckpt_free.
// HF_CKPT_UNIMPLEMENTED: the library was built without MPI.
HF_CKPT_API hf_ckpt_code hf_ckpt_group_mpi(int32_t fortran_communicator,
                                           hf_ckpt_group** group);

// The caller's own transport: messages of bytes between ranks. Messages of one
// pair of ranks arrive in order, or never, and unchanged; one to oneself
// arrives too. The functions are called by one thread at a time: in
// hf_ckpt_open by its caller, then by the library's thread, at most every 0.2
// ms while it waits and every 10 ms when idle. None of them may block.
typedef struct hf_ckpt_transport {
  uint64_t struct_bytes;
  void* user;  // passed on
  int32_t rank;
  int32_t size;
  // Copies the bytes (up to 257 MiB) and returns. There is no answer: a dead
  // rank is found by deadlines.
  void (*send)(void* user, int32_t to, const void* bytes, uint64_t size);
  // Returns 1 and sets the other arguments when a message has arrived, else 0.
  // The bytes stay until the next call. Also the time to drive sends under way.
  int32_t (*poll)(void* user, int32_t* from, const void** bytes,
                  uint64_t* size);
  // May be null. Called last; nothing follows.
  void (*close)(void* user);
  // May be null. Where a rank runs, for messages: "node17". Stays until the
  // next call.
  const char* (*host)(void* user, int32_t rank);
} hf_ckpt_transport;

#define HF_CKPT_TRANSPORT_INIT \
  { sizeof(hf_ckpt_transport), 0, 0, 0, 0, 0, 0, 0 }

HF_CKPT_API hf_ckpt_code hf_ckpt_group_transport(
    const hf_ckpt_transport* transport, hf_ckpt_group** group);

// -1 for null.
HF_CKPT_API int32_t hf_ckpt_group_rank(const hf_ckpt_group* group);
HF_CKPT_API int32_t hf_ckpt_group_size(const hf_ckpt_group* group);
HF_CKPT_API void hf_ckpt_group_free(hf_ckpt_group* group);

#ifdef __cplusplus
}
#endif

#endif  // HOLDFAST_CKPT_C_HOLDFAST_CKPT_GROUP_H_
