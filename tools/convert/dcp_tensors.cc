// tools/convert/dcp_tensors.cc: views of tensors, and the account of keys.

#include "tools/convert/dcp_tensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::tools {
namespace {

using ckpt::DType;

// What one view is a view of.
struct Origin {
  size_t tensor = 0;              // of the directory
  const DcpBlob* blob = nullptr;  // instead, where it is one
  int64_t scale = 1;  // bytes of an element, where elements are shown as bytes
};

class DcpTensors final : public ForeignTensors {
 public:
  DcpTensors(std::shared_ptr<DcpDirectory> directory, const RowsOfKey& rows_of,
             bool as_bytes)
      : directory_(std::move(directory)) {
    std::vector<std::pair<ForeignTensor, Origin>> made;
    const DcpMetadata& metadata = directory_->metadata();
    for (size_t i = 0; i < metadata.tensors.size(); ++i) {
      const DcpTensor& tensor = metadata.tensors[i];
      const bool native = tensor.type.dtype.has_value();
      if (tensor.shape.size() > ckpt::kDimensionsMax) continue;
      if (!native && !as_bytes) continue;
      ForeignTensor view{tensor.name, tensor.type.dtype.value_or(DType::kU8),
                         tensor.shape};
      if (!native) {
        if (view.shape.empty()) view.shape.push_back(1);
        view.shape.back() *= tensor.type.bytes;
      }
      for (int rows = rows_of(tensor); rows > 1 && view.shape.size() > 1;
           --rows) {
        view.shape[1] *= view.shape[0];
        view.shape.erase(view.shape.begin());
      }
      made.emplace_back(std::move(view),
                        Origin{i, nullptr, native ? 1 : tensor.type.bytes});
    }
    for (const DcpBlob& blob : metadata.blobs) {
      if (!as_bytes) break;
      const auto bytes = static_cast<int64_t>(blob.place.length);
      made.emplace_back(ForeignTensor{blob.name, DType::kU8, {bytes}},
                        Origin{0, &blob, 1});
    }
    std::sort(made.begin(), made.end(), [](const auto& a, const auto& b) {
      return a.first.name < b.first.name;
    });
    for (auto& [view, origin] : made) {
      views_.push_back(std::move(view));
      origins_.push_back(origin);
    }
  }

  const std::vector<ForeignTensor>& tensors() const override { return views_; }

  absl::Status Read(int view, int64_t first, int64_t count,
                    std::span<std::byte> out) override {
    const auto& [tensor, blob, scale] = origins_[static_cast<size_t>(view)];
    if (blob != nullptr) {
      return directory_->ReadBlobBytes(*blob, static_cast<uint64_t>(first),
                                       out);
    }
    const ckpt::Box whole =
        ckpt::WholeBox(directory_->metadata().tensors[tensor].shape);
    if (scale == 1) return directory_->Read(tensor, whole, first, count, out);
    // Whole elements around the bytes.
    const int64_t begin = first / scale;
    const int64_t end = (first + count + scale - 1) / scale;
    std::vector<std::byte> around(static_cast<size_t>((end - begin) * scale));
    HF_RETURN_IF_ERROR(
        directory_->Read(tensor, whole, begin, end - begin, around));
    std::memcpy(out.data(), around.data() + (first - begin * scale),
                out.size());
    return absl::OkStatus();
  }

  std::string identity() const override {
    return directory_->path() + directory_->identity();
  }
  uint64_t bytes_read() const override { return directory_->bytes_read(); }

 private:
  std::shared_ptr<DcpDirectory> directory_;
  std::vector<ForeignTensor> views_;
  std::vector<Origin> origins_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<DcpDirectory>> OpenDcpDirectory(
    const ImportRequest& request, uint64_t* memory_bytes) {
  // Values take some five times the file's bytes, a chunk at most 110 later
  // (dcp_metadata.h); what its reads go through takes 4 MiB.
  constexpr uint64_t kReadTimes = 6;
  constexpr uint64_t kChunkBytes = 110;
  constexpr uint64_t kReadBytes = uint64_t{4} << 20;
  DcpOptions options;
  options.kept_bytes_max =
      std::min(options.kept_bytes_max, request.memory_max / 3);
  options.metadata_bytes_max =
      std::min(options.metadata_bytes_max, request.memory_max / kReadTimes);
  options.limits.memory_max =
      std::min<uint64_t>(options.limits.memory_max,
                         request.memory_max - request.memory_max / kReadTimes);
  HF_ASSIGN_OR_RETURN(std::unique_ptr<DcpDirectory> directory,
                      DcpDirectory::Open(request.from, options));
  uint64_t bytes = options.kept_bytes_max + kReadBytes;
  for (const DcpTensor& tensor : directory->metadata().tensors) {
    bytes += kTableBytes + 2 * tensor.name.size() +
             tensor.chunks.size() * kChunkBytes;
  }
  for (const DcpBlob& blob : directory->metadata().blobs) {
    bytes += kTableBytes + 2 * blob.name.size();
  }
  *memory_bytes += bytes;
  return directory;
}

std::shared_ptr<ForeignTensors> MakeDcpTensors(
    std::shared_ptr<DcpDirectory> directory, const RowsOfKey& rows_of,
    bool as_bytes) {
  return std::make_shared<DcpTensors>(std::move(directory), rows_of, as_bytes);
}

DcpKeys::DcpKeys(std::shared_ptr<DcpDirectory> directory)
    : path_(directory->path()) {
  for (const DcpTensor& tensor : directory->metadata().tensors) {
    state_[tensor.name] = State::kOpen;
  }
  for (const DcpBlob& blob : directory->metadata().blobs) {
    state_[blob.name] = State::kOpen;
  }
}

bool DcpKeys::Use(const std::string& key) {
  const auto it = state_.find(key);
  if (it == state_.end()) return false;
  it->second = State::kUsed;
  return true;
}

int64_t DcpKeys::Leave(std::string_view prefix) {
  int64_t left = 0;
  for (auto it = state_.lower_bound(std::string(prefix));
       it != state_.end() && it->first.starts_with(prefix); ++it) {
    if (it->second != State::kOpen) continue;
    it->second = State::kLeft;
    ++left;
  }
  return left;
}

std::vector<std::string> DcpKeys::Open() const {
  std::vector<std::string> open;
  for (const auto& [key, state] : state_) {
    if (state == State::kOpen) open.push_back(key);
  }
  return open;
}

absl::Status DcpKeys::Ignore(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    const bool prefix = pattern.ends_with('*');
    const std::string_view begin =
        std::string_view(pattern).substr(0, pattern.size() - (prefix ? 1 : 0));
    bool matched = false;
    for (auto& [key, state] : state_) {
      if (prefix ? !key.starts_with(begin) : key != begin) continue;
      matched = true;
      if (state == State::kOpen) state = State::kIgnored;
    }
    if (!matched) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--ignore %s: %s has no such key", pattern, path_));
    }
  }
  return absl::OkStatus();
}

absl::Status DcpKeys::CheckAllMapped(std::string_view what) const {
  std::vector<std::string> open = Open();
  if (open.empty()) return absl::OkStatus();
  const size_t count = open.size();
  constexpr size_t kShown = 20;
  if (count > kShown) open.resize(kShown);
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s has %d %s nothing of %s: %s%s; give each up by "
      "--ignore KEY, or many by --ignore 'BEGINNING*'",
      path_, count, count == 1 ? "key that is" : "keys that are", what,
      absl::StrJoin(open, ", "), count > kShown ? ", ..." : ""));
}

absl::StatusOr<std::optional<double>> ReadDcpNumber(DcpDirectory& directory,
                                                    std::string_view key) {
  const auto other = [&] {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: '%s' is no number", directory.path(), key));
  };
  if (const DcpBlob* const blob = directory.FindBlob(key); blob != nullptr) {
    HF_ASSIGN_OR_RETURN(const TorchValue value, directory.ReadBlob(*blob));
    const Pickle& pickle = value.pickle;
    if (pickle.kind(pickle.root()) == PickleKind::kInt) {
      return static_cast<double>(pickle.integer(pickle.root()));
    }
    if (pickle.kind(pickle.root()) == PickleKind::kFloat) {
      return pickle.number(pickle.root());
    }
    return other();
  }
  const int64_t index = directory.FindTensor(key);
  if (index < 0) return std::optional<double>();
  const DcpTensor& tensor =
      directory.metadata().tensors[static_cast<size_t>(index)];
  if (tensor.elements() != 1 || !tensor.type.dtype.has_value() ||
      tensor.shape.size() > ckpt::kDimensionsMax) {
    return other();
  }
  std::byte bytes[8];
  HF_RETURN_IF_ERROR(directory.Read(
      static_cast<size_t>(index), ckpt::WholeBox(tensor.shape), 0, 1,
      std::span(bytes).first(static_cast<size_t>(tensor.type.bytes))));
  const auto as = [&](auto value) {
    std::memcpy(&value, bytes, sizeof(value));
    return static_cast<double>(value);
  };
  switch (*tensor.type.dtype) {
    case DType::kF32:
      return as(float{});
    case DType::kF64:
      return as(double{});
    case DType::kI32:
      return as(int32_t{});
    case DType::kI64:
      return as(int64_t{});
    case DType::kU8:
      return as(uint8_t{});
    default:
      return other();
  }
}

absl::Status NoteChecksums(DcpDirectory& directory,
                           std::vector<std::string>* notes) {
  HF_ASSIGN_OR_RETURN(const bool has, directory.HasChecksums());
  if (!has) {
    notes->push_back(
        "torch wrote no checksums (set_crc32_options): its bytes are taken as "
        "they are");
  }
  return absl::OkStatus();
}

}  // namespace holdfast::tools
