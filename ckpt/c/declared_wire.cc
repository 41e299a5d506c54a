// ckpt/c/declared_wire.cc: declarations as bytes, for the other ranks.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/c/declared_layout.h"
#include "ckpt/c/guard.h"
#include "ckpt/format/wire.h"

namespace holdfast::ckpt {
namespace {

// Changes with every change of the bytes below. Ranks of one job run one
// version of the library.
constexpr uint32_t kVersion = 0x31444648;  // "HFD1"

void Write(const Box& box, Writer* out) {
  for (int d = 0; d < box.dimensions; ++d) {
    out->Varint(static_cast<uint64_t>(box.first[d]));
    out->Varint(static_cast<uint64_t>(box.count[d]));
  }
}

Box ReadBox(Reader* in, size_t dimensions) {
  Box box;
  box.dimensions = static_cast<int>(dimensions);
  for (size_t d = 0; d < dimensions; ++d) {
    box.first[d] = in->Varint63();
    box.count[d] = in->Varint63();
  }
  return box;
}

absl::Status NoDeclaration(const std::string& why) {
  return absl::DataLossError(absl::StrFormat(
      "what a rank has sent about its buffers cannot be read: %s", why));
}

absl::Status ReadItems(Reader* in, Declaration* out) {
  const size_t items = in->Count(/*bytes_min=*/4);
  for (size_t i = 0; i < items && in->ok(); ++i) {
    ItemSpec& item = out->items.emplace_back();
    item.name = in->String();
    item.kind = in->String();
    item.dtype = DType{in->Fixed<uint8_t>()};
    const size_t dimensions = in->Fixed<uint8_t>();
    for (size_t d = 0; d < dimensions && in->ok(); ++d) {
      item.shape.push_back(in->Varint63());
    }
    if (in->ok()) HF_RETURN_IF_ERROR(CheckDeclaredItem(item));
  }
  return absl::OkStatus();
}

absl::Status ReadHolding(Reader* in, Declaration* out) {
  const size_t regions = in->Count(/*bytes_min=*/1);
  for (size_t i = 0; i < regions; ++i) {
    out->holding.region_bytes.push_back(in->Varint());
  }
  const size_t fragments = in->Count(/*bytes_min=*/5);
  for (size_t i = 0; i < fragments && in->ok(); ++i) {
    Fragment& f = out->holding.fragments.emplace_back();
    f.item = in->Varint32();
    if (!in->ok() || f.item >= out->items.size()) {
      return NoDeclaration("a buffer of no item");
    }
    const ItemSpec& item = out->items[f.item];
    f.part = ReadBox(in, item.shape.size());
    f.first = in->Varint63();
    f.count = in->Varint63();
    f.region = in->Varint32();
    f.offset = in->Varint();
    if (!in->ok()) break;
    HF_RETURN_IF_ERROR(CheckDeclaredRun(item, f.part, f.first, f.count));
    // As the plan of a save needs it.
    const uint64_t bytes =
        RoundUp(static_cast<uint64_t>(f.count) * SizeOf(item.dtype),
                AlignedBuffer::kAlignment);
    const std::vector<uint64_t>& sizes = out->holding.region_bytes;
    if (f.region >= sizes.size() || bytes > sizes[f.region] ||
        f.offset > sizes[f.region] - bytes ||
        f.offset % AlignedBuffer::kAlignment != 0) {
      return NoDeclaration("a buffer outside of its region");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::byte> Encode(const Declaration& declaration) {
  Writer out;
  out.Fixed(kVersion);
  out.Varint(static_cast<uint64_t>(declaration.status.code()));
  out.String(std::string(declaration.status.message()));
  out.String(declaration.layout);
  out.Varint(declaration.items.size());
  for (const ItemSpec& item : declaration.items) {
    out.String(item.name);
    out.String(item.kind);
    out.Fixed(static_cast<uint8_t>(item.dtype));
    out.Fixed(static_cast<uint8_t>(item.shape.size()));
    for (const int64_t length : item.shape) {
      out.Varint(static_cast<uint64_t>(length));
    }
  }
  const Holding& holding = declaration.holding;
  out.Varint(holding.region_bytes.size());
  for (const uint64_t bytes : holding.region_bytes) out.Varint(bytes);
  out.Varint(holding.fragments.size());
  for (const Fragment& f : holding.fragments) {
    out.Varint(f.item);
    Write(f.part, &out);
    out.Varint(static_cast<uint64_t>(f.first));
    out.Varint(static_cast<uint64_t>(f.count));
    out.Varint(f.region);
    out.Varint(f.offset);
  }
  return out.Take();
}

absl::StatusOr<Declaration> DecodeDeclaration(
    std::span<const std::byte> bytes) {
  Reader in(bytes);
  if (in.Fixed<uint32_t>() != kVersion) {
    return NoDeclaration(
        "it runs another version of the library; all ranks run the same");
  }
  Declaration out;
  const absl::StatusCode code =
      CodeOf(static_cast<hf_ckpt_code>(in.Varint32()));
  const std::string message = in.String();
  if (code != absl::StatusCode::kOk) out.status = absl::Status(code, message);
  out.layout = in.String();
  HF_RETURN_IF_ERROR(ReadItems(&in, &out));
  HF_RETURN_IF_ERROR(ReadHolding(&in, &out));
  if (!in.ok() || in.left() != 0) {
    return NoDeclaration(
        absl::StrFormat("byte %d of %d", in.position(), bytes.size()));
  }
  return out;
}

}  // namespace holdfast::ckpt
