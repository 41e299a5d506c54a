// ckpt/session/load_staging.cc: straight from where it was read, or by way of a
// window.
//
// Why the two ways never cross. A byte is put once. A piece is copied straight
// only where no window is in memory; where one is, it goes into the window. A
// window that is fetched later is fetched behind that copy, since all copies
// run in order; so when it is written back it has those bytes.

#include "ckpt/session/load_staging.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"

namespace holdfast::ckpt {
namespace {

constexpr uint64_t kWindowBytes = uint64_t{1} << 20;
// Smaller pieces cost less in a window than as copies of their own.
constexpr uint64_t kDirectBytes = uint64_t{128} << 10;
constexpr uint64_t kReadsBytesMax = uint64_t{64} << 20;
constexpr size_t kWindowsMax = 64;

}  // namespace

LoadStaging::LoadStaging(AsyncCopier* copier, std::span<std::byte> memory,
                         std::span<const std::span<std::byte>> regions)
    : copier_(copier) {
  HF_CHECK(memory.size() >= kBytesMin, "%d bytes for a load, %d are needed",
           memory.size(), kBytesMin);
  for (const auto& region : regions) region_bytes_.push_back(region.size());
  const uint64_t half = std::min(memory.size() / 2, kReadsBytesMax);
  // Few large reads are no queue for a disk.
  read_bytes_ =
      half >= 4 * (uint64_t{4} << 20) ? uint64_t{4} << 20 : uint64_t{1} << 20;
  read_memory_ = memory.first(half / read_bytes_ * read_bytes_);
  const auto rest = memory.subspan(half);
  const size_t windows = std::min(rest.size() / kWindowBytes, kWindowsMax);
  for (size_t i = 0; i < windows; ++i) {
    windows_.push_back(
        {.memory = rest.subspan(i * kWindowBytes, kWindowBytes)});
  }
}

bool LoadStaging::Lendable(std::span<const std::byte> bytes) const {
  return bytes.data() >= read_memory_.data() &&
         bytes.data() + bytes.size() <=
             read_memory_.data() + read_memory_.size();
}

LoadStaging::Window* LoadStaging::Find(uint32_t region, uint64_t offset) {
  const auto is_it = [&](const Window& window) {
    return window.bytes > 0 && window.region == region &&
           window.offset == offset;
  };
  if (newest_ != nullptr && is_it(*newest_)) return newest_;
  const auto found = std::find_if(windows_.begin(), windows_.end(), is_it);
  return found == windows_.end() ? nullptr : &*found;
}

void LoadStaging::WriteBack(Window& window) {
  if (!window.dirty) return;
  window.dirty = false;
  last_event_ = copier_->CopyIn(window.region, window.offset,
                                window.memory.first(window.bytes));
}

LoadStaging::Window& LoadStaging::Bring(uint32_t region, uint64_t offset,
                                        bool fetch) {
  Window& window = *std::min_element(
      windows_.begin(), windows_.end(),
      [](const Window& a, const Window& b) { return a.used < b.used; });
  uint64_t busy_until = 0;
  if (window.dirty) {
    WriteBack(window);
    busy_until = last_event_;
  }
  window.region = region;
  window.offset = offset;
  window.bytes = std::min(kWindowBytes, region_bytes_[region] - offset);
  if (fetch) {
    busy_until =
        copier_->CopyOut(region, offset, window.memory.first(window.bytes));
  }
  if (busy_until != 0) copier_->Await(busy_until);
  return window;
}

void LoadStaging::Put(uint32_t region, uint64_t offset,
                      std::span<const std::byte> bytes) {
  HF_CHECK(region < region_bytes_.size() &&
               offset + bytes.size() <= region_bytes_[region],
           "%d bytes into region %d of %d, offset %d", bytes.size(), region,
           region_bytes_.size(), offset);
  const bool direct = bytes.size() >= kDirectBytes && Lendable(bytes);
  // What is to be copied straight, as far as it hangs together.
  uint64_t first = offset;
  uint64_t at = offset;
  const auto copy_straight = [&] {
    if (first == at) return;
    last_event_ = copier_->CopyIn(region, first,
                                  bytes.subspan(first - offset, at - first));
  };
  const uint64_t end = offset + bytes.size();
  while (at < end) {
    const uint64_t begin = at / kWindowBytes * kWindowBytes;
    const uint64_t window_end =
        std::min(begin + kWindowBytes, region_bytes_[region]);
    const uint64_t to = std::min(window_end, end);
    Window* window = Find(region, begin);
    if (window == nullptr && direct) {
      at = to;
      continue;
    }
    copy_straight();
    if (window == nullptr) {
      window = &Bring(region, begin, /*fetch=*/at != begin || to != window_end);
    }
    std::memcpy(window->memory.data() + (at - begin),
                bytes.data() + (at - offset), to - at);
    window->dirty = true;
    window->used = ++uses_;
    newest_ = window;
    first = at = to;
  }
  copy_straight();
}

absl::Status LoadStaging::Finish() {
  for (Window& window : windows_) {
    WriteBack(window);
    window.bytes = window.used = 0;
  }
  newest_ = nullptr;
  if (last_event_ != 0) copier_->Await(last_event_);
  const absl::Status device = copier_->status();
  if (device.ok()) return device;
  return absl::InternalError(
      absl::StrFormat("copying what was read to the device: %s",
                      std::string(device.message())));
}

}  // namespace holdfast::ckpt
