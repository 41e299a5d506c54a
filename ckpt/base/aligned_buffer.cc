// ckpt/base/aligned_buffer.cc: aligned memory from anonymous mappings, which
// arrive zeroed and are given back to the system at once when freed.

#include "ckpt/base/aligned_buffer.h"

#include <sys/mman.h>

#include "ckpt/base/check.h"

namespace holdfast::ckpt {

AlignedBuffer::AlignedBuffer(size_t size) : size_(size) {
  if (size == 0) return;
  void* const mapped =
      ::mmap(nullptr, RoundUp(size, kAlignment), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  HF_CHECK(mapped != MAP_FAILED, "no memory for a buffer of %d bytes", size);
  data_ = static_cast<std::byte*>(mapped);
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ != nullptr) ::munmap(data_, RoundUp(size_, kAlignment));
}

}  // namespace holdfast::ckpt
