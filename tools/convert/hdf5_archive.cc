// tools/convert/hdf5_archive.cc: what an archive means. Nothing here knows the
// HDF5 library (hdf5_file.h).

#include "tools/convert/hdf5_archive.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
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
#include "tools/convert/foreign_files.h"
#include "tools/convert/hdf5_file.h"
#include "tools/convert/partial_file.h"
#include "tools/convert/train_target.h"
#include "trainer/resume_state.h"

namespace holdfast::tools {
namespace {

using ckpt::Digest128;
using ckpt::ItemSpec;
using ckpt::WantedRun;

constexpr char kFormat[] = "holdfast archive 1";
constexpr char kAbout[] =
    "The whole state of a training run. /state/TENSOR/KIND is one array of it; "
    "its attribute dtype says what the numbers are. HDF5 has no bfloat16: such "
    "an array is uint16, the upper 16 bits of a float32, so that in numpy "
    "(d[:].astype('u4') << 16).view('f4') are its values. /attributes has "
    "everything that is no array: the step, the place in the data, the "
    "configuration (.config).";
// Two of them: one is filled while the other is written.
constexpr size_t kBufferBytes = size_t{16} << 20;

// --- Out -------------------------------------------------------------------

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
    HF_RETURN_IF_ERROR(writer_->AddFact("format", kFormat));
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
      if (recorded[i] == digests_[i]) continue;
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

// --- In --------------------------------------------------------------------

class Hdf5Source final : public ckpt::StateSource {
 public:
  Hdf5Source(ForeignFile file, Hdf5Contents contents)
      : file_(std::move(file)), attributes_(std::move(contents.attributes)) {
    bool all = true;
    for (Hdf5Tensor& tensor : contents.tensors) {
      const auto digest = ckpt::ParseDigest(tensor.digest);
      all &= digest.ok();
      if (digest.ok()) digests_.push_back(*digest);
      offsets_.push_back(tensor.offset);
      items_.push_back(std::move(tensor.item));
    }
    if (!all) digests_.clear();
  }

  const std::vector<ItemSpec>& items() const override { return items_; }
  const std::map<std::string, std::string>& attributes() const override {
    return attributes_;
  }
  // Calls of pread are independent of each other.
  int fills_at_once() const override { return 64; }
  std::string identity() const override { return "hdf5 " + file_.identity(); }
  std::span<const Digest128> recorded_digests() const override {
    return digests_;
  }
  uint64_t bytes_read() const override { return bytes_read_; }

  absl::Status Fill(std::span<const WantedRun> wants) override {
    for (const WantedRun& want : wants) {
      std::span<std::byte> out = want.out;
      for (const ckpt::Box& box :
           ckpt::BoxesOfRun(want.part, want.first, want.count)) {
        HF_RETURN_IF_ERROR(ReadBox(want.item, box, &out));
      }
    }
    return absl::OkStatus();
  }

 private:
  // The box's elements in its own order, in as few reads as it has runs of
  // neighbours.
  absl::Status ReadBox(ckpt::ItemIndex index, const ckpt::Box& box,
                       std::span<std::byte>* out) {
    const ItemSpec& item = items_[index];
    const auto size = static_cast<int64_t>(ckpt::SizeOf(item.dtype));
    // Dimensions from `inner` on are neighbours in the file.
    int inner = box.dimensions;
    int64_t run = 1;
    while (inner > 0) {
      --inner;
      run *= box.count[inner];
      if (box.count[inner] != item.shape[inner]) break;
    }
    std::array<int64_t, ckpt::kDimensionsMax> at = box.first;
    while (true) {
      int64_t element = 0;
      for (int d = 0; d < box.dimensions; ++d) {
        element = element * item.shape[d] + at[d];
      }
      const auto bytes = static_cast<size_t>(run * size);
      HF_RETURN_IF_ERROR(
          file_.ReadAt(offsets_[index] + element * size, out->first(bytes)));
      bytes_read_ += bytes;
      *out = out->subspan(bytes);
      int d = inner - 1;
      for (; d >= 0; --d) {
        if (++at[d] < box.first[d] + box.count[d]) break;
        at[d] = box.first[d];
      }
      if (d < 0) return absl::OkStatus();
    }
  }

  const ForeignFile file_;
  const std::map<std::string, std::string> attributes_;
  std::vector<ItemSpec> items_;
  std::vector<uint64_t> offsets_;
  std::vector<Digest128> digests_;
  std::atomic<uint64_t> bytes_read_ = 0;
};

// The archive's step, which a training state's attributes must agree with, for
// they are what a resume takes; theirs, where it says none; else 0.
absl::StatusOr<int64_t> StepOf(const Hdf5Contents& contents,
                               const std::string& path) {
  const auto saved = trainer::FromAttributes(contents.attributes);
  const auto fact = contents.facts.find("step");
  if (fact == contents.facts.end()) return saved.ok() ? saved->step : 0;
  const std::string& text = fact->second;
  const char* const end = text.data() + text.size();
  int64_t step = -1;
  const auto [rest, error] = std::from_chars(text.data(), end, step);
  if (error != std::errc() || rest != end || step < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its attribute step is '%s'; a whole number from 0 on is expected",
        path, text));
  }
  if (saved.ok() && saved->step != step) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: its attribute step is %d, that of /attributes is %d", path, step,
        saved->step));
  }
  return step;
}

// The decoder, when the state is one's: its configuration says which, and the
// items are all of its.
void FindModel(const ckpt::StateSource& source, ImportedState* state) {
  const auto model = ModelOfAttributes(source.attributes());
  if (!model.ok()) return;
  for (const auto compute :
       {trainer::ComputeType::kBf16, trainer::ComputeType::kF32}) {
    if (source.items() != ItemsOf(*model, compute)) continue;
    state->model = *model;
    state->compute = compute;
    return;
  }
  state->notes.push_back(
      "its configuration is that of another model, or some of the model's "
      "tensors are not there; what is there is cut by rows");
}

}  // namespace

absl::StatusOr<ExportReport> WriteHdf5(ckpt::StateSource* source,
                                       const ExportRequest& request) {
  return Export(source, request).Run();
}

absl::StatusOr<ImportedState> OpenHdf5(const ImportRequest& request) {
  if (!request.model_file.empty() || !request.ignore.empty()) {
    return absl::InvalidArgumentError(
        "--model and --ignore: an archive has its model and nothing foreign");
  }
  const std::filesystem::path path(request.from);
  HF_ASSIGN_OR_RETURN(const ForeignDirectory directory,
                      ForeignDirectory::Open(path.has_parent_path()
                                                 ? path.parent_path().string()
                                                 : "."));
  HF_ASSIGN_OR_RETURN(ForeignFile file, directory.OpenFile(path.filename()));
  HF_ASSIGN_OR_RETURN(Hdf5Contents contents, ReadHdf5(file.fd(), request.from));
  const auto format = contents.facts.find("format");
  if (format != contents.facts.end() && format->second != kFormat) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s has format '%s'; this program reads '%s'",
                        request.from, format->second, kFormat));
  }
  if (contents.tensors.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: /state has no tensors", request.from));
  }
  ImportedState state;
  HF_ASSIGN_OR_RETURN(state.step, StepOf(contents, request.from));
  auto source =
      std::make_unique<Hdf5Source>(std::move(file), std::move(contents));
  if (source->recorded_digests().empty()) {
    state.notes.push_back(
        "not every tensor has a digest: its bytes are taken as they are");
  }
  FindModel(*source, &state);
  state.source = std::move(source);
  return state;
}

}  // namespace holdfast::tools
