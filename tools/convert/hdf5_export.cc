// tools/convert/hdf5_export.cc: a state, written as an archive
// (hdf5_archive.h). Nothing here knows the HDF5 library (hdf5_file.h).

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/convert/checkpoint_source.h"
#include "ckpt/format/digest.h"
#include "ckpt/layout/box.h"
#include "tools/convert/hdf5_archive.h"
#include "tools/convert/hdf5_file.h"
#include "tools/convert/out_file.h"
#include "tools/convert/partial_file.h"
#include "tools/convert/work_threads.h"

namespace holdfast::tools {
namespace {

using ckpt::Digest128;
using ckpt::ItemSpec;
using ckpt::WantedRun;

constexpr char kAbout[] =
    "The whole state of a training run. /state/TENSOR/KIND is one array of it; "
    "its attribute dtype says what the numbers are. HDF5 has no bfloat16: such "
    "an array is uint16, the upper 16 bits of a float32, so that in numpy "
    "(d[:].astype('u4') << 16).view('f4') are its values. /attributes has "
    "everything that is no array: the step, the place in the data, the "
    "configuration (.config).";
// How an HDF5 file begins.
constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";

// Elements of an item that are filled and written at once.
struct Piece {
  size_t item = 0;
  int64_t first = 0;
  int64_t count = 0;
  size_t offset = 0;  // in the buffer; of whole blocks
  size_t bytes = 0;
};

// Pieces that fit into a buffer together. Large ones begin and end with a block
// of the file, but for a tensor's last.
std::vector<std::vector<Piece>> CutIntoWindows(
    const std::vector<ItemSpec>& items) {
  constexpr size_t kBlock = ckpt::AlignedBuffer::kAlignment;
  std::vector<std::vector<Piece>> windows(1);
  size_t used = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const int64_t elements = ckpt::WholeBox(items[i].shape).elements();
    const auto size = static_cast<size_t>(ckpt::SizeOf(items[i].dtype));
    for (int64_t first = 0; first < elements;) {
      if (used == kWindowBytes) {
        windows.emplace_back();
        used = 0;
      }
      const int64_t count = std::min<int64_t>(
          elements - first, static_cast<int64_t>((kWindowBytes - used) / size));
      const size_t bytes = static_cast<size_t>(count) * size;
      windows.back().push_back({i, first, count, used, bytes});
      used += ckpt::RoundUp(bytes, kBlock);
      first += count;
    }
  }
  return windows;
}

class Export {
 public:
  Export(ckpt::StateSource* source, const ExportRequest& request)
      : source_(source), request_(request), items_(source->items()) {}

  absl::StatusOr<ExportReport> Run() {
    if (!request_.dtype.empty()) {
      return absl::InvalidArgumentError(
          "--dtype: an archive keeps every tensor in the type that it has");
    }
    for (const ItemSpec& item : items_) {
      total_ += ckpt::BytesOf(item, ckpt::WholeBox(item.shape).elements());
    }
    HF_ASSIGN_OR_RETURN(PartialFile file,
                        PartialFile::Create(request_.out, total_, kSignature));
    HF_ASSIGN_OR_RETURN(writer_, Hdf5Writer::Create(file.path()));
    HF_RETURN_IF_ERROR(Describe());
    uint64_t end = 0;
    for (const ItemSpec& item : items_) {
      HF_ASSIGN_OR_RETURN(const uint64_t offset, writer_->AddTensor(item));
      offsets_.push_back(offset);
      end = std::max(
          end,
          offset + ckpt::BytesOf(item, ckpt::WholeBox(item.shape).elements()));
    }
    digests_.resize(items_.size());
    OutFile tensors(file.fd(), file.path());
    HF_RETURN_IF_ERROR(tensors.Reserve(end));
    HF_RETURN_IF_ERROR(WriteTensors(tensors));
    HF_RETURN_IF_ERROR(CompareDigests());
    for (size_t i = 0; i < items_.size(); ++i) {
      HF_RETURN_IF_ERROR(
          writer_->SetDigest(items_[i], ckpt::ToHex(digests_[i])));
    }
    HF_RETURN_IF_ERROR(writer_->AddFact(
        "digest", ckpt::ToHex(ckpt::DigestOfState(items_, digests_,
                                                  source_->attributes()))));
    HF_RETURN_IF_ERROR(writer_->Close());
    if (request_.stop && request_.stop()) {
      return absl::CancelledError("stopped");
    }
    HF_RETURN_IF_ERROR(file.Publish());
    ExportReport report;
    report.files = {std::filesystem::path(request_.out).filename()};
    report.tensors = items_.size();
    report.bytes = total_;
    return report;
  }

 private:
  absl::Status Describe() {
    HF_RETURN_IF_ERROR(writer_->AddFact("format", kHdf5Format));
    HF_RETURN_IF_ERROR(writer_->AddFact("about", kAbout));
    const auto* const checkpoint =
        dynamic_cast<const ckpt::CheckpointSource*>(source_);
    if (checkpoint != nullptr) {
      const ckpt::Manifest& manifest = checkpoint->manifest();
      HF_RETURN_IF_ERROR(writer_->AddFact("step", manifest.id.step));
      HF_RETURN_IF_ERROR(
          writer_->AddFact("checkpoint", ckpt::ToString(manifest.id)));
      HF_RETURN_IF_ERROR(
          writer_->AddFact("run_id", ckpt::ToHex(manifest.run_id)));
      HF_RETURN_IF_ERROR(writer_->AddFact(
          "parent", manifest.parent ? ckpt::ToString(*manifest.parent) : ""));
      HF_RETURN_IF_ERROR(writer_->AddFact("layout", manifest.layout));
      HF_RETURN_IF_ERROR(
          writer_->AddFact("world", static_cast<int64_t>(manifest.world)));
      HF_RETURN_IF_ERROR(
          writer_->AddFact("time_unix_ms", manifest.time_unix_ms));
    }
    for (const auto& [name, value] : source_->attributes()) {
      HF_RETURN_IF_ERROR(writer_->AddAttribute(name, value));
    }
    return absl::OkStatus();
  }

  absl::Status WriteTensors(OutFile& file) {
    const std::vector<std::vector<Piece>> windows = CutIntoWindows(items_);
    std::atomic<uint64_t> done = 0;
    WorkThreads how;
    how.threads = std::clamp(request_.threads, 1, source_->fills_at_once());
    how.stop = request_.stop;
    if (request_.on_progress) {
      how.on_tick = [&] { request_.on_progress(done, total_); };
    }
    std::vector<ckpt::AlignedBuffer> buffers(static_cast<size_t>(how.threads));
    return RunOnThreads(
        windows.size(), how, [&](size_t window, int worker) -> absl::Status {
          ckpt::AlignedBuffer& buffer = buffers[static_cast<size_t>(worker)];
          if (buffer.size() == 0) buffer = ckpt::AlignedBuffer(kWindowBytes);
          HF_RETURN_IF_ERROR(Fill(windows[window], buffer.span()));
          for (const Piece& piece : windows[window]) {
            HF_RETURN_IF_ERROR(Write(piece, buffer.span(), file));
            done += piece.bytes;
          }
          return absl::OkStatus();
        });
  }

  absl::Status Fill(const std::vector<Piece>& pieces,
                    std::span<std::byte> buffer) const {
    std::vector<WantedRun> wants;
    for (const Piece& piece : pieces) {
      wants.push_back({static_cast<ckpt::ItemIndex>(piece.item),
                       ckpt::WholeBox(items_[piece.item].shape), piece.first,
                       piece.count, buffer.subspan(piece.offset, piece.bytes)});
    }
    return source_->Fill(wants);
  }

  absl::Status Write(const Piece& piece, std::span<const std::byte> buffer,
                     OutFile& file) {
    const ItemSpec& item = items_[piece.item];
    const auto bytes = buffer.subspan(piece.offset, piece.bytes);
    const Digest128 digest = ckpt::DigestRun(item, ckpt::WholeBox(item.shape),
                                             piece.first, piece.count, bytes);
    {
      const std::lock_guard guard(lock_);
      digests_[piece.item] += digest;
    }
    return file.WriteAt(offsets_[piece.item] +
                            static_cast<uint64_t>(piece.first) *
                                static_cast<uint64_t>(ckpt::SizeOf(item.dtype)),
                        bytes);
  }

  absl::Status CompareDigests() {
    const std::span<const Digest128> recorded = source_->recorded_digests();
    for (size_t i = 0; i < recorded.size(); ++i) {
      if (!source_->records_digest_of(static_cast<ckpt::ItemIndex>(i)) ||
          recorded[i] == digests_[i]) {
        continue;
      }
      return absl::DataLossError(absl::StrFormat(
          "%s of '%s': the bytes that were read have logical digest %s, the "
          "source records %s; %s was not made",
          items_[i].kind, items_[i].name, ckpt::ToHex(digests_[i]),
          ckpt::ToHex(recorded[i]), request_.out));
    }
    return absl::OkStatus();
  }

  ckpt::StateSource* const source_;
  const ExportRequest& request_;
  const std::vector<ItemSpec>& items_;
  std::unique_ptr<Hdf5Writer> writer_;
  std::vector<uint64_t> offsets_;
  uint64_t total_ = 0;
  std::mutex lock_;  // of what follows
  std::vector<Digest128> digests_;
};

}  // namespace

absl::StatusOr<ExportReport> WriteHdf5(ckpt::StateSource* source,
                                       const ExportRequest& request) {
  return Export(source, request).Run();
}

}  // namespace holdfast::tools
