// tools/convert/dcp/torch_tensor.cc: from the records of an archive to where
// its elements lie.

#include "tools/convert/dcp/torch_tensor.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::tools {
namespace {

using ckpt::DType;

constexpr uint64_t kTensorPickleMax = 64 << 10;  // those of torch have 200 B

struct NamedType {
  std::string_view name;
  int bytes;
  std::optional<DType> dtype;
  std::string_view storage;  // the class of torch that holds it, "" for none
};

// Names of torch/storage.py and torch.dtype.
constexpr NamedType kTypes[] = {
    {"float32", 4, DType::kF32, "FloatStorage"},
    {"bfloat16", 2, DType::kBf16, "BFloat16Storage"},
    {"float16", 2, DType::kF16, "HalfStorage"},
    {"float64", 8, DType::kF64, "DoubleStorage"},
    {"int64", 8, DType::kI64, "LongStorage"},
    {"int32", 4, DType::kI32, "IntStorage"},
    {"uint8", 1, DType::kU8, "ByteStorage"},
    {"int8", 1, std::nullopt, "CharStorage"},
    {"int16", 2, std::nullopt, "ShortStorage"},
    {"bool", 1, std::nullopt, "BoolStorage"},
    {"complex64", 8, std::nullopt, "ComplexFloatStorage"},
    {"complex128", 16, std::nullopt, "ComplexDoubleStorage"},
    {"float8_e4m3fn", 1, std::nullopt, ""},
    {"float8_e5m2", 1, std::nullopt, ""},
    {"float8_e4m3fnuz", 1, std::nullopt, ""},
    {"float8_e5m2fnuz", 1, std::nullopt, ""},
    {"float8_e8m0fnu", 1, std::nullopt, ""},
    {"uint16", 2, std::nullopt, ""},
    {"uint32", 4, std::nullopt, ""},
    {"uint64", 8, std::nullopt, ""},
};

TorchType TypeOf(const NamedType& entry) {
  return {std::string(entry.name), entry.bytes, entry.dtype};
}

std::optional<TorchType> TypeOfStorage(std::string_view name) {
  for (const NamedType& entry : kTypes) {
    if (!entry.storage.empty() &&
        name == absl::StrFormat("torch.%s", entry.storage)) {
      return TypeOf(entry);
    }
  }
  return std::nullopt;
}

bool AllowedInTensor(std::string_view name) {
  return name == "torch._utils._rebuild_tensor_v2" ||
         name == "torch._utils._rebuild_tensor_v3" ||
         name == "torch._utils._rebuild_parameter" ||
         name == "collections.OrderedDict" ||
         name == "torch.storage.UntypedStorage" ||
         TypeOfStorage(name).has_value() || FindTorchType(name).has_value();
}

absl::Status Bad(const ByteSource& source, uint64_t offset,
                 std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s, torch.save entry at byte %d: %s", source.name(), offset, what));
}

absl::StatusOr<std::string> ReadDataPickle(const ZipArchive& archive,
                                           ByteSource* source, uint64_t offset,
                                           uint64_t bytes_max) {
  const ZipRecord* const order = archive.Find("byteorder");
  if (order != nullptr) {
    HF_ASSIGN_OR_RETURN(const std::string text, archive.Read(*order, 16));
    if (text != "little") {
      return Bad(*source, offset,
                 absl::StrFormat("byte order '%s', not little", text));
    }
  }
  const ZipRecord* const record = archive.Find("data.pkl");
  if (record == nullptr) return Bad(*source, offset, "it has no data.pkl");
  return archive.Read(*record, bytes_max);
}

// The arguments of the innermost _rebuild_tensor call: a torch.nn.Parameter
// wraps one.
std::optional<Pickle::Node> RebuildCall(const Pickle& pickle, Pickle::Node node,
                                        bool* untyped) {
  if (pickle.IsCallOf(node, "torch._utils._rebuild_parameter")) {
    const auto arguments = pickle.children(pickle.arguments(node));
    if (arguments.empty()) return std::nullopt;
    node = arguments[0];
  }
  *untyped = pickle.IsCallOf(node, "torch._utils._rebuild_tensor_v3");
  if (!*untyped && !pickle.IsCallOf(node, "torch._utils._rebuild_tensor_v2")) {
    return std::nullopt;
  }
  return pickle.arguments(node);
}

// The persistent id of a storage.
struct Storage {
  std::string_view type;  // "torch.FloatStorage"
  std::string_view key;   // "0": the record data/0
};

std::optional<Storage> StorageOf(const Pickle& pickle, Pickle::Node node) {
  if (pickle.kind(node) != PickleKind::kPersistent) return std::nullopt;
  const Pickle::Node id = pickle.children(node)[0];
  const auto fields = pickle.children(id);
  if (pickle.kind(id) != PickleKind::kTuple || fields.size() != 5 ||
      pickle.text(fields[0]) != "storage" ||
      pickle.kind(fields[1]) != PickleKind::kGlobal ||
      pickle.kind(fields[2]) != PickleKind::kString) {
    return std::nullopt;
  }
  return Storage{pickle.text(fields[1]), pickle.text(fields[2])};
}

template <typename Number>
std::optional<double> NumberIn(const std::string& bytes, int64_t index) {
  const auto count = static_cast<int64_t>(bytes.size() / sizeof(Number));
  if (index < 0 || index >= count) return std::nullopt;
  Number value{};
  std::memcpy(&value, bytes.data() + index * sizeof(Number), sizeof(Number));
  return static_cast<double>(value);
}

}  // namespace

std::optional<double> TorchValue::Number(Pickle::Node node) const {
  if (pickle.kind(node) == PickleKind::kInt) {
    return static_cast<double>(pickle.integer(node));
  }
  if (pickle.kind(node) == PickleKind::kFloat) return pickle.number(node);
  bool untyped = false;
  if (pickle.kind(node) != PickleKind::kObject) return std::nullopt;
  const auto call = RebuildCall(pickle, node, &untyped);
  if (!call.has_value() || untyped) return std::nullopt;
  const auto arguments = pickle.children(*call);
  if (arguments.size() < 3 || pickle.kind(arguments[1]) != PickleKind::kInt) {
    return std::nullopt;
  }
  const auto storage = StorageOf(pickle, arguments[0]);
  const auto shape = IntegersOf(pickle, arguments[2]);
  if (!storage.has_value() || !shape.has_value()) return std::nullopt;
  for (const int64_t length : *shape) {
    if (length != 1) return std::nullopt;
  }
  const auto type = TypeOfStorage(storage->type);
  const auto record = scalars.find(std::string(storage->key));
  if (!type.has_value() || record == scalars.end()) return std::nullopt;
  const int64_t index = pickle.integer(arguments[1]);
  if (type->dtype == DType::kF32) {
    return NumberIn<float>(record->second, index);
  }
  if (type->dtype == DType::kF64) {
    return NumberIn<double>(record->second, index);
  }
  if (type->dtype == DType::kI32) {
    return NumberIn<int32_t>(record->second, index);
  }
  if (type->dtype == DType::kI64) {
    return NumberIn<int64_t>(record->second, index);
  }
  return std::nullopt;
}

std::optional<TorchType> FindTorchType(std::string_view name) {
  if (absl::StartsWith(absl::string_view(name.data(), name.size()), "torch.")) {
    name.remove_prefix(6);
  }
  for (const NamedType& entry : kTypes) {
    if (entry.name == name) return TypeOf(entry);
  }
  return std::nullopt;
}

bool TorchTensor::IsRowMajor() const {
  int64_t expected = 1;
  for (size_t i = shape.size(); i > 0; --i) {
    if (shape[i - 1] != 1 && strides[i - 1] != expected) return false;
    expected *= shape[i - 1];
  }
  return true;
}

std::optional<std::vector<int64_t>> IntegersOf(const Pickle& pickle,
                                               Pickle::Node node) {
  constexpr size_t kMost = 16;
  if (pickle.IsCallOf(node, "torch.Size")) {
    const auto arguments = pickle.children(pickle.arguments(node));
    if (arguments.empty()) return std::vector<int64_t>{};
    if (arguments.size() != 1) return std::nullopt;
    node = arguments[0];
  }
  if (pickle.kind(node) != PickleKind::kTuple &&
      pickle.kind(node) != PickleKind::kList) {
    return std::nullopt;
  }
  const auto elements = pickle.children(node);
  if (elements.size() > kMost) return std::nullopt;
  std::vector<int64_t> integers;
  for (const Pickle::Node element : elements) {
    if (pickle.kind(element) != PickleKind::kInt) return std::nullopt;
    integers.push_back(pickle.integer(element));
  }
  return integers;
}

absl::StatusOr<TorchTensor> ReadTorchTensor(ByteSource* source, uint64_t offset,
                                            uint64_t length) {
  HF_ASSIGN_OR_RETURN(const ZipArchive archive,
                      ZipArchive::Open(source, offset, length));
  HF_ASSIGN_OR_RETURN(
      const std::string bytes,
      ReadDataPickle(archive, source, offset, kTensorPickleMax));
  PickleOptions options;
  options.allowed = AllowedInTensor;
  options.persistent_ids = true;
  const absl::StatusOr<Pickle> parsed = Pickle::Parse(bytes, options);
  if (!parsed.ok()) {
    return Bad(*source, offset, std::string(parsed.status().message()));
  }
  const Pickle& pickle = *parsed;
  bool untyped = false;
  const std::optional<Pickle::Node> call =
      RebuildCall(pickle, pickle.root(), &untyped);
  if (!call.has_value()) return Bad(*source, offset, "it is no tensor");
  const auto arguments = pickle.children(*call);
  if (arguments.size() < (untyped ? 7u : 6u) ||
      pickle.kind(arguments[0]) != PickleKind::kPersistent ||
      pickle.kind(arguments[1]) != PickleKind::kInt) {
    return Bad(*source, offset, "its tensor has other arguments than expected");
  }
  const std::optional<Storage> storage = StorageOf(pickle, arguments[0]);
  if (!storage.has_value()) {
    return Bad(*source, offset, "its storage has another id than expected");
  }
  const std::optional<TorchType> type =
      untyped ? FindTorchType(pickle.text(arguments[6]))
              : TypeOfStorage(storage->type);
  if (!type.has_value()) {
    return Bad(*source, offset, "its type of elements is not known");
  }
  TorchTensor tensor;
  tensor.type = *type;
  tensor.first = pickle.integer(arguments[1]);
  const auto shape = IntegersOf(pickle, arguments[2]);
  const auto strides = IntegersOf(pickle, arguments[3]);
  if (!shape.has_value() || !strides.has_value() ||
      shape->size() != strides->size()) {
    return Bad(*source, offset, "its shape and strides do not fit");
  }
  tensor.shape = *shape;
  tensor.strides = *strides;
  const ZipRecord* const record =
      archive.Find(absl::StrFormat("data/%s", storage->key));
  if (record == nullptr) {
    return Bad(*source, offset, "the record of its elements is missing");
  }
  tensor.record = *record;
  // The last element that is reached must be inside the record.
  __int128 last = tensor.first;
  bool empty = false;
  for (size_t i = 0; i < shape->size(); ++i) {
    if ((*shape)[i] < 0 || (*strides)[i] < 0) {
      return Bad(*source, offset, "a negative length or stride");
    }
    empty |= (*shape)[i] == 0;
    last += static_cast<__int128>((*shape)[i] - 1) * (*strides)[i];
    // Or the next product would be more than 128 bits count.
    last = std::min<__int128>(last, std::numeric_limits<int64_t>::max());
  }
  if (tensor.first < 0 ||
      (!empty && (last + 1) * tensor.type.bytes >
                     static_cast<__int128>(tensor.record.size))) {
    return Bad(*source, offset,
               absl::StrFormat("its elements reach beyond the record of %d "
                               "bytes",
                               tensor.record.size));
  }
  HF_ASSIGN_OR_RETURN(tensor.data, archive.DataOffset(tensor.record));
  return tensor;
}

absl::StatusOr<TorchValue> ReadTorchValue(ByteSource* source, uint64_t offset,
                                          uint64_t length, uint64_t bytes_max) {
  HF_ASSIGN_OR_RETURN(const ZipArchive archive,
                      ZipArchive::Open(source, offset, length));
  HF_ASSIGN_OR_RETURN(std::string bytes,
                      ReadDataPickle(archive, source, offset, bytes_max));
  auto kept = std::make_unique<std::string>(std::move(bytes));
  PickleOptions options;
  options.persistent_ids = true;
  absl::StatusOr<Pickle> pickle = Pickle::Parse(*kept, options);
  if (!pickle.ok()) {
    return Bad(*source, offset, std::string(pickle.status().message()));
  }
  TorchValue value{std::move(kept), *std::move(pickle), {}};
  constexpr std::string_view kData = "data/";
  constexpr size_t kScalarsMax = 4096;
  for (const auto& [name, record] : archive.records()) {
    if (!name.starts_with(kData) || record.size > sizeof(double)) continue;
    if (value.scalars.size() == kScalarsMax) break;
    HF_ASSIGN_OR_RETURN(value.scalars[name.substr(kData.size())],
                        archive.Read(record, sizeof(double)));
  }
  return value;
}

}  // namespace holdfast::tools
