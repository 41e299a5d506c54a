// ckpt/storage/fd.h: a file descriptor that closes itself. Any thread.

#ifndef HOLDFAST_CKPT_STORAGE_FD_H_
#define HOLDFAST_CKPT_STORAGE_FD_H_

#include <unistd.h>

#include <utility>

namespace holdfast::ckpt {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { Reset(); }
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  // The answer of close() is dropped: what must survive was synced before, and
  // what was not synced carries no promise.
  void Reset() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace holdfast::ckpt

#endif  // HOLDFAST_CKPT_STORAGE_FD_H_
