// tools/convert/safetensors_directory.cc: headers and index, held against each
// other.

#include "tools/convert/safetensors_directory.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "tools/common/text.h"
#include "tools/convert/memory_share.h"
#include "tools/convert/safetensors.h"
#include "tools/convert/strict_json.h"
#include "trainer/model/init.h"

namespace holdfast::tools {
namespace {

constexpr uint64_t kIndexBytesMax = uint64_t{64} << 20;
constexpr size_t kNameBytesMax = 1000;
// Memory for each byte of JSON while it is read, measured at the worst: 5.5 of
// a header with short names, 10.6 of an index.
constexpr uint64_t kHeaderTimes = 6;
constexpr uint64_t kIndexTimes = 12;

struct Place {
  size_t file = 0;
  uint64_t offset = 0;  // of the first byte
};

class SafetensorsDirectory final : public ForeignTensors {
 public:
  explicit SafetensorsDirectory(uint64_t memory_max)
      : memory_max_(memory_max) {}

  const std::vector<ForeignTensor>& tensors() const override {
    return tensors_;
  }

  absl::Status Read(int tensor, int64_t first, int64_t count,
                    std::span<std::byte> out) override {
    const auto at = static_cast<size_t>(tensor);
    const auto size = static_cast<uint64_t>(SizeOf(tensors_[at].dtype));
    HF_RETURN_IF_ERROR(files_[places_[at].file].ReadAt(
        places_[at].offset + static_cast<uint64_t>(first) * size,
        out.first(static_cast<size_t>(count) * size)));
    bytes_read_.fetch_add(out.size(), std::memory_order_relaxed);
    return absl::OkStatus();
  }

  std::string identity() const override {
    std::string files;
    for (const ForeignFile& file : files_) files += file.identity() + "\n";
    return absl::StrFormat("%d safetensors files %016x", files_.size(),
                           trainer::HashName(files));
  }

  uint64_t bytes_read() const override {
    return bytes_read_.load(std::memory_order_relaxed);
  }

  // Reads the header of one more file. `named` says of each tensor in which
  // file it is; null where there is no index.
  absl::Status AddFile(ForeignFile file,
                       const std::map<std::string, std::string>* named,
                       const std::string& name) {
    HF_ASSIGN_OR_RETURN(const SafetensorsHeader header, ReadHeader(file));
    for (const SafeTensor& tensor : header.tensors) {
      // Or a message would be as long.
      if (tensor.name.size() > kNameBytesMax) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s: a tensor has a name of %d bytes; at most %d are expected",
            file.path(), tensor.name.size(), kNameBytesMax));
      }
      const auto dtype = DTypeOfSafetensors(tensor.dtype);
      if (!dtype) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s: tensor '%s' is of type %s, of which nothing can be made here",
            file.path(), tensor.name, tensor.dtype));
      }
      if (named != nullptr) {
        const auto in_index = named->find(tensor.name);
        if (in_index == named->end() || in_index->second != name) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "%s has the tensor '%s', which %s %s", file.path(), tensor.name,
              kSafetensorsIndex,
              in_index == named->end() ? "does not name"
                                       : "places in " + in_index->second));
        }
      }
      kept_bytes_ += sizeof(found_[0]) + tensor.name.size() +
                     tensor.shape.size() * sizeof(int64_t);
      found_.push_back({{tensor.name, *dtype, tensor.shape},
                        {files_.size(), tensor.offset}});
    }
    files_.push_back(std::move(file));
    return absl::OkStatus();
  }

  // After the last file.
  void Sort() {
    std::sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) {
      return a.first.name < b.first.name;
    });
    for (auto& [tensor, place] : found_) {
      tensors_.push_back(std::move(tensor));
      places_.push_back(place);
    }
    found_.clear();
  }

 private:
  absl::StatusOr<SafetensorsHeader> ReadHeader(const ForeignFile& file) const {
    const auto named = [&file](const absl::Status& status) {
      return absl::Status(status.code(),
                          absl::StrFormat("%s: %s", file.path(),
                                          std::string(status.message())));
    };
    if (file.bytes() < 8) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: %d bytes are no safetensors file", file.path(), file.bytes()));
    }
    std::byte prefix[8];
    HF_RETURN_IF_ERROR(file.ReadAt(0, prefix));
    const auto json_bytes = DecodeSafetensorsPrefix(prefix, file.bytes());
    if (!json_bytes.ok()) return named(json_bytes.status());
    // Of the headers before, their tensors are kept.
    HF_RETURN_IF_ERROR(CheckMetadataFits(
        absl::StrFormat("%s, whose header has %s", file.path(),
                        BytesText(static_cast<double>(*json_bytes))),
        kept_bytes_ + kHeaderTimes * *json_bytes, memory_max_));
    std::vector<std::byte> json(*json_bytes);
    HF_RETURN_IF_ERROR(file.ReadAt(8, json));
    auto header = DecodeSafetensorsHeader(json, file.bytes());
    if (!header.ok()) return named(header.status());
    return header;
  }

  const uint64_t memory_max_;
  uint64_t kept_bytes_ = 0;
  std::vector<ForeignFile> files_;
  std::vector<std::pair<ForeignTensor, Place>> found_;
  std::vector<ForeignTensor> tensors_;
  std::vector<Place> places_;
  std::atomic<uint64_t> bytes_read_{0};
};

// Tensor to file, as the index says.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(
    const ForeignDirectory& directory, uint64_t memory_max) {
  HF_ASSIGN_OR_RETURN(const ForeignFile file,
                      directory.OpenFile(kSafetensorsIndex));
  HF_RETURN_IF_ERROR(CheckMetadataFits(
      absl::StrFormat("%s, which has %s", file.path(),
                      BytesText(static_cast<double>(file.bytes()))),
      kIndexTimes * std::min(file.bytes(), kIndexBytesMax), memory_max));
  HF_ASSIGN_OR_RETURN(const std::string text, file.ReadAll(kIndexBytesMax));
  HF_ASSIGN_OR_RETURN(const nlohmann::json json,
                      ParseStrictJson(text, file.path()));
  if (!json.is_object() || !json.contains("weight_map") ||
      !json["weight_map"].is_object() || json["weight_map"].empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has no weight_map from tensors to files", file.path()));
  }
  std::map<std::string, std::string> named;
  for (const auto& [tensor, name] : json["weight_map"].items()) {
    if (!name.is_string()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s names no file of tensor '%s'", file.path(), tensor));
    }
    const std::string text_name = name.get<std::string>();
    HF_RETURN_IF_ERROR(CheckForeignName(text_name, file.path()));
    named[tensor] = text_name;
  }
  return named;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ForeignTensors>> OpenSafetensorsDirectory(
    const ForeignDirectory& directory, uint64_t memory_max) {
  auto opened = std::make_shared<SafetensorsDirectory>(memory_max);
  const bool single = directory.Has(kSafetensorsFile);
  const bool several = directory.Has(kSafetensorsIndex);
  if (single && several) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s has both %s and %s; remove the one that does not belong to the "
        "model",
        directory.path(), kSafetensorsFile, kSafetensorsIndex));
  }
  if (!single && !several) {
    return absl::NotFoundError(
        absl::StrFormat("%s has neither %s nor %s", directory.path(),
                        kSafetensorsFile, kSafetensorsIndex));
  }
  if (single) {
    HF_ASSIGN_OR_RETURN(ForeignFile file, directory.OpenFile(kSafetensorsFile));
    HF_RETURN_IF_ERROR(
        opened->AddFile(std::move(file), nullptr, kSafetensorsFile));
  } else {
    HF_ASSIGN_OR_RETURN(const auto named, ReadIndex(directory, memory_max));
    std::vector<std::string> names;
    for (const auto& [tensor, name] : named) names.push_back(name);
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    for (const std::string& name : names) {
      HF_ASSIGN_OR_RETURN(ForeignFile file, directory.OpenFile(name));
      HF_RETURN_IF_ERROR(opened->AddFile(std::move(file), &named, name));
    }
    opened->Sort();
    for (const auto& [tensor, name] : named) {
      if (FindTensor(opened->tensors(), tensor) < 0) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s places the tensor '%s' in %s, which has it not",
                            kSafetensorsIndex, tensor, name));
      }
    }
    return opened;
  }
  opened->Sort();
  return opened;
}

}  // namespace holdfast::tools
