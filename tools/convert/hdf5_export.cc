// tools/convert/hdf5_export.cc: a state, written as an archive
// (hdf5_archive.h). Nothing here knows the HDF5 library (hdf5_file.h).

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
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
#include "tools/convert/partial_file.h"

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
// Two of them: one is filled while the other is written.
constexpr size_t kBufferBytes = size_t{16} << 20;

// Elements of an item that are filled and written at once.
struct Piece {
  size_t item = 0;
  int64_t first = 0;
  int64_t count = 0;
  size_t offset = 0;  // in the buffer
  size_t bytes = 0;
};

struct Written {
  absl::Status status;
  std::vector<Digest128> digests;  // of the pieces
};

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
                        PartialFile::Create(request_.out, total_));
    fd_ = file.fd();
    HF_ASSIGN_OR_RETURN(writer_, Hdf5Writer::Create(file.path()));
    HF_RETURN_IF_ERROR(Describe());
    for (const ItemSpec& item : items_) {
      HF_ASSIGN_OR_RETURN(const uint64_t offset, writer_->AddTensor(item));
      offsets_.push_back(offset);
    }
    digests_.resize(items_.size());
    HF_RETURN_IF_ERROR(WriteTensors());
    HF_RETURN_IF_ERROR(CompareDigests());
    for (size_t i = 0; i < items_.size(); ++i) {
      HF_RETURN_IF_ERROR(
          writer_->SetDigest(items_[i], ckpt::ToHex(digests_[i])));
    }
    HF_RETURN_IF_ERROR(writer_->AddFact(
        "digest", ckpt::ToHex(ckpt::DigestOfState(items_, digests_,
                                                  source_->attributes()))));
    HF_RETURN_IF_ERROR(writer_->Close());
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

  // The next pieces that fit into a buffer; none after the last.
  std::vector<Piece> NextPieces() {
    std::vector<Piece> pieces;
    size_t used = 0;
    while (item_ < items_.size() && used < kBufferBytes) {
      const ItemSpec& item = items_[item_];
      const int64_t elements = ckpt::WholeBox(item.shape).elements();
      const auto size = static_cast<size_t>(ckpt::SizeOf(item.dtype));
      const auto room = static_cast<int64_t>((kBufferBytes - used) / size);
      const int64_t count = std::min(elements - element_, room);
      if (count <= 0 && elements > 0) break;
      pieces.push_back({item_, element_, count, used, count * size});
      used += count * size;
      element_ += count;
      if (element_ == elements) {
        ++item_;
        element_ = 0;
      }
    }
    return pieces;
  }

  absl::Status Fill(const std::vector<Piece>& pieces,
                    std::span<std::byte> buffer) {
    std::vector<WantedRun> wants;
    for (const Piece& piece : pieces) {
      wants.push_back({static_cast<ckpt::ItemIndex>(piece.item),
                       ckpt::WholeBox(items_[piece.item].shape), piece.first,
                       piece.count, buffer.subspan(piece.offset, piece.bytes)});
    }
    return source_->Fill(wants);
  }

  Written Write(const std::vector<Piece>& pieces,
                std::span<const std::byte> buffer) const {
    Written written;
    for (const Piece& piece : pieces) {
      const ItemSpec& item = items_[piece.item];
      auto bytes = buffer.subspan(piece.offset, piece.bytes);
      written.digests.push_back(ckpt::DigestRun(
          item, ckpt::WholeBox(item.shape), piece.first, piece.count, bytes));
      uint64_t at =
          offsets_[piece.item] + piece.first * ckpt::SizeOf(item.dtype);
      while (!bytes.empty()) {
        const ssize_t wrote =
            ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) {
          const std::string message =
              absl::StrFormat("writing %s: %s", request_.out,
                              std::strerror(wrote < 0 ? errno : EIO));
          written.status = errno == ENOSPC || errno == EDQUOT
                               ? absl::ResourceExhaustedError(message)
                               : absl::UnavailableError(message);
          return written;
        }
        bytes = bytes.subspan(static_cast<size_t>(wrote));
        at += static_cast<uint64_t>(wrote);
      }
    }
    return written;
  }

  absl::Status Take(const std::vector<Piece>& pieces, Written written) {
    HF_RETURN_IF_ERROR(written.status);
    for (size_t i = 0; i < pieces.size(); ++i) {
      digests_[pieces[i].item] += written.digests[i];
      done_ += pieces[i].bytes;
    }
    if (request_.on_progress) request_.on_progress(done_, total_);
    return absl::OkStatus();
  }

  absl::Status WriteTensors() {
    ckpt::AlignedBuffer buffers[2] = {ckpt::AlignedBuffer(kBufferBytes),
                                      ckpt::AlignedBuffer(kBufferBytes)};
    std::vector<Piece> flying;
    std::future<Written> writing;
    for (size_t turn = 0;; ++turn) {
      const std::span<std::byte> buffer = buffers[turn % 2].span();
      std::vector<Piece> pieces = NextPieces();
      const absl::Status filled = Fill(pieces, buffer);
      // Also when that failed: it uses the other buffer.
      if (writing.valid()) HF_RETURN_IF_ERROR(Take(flying, writing.get()));
      HF_RETURN_IF_ERROR(filled);
      if (pieces.empty()) return absl::OkStatus();
      flying = std::move(pieces);
      writing = std::async(std::launch::async, [this, &flying, buffer] {
        return Write(flying, buffer);
      });
    }
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
  int fd_ = -1;
  std::vector<uint64_t> offsets_;
  std::vector<Digest128> digests_;
  uint64_t total_ = 0;
  uint64_t done_ = 0;
  size_t item_ = 0;      // of the next piece
  int64_t element_ = 0;  // its first element
};

}  // namespace

absl::StatusOr<ExportReport> WriteHdf5(ckpt::StateSource* source,
                                       const ExportRequest& request) {
  return Export(source, request).Run();
}

}  // namespace holdfast::tools
