// ckpt/c/holdfast_ckpt/reader.h: checkpoints of a run, and what is in one of
// them, read alone and beside any job. Included by <holdfast_ckpt.h>.

#ifndef HOLDFAST_CKPT_C_HOLDFAST_CKPT_READER_H_
#define HOLDFAST_CKPT_C_HOLDFAST_CKPT_READER_H_

#include <stdint.h>

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Reading alone: checkpoints of a run, and what is in one of them.
// Writes nothing and takes no run; any number of readers, beside a job too.

typedef struct hf_ckpt_list hf_ckpt_list;

enum {
  HF_CKPT_STATE_COMMITTED = 0,   // counts
  HF_CKPT_STATE_SUPERSEDED = 1,  // whole, stepped over
  HF_CKPT_STATE_LATE = 2,        // whole, of a job that had lost the run
  HF_CKPT_STATE_ATTEMPT = 3,     // no checkpoint: its save has not finished
  HF_CKPT_STATE_DAMAGED = 4,
  HF_CKPT_STATE_NEWER = 5  // needs a newer reader
};

typedef struct hf_ckpt_list_entry {
  uint64_t struct_bytes;
  int64_t step;
  int32_t state;
  uint32_t incarnation;
  uint32_t attempt;
  uint32_t world;        // ranks that wrote it; 0 where there is no manifest
  int64_t time_unix_ms;  // of its commit, for people
  uint64_t bytes;        // of all files
  uint64_t items;
  const char* id;   // "step-000000120.i0003.a01"
  const char* dir;  // below the run
  const char* layout;
  const char* reason;  // for every state but committed; else ""
} hf_ckpt_list_entry;

#define HF_CKPT_LIST_ENTRY_INIT \
  { sizeof(hf_ckpt_list_entry), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

// Newest first. A run without checkpoints is an empty list.
HF_CKPT_API hf_ckpt_code hf_ckpt_list_open(const char* run_dir,
                                           hf_ckpt_list** list);
HF_CKPT_API uint64_t hf_ckpt_list_size(const hf_ckpt_list* list);
// Its strings stay until hf_ckpt_list_free.
HF_CKPT_API hf_ckpt_code hf_ckpt_list_get(const hf_ckpt_list* list,
                                          uint64_t index,
                                          hf_ckpt_list_entry* entry);
HF_CKPT_API void hf_ckpt_list_free(hf_ckpt_list* list);

typedef struct hf_ckpt_reader hf_ckpt_reader;

// `checkpoint`: "RUN" (its newest), "RUN@STEP", "RUN@ID", or a checkpoint's own
// directory, anywhere. Reads its manifest.
HF_CKPT_API hf_ckpt_code hf_ckpt_reader_open(const char* checkpoint,
                                             hf_ckpt_reader** reader);
HF_CKPT_API void hf_ckpt_reader_free(hf_ckpt_reader* reader);

typedef struct hf_ckpt_reader_info {
  uint64_t struct_bytes;
  int64_t step;
  uint64_t items;
  uint32_t incarnation;
  uint32_t world;
  int64_t time_unix_ms;
  const char* id;
  const char* run_id;
  const char* layout;
  const char* path;  // of its directory
} hf_ckpt_reader_info;

#define HF_CKPT_READER_INFO_INIT \
  { sizeof(hf_ckpt_reader_info), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

// Strings that come out of a reader stay until hf_ckpt_reader_free.
HF_CKPT_API hf_ckpt_code hf_ckpt_reader_get_info(const hf_ckpt_reader* reader,
                                                 hf_ckpt_reader_info* info);
HF_CKPT_API hf_ckpt_code hf_ckpt_reader_attributes(
    const hf_ckpt_reader* reader, const hf_ckpt_attribute** attributes,
    uint64_t* count);

typedef struct hf_ckpt_item_info {
  uint64_t struct_bytes;
  const char* name;
  const char* kind;
  int32_t dtype;
  int32_t dimensions;
  int64_t shape[HF_CKPT_DIMENSIONS_MAX];
  uint64_t bytes;
} hf_ckpt_item_info;

#define HF_CKPT_ITEM_INFO_INIT \
  { sizeof(hf_ckpt_item_info), 0, 0, 0, 0, {0, 0, 0, 0}, 0 }

// Items are sorted by (name, kind).
HF_CKPT_API hf_ckpt_code hf_ckpt_reader_item(const hf_ckpt_reader* reader,
                                             uint64_t index,
                                             hf_ckpt_item_info* info);
HF_CKPT_API hf_ckpt_code hf_ckpt_reader_find(const hf_ckpt_reader* reader,
                                             const char* name, const char* kind,
                                             uint64_t* index);

typedef struct hf_ckpt_box_read {
  uint64_t struct_bytes;
  uint64_t item;
  // The box, as in hf_ckpt_add_buffer; entries beyond the item's dimensions do
  // not count. All of `count` 0: the whole item.
  int64_t first[HF_CKPT_DIMENSIONS_MAX];
  int64_t count[HF_CKPT_DIMENSIONS_MAX];
  void* memory;  // any; filled row-major, and nothing behind it
  uint64_t memory_bytes;
} hf_ckpt_box_read;

#define HF_CKPT_BOX_READ_INIT \
  { sizeof(hf_ckpt_box_read), 0, {0, 0, 0, 0}, {0, 0, 0, 0}, 0, 0 }

// Reads boxes; what lies together in files is read together, so one call for
// many boxes is cheaper than many calls. Every stored byte that is read is
// checked against its checksum. Uses 16 MiB meanwhile.
//
// HF_CKPT_DATA_LOSS: which bytes of which file are damaged; the memory then
// holds parts.
HF_CKPT_API hf_ckpt_code hf_ckpt_reader_read(hf_ckpt_reader* reader,
                                             const hf_ckpt_box_read* boxes,
                                             uint64_t boxes_count);

#ifdef __cplusplus
}
#endif

#endif  // HOLDFAST_CKPT_C_HOLDFAST_CKPT_READER_H_
