// tools/convert/mapped_source.cc: runs of items as runs of foreign tensors.

#include "tools/convert/mapped_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/cast.h"
#include "trainer/model/init.h"

namespace holdfast::tools {
namespace {

using ckpt::ItemSpec;

// Read, and cast while it is in the processor's cache.
constexpr size_t kPieceBytes = size_t{256} << 10;

int64_t RowsOf(const std::vector<int64_t>& shape) {
  return shape.empty() ? 1 : shape[0];
}
int64_t RowElements(const std::vector<int64_t>& shape) {
  // An empty tensor's other lengths may be any.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t elements = 1;
  for (size_t i = 1; i < shape.size(); ++i) elements *= shape[i];
  return elements;
}

// An item with the place where each of its runs begins.
struct Mapped {
  std::vector<RowRun> rows;
  std::vector<int64_t> row_begin;  // of rows[i], in the item
  int64_t row_elements = 1;
};

absl::Status CheckItem(const std::vector<ForeignTensor>& tensors,
                       const MappedItem& mapped) {
  const ItemSpec& item = mapped.item;
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrFormat("making %s of '%s': %s", item.kind, item.name, what));
  };
  if (mapped.rows.empty()) return absl::OkStatus();
  int64_t rows = 0;
  for (const RowRun& run : mapped.rows) {
    if (run.tensor < 0 || run.tensor >= static_cast<int>(tensors.size())) {
      return refuse(absl::StrFormat("there is no tensor %d", run.tensor));
    }
    const ForeignTensor& tensor = tensors[run.tensor];
    const int64_t tensor_rows = RowsOf(tensor.shape);
    if (run.count < 1 || run.first < 0 || run.stride < 1 ||
        run.first >= tensor_rows ||
        run.count - 1 > (tensor_rows - 1 - run.first) / run.stride) {
      return refuse(absl::StrFormat(
          "rows %d + %d x %d are not all in tensor '%s', which has %d",
          run.first, run.count, run.stride, tensor.name, tensor_rows));
    }
    if (RowElements(tensor.shape) != RowElements(item.shape) ||
        tensor.shape.empty() != item.shape.empty()) {
      return refuse(absl::StrFormat(
          "its rows have %d elements, those of tensor '%s' have %d",
          RowElements(item.shape), tensor.name, RowElements(tensor.shape)));
    }
    if (!CanCast(tensor.dtype, item.dtype)) {
      return refuse(absl::StrFormat(
          "tensor '%s' is %s, which is not cast to %s", tensor.name,
          std::string(NameOf(tensor.dtype)), std::string(NameOf(item.dtype))));
    }
    rows += run.count;
  }
  if (rows == RowsOf(item.shape)) return absl::OkStatus();
  return refuse(absl::StrFormat("it has %d rows, its sources %d",
                                RowsOf(item.shape), rows));
}

class MappedSource final : public ckpt::StateSource {
 public:
  MappedSource(std::shared_ptr<ForeignTensors> from,
               std::vector<MappedItem> items,
               std::map<std::string, std::string> attributes, int readers)
      : from_(std::move(from)),
        attributes_(std::move(attributes)),
        readers_(readers) {
    for (MappedItem& item : items) {
      Mapped mapped;
      mapped.row_elements = RowElements(item.item.shape);
      mapped.rows = std::move(item.rows);
      int64_t row = 0;
      for (const RowRun& run : mapped.rows) {
        mapped.row_begin.push_back(row);
        row += run.count;
      }
      items_.push_back(std::move(item.item));
      mapped_.push_back(std::move(mapped));
    }
  }

  const std::vector<ItemSpec>& items() const override { return items_; }
  const std::map<std::string, std::string>& attributes() const override {
    return attributes_;
  }
  int fills_at_once() const override { return readers_; }
  std::string identity() const override {
    // Which rows an item is made of is no part of the item: that differs
    // between, say, two lists of keys to ignore.
    std::string rows;
    for (const Mapped& mapped : mapped_) {
      for (const RowRun& run : mapped.rows) {
        absl::StrAppendFormat(&rows, "%d %d %d %d,", run.tensor, run.first,
                              run.count, run.stride);
      }
      rows += '\n';
    }
    return absl::StrFormat("%s of %s by %016x", StateSource::identity(),
                           from_->identity(), trainer::HashName(rows));
  }
  uint64_t bytes_read() const override { return from_->bytes_read(); }

  absl::Status Fill(std::span<const ckpt::WantedRun> wants) override {
    std::vector<std::byte> piece;
    for (const ckpt::WantedRun& want : wants) {
      const Mapped& mapped = mapped_[want.item];
      if (mapped.rows.empty()) {
        std::fill(want.out.begin(), want.out.end(), std::byte{0});
        continue;
      }
      std::span<std::byte> out = want.out;
      for (const ckpt::Box& box :
           BoxesOfRun(want.part, want.first, want.count)) {
        HF_RETURN_IF_ERROR(FillBox(want.item, box, out, piece));
      }
    }
    return absl::OkStatus();
  }

 private:
  // Fills the front of `out`, and cuts it off.
  absl::Status FillBox(ckpt::ItemIndex item, const ckpt::Box& box,
                       std::span<std::byte>& out,
                       std::vector<std::byte>& piece) {
    const Mapped& mapped = mapped_[item];
    if (box.dimensions == 0) {
      return FillRun(item, mapped.rows[0].tensor, 0, 1, out, piece);
    }
    // Whole rows that follow each other in the tensor are one run.
    const bool whole = box.elements() == box.count[0] * mapped.row_elements;
    int64_t row = box.first[0];
    const int64_t end = row + box.count[0];
    while (row < end) {
      const size_t at =
          static_cast<size_t>(std::upper_bound(mapped.row_begin.begin(),
                                               mapped.row_begin.end(), row) -
                              mapped.row_begin.begin()) -
          1;
      const RowRun& run = mapped.rows[at];
      const int64_t in_run = row - mapped.row_begin[at];
      const int64_t there =
          (run.first + in_run * run.stride) * mapped.row_elements;
      if (whole) {
        const int64_t rows =
            run.stride == 1 ? std::min(end - row, run.count - in_run) : 1;
        HF_RETURN_IF_ERROR(FillRun(item, run.tensor, there,
                                   rows * mapped.row_elements, out, piece));
        row += rows;
      } else {
        HF_RETURN_IF_ERROR(
            FillPartOfRow(item, run.tensor, there, box, out, piece));
        ++row;
      }
    }
    return absl::OkStatus();
  }

  // The part of one row that lies in `box`; the row starts at `there` of the
  // tensor.
  absl::Status FillPartOfRow(ckpt::ItemIndex item, int tensor, int64_t there,
                             const ckpt::Box& box, std::span<std::byte>& out,
                             std::vector<std::byte>& piece) {
    const std::vector<int64_t>& shape = items_[item].shape;
    // Of the dimensions after the first, the last one is contiguous.
    int64_t inner = 1;
    for (int d = 1; d + 1 < box.dimensions; ++d) inner *= box.count[d];
    for (int64_t i = 0; i < inner; ++i) {
      int64_t left = i, scale = 1, offset = 0;
      for (int d = box.dimensions - 1; d >= 1; --d) {
        int64_t index = box.first[d];
        if (d < box.dimensions - 1) {
          index += left % box.count[d];
          left /= box.count[d];
        }
        offset += index * scale;
        scale *= shape[static_cast<size_t>(d)];
      }
      HF_RETURN_IF_ERROR(FillRun(item, tensor, there + offset,
                                 box.count[box.dimensions - 1], out, piece));
    }
    return absl::OkStatus();
  }

  // `count` elements of the tensor from `first` on.
  absl::Status FillRun(ckpt::ItemIndex item, int tensor, int64_t first,
                       int64_t count, std::span<std::byte>& out,
                       std::vector<std::byte>& piece) {
    const ForeignTensor& from = from_->tensors()[static_cast<size_t>(tensor)];
    const ckpt::DType to = items_[item].dtype;
    const auto in_size = static_cast<int64_t>(SizeOf(from.dtype));
    const auto out_size = static_cast<int64_t>(SizeOf(to));
    while (count > 0) {
      int64_t now = count;
      if (from.dtype == to) {
        HF_RETURN_IF_ERROR(
            from_->Read(tensor, first, now,
                        out.first(static_cast<size_t>(now * out_size))));
      } else {
        now = std::min(now, static_cast<int64_t>(kPieceBytes) / in_size);
        const auto bytes = static_cast<size_t>(now * in_size);
        if (piece.size() < bytes) piece.resize(bytes);
        const std::span<std::byte> in = std::span(piece).first(bytes);
        HF_RETURN_IF_ERROR(from_->Read(tensor, first, now, in));
        if (CastElements(from.dtype, in, to,
                         out.first(static_cast<size_t>(now * out_size))) > 0) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "making %s of '%s': tensor '%s' holds finite values that are too "
              "large for %s",
              items_[item].kind, items_[item].name, from.name,
              std::string(NameOf(to))));
        }
      }
      out = out.subspan(static_cast<size_t>(now * out_size));
      first += now;
      count -= now;
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<ForeignTensors> from_;
  const std::map<std::string, std::string> attributes_;
  const int readers_;
  std::vector<ItemSpec> items_;
  std::vector<Mapped> mapped_;
};

}  // namespace

uint64_t TableBytes(const std::vector<ForeignTensor>& tensors) {
  uint64_t bytes = 0;
  for (const ForeignTensor& tensor : tensors) {
    bytes += kTableBytes + 2 * tensor.name.size();
  }
  return bytes;
}

int FindTensor(const std::vector<ForeignTensor>& tensors,
               std::string_view name) {
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const ForeignTensor& tensor, std::string_view wanted) {
        return tensor.name < wanted;
      });
  if (found == tensors.end() || found->name != name) return -1;
  return static_cast<int>(found - tensors.begin());
}

absl::StatusOr<bool> SameBytes(ForeignTensors& tensors, int a, int b) {
  const ForeignTensor& first = tensors.tensors()[static_cast<size_t>(a)];
  const ForeignTensor& second = tensors.tensors()[static_cast<size_t>(b)];
  if (first.dtype != second.dtype || first.shape != second.shape) return false;
  int64_t elements = 1;
  for (const int64_t dimension : first.shape) elements *= dimension;
  constexpr int64_t kAtOnce = int64_t{1} << 18;
  const auto size = static_cast<size_t>(SizeOf(first.dtype));
  std::vector<std::byte> of_a(kAtOnce * size), of_b(kAtOnce * size);
  for (int64_t at = 0; at < elements; at += kAtOnce) {
    const int64_t count = std::min(kAtOnce, elements - at);
    const size_t bytes = static_cast<size_t>(count) * size;
    HF_RETURN_IF_ERROR(
        tensors.Read(a, at, count, std::span(of_a).first(bytes)));
    HF_RETURN_IF_ERROR(
        tensors.Read(b, at, count, std::span(of_b).first(bytes)));
    if (std::memcmp(of_a.data(), of_b.data(), bytes) != 0) return false;
  }
  return true;
}

std::vector<RowRun> WholeTensor(const ForeignTensors& from, int tensor) {
  const ForeignTensor& whole = from.tensors()[static_cast<size_t>(tensor)];
  return {{tensor, 0, RowsOf(whole.shape), 1}};
}

std::vector<RowRun> RotaryPairsApart(int tensor, int64_t first, int64_t heads,
                                     int64_t head_dim) {
  std::vector<RowRun> rows;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t half = 0; half < 2; ++half) {
      rows.push_back({tensor, first + head * head_dim + half, head_dim / 2, 2});
    }
  }
  return rows;
}

absl::StatusOr<std::unique_ptr<ckpt::StateSource>> MakeMappedSource(
    std::shared_ptr<ForeignTensors> from, std::vector<MappedItem> items,
    std::map<std::string, std::string> attributes, int readers) {
  for (const MappedItem& item : items) {
    HF_RETURN_IF_ERROR(CheckItem(from->tensors(), item));
  }
  std::sort(items.begin(), items.end(),
            [](const MappedItem& a, const MappedItem& b) {
              return std::tie(a.item.name, a.item.kind) <
                     std::tie(b.item.name, b.item.kind);
            });
  for (size_t i = 1; i < items.size(); ++i) {
    if (items[i - 1].item.name == items[i].item.name &&
        items[i - 1].item.kind == items[i].item.kind) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s of '%s' would be made twice", items[i].item.kind,
                          items[i].item.name));
    }
  }
  return std::make_unique<MappedSource>(std::move(from), std::move(items),
                                        std::move(attributes), readers);
}

}  // namespace holdfast::tools
