// tools/convert/safetensors.cc: the header's grammar, as events of a JSON
// parser: no tree of the whole header is ever built.

#include "tools/convert/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::tools {
namespace {

using nlohmann::json;

struct TypeRow {
  std::string_view name;
  uint64_t bytes;
  std::optional<ckpt::DType> dtype;
};
constexpr TypeRow kTypes[] = {
    {"BOOL", 1, {}},
    {"U8", 1, ckpt::DType::kU8},
    {"I8", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"F16", 2, ckpt::DType::kF16},
    {"BF16", 2, ckpt::DType::kBf16},
    {"I32", 4, ckpt::DType::kI32},
    {"U32", 4, {}},
    {"F32", 4, ckpt::DType::kF32},
    {"I64", 8, ckpt::DType::kI64},
    {"U64", 8, {}},
    {"F64", 8, ckpt::DType::kF64},
};

const TypeRow* FindType(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

template <typename... Args>
absl::Status Refused(const absl::FormatSpec<Args...>& format,
                     const Args&... args) {
  return absl::InvalidArgumentError("safetensors header: " +
                                    absl::StrFormat(format, args...));
}

// A name as messages show it: hostile ones may be long.
std::string Shown(const std::string& name) {
  constexpr size_t kShownMax = 200;
  if (name.size() <= kShownMax) return "'" + name + "'";
  return absl::StrFormat("'%s...' (%d bytes)", name.substr(0, kShownMax),
                         name.size());
}

// Follows the grammar; what does not fit ends the parse with status().
class HeaderReader final : public json::json_sax_t {
 public:
  HeaderReader(uint64_t data_begin, uint64_t data_bytes)
      : data_begin_(data_begin), data_bytes_(data_bytes) {}

  const absl::Status& status() const { return status_; }
  std::vector<SafeTensor>& tensors() { return tensors_; }
  std::map<std::string, std::string>& metadata() { return metadata_; }

  bool start_object(size_t) override {
    if (at_ == At::kStart) {
      at_ = At::kTop;
    } else if (at_ == At::kTopValue) {
      at_ = name_ == kMetadata ? At::kMetadata : At::kTensor;
      dtype_ = nullptr;
      has_shape_ = has_offsets_ = false;
      shape_.clear();
      offsets_.clear();
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool key(std::string& text) override {
    if (at_ == At::kTop) {
      name_ = text;
      if (!names_.insert(name_).second) {
        return Fail(Refused("%s is there twice", Shown(name_)));
      }
      at_ = At::kTopValue;
    } else if (at_ == At::kMetadata) {
      metadata_key_ = text;
      if (metadata_.contains(metadata_key_)) {
        return Fail(Refused("metadata %s is there twice", Shown(text)));
      }
      at_ = At::kMetadataValue;
    } else {
      return TensorKey(text);
    }
    return true;
  }

  bool string(std::string& text) override {
    if (at_ == At::kMetadataValue) {
      metadata_.emplace(metadata_key_, text);
      at_ = At::kMetadata;
    } else if (at_ == At::kDType) {
      dtype_ = FindType(text);
      if (dtype_ == nullptr) {
        return Fail(Refused("tensor %s has the unknown type %s", Shown(name_),
                            Shown(text)));
      }
      at_ = At::kTensor;
    } else {
      return Unexpected("a string");
    }
    return true;
  }

  bool start_array(size_t) override {
    if (at_ == At::kShape) {
      at_ = At::kShapeNumbers;
    } else if (at_ == At::kOffsets) {
      at_ = At::kOffsetNumbers;
    } else {
      return Unexpected("a list");
    }
    return true;
  }

  bool number_unsigned(uint64_t value) override {
    if (at_ == At::kShapeNumbers) {
      if (shape_.size() == kSafetensorsDimensionsMax) {
        return Fail(Refused("tensor %s has more than %d dimensions",
                            Shown(name_), kSafetensorsDimensionsMax));
      }
      if (value > uint64_t{INT64_MAX}) return Unexpected("a huge dimension");
      shape_.push_back(static_cast<int64_t>(value));
    } else if (at_ == At::kOffsetNumbers && offsets_.size() < 2) {
      offsets_.push_back(value);
    } else {
      return Unexpected("a number");
    }
    return true;
  }

  bool end_array() override {
    if (at_ == At::kOffsetNumbers && offsets_.size() != 2) {
      return Unexpected("less than two offsets");
    }
    at_ = At::kTensor;
    return true;
  }

  bool end_object() override {
    if (at_ == At::kTensor) {
      if (!AddTensor()) return false;
      at_ = At::kTop;
    } else if (at_ == At::kMetadata) {
      at_ = At::kTop;
    } else {
      at_ = At::kEnd;
    }
    return true;
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool number_integer(int64_t) override {
    return Unexpected("a negative number");
  }
  bool number_float(double, const std::string&) override {
    return Unexpected("a number that is no 64-bit count");
  }
  bool binary(json::binary_t&) override { return Unexpected("binary"); }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(Refused("no JSON at byte %d of it", position));
  }

 private:
  static constexpr char kMetadata[] = "__metadata__";
  enum class At {
    kStart,
    kTop,
    kTopValue,
    kMetadata,
    kMetadataValue,
    kTensor,
    kDType,
    kShape,
    kShapeNumbers,
    kOffsets,
    kOffsetNumbers,
    kEnd,
  };

  bool Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool Unexpected(const char* found) {
    return Fail(name_.empty() && names_.empty()
                    ? Refused("%s where the list of tensors should begin",
                              std::string(found))
                    : Refused("%s where it does not belong, in %s",
                              std::string(found), Shown(name_)));
  }

  bool TensorKey(const std::string& text) {
    bool twice = false;
    if (text == "dtype") {
      at_ = At::kDType;
      twice = dtype_ != nullptr;
    } else if (text == "shape") {
      at_ = At::kShape;
      twice = std::exchange(has_shape_, true);
    } else if (text == "data_offsets") {
      at_ = At::kOffsets;
      twice = std::exchange(has_offsets_, true);
    } else {
      return Fail(Refused("tensor %s has the unknown key %s", Shown(name_),
                          Shown(text)));
    }
    if (twice) {
      return Fail(Refused("tensor %s says its '%s' twice", Shown(name_), text));
    }
    return true;
  }

  bool AddTensor() {
    if (dtype_ == nullptr || !has_shape_ || !has_offsets_) {
      return Fail(Refused("tensor %s lacks its dtype, shape or data_offsets",
                          Shown(name_)));
    }
    // A zero makes the size zero, but the rest must be sane by itself.
    uint64_t bytes = dtype_->bytes;
    bool empty = false;
    for (const int64_t dimension : shape_) {
      if (dimension == 0) {
        empty = true;
      } else if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension),
                                        &bytes) ||
                 bytes > uint64_t{INT64_MAX}) {
        return Fail(
            Refused("tensor %s has a shape of more bytes than 64 bits "
                    "count",
                    Shown(name_)));
      }
    }
    if (empty) bytes = 0;
    const uint64_t begin = offsets_[0];
    const uint64_t end = offsets_[1];
    if (begin > end || end > data_bytes_) {
      return Fail(Refused("tensor %s lies at bytes %d to %d of %d data bytes",
                          Shown(name_), begin, end, data_bytes_));
    }
    if (end - begin != bytes) {
      return Fail(Refused("tensor %s has %d bytes, its type and shape need %d",
                          Shown(name_), end - begin, bytes));
    }
    SafeTensor tensor;
    tensor.name = std::move(name_);
    tensor.dtype = std::string(dtype_->name);
    tensor.shape = shape_;
    tensor.offset = data_begin_ + begin;
    tensor.bytes = bytes;
    tensors_.push_back(std::move(tensor));
    name_.clear();
    return true;
  }

  const uint64_t data_begin_;
  const uint64_t data_bytes_;
  absl::Status status_;
  At at_ = At::kStart;
  std::string name_;
  std::string metadata_key_;
  const TypeRow* dtype_ = nullptr;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  std::vector<int64_t> shape_;
  std::vector<uint64_t> offsets_;
  absl::flat_hash_set<std::string> names_;
  std::vector<SafeTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// The tensors, by offset, fill [begin, end) without a hole or an overlap.
absl::Status CheckTiling(const std::vector<SafeTensor>& tensors, uint64_t begin,
                         uint64_t end) {
  uint64_t at = begin;
  const SafeTensor* before = nullptr;
  for (const SafeTensor& tensor : tensors) {
    if (tensor.offset < at) {
      return Refused("tensors %s and %s overlap", Shown(before->name),
                     Shown(tensor.name));
    }
    if (tensor.offset > at) {
      return Refused("%d bytes before tensor %s belong to none",
                     tensor.offset - at, Shown(tensor.name));
    }
    at += tensor.bytes;
    before = &tensor;
  }
  if (at == end) return absl::OkStatus();
  return Refused("the file's last %d bytes belong to no tensor", end - at);
}

}  // namespace

uint64_t SafetensorsElementBytes(std::string_view dtype) {
  const TypeRow* const row = FindType(dtype);
  return row == nullptr ? 0 : row->bytes;
}

std::optional<ckpt::DType> DTypeOfSafetensors(std::string_view dtype) {
  const TypeRow* const row = FindType(dtype);
  return row == nullptr ? std::nullopt : row->dtype;
}

std::string_view SafetensorsNameOf(ckpt::DType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.dtype == dtype) return row.name;
  }
  HF_CHECK(false, "no safetensors name of dtype %d", static_cast<int>(dtype));
  return "";
}

absl::StatusOr<uint64_t> DecodeSafetensorsPrefix(
    std::span<const std::byte, 8> prefix, uint64_t file_bytes) {
  uint64_t bytes = 0;
  for (int i = 7; i >= 0; --i) {
    bytes = bytes << 8 | std::to_integer<uint64_t>(prefix[i]);
  }
  if (bytes > kSafetensorsHeaderBytesMax) {
    return Refused("it claims %d bytes; at most %d are accepted", bytes,
                   kSafetensorsHeaderBytesMax);
  }
  if (file_bytes < 8 || bytes > file_bytes - 8) {
    return Refused("it claims %d bytes in a file of %d", bytes, file_bytes);
  }
  return bytes;
}

absl::StatusOr<SafetensorsHeader> DecodeSafetensorsHeader(
    std::span<const std::byte> bytes, uint64_t file_bytes) {
  if (bytes.size() > kSafetensorsHeaderBytesMax || file_bytes < 8 ||
      bytes.size() > file_bytes - 8) {
    return Refused("%d bytes of it in a file of %d", bytes.size(), file_bytes);
  }
  if (bytes.empty() || bytes[0] != std::byte{'{'}) {
    return Refused("it does not begin with '{'");
  }
  const uint64_t data_begin = 8 + bytes.size();
  HeaderReader reader(data_begin, file_bytes - data_begin);
  const char* const text = reinterpret_cast<const char*>(bytes.data());
  if (!json::sax_parse(text, text + bytes.size(), &reader)) {
    return reader.status().ok() ? Refused("no JSON") : reader.status();
  }
  SafetensorsHeader header;
  header.tensors = std::move(reader.tensors());
  header.metadata = std::move(reader.metadata());
  header.data_begin = data_begin;
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafeTensor& a, const SafeTensor& b) {
              return std::tie(a.offset, a.bytes, a.name) <
                     std::tie(b.offset, b.bytes, b.name);
            });
  HF_RETURN_IF_ERROR(CheckTiling(header.tensors, data_begin, file_bytes));
  return header;
}

std::vector<std::byte> EncodeSafetensorsHeader(
    std::span<const SafeTensor> tensors,
    const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const SafeTensor& tensor : tensors) {
    header[tensor.name] = {
        {"dtype", tensor.dtype},
        {"shape", tensor.shape},
        {"data_offsets", {offset, offset + tensor.bytes}},
    };
    offset += tensor.bytes;
  }
  HF_CHECK(header.size() == tensors.size() + !metadata.empty(),
           "two tensors of one name");
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::vector<std::byte> bytes(8 + text.size());
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<std::byte>(uint64_t{text.size()} >> (8 * i));
  }
  std::memcpy(bytes.data() + 8, text.data(), text.size());
  return bytes;
}

}  // namespace holdfast::tools
