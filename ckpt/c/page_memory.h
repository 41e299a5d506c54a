// ckpt/c/page_memory.h: whole zeroed pages, or null when there is no memory;
// an AlignedBuffer would end the process. Private to ckpt/c. Any thread.

#ifndef HOLDFAST_CKPT_C_PAGE_MEMORY_H_
#define HOLDFAST_CKPT_C_PAGE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace holdfast::ckpt {

struct FreePages {
  void operator()(void* memory) const { std::free(memory); }
};
using PageMemory = std::unique_ptr<std::byte[], FreePages>;

// At least one page.
PageMemory NewPageMemory(uint64_t bytes);

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_C_PAGE_MEMORY_H_
