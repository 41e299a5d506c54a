// ckpt/c/checkpointer.cc: see checkpointer.h.

#include "ckpt/c/checkpointer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/c/gather.h"
#include "ckpt/session/io.h"

namespace holdfast::ckpt {
namespace {

constexpr uint64_t kPage = AlignedBuffer::kAlignment;
constexpr absl::Duration kForever = absl::Hours(24 * 365);

uintptr_t Address(const std::byte* memory) {
  return reinterpret_cast<uintptr_t>(memory);
}

// `bytes` is at most 2^59, as items bound it.
uint64_t Padded(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::string ItemText(const ItemSpec& item) {
  return absl::StrFormat("'%s' (%s)", item.name, item.kind);
}

}  // namespace

CCheckpointer::~CCheckpointer() {
  if (checkpointer_ == nullptr) return;
  const absl::Status status = Close();
  if (!status.ok()) HF_LOG_ERROR("%s", std::string(status.message()));
}

absl::Status CCheckpointer::Expect(Stage stage, const char* doing) const {
  if (stage_ == stage) return absl::OkStatus();
  const char* state = "";
  switch (stage_) {
    case Stage::kDeclaring:
      state = "it has not been opened yet";
      break;
    case Stage::kOpen:
      state = stage == Stage::kLoaded ? "hf_ckpt_load comes first"
                                      : "it is open already";
      break;
    case Stage::kLoaded:
      state = stage == Stage::kOpen ? "it has loaded already"
                                    : "it is open already";
      break;
    case Stage::kRefused:
      state = "loading has failed; close it";
      break;
    case Stage::kClosed:
      state = "it is closed";
      break;
    case Stage::kFailed:
      state = "opening has failed; free it";
      break;
  }
  return absl::FailedPreconditionError(absl::StrFormat("%s: %s", doing, state));
}

absl::StatusOr<uint32_t> CCheckpointer::AddItem(ItemSpec item) {
  HF_RETURN_IF_ERROR(Expect(Stage::kDeclaring, "adding an item"));
  HF_RETURN_IF_ERROR(CheckDeclaredItem(item));
  const auto [place, is_new] =
      item_numbers_.try_emplace({item.name, item.kind}, items_.size());
  if (is_new) {
    items_.push_back(std::move(item));
  } else if (items_[place->second] != item) {
    return absl::InvalidArgumentError(
        absl::StrFormat("item %s was added before with another dtype or shape",
                        ItemText(item)));
  }
  return place->second;
}

absl::StatusOr<const ItemSpec*> CCheckpointer::Item(uint32_t item) const {
  if (item < items_.size()) return &items_[item];
  return absl::NotFoundError(absl::StrFormat(
      "there is no item %d; %d were added", item, items_.size()));
}

absl::Status CCheckpointer::TakeRegion(const std::string& what,
                                       std::byte* memory, uint64_t bytes) {
  const uintptr_t begin = Address(memory);
  const auto next = regions_by_address_.lower_bound(begin);
  const bool meets_next =
      next != regions_by_address_.end() && next->first - begin < bytes;
  const bool meets_last =
      next != regions_by_address_.begin() &&
      begin - std::prev(next)->first < regions_[std::prev(next)->second].bytes;
  if (meets_next || meets_last) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its %d bytes at %p overlap with a region or buffer that was added "
        "before; add a region before the buffers inside it",
        what, bytes, static_cast<const void*>(memory)));
  }
  regions_by_address_[begin] = static_cast<uint32_t>(regions_.size());
  regions_.push_back({memory, bytes});
  return absl::OkStatus();
}

absl::Status CCheckpointer::AddRegion(std::byte* memory, uint64_t bytes) {
  HF_RETURN_IF_ERROR(Expect(Stage::kDeclaring, "adding a region"));
  if (Address(memory) % kPage != 0 || bytes < kPage ||
      bytes > UINTPTR_MAX - Address(memory)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "adding a region: %d bytes at %p; at least %d bytes from a multiple of "
        "%d are expected (hf_ckpt_alloc)",
        bytes, static_cast<const void*>(memory), kPage, kPage));
  }
  return TakeRegion("adding a region", memory, bytes / kPage * kPage);
}

std::string CCheckpointer::Describe(const Buffer& buffer) const {
  return absl::StrFormat("buffer of %s", ItemText(items_[buffer.item]));
}

// Where the buffer lies: in a region that was added, or in one of its own.
absl::Status CCheckpointer::Place(uint64_t memory_bytes, Buffer* buffer) {
  const uint64_t bytes = Padded(buffer->bytes);
  if (buffer->staged) {
    buffer->offset = staged_bytes_;
    staged_bytes_ += bytes;
    return absl::OkStatus();
  }
  const uintptr_t begin = Address(buffer->memory);
  if (begin % kPage != 0 || memory_bytes < bytes ||
      bytes > UINTPTR_MAX - begin) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes of memory at %p; in place, its %d bytes need %d from a "
        "multiple of %d: take it from hf_ckpt_alloc, or declare it "
        "HF_CKPT_STAGED",
        Describe(*buffer), memory_bytes,
        static_cast<const void*>(buffer->memory), buffer->bytes, bytes, kPage));
  }
  const auto next = buffers_by_address_.lower_bound(begin);
  const Buffer* other = nullptr;
  if (next != buffers_by_address_.end() && next->first - begin < bytes) {
    other = &buffers_[next->second];
  } else if (next != buffers_by_address_.begin()) {
    const Buffer& last = buffers_[std::prev(next)->second];
    if (begin - Address(last.memory) < Padded(last.bytes)) other = &last;
  }
  if (other != nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s at %p shares pages with the %s at %p; in place, each has its own: "
        "declare one of them HF_CKPT_STAGED",
        Describe(*buffer), static_cast<const void*>(buffer->memory),
        Describe(*other), static_cast<const void*>(other->memory)));
  }
  auto region = regions_by_address_.upper_bound(begin);
  if (region != regions_by_address_.begin()) {
    --region;
    const Region& found = regions_[region->second];
    const uint64_t offset = begin - region->first;
    if (offset < found.bytes && bytes <= found.bytes - offset) {
      buffer->region = region->second;
      buffer->offset = offset;
      return absl::OkStatus();
    }
  }
  HF_RETURN_IF_ERROR(TakeRegion(Describe(*buffer), buffer->memory, bytes));
  buffer->region = static_cast<uint32_t>(regions_.size() - 1);
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> CCheckpointer::AddBuffer(
    uint32_t item, const Box& part, int64_t first, int64_t count,
    std::byte* memory, uint64_t memory_bytes, bool staged) {
  HF_RETURN_IF_ERROR(Expect(Stage::kDeclaring, "adding a buffer"));
  Buffer buffer;
  buffer.item = item;
  buffer.memory = memory;
  buffer.bytes = static_cast<uint64_t>(count) * SizeOf(items_[item].dtype);
  buffer.staged = staged;
  if (memory_bytes < buffer.bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d bytes of memory for %d elements of %s, which "
                        "are %d bytes",
                        Describe(buffer), memory_bytes, count,
                        std::string(NameOf(items_[item].dtype)), buffer.bytes));
  }
  const auto number = static_cast<uint32_t>(buffers_.size());
  if (count > 0) {
    HF_RETURN_IF_ERROR(Place(memory_bytes, &buffer));
    holding_.fragments.push_back({.item = item,
                                  .part = part,
                                  .first = first,
                                  .count = count,
                                  .region = buffer.region,
                                  .offset = buffer.offset});
    if (!staged) buffers_by_address_[Address(memory)] = number;
  }
  buffers_.push_back(buffer);
  return number;
}

// Memory for staged buffers, and what lies behind the ends of all others.
absl::Status CCheckpointer::Allocate() {
  for (const Region& region : regions_) {
    holding_.region_bytes.push_back(region.bytes);
  }
  for (const Buffer& buffer : buffers_) {
    if (buffer.staged) continue;
    std::memset(buffer.memory + buffer.bytes, 0,
                Padded(buffer.bytes) - buffer.bytes);
  }
  if (staged_bytes_ == 0) return absl::OkStatus();
  const auto staging = static_cast<uint32_t>(regions_.size());
  staging_ = NewPageMemory(staged_bytes_);
  if (staging_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "no memory left for %d bytes, the second copy of staged buffers",
        staged_bytes_));
  }
  regions_.push_back({staging_.get(), staged_bytes_});
  holding_.region_bytes.push_back(staged_bytes_);
  size_t fragment = 0;
  for (Buffer& buffer : buffers_) {
    if (buffer.bytes == 0) continue;
    if (buffer.staged) {
      buffer.region = staging;
      holding_.fragments[fragment].region = staging;
    }
    ++fragment;
  }
  return absl::OkStatus();
}

absl::Status CCheckpointer::OpenAll() {
  if (options_.open_timeout_ms < 1) {
    return absl::InvalidArgumentError("open_timeout_ms must be at least 1");
  }
  Declaration mine;
  mine.status = Allocate();  // the others hear of it
  mine.layout = options_.layout;
  mine.items = items_;
  mine.holding = std::move(holding_);
  HF_ASSIGN_OR_RETURN(
      Gathered gathered,
      GatherAll(std::move(group_), Encode(mine),
                absl::Milliseconds(options_.open_timeout_ms), RealClock()));
  std::vector<Declaration> declarations;
  for (const std::vector<std::byte>& bytes : gathered.bytes) {
    HF_ASSIGN_OR_RETURN(Declaration declaration, DecodeDeclaration(bytes));
    declarations.push_back(std::move(declaration));
  }
  HF_ASSIGN_OR_RETURN(std::shared_ptr<const DeclaredLayout> layout,
                      DeclaredLayout::Make(std::move(declarations)));
  std::vector<std::span<std::byte>> regions;
  for (const Region& region : regions_) {
    regions.emplace_back(region.memory, region.bytes);
  }
  CheckpointerOptions options = options_.checkpointer;
  // Nobody stores into staged memory, so it needs no room beside it: one unit.
  if (buffers_by_address_.empty() && options.arena_bytes == 0) {
    options.arena_bytes = 1;
  }
  HF_ASSIGN_OR_RETURN(
      checkpointer_,
      Checkpointer::Open(options, std::move(gathered.group), std::move(layout),
                         std::move(regions), RealClock()));
  return absl::OkStatus();
}

absl::Status CCheckpointer::Open() {
  HF_RETURN_IF_ERROR(Expect(Stage::kDeclaring, "opening the checkpointer"));
  stage_ = Stage::kFailed;
  HF_RETURN_IF_ERROR(OpenAll());
  stage_ = Stage::kOpen;
  return absl::OkStatus();
}

void CCheckpointer::CopyStaged(bool out) {
  for (const Buffer& buffer : buffers_) {
    if (!buffer.staged || buffer.bytes == 0) continue;
    std::byte* const copy = staging_.get() + buffer.offset;
    if (out) {
      std::memcpy(buffer.memory, copy, buffer.bytes);
    } else {
      std::memcpy(copy, buffer.memory, buffer.bytes);
    }
  }
}

absl::StatusOr<const LoadReport*> CCheckpointer::Load(
    const LoadRequest& request) {
  HF_RETURN_IF_ERROR(Expect(Stage::kOpen, "loading"));
  stage_ = Stage::kRefused;
  // What is not loaded stays as it is, in the second copy too.
  if (request.init_weights_only) CopyStaged(/*out=*/false);
  HF_ASSIGN_OR_RETURN(LoadReport report, checkpointer_->ClaimAndLoad(request));
  if (report.loaded) CopyStaged(/*out=*/true);
  if (report.loaded && !report.from_init) last_step_ = report.step;
  loaded_ = std::move(report);
  stage_ = Stage::kLoaded;
  return &*loaded_;
}

absl::Status CCheckpointer::BeginSave(SaveRequest request) {
  HF_RETURN_IF_ERROR(Expect(Stage::kLoaded, "saving"));
  if (request.step < last_step_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("saving step %d: steps never go back, and %d was there "
                        "before",
                        request.step, last_step_));
  }
  last_step_ = request.step;
  if (staged_bytes_ > 0) {
    request.prepare = [this] {
      const absl::Duration start = RealClock().Monotonic();
      CopyStaged(/*out=*/false);
      stage_seconds_begun_ =
          absl::ToDoubleSeconds(RealClock().Monotonic() - start);
    };
  }
  return checkpointer_->BeginSave(request);
}

absl::Status CCheckpointer::BeforeWrite(uint32_t number, uint64_t offset,
                                        uint64_t bytes) {
  if (number >= buffers_.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("before a write: there is no buffer %d; %d were added",
                        number, buffers_.size()));
  }
  const Buffer& buffer = buffers_[number];
  if (offset > buffer.bytes || bytes > buffer.bytes - offset) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "before a write: %d bytes from byte %d on are not inside the %s, which "
        "has %d bytes",
        bytes, offset, Describe(buffer), buffer.bytes));
  }
  if (buffer.staged || bytes == 0 || checkpointer_ == nullptr) {
    return absl::OkStatus();
  }
  checkpointer_->FenceWrite(buffer.region, buffer.offset + offset, bytes);
  return absl::OkStatus();
}

absl::StatusOr<const SaveReport*> CCheckpointer::TakeReport(
    std::optional<absl::Duration> wait) {
  HF_RETURN_IF_ERROR(Expect(Stage::kLoaded, "asking for a save's report"));
  std::optional<SaveReport> report =
      wait.has_value() ? checkpointer_->WaitForSave(std::min(*wait, kForever))
                       : checkpointer_->PollSave();
  if (!report.has_value()) return nullptr;
  report_ = std::move(report);
  stage_seconds_ = stage_seconds_begun_;
  return &*report_;
}

bool CCheckpointer::save_in_flight() const {
  return checkpointer_ != nullptr && checkpointer_->save_in_flight();
}

absl::StatusOr<SaveCounters> CCheckpointer::counters() const {
  if (checkpointer_ != nullptr) return checkpointer_->counters();
  return absl::FailedPreconditionError(
      "asking for counters: the checkpointer is not open");
}

absl::Status CCheckpointer::Close() {
  if (stage_ != Stage::kLoaded && stage_ != Stage::kRefused) {
    HF_RETURN_IF_ERROR(Expect(Stage::kOpen, "closing the checkpointer"));
  }
  stage_ = Stage::kClosed;
  absl::Status status = checkpointer_->Close();
  if (absl::IsDeadlineExceeded(status) && staging_ != nullptr) {
    // The library's thread may go on with it.
    KeepForEver(std::shared_ptr<void>(staging_.release(), FreePages()));
  }
  checkpointer_.reset();
  return status;
}

}  // namespace holdfast::ckpt
