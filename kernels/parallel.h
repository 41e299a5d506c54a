// kernels/parallel.h: the only OpenMP loop. Internal to kernels/.
//
// The caller decides the number of threads with omp_set_num_threads; items are
// handed out as threads come free. An item must give the same bits on any
// thread, so it never adds to what another item adds to.

#ifndef HOLDFAST_KERNELS_PARALLEL_H_
#define HOLDFAST_KERNELS_PARALLEL_H_

#include <algorithm>
#include <cstdint>

namespace holdfast::kernels {

// Calls body(i) once for each i in [0, items). A single item runs without a
// parallel region. ThreadSanitizer cannot see libgomp's barriers, so under it
// the loop is a plain one.
template <typename Body>
void ParallelFor(int64_t items, const Body& body) {
#ifndef __SANITIZE_THREAD__
#pragma omp parallel for schedule(dynamic, 1) if (items > 1)
#endif
  for (int64_t i = 0; i < items; ++i) body(i);
}

// Calls body(begin, end) for consecutive ranges of `grain` elements; the last
// may be shorter.
template <typename Body>
void ParallelRanges(int64_t count, int64_t grain, const Body& body) {
  ParallelFor((count + grain - 1) / grain, [&](int64_t i) {
    body(i * grain, std::min(count, (i + 1) * grain));
  });
}

}  // namespace holdfast::kernels

#endif  // HOLDFAST_KERNELS_PARALLEL_H_
