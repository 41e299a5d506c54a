// ckpt/c/holdfast_ckpt/job.h: the checkpointer of one rank: its options, what
// the job has and where it lies, loading, saving. Included by
// <holdfast_ckpt.h>.

#ifndef HOLDFAST_CKPT_C_HOLDFAST_CKPT_JOB_H_
#define HOLDFAST_CKPT_C_HOLDFAST_CKPT_JOB_H_

#include <stdint.h>

#include "core.h"
#include "group.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Options: names and values as text; what is not set has its default.
//
//   name                   default    unit, meaning
//   keep_last              3          newest checkpoints that stay; all: every
//                                     one (version 2)
//   keep_every             0          and those of steps that this divides
//   keep_older_s           0          s; and one that is at least so old; 0:
//                                     none
//   fence_ms               2000       longest wait of one before_write
//   arena_bytes            0          for copies beside a save; 0: 5 %
//   open_timeout_ms        60000      hf_ckpt_open: until all ranks are there
//   load_timeout_ms        600000     all of hf_ckpt_load
//   begin_timeout_ms       60000      a save: until rank 0 has begun it
//   vote_timeout_ms        120000     a save: until all have voted
//   io_timeout_ms          120000     a storage that answers nothing
//   close_timeout_ms       120000     hf_ckpt_close
//   storage                auto       auto, io_uring, posix
//   queue_depth            32         writes in flight
//   direct_io              true       O_DIRECT where the file system has it
//   files                  0          of a checkpoint; 0: one per rank, -1: one
//                                     per node; not with a codec
//   codec                  none       none, zstd: compress what is saved
//   codec_level            0          of zstd
//   codec_threads          0          that compress; 0: the library's thread
//   raw_write_bytes_per_s  0          the device's speed, for raw_share of
//   raw_read_bytes_per_s   0          saves and loads; 0: unknown
//   layout                 ranksN     how this job is cut, for people:
//                                     "tp2-dp4"; rank 0's counts
//   fault_spec                        a fault to inject, for drills
//   protect_unreleased     false      debugging: a store without before_write
//                                     dies by SIGSEGV
//   recheck_after_write    false      debugging: such a store fails the save

typedef struct hf_ckpt_options hf_ckpt_options;

HF_CKPT_API hf_ckpt_code hf_ckpt_options_new(hf_ckpt_options** options);
// HF_CKPT_INVALID_ARGUMENT names the options there are, or what was expected.
HF_CKPT_API hf_ckpt_code hf_ckpt_options_set(hf_ckpt_options* options,
                                             const char* name,
                                             const char* value);
HF_CKPT_API void hf_ckpt_options_free(hf_ckpt_options* options);

// What a plain loop moves in `dir`, in bytes a second, for the options raw_*.
// Takes less than a second and up to 64 MiB that are removed again. For one
// rank, while the others move nothing. *read is 0 where only a cache would be
// measured.
HF_CKPT_API hf_ckpt_code hf_ckpt_measure_device(const char* dir, double* write,
                                                double* read);

// --- The checkpointer of one rank

typedef struct hf_ckpt hf_ckpt;

// `run_dir`: an existing directory, the same for all ranks. `options` may be
// null, and is copied; all ranks give the same. After HF_CKPT_OK the group is
// the checkpointer's.
HF_CKPT_API hf_ckpt_code hf_ckpt_new(const char* run_dir, hf_ckpt_group* group,
                                     const hf_ckpt_options* options,
                                     hf_ckpt** ckpt);

// Says that the job has an item: a logical array, whole, of `dimensions` (0: a
// scalar) lengths `shape`. (name, kind) is its identity; "weight" is the kind
// that init_weights_only loads. A rank names at least the items that it holds a
// part of. Gives its number, of this checkpointer alone.
HF_CKPT_API hf_ckpt_code hf_ckpt_add_item(hf_ckpt* ckpt, const char* name,
                                          const char* kind, int32_t dtype,
                                          int32_t dimensions,
                                          const int64_t* shape, uint32_t* item);

enum {
  // The memory is written from and loaded into where it is. It starts on a
  // multiple of 4,096 and has room up to the next such multiple after its last
  // byte (hf_ckpt_alloc gives that); this rest is the library's and is zeroed.
  // Whoever stores into it calls hf_ckpt_before_write first.
  HF_CKPT_IN_PLACE = 0,
  // Any memory. The library has a second copy of it: hf_ckpt_begin_save copies
  // into that before it returns (memory speed), and a load copies out of it.
  // Needs no hf_ckpt_before_write.
  HF_CKPT_STAGED = 1
};

// Says that the elements of an item whose coordinate in dimension i lies in
// [first[i], first[i] + count[i]) are in this rank's memory, row-major. For a
// scalar `first` and `count` may be null. A box without elements is fine.
// `memory_bytes`: what is there from `memory` on; it outlives the checkpointer.
// Gives the buffer's number, for hf_ckpt_before_write.
HF_CKPT_API hf_ckpt_code hf_ckpt_add_buffer(
    hf_ckpt* ckpt, uint32_t item, const int64_t* first, const int64_t* count,
    void* memory, uint64_t memory_bytes, int32_t placement, uint32_t* buffer);

// The same for elements [run_first, run_first + run_count) of the row-major
// order of that box: a piece of a flattened tensor.
HF_CKPT_API hf_ckpt_code hf_ckpt_add_run(hf_ckpt* ckpt, uint32_t item,
                                         const int64_t* first,
                                         const int64_t* count,
                                         int64_t run_first, int64_t run_count,
                                         void* memory, uint64_t memory_bytes,
                                         int32_t placement, uint32_t* buffer);

// Optional, before the buffers inside it: one allocation that in-place buffers
// lie in, from a multiple of 4,096. A save walks over all allocations side by
// side, each from its start to its end, and keeps ahead of an optimizer that
// does the same: so a weight, its master copy and its moments belong at equal
// fractions of four allocations. A buffer outside of all is one by itself.
HF_CKPT_API hf_ckpt_code hf_ckpt_add_region(hf_ckpt* ckpt, void* memory,
                                            uint64_t bytes);

// Gathers what all ranks have said and starts the library's thread. All ranks
// call it. Reads no checkpoint and writes nothing but the rest of in-place
// pages. After an error only hf_ckpt_free may follow.
//
// HF_CKPT_INVALID_ARGUMENT: ranks differ about an item; elements that nobody
// holds, or that two boxes hold that are not the same; says which and who.
// HF_CKPT_DEADLINE_EXCEEDED: ranks that did not come, by number and host.
HF_CKPT_API hf_ckpt_code hf_ckpt_open(hf_ckpt* ckpt);

enum {
  HF_CKPT_RESUME_AUTO = 0,      // the newest; an empty run starts fresh
  HF_CKPT_RESUME_NEVER = 1,     // start fresh, whatever is there
  HF_CKPT_RESUME_REQUIRED = 2,  // HF_CKPT_NOT_FOUND rather than start fresh
  HF_CKPT_RESUME_STEP = 3,      // the newest at or below `step`; newer ones are
                                // superseded
  HF_CKPT_RESUME_CLAIM = 4      // load nothing: buffers stay as they are, and
                                // what the run has stays and goes on. Its items
                                // may be others than this job's. For a job that
                                // reads by hf_ckpt_reader_open. Version 2
};

typedef struct hf_ckpt_load_request {
  uint64_t struct_bytes;
  int64_t step;
  int32_t resume;
  // When the run is fresh: load only items of kind "weight"; others stay.
  int32_t init_weights_only;
  // When the run is fresh: "RUN", "RUN@STEP" or a checkpoint's directory to
  // take the state from. Null for none.
  const char* init_from;
  // Must be equal on all ranks. Null for none.
  const char* fingerprint;
  // How the caller knows that this run has committed before, in words; null
  // when it does not. A run without a checkpoint is then HF_CKPT_NOT_FOUND.
  const char* committed_proof;
  // May be null. Asked on rank 0 whether the job can continue from a checkpoint
  // with these attributes, while hf_ckpt_load waits: HF_CKPT_OK, or the code
  // for all ranks, and why in `message`, which has room for `message_bytes`
  // with the zero at its end. Called by the library's thread.
  hf_ckpt_code (*validate)(void* user, const hf_ckpt_attribute* attributes,
                           uint64_t count, char* message,
                           uint64_t message_bytes);
  void* user;
} hf_ckpt_load_request;

#define HF_CKPT_LOAD_REQUEST_INIT \
  { sizeof(hf_ckpt_load_request), 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct hf_ckpt_load_report {
  uint64_t struct_bytes;
  int64_t step;             // of what was loaded, or claimed
  int32_t loaded;           // 0: fresh or claimed, memory is untouched
  int32_t from_init;        // loaded by init_from
  uint64_t bytes_read;      // by this rank, from files
  uint64_t bytes_received;  // from ranks that had read them for this one too
  uint64_t job_bytes_read;  // by all ranks; rank 0 only
  uint64_t job_bytes_received;  // the same
  uint64_t bytes_stored;        // in files, of what was taken; rank 0 only
  double seconds;               // of this rank's reading
  double bytes_per_s;           // bytes_read / seconds
  double raw_share;             // of raw_read_bytes_per_s; 0: unknown
  uint32_t incarnation;         // this job's number in the run
  uint32_t stepped_over;        // newer checkpoints that were not used
  const char* id;               // "step-000000120.i0003.a01"; "" when there is
                                // no checkpoint
  const char* run_id;           // 32 hexadecimal digits
  const char* layout_from;      // "tp2-pp2-dp2"; "" when fresh
  // Which were not used and why, a line each; "" for none.
  const char* stepped_over_text;
} hf_ckpt_load_report;

#define HF_CKPT_LOAD_REPORT_INIT                                              \
  {                                                                           \
    sizeof(hf_ckpt_load_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0                                                                  \
  }

// Takes the run for this job, agrees with all ranks on a checkpoint and fills
// the buffers with it. Once, before the first save; all ranks call it. Blocks.
// `request` may be null: resume auto. `report` may be null; its strings stay
// until hf_ckpt_free. After an error buffers may hold parts of a checkpoint.
//
// HF_CKPT_DEADLINE_EXCEEDED: if the storage hangs, its reads into the buffers
// (and a validate that is being asked) may still come to an end later: end the
// process, or keep buffers and `user` for ever.
HF_CKPT_API hf_ckpt_code hf_ckpt_load(hf_ckpt* ckpt,
                                      const hf_ckpt_load_request* request,
                                      hf_ckpt_load_report* report);

// Of what was loaded. HF_CKPT_NOT_FOUND: there is none of that name. The value
// stays until hf_ckpt_free.
HF_CKPT_API hf_ckpt_code hf_ckpt_loaded_attribute(const hf_ckpt* ckpt,
                                                  const char* name,
                                                  const char** value);
HF_CKPT_API hf_ckpt_code hf_ckpt_loaded_attributes(
    const hf_ckpt* ckpt, const hf_ckpt_attribute** attributes, uint64_t* count);

// Starts to save what the buffers hold now. All ranks call it between the same
// two steps; steps never go back. Returns when staged buffers are copied.
// `attributes` are kept with the checkpoint, rank 0's count; null for none. At
// most 16 MiB of names and values.
//
// HF_CKPT_UNAVAILABLE: a save is in flight; this one is skipped and counted.
HF_CKPT_API hf_ckpt_code hf_ckpt_begin_save(hf_ckpt* ckpt, int64_t step,
                                            const hf_ckpt_attribute* attributes,
                                            uint64_t count);

// The caller is about to store into these bytes of an in-place buffer. Returns
// when it may: at once, after a copy, or after at most fence_ms. What is in
// danger is the save, and the save knows. Without a save in flight it costs
// some nanoseconds.
HF_CKPT_API hf_ckpt_code hf_ckpt_before_write(hf_ckpt* ckpt, uint32_t buffer,
                                              uint64_t offset, uint64_t bytes);

enum {
  HF_CKPT_COMMITTED = 0,     // durable: the checkpoint exists
  HF_CKPT_SAVE_ABORTED = 1,  // another rank failed, was missing, had no time
  HF_CKPT_SAVE_FAILED = 2,   // this rank failed
  HF_CKPT_SAVE_UNKNOWN = 3,  // perhaps committed; the next start will see
  HF_CKPT_SAVE_SKIPPED = 4   // another rank was busy with the save before
};

typedef struct hf_ckpt_save_report {
  uint64_t struct_bytes;
  int64_t step;
  int32_t outcome;
  hf_ckpt_code code;          // HF_CKPT_OK exactly when committed
  uint64_t bytes;             // of this rank's file
  uint64_t bytes_total;       // of all files; rank 0 only
  double seconds;             // begin_save to the outcome
  double write_seconds;       // first write to data synced
  double bytes_per_s;         // bytes / write_seconds
  double raw_share;           // of the device's speed; rank 0 only, 0: unknown
  double stage_seconds;       // begin_save copying staged buffers
  uint64_t bytes_copied;      // through the arena
  double fence_wait_ms;       // before_write: waits
  double fence_copy_ms;       // and copies
  double thread_cpu_seconds;  // of the library's thread
  const char* id;             // "step-000000120.i0003.a01"
  const char* message;        // why it is not committed; "" when it is
} hf_ckpt_save_report;

#define HF_CKPT_SAVE_REPORT_INIT                                              \
  {                                                                           \
    sizeof(hf_ckpt_save_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0                                                                     \
  }

// The report of a save that has ended, once: `ready` is 1 and `report` is
// filled, or 0. Its strings stay until the next report of this handle.
HF_CKPT_API hf_ckpt_code hf_ckpt_poll_save(hf_ckpt* ckpt,
                                           hf_ckpt_save_report* report,
                                           int32_t* ready);
// Waits for a report, for at most `timeout_ms`; -1 without bound (the save has
// deadlines of its own). 0 at once when there is neither a save nor a report.
HF_CKPT_API hf_ckpt_code hf_ckpt_wait_save(hf_ckpt* ckpt, int64_t timeout_ms,
                                           hf_ckpt_save_report* report,
                                           int32_t* ready);
// 1, or 0; 0 for null.
HF_CKPT_API int32_t hf_ckpt_save_in_flight(const hf_ckpt* ckpt);

typedef struct hf_ckpt_counters {
  uint64_t struct_bytes;
  int64_t committed;
  int64_t failed;  // neither committed nor skipped
  int64_t failed_in_a_row;
  int64_t skipped;
  int64_t last_durable_step;  // -1: none, loaded ones included
  uint64_t arena_bytes;       // memory for copies beside a save
  uint64_t staged_bytes;      // memory for staged buffers
} hf_ckpt_counters;

#define HF_CKPT_COUNTERS_INIT \
  { sizeof(hf_ckpt_counters), 0, 0, 0, 0, 0, 0, 0 }

HF_CKPT_API hf_ckpt_code hf_ckpt_get_counters(const hf_ckpt* ckpt,
                                              hf_ckpt_counters* counters);

// Waits for the save in flight and for retention (close_timeout_ms) and stops
// the library's thread. The first error of these; after it only hf_ckpt_free
// may follow.
//
// HF_CKPT_DEADLINE_EXCEEDED: something was not over. If the storage hangs, the
// thread is left behind and the buffers stay in use: end the process.
HF_CKPT_API hf_ckpt_code hf_ckpt_close(hf_ckpt* ckpt);

// Closes what was not closed.
HF_CKPT_API void hf_ckpt_free(hf_ckpt* ckpt);

#ifdef __cplusplus
}
#endif

#endif  // HOLDFAST_CKPT_C_HOLDFAST_CKPT_JOB_H_
