/* tests/unit/ckpt/c/c99_caller.c: a caller in C99: one rank saves an array and
 * reads it back. Compiled with -std=c99 -pedantic; called by
 * c_interface_test.cc. Gives null, or the words of what went wrong. */

#include <stddef.h>
#include <string.h>

#include "ckpt/c/holdfast_ckpt.h"

#define TRY(call) \
  if ((call) != HF_CKPT_OK) return hf_ckpt_last_error()

const char* holdfast_c99_round_trip(const char* run_dir);

static const char* Save(const char* run_dir, float* values, int64_t elements) {
  hf_ckpt_group* group = NULL;
  hf_ckpt* ckpt = NULL;
  uint32_t item = 0;
  int64_t first = 0;
  int32_t ready = 0;
  hf_ckpt_attribute attribute;
  hf_ckpt_save_report report = HF_CKPT_SAVE_REPORT_INIT;
  hf_ckpt_load_report loaded = HF_CKPT_LOAD_REPORT_INIT;
  hf_ckpt_load_request request = HF_CKPT_LOAD_REQUEST_INIT;
  hf_ckpt_counters counters = HF_CKPT_COUNTERS_INIT;

  request.resume = HF_CKPT_RESUME_NEVER;
  attribute.name = "language";
  attribute.value = "C99";
  TRY(hf_ckpt_group_single(&group));
  TRY(hf_ckpt_new(run_dir, group, NULL, &ckpt));
  TRY(hf_ckpt_add_item(ckpt, "x", "weight", HF_CKPT_F32, 1, &elements, &item));
  TRY(hf_ckpt_add_buffer(ckpt, item, &first, &elements, values,
                         (uint64_t)elements * sizeof(float), HF_CKPT_STAGED,
                         NULL));
  TRY(hf_ckpt_open(ckpt));
  TRY(hf_ckpt_load(ckpt, &request, &loaded));
  TRY(hf_ckpt_begin_save(ckpt, 5, &attribute, 1));
  TRY(hf_ckpt_wait_save(ckpt, -1, &report, &ready));
  if (!ready || report.outcome != HF_CKPT_COMMITTED) return "not committed";
  TRY(hf_ckpt_get_counters(ckpt, &counters));
  if (counters.committed != 1) return "not counted";
  TRY(hf_ckpt_close(ckpt));
  hf_ckpt_free(ckpt);
  return NULL;
}

static const char* Read(const char* run_dir, float* values, int64_t elements) {
  hf_ckpt_reader* reader = NULL;
  uint64_t item = 0;
  hf_ckpt_box_read box = HF_CKPT_BOX_READ_INIT;
  hf_ckpt_item_info info = HF_CKPT_ITEM_INFO_INIT;
  hf_ckpt_reader_info about = HF_CKPT_READER_INFO_INIT;
  hf_ckpt_list* list = NULL;
  hf_ckpt_list_entry entry = HF_CKPT_LIST_ENTRY_INIT;

  TRY(hf_ckpt_list_open(run_dir, &list));
  TRY(hf_ckpt_list_get(list, 0, &entry));
  if (entry.step != 5 || entry.state != HF_CKPT_STATE_COMMITTED) return "list";
  hf_ckpt_list_free(list);
  TRY(hf_ckpt_reader_open(run_dir, &reader));
  TRY(hf_ckpt_reader_get_info(reader, &about));
  TRY(hf_ckpt_reader_find(reader, "x", "weight", &item));
  TRY(hf_ckpt_reader_item(reader, item, &info));
  if (about.step != 5 || info.shape[0] != elements) return "info";
  box.item = item;
  box.memory = values;
  box.memory_bytes = info.bytes;
  TRY(hf_ckpt_reader_read(reader, &box, 1));
  hf_ckpt_reader_free(reader);
  return NULL;
}

const char* holdfast_c99_round_trip(const char* run_dir) {
  static float saved[3000];
  static float read[3000];
  const char* error;
  int i;
  for (i = 0; i < 3000; ++i) saved[i] = (float)i / 7;
  error = Save(run_dir, saved, 3000);
  if (error == NULL) error = Read(run_dir, read, 3000);
  if (error != NULL) return error;
  return memcmp(saved, read, sizeof(saved)) == 0 ? NULL : "other bits";
}
