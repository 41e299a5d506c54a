/* ckpt/examples/save_load.c: a job in C that saves its own tensors and comes
 * back on any number of ranks.
 *
 *   save_load RUN MEETING RANK RANKS     processes of this machine, which meet
 *                                        in the directory MEETING
 *   mpirun -n RANKS save_load_mpi RUN    with EXAMPLE_MPI defined
 *
 * The state is a matrix, of which each rank holds some rows, and a vector that
 * all ranks hold. A run without a checkpoint starts at step 0. Each start makes
 * two steps: it saves the first one while it computes the second. Loaded bits
 * are compared with what that step must have left. */

#include <holdfast_ckpt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef EXAMPLE_MPI
#include <mpi.h>
#endif

enum { kRows = 1001, kColumns = 512, kLength = 100 };

#define TRY(call)                                          \
  do {                                                     \
    const hf_ckpt_code code = (call);                      \
    if (code != HF_CKPT_OK) {                              \
      fprintf(stderr, "%s: %s\n", hf_ckpt_code_name(code), \
              hf_ckpt_last_error());                       \
      exit(1);                                             \
    }                                                      \
  } while (0)

/* This rank's part of the state. */
typedef struct {
  hf_ckpt* ckpt;
  float* matrix; /* rows [row, row + rows) */
  int64_t row;
  int64_t rows;
  uint32_t matrix_buffer;
  float vector[kLength];
} Job;

static float MatrixAt(int64_t row, int64_t column, int64_t step) {
  return (float)(row * kColumns + column) + (float)step / 8;
}

/* The optimizer of a real job would be here. */
static void Compute(Job* job, int64_t step) {
  int64_t r, c;
  /* A save may be reading these bytes. */
  TRY(hf_ckpt_before_write(job->ckpt, job->matrix_buffer, 0,
                           (uint64_t)(job->rows * kColumns * 4)));
  for (r = 0; r < job->rows; ++r) {
    for (c = 0; c < kColumns; ++c) {
      job->matrix[r * kColumns + c] = MatrixAt(job->row + r, c, step);
    }
  }
  /* Staged: copied when the save began. */
  for (c = 0; c < kLength; ++c) job->vector[c] = (float)(step - c);
}

static int IsStateOf(const Job* job, int64_t step) {
  int64_t r, c;
  for (r = 0; r < job->rows; ++r) {
    for (c = 0; c < kColumns; ++c) {
      const float expected = MatrixAt(job->row + r, c, step);
      if (memcmp(&job->matrix[r * kColumns + c], &expected, 4) != 0) return 0;
    }
  }
  for (c = 0; c < kLength; ++c) {
    if (job->vector[c] != (float)(step - c)) return 0;
  }
  return 1;
}

/* What this rank holds of what. */
static void Declare(Job* job, int rank, int ranks) {
  const int64_t shape[2] = {kRows, kColumns};
  const int64_t length = kLength;
  const int64_t zero = 0;
  int64_t first[2] = {0, 0};
  int64_t count[2] = {0, kColumns};
  uint64_t bytes;
  void* memory = NULL;
  uint32_t item = 0;

  job->row = (int64_t)kRows * rank / ranks;
  job->rows = (int64_t)kRows * (rank + 1) / ranks - job->row;
  first[0] = job->row;
  count[0] = job->rows;
  bytes = (uint64_t)(job->rows * kColumns) * sizeof(float);
  /* In place: written from where it is, so it has pages of its own. */
  TRY(hf_ckpt_alloc(bytes, &memory));
  job->matrix = memory;
  TRY(hf_ckpt_add_item(job->ckpt, "matrix", "weight", HF_CKPT_F32, 2, shape,
                       &item));
  TRY(hf_ckpt_add_buffer(job->ckpt, item, first, count, memory,
                         (bytes + 4095) / 4096 * 4096, HF_CKPT_IN_PLACE,
                         &job->matrix_buffer));
  /* All ranks hold this one; the lowest stores it. Any memory will do. */
  TRY(hf_ckpt_add_item(job->ckpt, "vector", "weight", HF_CKPT_F32, 1, &length,
                       &item));
  TRY(hf_ckpt_add_buffer(job->ckpt, item, &zero, &length, job->vector,
                         sizeof(job->vector), HF_CKPT_STAGED, NULL));
}

int main(int argc, char** argv) {
  Job job;
  hf_ckpt_group* group = NULL;
  hf_ckpt_load_report loaded = HF_CKPT_LOAD_REPORT_INIT;
  hf_ckpt_save_report saved = HF_CKPT_SAVE_REPORT_INIT;
  const hf_ckpt_attribute attribute = {"made_by", "save_load.c"};
  int32_t ready = 0;
  int64_t step = 0;
  int rank, ranks;

  memset(&job, 0, sizeof(job));
#ifdef EXAMPLE_MPI
  {
    int level = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    if (argc != 2) return 64;
    TRY(hf_ckpt_group_mpi((int32_t)MPI_Comm_c2f(MPI_COMM_WORLD), &group));
  }
#else
  if (argc != 5) {
    fprintf(stderr, "usage: save_load RUN MEETING RANK RANKS\n");
    return 64;
  }
  TRY(hf_ckpt_group_local(argv[2], atoi(argv[3]), atoi(argv[4]), &group));
#endif
  rank = hf_ckpt_group_rank(group);
  ranks = hf_ckpt_group_size(group);
  TRY(hf_ckpt_new(argv[1], group, NULL, &job.ckpt));
  Declare(&job, rank, ranks);
  TRY(hf_ckpt_open(job.ckpt));

  TRY(hf_ckpt_load(job.ckpt, NULL, &loaded));
  if (loaded.loaded) {
    step = loaded.step;
    if (!IsStateOf(&job, step)) {
      fprintf(stderr, "rank %d: other bits than step %d left\n", rank,
              (int)step);
      return 1;
    }
    printf("rank %d of %d: loaded %s, saved on %s: the same bits\n", rank,
           ranks, loaded.id, loaded.layout_from);
  }

  Compute(&job, step + 1);
  TRY(hf_ckpt_begin_save(job.ckpt, step + 1, &attribute, 1));
  Compute(&job, step + 2); /* beside the save */
  TRY(hf_ckpt_wait_save(job.ckpt, -1, &saved, &ready));
  if (saved.outcome != HF_CKPT_COMMITTED) {
    fprintf(stderr, "rank %d: not saved: %s\n", rank, saved.message);
    return 1;
  }
  printf("rank %d of %d: saved %s: %.1f MB\n", rank, ranks, saved.id,
         (double)saved.bytes / 1e6);

  TRY(hf_ckpt_close(job.ckpt));
  hf_ckpt_free(job.ckpt);
  hf_ckpt_dealloc(job.matrix);
#ifdef EXAMPLE_MPI
  MPI_Finalize();
#endif
  return 0;
}
