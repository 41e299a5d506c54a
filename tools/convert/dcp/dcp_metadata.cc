// tools/convert/dcp/dcp_metadata.cc: the classes of DCP's metadata, as the
// inert records of pickle.h.

#include "tools/convert/dcp/dcp_metadata.h"

#include <algorithm>
#include <limits>
#include <set>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/dcp/dcp_cover.h"

namespace holdfast::tools {
namespace {

#define DCP_METADATA "torch.distributed.checkpoint.metadata."

constexpr std::string_view kAllowed[] = {
    DCP_METADATA "Metadata",
    DCP_METADATA "TensorStorageMetadata",
    DCP_METADATA "TensorProperties",
    DCP_METADATA "ChunkStorageMetadata",
    DCP_METADATA "BytesStorageMetadata",
    DCP_METADATA "MetadataIndex",
    DCP_METADATA "StorageMeta",
    DCP_METADATA "_MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.planner.SavePlan",
    "torch.distributed.checkpoint.planner.WriteItem",
    "torch.distributed.checkpoint.planner.WriteItemType",
    "torch.distributed.checkpoint.planner.TensorWriteData",
    "torch.distributed.checkpoint.planner.BytesIOWriteData",
    "torch.distributed.checkpoint.filesystem._StoragePrefix",
    "torch.serialization._get_layout",
    "torch.Size",
    "torch.device",
    "collections.OrderedDict",
    "pathlib.PosixPath",
    "pathlib.Path",
    "pathlib.PurePosixPath",
    "pathlib.WindowsPath",
    "pathlib._local.PosixPath",
    "pathlib._local.WindowsPath",
    "megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata",
};

bool Allowed(std::string_view name) {
  return std::find(std::begin(kAllowed), std::end(kAllowed), name) !=
             std::end(kAllowed) ||
         FindTorchType(name).has_value();
}

using Node = Pickle::Node;

// Of what has no place yet.
constexpr uint32_t kNoFile = std::numeric_limits<uint32_t>::max();

constexpr std::string_view kTwice = "the name is there twice";

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat(".metadata: %s", what));
}

absl::Status Bad(std::string_view name, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrFormat(".metadata, '%s': %s", name, what));
}

class Decoder {
 public:
  explicit Decoder(const Pickle& pickle) : pickle_(pickle) {}

  absl::StatusOr<DcpMetadata> Decode();

 private:
  // A field of an object whose state is a dictionary of its fields.
  std::optional<Node> Field(Node object, std::string_view name) const;
  absl::Status Entry(std::string_view name, Node value);
  absl::Status Place(Node key, Node value);
  absl::StatusOr<TorchType> TypeOf(std::string_view name, Node tensor) const;
  absl::StatusOr<DcpPlace> PlaceOf(std::string_view name, Node info);

  const Pickle& pickle_;
  DcpMetadata out_;
  size_t chunks_ = 0;  // of all tensors so far
  absl::flat_hash_map<std::string, uint32_t> file_numbers_;
};

std::optional<Node> Decoder::Field(Node object, std::string_view name) const {
  if (pickle_.kind(object) != PickleKind::kObject) return std::nullopt;
  // The classes have at most seven fields. A larger state that many objects
  // share would be searched for each of them.
  constexpr size_t kFieldsMax = 64;
  const std::optional<Node> state = pickle_.state(object);
  if (!state.has_value() || pickle_.children(*state).size() > 2 * kFieldsMax) {
    return std::nullopt;
  }
  return pickle_.Find(*state, name);
}

absl::StatusOr<TorchType> Decoder::TypeOf(std::string_view name,
                                          Node tensor) const {
  const std::optional<Node> properties = Field(tensor, "properties");
  if (!properties.has_value() ||
      !pickle_.IsCallOf(*properties, DCP_METADATA "TensorProperties") ||
      !pickle_.state(*properties).has_value()) {
    return Bad(name, "it has no properties");
  }
  // (dtype, layout, requires_grad, memory format, pinned[, strides])
  const Node state = *pickle_.state(*properties);
  const auto fields = pickle_.children(state);
  if (pickle_.kind(state) != PickleKind::kTuple || fields.size() < 5) {
    return Bad(name, "its properties have another form than torch writes");
  }
  const std::optional<TorchType> type = FindTorchType(pickle_.text(fields[0]));
  if (pickle_.kind(fields[0]) != PickleKind::kGlobal || !type.has_value()) {
    return Bad(name, absl::StrFormat("its type '%s' is not known",
                                     pickle_.text(fields[0])));
  }
  return *type;
}

absl::Status Decoder::Entry(std::string_view name, Node value) {
  if (pickle_.IsCallOf(value, DCP_METADATA "BytesStorageMetadata")) {
    out_.blobs.push_back({std::string(name), {.file = kNoFile}});
    return absl::OkStatus();
  }
  if (!pickle_.IsCallOf(value, DCP_METADATA "TensorStorageMetadata")) {
    return Bad(name, "it is neither a tensor nor bytes");
  }
  DcpTensor tensor;
  tensor.name = std::string(name);
  HF_ASSIGN_OR_RETURN(tensor.type, TypeOf(name, value));
  const std::optional<Node> size = Field(value, "size");
  const std::optional<Node> chunks = Field(value, "chunks");
  if (!size.has_value() || !chunks.has_value() ||
      pickle_.kind(*chunks) != PickleKind::kList) {
    return Bad(name, "it has no size or no list of chunks");
  }
  std::optional<std::vector<int64_t>> shape = IntegersOf(pickle_, *size);
  if (!shape.has_value()) return Bad(name, "its size is no list of integers");
  tensor.shape = *std::move(shape);
  // Each chunk is an object of its own; lists that are shared would make more
  // of them than there are bytes.
  chunks_ += pickle_.children(*chunks).size();
  if (chunks_ > pickle_.nodes()) return Bad(name, "it shares its chunks");
  tensor.chunks.reserve(pickle_.children(*chunks).size());
  for (const Node node : pickle_.children(*chunks)) {
    const std::optional<Node> offsets = Field(node, "offsets");
    const std::optional<Node> sizes = Field(node, "sizes");
    if (!offsets.has_value() || !sizes.has_value()) {
      return Bad(name, "a chunk has no offsets or no sizes");
    }
    const auto first = IntegersOf(pickle_, *offsets);
    const auto count = IntegersOf(pickle_, *sizes);
    if (!first.has_value() || !count.has_value()) {
      return Bad(name, "a chunk's offsets or sizes are no integers");
    }
    tensor.chunks.push_back({DcpLengths(first->begin(), first->end()),
                             DcpLengths(count->begin(), count->end()),
                             {.file = kNoFile}});
  }
  std::sort(
      tensor.chunks.begin(), tensor.chunks.end(),
      [](const DcpChunk& a, const DcpChunk& b) { return a.first < b.first; });
  HF_RETURN_IF_ERROR(CheckCover(tensor));
  out_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::StatusOr<DcpPlace> Decoder::PlaceOf(std::string_view name, Node info) {
  if (!pickle_.IsCallOf(
          info, "torch.distributed.checkpoint.filesystem._StorageInfo")) {
    return Bad(name, "its place is not one that DCP's FileSystemWriter writes");
  }
  const auto path = Field(info, "relative_path");
  const auto offset = Field(info, "offset");
  const auto length = Field(info, "length");
  if (!path.has_value() || pickle_.kind(*path) != PickleKind::kString ||
      !offset.has_value() || pickle_.kind(*offset) != PickleKind::kInt ||
      !length.has_value() || pickle_.kind(*length) != PickleKind::kInt ||
      pickle_.integer(*offset) < 0 || pickle_.integer(*length) < 0) {
    return Bad(name, "its place has no path, offset and length");
  }
  const auto transforms = Field(info, "transform_descriptors");
  if (transforms.has_value() &&
      pickle_.kind(*transforms) != PickleKind::kNone &&
      !pickle_.children(*transforms).empty()) {
    return Bad(name,
               "its bytes went through an extension of DCP (a compression, "
               "for instance), which cannot be undone here; save without "
               "_extensions");
  }
  const std::string file(pickle_.text(*path));
  const auto [it, added] =
      file_numbers_.try_emplace(file, static_cast<uint32_t>(out_.files.size()));
  if (added) out_.files.push_back(file);
  return DcpPlace{it->second, static_cast<uint64_t>(pickle_.integer(*offset)),
                  static_cast<uint64_t>(pickle_.integer(*length))};
}

absl::Status Decoder::Place(Node key, Node value) {
  const auto name_node = Field(key, "fqn");
  if (!pickle_.IsCallOf(key, DCP_METADATA "MetadataIndex") ||
      !name_node.has_value() ||
      pickle_.kind(*name_node) != PickleKind::kString) {
    return Bad("a key of storage_data is no MetadataIndex");
  }
  const std::string name(pickle_.text(*name_node));
  DcpLengths first;
  const auto offset = Field(key, "offset");
  if (offset.has_value() && pickle_.kind(*offset) != PickleKind::kNone) {
    const auto integers = IntegersOf(pickle_, *offset);
    if (!integers.has_value()) return Bad(name, "its offset is no integers");
    first.assign(integers->begin(), integers->end());
  }
  HF_ASSIGN_OR_RETURN(const DcpPlace place, PlaceOf(name, value));
  const auto put = [&](DcpPlace* at) -> absl::Status {
    if (at->file != kNoFile) {
      return Bad(name, "one of its chunks has two places");
    }
    *at = place;
    return absl::OkStatus();
  };
  constexpr auto kName = [](const auto& entry) -> std::string_view {
    return entry.name;
  };
  const auto tensor =
      std::ranges::lower_bound(out_.tensors, std::string_view(name), {}, kName);
  if (tensor != out_.tensors.end() && tensor->name == name) {
    // More than one where some are empty.
    for (DcpChunk& chunk : std::ranges::equal_range(tensor->chunks, first, {},
                                                    &DcpChunk::first)) {
      HF_RETURN_IF_ERROR(put(&chunk.place));
    }
    return absl::OkStatus();
  }
  const auto blob =
      std::ranges::lower_bound(out_.blobs, std::string_view(name), {}, kName);
  if (blob != out_.blobs.end() && blob->name == name && first.empty()) {
    return put(&blob->place);
  }
  return absl::OkStatus();  // of nothing that is listed
}

absl::StatusOr<DcpMetadata> Decoder::Decode() {
  const Node root = pickle_.root();
  if (!pickle_.IsCallOf(root, DCP_METADATA "Metadata")) {
    return Bad("it is not DCP's Metadata");
  }
  const auto entries = Field(root, "state_dict_metadata");
  const auto places = Field(root, "storage_data");
  if (!entries.has_value() || pickle_.kind(*entries) != PickleKind::kDict ||
      !places.has_value() || pickle_.kind(*places) != PickleKind::kDict) {
    return Bad("it has no state_dict_metadata or no storage_data");
  }
  const auto version = Field(root, "version");
  if (version.has_value() && pickle_.kind(*version) == PickleKind::kString) {
    out_.version = std::string(pickle_.text(*version));
  }
  const auto names = pickle_.children(*entries);
  for (size_t i = 0; i + 1 < names.size(); i += 2) {
    if (pickle_.kind(names[i]) != PickleKind::kString) {
      return Bad("a name is no string");
    }
    HF_RETURN_IF_ERROR(Entry(pickle_.text(names[i]), names[i + 1]));
  }
  const auto by_name = [](const auto& a, const auto& b) {
    return a.name < b.name;
  };
  std::sort(out_.tensors.begin(), out_.tensors.end(), by_name);
  std::sort(out_.blobs.begin(), out_.blobs.end(), by_name);
  std::set<std::string_view> seen;
  for (const DcpTensor& tensor : out_.tensors) {
    if (!seen.insert(tensor.name).second) return Bad(tensor.name, kTwice);
  }
  for (const DcpBlob& blob : out_.blobs) {
    if (!seen.insert(blob.name).second) return Bad(blob.name, kTwice);
  }
  const auto pairs = pickle_.children(*places);
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    HF_RETURN_IF_ERROR(Place(pairs[i], pairs[i + 1]));
  }
  for (const DcpTensor& tensor : out_.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) {
      if (chunk.place.file == kNoFile) {
        return Bad(tensor.name, "one of its chunks has no place");
      }
    }
  }
  for (const DcpBlob& blob : out_.blobs) {
    if (blob.place.file == kNoFile) return Bad(blob.name, "it has no place");
  }
  return std::move(out_);
}

}  // namespace

int64_t DcpChunk::elements() const {
  int64_t product = 1;
  for (const int64_t length : count) product *= length;
  return product;
}

int64_t DcpTensor::elements() const {
  int64_t product = 1;
  for (const int64_t length : shape) product *= length;
  return product;
}

absl::StatusOr<DcpMetadata> DecodeDcpMetadata(std::string_view bytes,
                                              const PickleLimits& limits) {
  PickleOptions options;
  options.allowed = Allowed;
  options.limits = limits;
  absl::StatusOr<Pickle> pickle = Pickle::Parse(bytes, options);
  if (!pickle.ok()) return Bad(std::string(pickle.status().message()));
  return Decoder(*pickle).Decode();
}

}  // namespace holdfast::tools
