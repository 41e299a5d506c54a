// ckpt/c/reader.cc: a checkpoint read alone, and the list of a run's.

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/c/declared_layout.h"
#include "ckpt/c/guard.h"
#include "ckpt/c/holdfast_ckpt.h"
#include "ckpt/c/page_memory.h"
#include "ckpt/c/texts.h"
#include "ckpt/session/catalog_locate.h"
#include "ckpt/session/load_session.h"

using holdfast::ckpt::AttributeList;
using holdfast::ckpt::Box;
using holdfast::ckpt::Catalog;
using holdfast::ckpt::CatalogEntry;
using holdfast::ckpt::CheckStruct;
using holdfast::ckpt::EntryState;
using holdfast::ckpt::GiveStruct;
using holdfast::ckpt::Guard;
using holdfast::ckpt::Holding;
using holdfast::ckpt::ItemSpec;
using holdfast::ckpt::LocatedCheckpoint;
using holdfast::ckpt::Manifest;
using holdfast::ckpt::NullArgument;
using holdfast::ckpt::PageMemory;
using holdfast::ckpt::RealClock;
using holdfast::ckpt::SessionEnv;
using holdfast::ckpt::TakeStruct;

struct hf_ckpt_reader {
  LocatedCheckpoint place;
  std::unique_ptr<Manifest> manifest;
  AttributeList attributes;
  std::string id;
  std::string run_id;
  std::string path;
};

struct hf_ckpt_list {
  Catalog catalog;
  std::vector<std::string> ids;  // by entry
};

namespace {

constexpr uint16_t kSpace = 1;
constexpr uint32_t kQueueDepth = 16;

// Sizes of the structs in version 1.
constexpr size_t kListEntryBytes1 =
    offsetof(hf_ckpt_list_entry, reason) + sizeof(char*);
constexpr size_t kReaderInfoBytes1 =
    offsetof(hf_ckpt_reader_info, path) + sizeof(char*);
constexpr size_t kItemInfoBytes1 =
    offsetof(hf_ckpt_item_info, bytes) + sizeof(uint64_t);
constexpr size_t kBoxReadBytes1 =
    offsetof(hf_ckpt_box_read, memory_bytes) + sizeof(uint64_t);

int32_t NumberOf(EntryState state) {
  switch (state) {
    case EntryState::kCommitted:
      return HF_CKPT_STATE_COMMITTED;
    case EntryState::kSuperseded:
      return HF_CKPT_STATE_SUPERSEDED;
    case EntryState::kLate:
      return HF_CKPT_STATE_LATE;
    case EntryState::kAttempt:
      return HF_CKPT_STATE_ATTEMPT;
    case EntryState::kDamaged:
      return HF_CKPT_STATE_DAMAGED;
    case EntryState::kNewer:
      return HF_CKPT_STATE_NEWER;
  }
  return HF_CKPT_STATE_DAMAGED;
}

holdfast::ckpt::StorageOptions StorageOf() {
  holdfast::ckpt::StorageOptions options;
  options.queue_depth = kQueueDepth;
  return options;
}

SessionEnv EnvOf(const hf_ckpt_reader& reader) {
  SessionEnv env;
  env.storage = reader.place.storage.get();
  env.clock = &RealClock();
  env.space = kSpace;
  env.ops_max = env.storage->queue_depth();
  return env;
}

absl::StatusOr<std::unique_ptr<hf_ckpt_reader>> OpenReader(
    const std::string& text) {
  auto reader = std::make_unique<hf_ckpt_reader>();
  HF_ASSIGN_OR_RETURN(reader->place, holdfast::ckpt::LocateCheckpoint(
                                         text, StorageOf(), RealClock()));
  holdfast::ckpt::ManifestSession session(EnvOf(*reader), reader->place.dir);
  RunAlone(reader->place.storage.get(), &RealClock(), &session);
  if (!session.result().ok()) {
    const absl::Status& status = session.result().status();
    return absl::Status(status.code(),
                        absl::StrFormat("%s: %s", reader->place.root,
                                        std::string(status.message())));
  }
  reader->manifest = *std::move(session.result());
  reader->attributes = AttributeList(reader->manifest->attributes);
  reader->id = ToString(reader->manifest->id);
  reader->run_id = holdfast::ckpt::ToHex(reader->manifest->run_id);
  reader->path = reader->place.path();
  return reader;
}

uint64_t BytesOf(const ItemSpec& item) {
  return static_cast<uint64_t>(
             holdfast::ckpt::WholeBox(item.shape).elements()) *
         SizeOf(item.dtype);
}

// What one call reads. A fragment has the rest of its last block inside its
// region (ckpt/layout/holding.h), and a load may fill that too. A caller's
// memory ends where the box does: only whole blocks are read to there, and the
// end of each box by way of a block of the library's own, the last region.
struct Wanted {
  struct Tail {
    std::byte* memory = nullptr;
    uint64_t bytes = 0;  // below kBlock
    size_t fragment = 0;
  };
  Holding holding;
  std::vector<std::span<std::byte>> regions;
  std::vector<Tail> tails;
  PageMemory tail_memory;
};
constexpr uint64_t kBlock = holdfast::ckpt::AlignedBuffer::kAlignment;

absl::Status AppendWanted(const std::vector<ItemSpec>& items,
                          const hf_ckpt_box_read& read, Wanted* wanted) {
  if (read.item >= items.size()) {
    return absl::NotFoundError(
        absl::StrFormat("reading a box: there is no item %d; there are %d",
                        read.item, items.size()));
  }
  const ItemSpec& item = items[read.item];
  Box box = holdfast::ckpt::WholeBox(item.shape);
  bool is_whole = true;
  for (int d = 0; d < box.dimensions; ++d) is_whole &= read.count[d] == 0;
  for (int d = 0; d < box.dimensions && !is_whole; ++d) {
    box.first[d] = read.first[d];
    box.count[d] = read.count[d];
  }
  HF_RETURN_IF_ERROR(holdfast::ckpt::CheckDeclaredRun(item, box, 0, 1));
  const int64_t elements = box.elements();
  const uint64_t size = SizeOf(item.dtype);
  const uint64_t bytes = static_cast<uint64_t>(elements) * size;
  if (read.memory == nullptr || read.memory_bytes < bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "reading %s of item '%s' (%s): %d bytes of memory at %p; %d are needed",
        ToString(box), item.name, item.kind, read.memory_bytes, read.memory,
        bytes));
  }
  auto* const memory = static_cast<std::byte*>(read.memory);
  const uint64_t whole = bytes / kBlock * kBlock;
  Holding& holding = wanted->holding;
  if (whole > 0) {
    holding.fragments.push_back(
        {.item = static_cast<holdfast::ckpt::ItemIndex>(read.item),
         .part = box,
         .first = 0,
         .count = static_cast<int64_t>(whole / size),
         .region = static_cast<uint32_t>(wanted->regions.size()),
         .offset = 0});
    holding.region_bytes.push_back(whole);
    wanted->regions.emplace_back(memory, whole);
  }
  if (whole < bytes) {
    wanted->tails.push_back(
        {memory + whole, bytes - whole, holding.fragments.size()});
    holding.fragments.push_back(
        {.item = static_cast<holdfast::ckpt::ItemIndex>(read.item),
         .part = box,
         .first = static_cast<int64_t>(whole / size),
         .count = static_cast<int64_t>((bytes - whole) / size),
         .region = 0,
         .offset = 0});
  }
  return absl::OkStatus();
}

// The blocks for what does not fill one.
absl::Status AddTailRegion(Wanted* wanted) {
  if (wanted->tails.empty()) return absl::OkStatus();
  const uint64_t bytes = wanted->tails.size() * kBlock;
  wanted->tail_memory = holdfast::ckpt::NewPageMemory(bytes);
  if (wanted->tail_memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("reading %d boxes: no memory left for %d bytes",
                        wanted->tails.size(), bytes));
  }
  for (size_t i = 0; i < wanted->tails.size(); ++i) {
    holdfast::ckpt::Fragment& fragment =
        wanted->holding.fragments[wanted->tails[i].fragment];
    fragment.region = static_cast<uint32_t>(wanted->regions.size());
    fragment.offset = i * kBlock;
  }
  wanted->holding.region_bytes.push_back(bytes);
  wanted->regions.emplace_back(wanted->tail_memory.get(), bytes);
  return absl::OkStatus();
}

absl::Status ReadBoxes(hf_ckpt_reader* reader, const hf_ckpt_box_read* boxes,
                       uint64_t count) {
  if (count > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("reading %d boxes in one call", count));
  }
  Wanted wanted;
  // Callers of another version have structs of another size.
  const auto* at = reinterpret_cast<const std::byte*>(boxes);
  for (uint64_t i = 0; i < count; ++i) {
    const auto* const box = reinterpret_cast<const hf_ckpt_box_read*>(at);
    HF_RETURN_IF_ERROR(CheckStruct("hf_ckpt_reader_read", box, kBoxReadBytes1));
    if (box->struct_bytes % alignof(hf_ckpt_box_read) != 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("hf_ckpt_reader_read: struct_bytes of box %d is %d",
                          i, box->struct_bytes));
    }
    HF_RETURN_IF_ERROR(
        AppendWanted(reader->manifest->items, TakeStruct(box), &wanted));
    at += box->struct_bytes;
  }
  HF_RETURN_IF_ERROR(AddTailRegion(&wanted));
  const holdfast::ckpt::LoadTarget target(std::move(wanted.regions));
  holdfast::ckpt::LoadSession session(
      EnvOf(*reader), reader->place.dir, reader->manifest.get(),
      &reader->manifest->items, &wanted.holding, &target);
  RunAlone(reader->place.storage.get(), &RealClock(), &session);
  const absl::Status& status = session.outcome().status;
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrFormat("reading %s: %s", reader->path,
                                        std::string(status.message())));
  }
  for (size_t i = 0; i < wanted.tails.size(); ++i) {
    std::memcpy(wanted.tails[i].memory, wanted.tail_memory.get() + i * kBlock,
                wanted.tails[i].bytes);
  }
  return absl::OkStatus();
}

}  // namespace

extern "C" {

hf_ckpt_code hf_ckpt_list_open(const char* run_dir, hf_ckpt_list** list) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_list_open", run_dir);
    HF_REQUIRE_NOT_NULL("hf_ckpt_list_open", list);
    HF_ASSIGN_OR_RETURN(
        holdfast::ckpt::OpenedRun run,
        holdfast::ckpt::OpenRun(run_dir, StorageOf(), RealClock()));
    auto made = std::make_unique<hf_ckpt_list>();
    made->catalog = std::move(run.catalog);
    for (const CatalogEntry& entry : made->catalog.entries) {
      made->ids.push_back(ToString(entry.id));
    }
    *list = made.release();
    return absl::OkStatus();
  });
}

uint64_t hf_ckpt_list_size(const hf_ckpt_list* list) {
  return list == nullptr ? 0 : list->ids.size();
}

hf_ckpt_code hf_ckpt_list_get(const hf_ckpt_list* list, uint64_t index,
                              hf_ckpt_list_entry* entry) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_list_get", list);
    HF_RETURN_IF_ERROR(
        CheckStruct("hf_ckpt_list_get", entry, kListEntryBytes1));
    if (index >= list->ids.size()) {
      return absl::NotFoundError(
          absl::StrFormat("hf_ckpt_list_get: there is no entry %d of %d", index,
                          list->ids.size()));
    }
    const CatalogEntry& found = list->catalog.entries[index];
    hf_ckpt_list_entry filled{};
    filled.step = found.id.step;
    filled.state = NumberOf(found.state);
    filled.incarnation = found.id.incarnation;
    filled.attempt = found.id.attempt;
    filled.id = list->ids[index].c_str();
    filled.dir = found.dir.c_str();
    filled.reason = found.reason.c_str();
    filled.layout = "";
    if (found.manifest.has_value()) {
      filled.world = found.manifest->world;
      filled.time_unix_ms = found.manifest->time_unix_ms;
      filled.bytes = found.manifest->bytes;
      filled.items = found.manifest->items;
      filled.layout = found.manifest->layout.c_str();
    }
    GiveStruct(filled, entry);
    return absl::OkStatus();
  });
}

void hf_ckpt_list_free(hf_ckpt_list* list) { delete list; }

hf_ckpt_code hf_ckpt_reader_open(const char* checkpoint,
                                 hf_ckpt_reader** reader) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_open", checkpoint);
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_open", reader);
    HF_ASSIGN_OR_RETURN(std::unique_ptr<hf_ckpt_reader> opened,
                        OpenReader(checkpoint));
    *reader = opened.release();
    return absl::OkStatus();
  });
}

void hf_ckpt_reader_free(hf_ckpt_reader* reader) { delete reader; }

hf_ckpt_code hf_ckpt_reader_get_info(const hf_ckpt_reader* reader,
                                     hf_ckpt_reader_info* info) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_get_info", reader);
    HF_RETURN_IF_ERROR(
        CheckStruct("hf_ckpt_reader_get_info", info, kReaderInfoBytes1));
    hf_ckpt_reader_info filled{};
    filled.step = reader->manifest->id.step;
    filled.items = reader->manifest->items.size();
    filled.incarnation = reader->manifest->id.incarnation;
    filled.world = reader->manifest->world;
    filled.time_unix_ms = reader->manifest->time_unix_ms;
    filled.id = reader->id.c_str();
    filled.run_id = reader->run_id.c_str();
    filled.layout = reader->manifest->layout.c_str();
    filled.path = reader->path.c_str();
    GiveStruct(filled, info);
    return absl::OkStatus();
  });
}

hf_ckpt_code hf_ckpt_reader_attributes(const hf_ckpt_reader* reader,
                                       const hf_ckpt_attribute** attributes,
                                       uint64_t* count) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_attributes", reader);
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_attributes", attributes);
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_attributes", count);
    *attributes = reader->attributes.data();
    *count = reader->attributes.size();
    return absl::OkStatus();
  });
}

hf_ckpt_code hf_ckpt_reader_item(const hf_ckpt_reader* reader, uint64_t index,
                                 hf_ckpt_item_info* info) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_item", reader);
    HF_RETURN_IF_ERROR(
        CheckStruct("hf_ckpt_reader_item", info, kItemInfoBytes1));
    const std::vector<ItemSpec>& items = reader->manifest->items;
    if (index >= items.size()) {
      return absl::NotFoundError(
          absl::StrFormat("hf_ckpt_reader_item: there is no item %d of %d",
                          index, items.size()));
    }
    const ItemSpec& item = items[index];
    hf_ckpt_item_info filled{};
    filled.name = item.name.c_str();
    filled.kind = item.kind.c_str();
    filled.dtype = static_cast<int32_t>(item.dtype);
    filled.dimensions = static_cast<int32_t>(item.shape.size());
    for (size_t d = 0; d < item.shape.size(); ++d) {
      filled.shape[d] = item.shape[d];
    }
    filled.bytes = BytesOf(item);
    GiveStruct(filled, info);
    return absl::OkStatus();
  });
}

hf_ckpt_code hf_ckpt_reader_find(const hf_ckpt_reader* reader, const char* name,
                                 const char* kind, uint64_t* index) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_find", reader);
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_find", name);
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_find", kind);
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_find", index);
    const std::vector<ItemSpec>& items = reader->manifest->items;
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].name == name && items[i].kind == kind) {
        *index = i;
        return absl::OkStatus();
      }
    }
    return absl::NotFoundError(absl::StrFormat(
        "checkpoint %s has no item '%s' (%s)", reader->id, name, kind));
  });
}

hf_ckpt_code hf_ckpt_reader_read(hf_ckpt_reader* reader,
                                 const hf_ckpt_box_read* boxes,
                                 uint64_t boxes_count) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_read", reader);
    if (boxes_count == 0) return absl::OkStatus();
    HF_REQUIRE_NOT_NULL("hf_ckpt_reader_read", boxes);
    return ReadBoxes(reader, boxes, boxes_count);
  });
}

}  // extern "C"
