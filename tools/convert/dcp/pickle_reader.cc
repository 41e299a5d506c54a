// tools/convert/dcp/pickle_reader.cc: reading, making values, and the loop.

#include "tools/convert/dcp/pickle_reader.h"

#include <cstring>
#include <memory>
#include <utility>

#include "ckpt/base/status_macros.h"

namespace holdfast::tools {

absl::StatusOr<uint64_t> PickleReader::Unsigned(int size) {
  if (bytes_.size() - position_ < static_cast<size_t>(size)) {
    return Fail("the pickle ends inside its argument");
  }
  uint64_t value = 0;
  std::memcpy(&value, bytes_.data() + position_, size);
  position_ += size;
  return value;
}

absl::StatusOr<std::string_view> PickleReader::Counted(int size_bytes) {
  HF_ASSIGN_OR_RETURN(const uint64_t size, Unsigned(size_bytes));
  if (size > bytes_.size() - position_) {
    return Fail(absl::StrFormat("it wants %d bytes, %d are left", size,
                                bytes_.size() - position_));
  }
  const std::string_view text = bytes_.substr(position_, size);
  position_ += size;
  return text;
}

absl::StatusOr<std::string_view> PickleReader::Line() {
  const size_t end = bytes_.find('\n', position_);
  if (end == std::string_view::npos) return Fail("its line has no end");
  const std::string_view line = bytes_.substr(position_, end - position_);
  position_ = end + 1;
  return line;
}

absl::Status PickleReader::CheckMemory() const {
  constexpr size_t kRemembered = sizeof(Node) + 1;
  const size_t memory =
      pickle_.memory() + memo_.size() * kRemembered + name_bytes_;
  if (memory <= options_.limits.memory_max) return absl::OkStatus();
  return Fail(absl::StrFormat(
      "what was read so far takes more than the %d MiB of memory that are "
      "allowed (--memory-limit), of %d bytes %d are left",
      options_.limits.memory_max >> 20, bytes_.size(),
      bytes_.size() - position_));
}

absl::StatusOr<PickleReader::Node> PickleReader::Make(PickleKind kind,
                                                      int64_t number) {
  if (pickle_.nodes_.size() >= options_.limits.nodes_max) {
    return Fail(
        absl::StrFormat("more than %d values", options_.limits.nodes_max));
  }
  HF_RETURN_IF_ERROR(CheckMemory());
  Pickle::Value& value = pickle_.nodes_.emplace_back();
  value.kind = kind;
  value.number = number;
  return static_cast<Node>(pickle_.nodes_.size() - 1);
}

absl::StatusOr<PickleReader::Node> PickleReader::MakeList(
    PickleKind kind, std::span<const Node> children) {
  HF_ASSIGN_OR_RETURN(const Node node, Make(kind));
  pickle_.nodes_[node].extra = static_cast<uint32_t>(pickle_.lists_.size());
  HF_RETURN_IF_ERROR(Append(children, &pickle_.lists_.emplace_back()));
  return node;
}

absl::Status PickleReader::Append(std::span<const Node> more,
                                  PickleList* list) {
  if (!pickle_.arena_.Append(more, list)) return Fail("a list of 2^32 values");
  return CheckMemory();
}

absl::Status PickleReader::MakeText(PickleKind kind, std::string_view text) {
  if (text.size() > UINT32_MAX) {
    return Fail(absl::StrFormat("a text of %d bytes", text.size()));
  }
  HF_ASSIGN_OR_RETURN(const Node node, Make(kind));
  pickle_.nodes_[node].extra = static_cast<uint32_t>(text.size());
  pickle_.nodes_[node].data = text.data();
  return Push(node);
}

absl::Status PickleReader::MakeGlobal(std::string_view module,
                                      std::string_view name) {
  constexpr size_t kNameMax = 1024;  // of torch's names none has 100
  if (module.size() + name.size() > kNameMax) {
    return Fail(
        absl::StrFormat("a name of %d bytes", module.size() + name.size()));
  }
  // A name may be made of two strings again and again.
  constexpr size_t kAllNamesMax = size_t{256} << 20;
  name_bytes_ += module.size() + name.size() + sizeof(std::string);
  if (name_bytes_ > kAllNamesMax) return Fail("too many names");
  std::string full = absl::StrFormat("%s.%s", module, name);
  if (options_.allowed != nullptr && !options_.allowed(full)) {
    return Fail(absl::StrFormat(
        "it names '%s', which is none of the names that belong here", full));
  }
  pickle_.names_.push_back(std::make_unique<std::string>(std::move(full)));
  return MakeText(PickleKind::kGlobal, *pickle_.names_.back());
}

absl::Status PickleReader::MakeObject(Node callee, Node arguments) {
  HF_ASSIGN_OR_RETURN(const Node node, Make(PickleKind::kObject));
  pickle_.nodes_[node].extra = static_cast<uint32_t>(pickle_.objects_.size());
  pickle_.objects_.push_back({.callee = callee, .arguments = arguments});
  return Push(node);
}

absl::Status PickleReader::Push(absl::StatusOr<Node> node) {
  HF_RETURN_IF_ERROR(node.status());
  if (stack_.size() + marks_.size() >= options_.limits.stack_max) {
    return Fail("the stack grows too high");
  }
  stack_.push_back(*node);
  return absl::OkStatus();
}

absl::StatusOr<PickleReader::Node> PickleReader::Pop() {
  if (stack_.size() <= floor()) return Fail("there is no value for it");
  const Node node = stack_.back();
  stack_.pop_back();
  return node;
}

absl::StatusOr<std::vector<PickleReader::Node>> PickleReader::PopToMark() {
  if (marks_.empty()) return Fail("there is no mark");
  std::vector<Node> nodes(stack_.begin() + marks_.back(), stack_.end());
  stack_.resize(marks_.back());
  marks_.pop_back();
  return nodes;
}

absl::StatusOr<PickleList*> PickleReader::Extended(bool pairs, bool set) {
  if (stack_.size() <= floor()) return Fail("there is no container for it");
  const Pickle::Value& value = pickle_.nodes_[stack_.back()];
  if (value.kind == PickleKind::kObject) {
    uint32_t& items = pickle_.objects_[value.extra].items;
    if (items == Pickle::kNone) {
      items = static_cast<uint32_t>(pickle_.lists_.size());
      pickle_.lists_.emplace_back();
    }
    return &pickle_.lists_[items];
  }
  const PickleKind wanted = pairs ? PickleKind::kDict
                            : set ? PickleKind::kSet
                                  : PickleKind::kList;
  if (value.kind != wanted) {
    return Fail(absl::StrFormat("it extends %s", NameOf(value.kind)));
  }
  return &pickle_.lists_[value.extra];
}

absl::Status PickleReader::Step(bool* stopped) {
  at_ = position_;
  HF_ASSIGN_OR_RETURN(const uint64_t opcode, Unsigned(1));
  opcode_ = static_cast<uint8_t>(opcode);
  switch (opcode_) {
    case kProto: {
      HF_ASSIGN_OR_RETURN(const uint64_t version, Unsigned(1));
      if (version < 2 || version > 5) {
        return Fail(absl::StrFormat("protocol %d, not 2 to 5", version));
      }
      return absl::OkStatus();
    }
    case kFrame:  // says how much may be read at once; nothing else
      return Unsigned(8).status();
    case kStop:
      *stopped = true;
      return absl::OkStatus();
    case kMark:
      if (stack_.size() + marks_.size() >= options_.limits.stack_max) {
        return Fail("the stack grows too high");
      }
      marks_.push_back(stack_.size());
      return absl::OkStatus();
    case kPop:
      return Pop().status();
    case kPopMark:
      return PopToMark().status();
    case kDup:
      if (stack_.size() <= floor()) return Fail("there is no value for it");
      return Push(stack_.back());
    case kEmptyTuple:
    case kEmptyList:
    case kEmptyDict:
    case kEmptySet:
    case kTuple1:
    case kTuple2:
    case kTuple3:
    case kTupleOfMark:
    case kListOfMark:
    case kDictOfMark:
    case kFrozenSet:
    case kAppend:
    case kAppends:
    case kSetItem:
    case kSetItems:
    case kAddItems:
      return Containers();
    case kGlobalName:
    case kStackGlobal:
    case kReduce:
    case kNewObj:
    case kNewObjEx:
    case kBuild:
    case kBinPersId:
      return Objects();
    case kBinGet:
    case kLongBinGet:
    case kBinPut:
    case kLongBinPut:
    case kMemoize:
      return Memo();
    default:
      return Scalar();
  }
}

absl::StatusOr<Pickle> PickleReader::Read() {
  if (bytes_.empty() || static_cast<uint8_t>(bytes_[0]) != kProto) {
    return absl::InvalidArgumentError(
        "no pickle of protocol 2 or later: its first byte is not 0x80");
  }
  bool stopped = false;
  while (!stopped) HF_RETURN_IF_ERROR(Step(&stopped));
  if (stack_.size() != 1 || !marks_.empty()) {
    return Fail(absl::StrFormat("%d values are left, not one", stack_.size()));
  }
  pickle_.root_ = stack_.back();
  pickle_.size_ = position_;
  return std::move(pickle_);
}

absl::StatusOr<Pickle> Pickle::Parse(std::string_view bytes,
                                     const PickleOptions& options) {
  return PickleReader(bytes, options).Read();
}

}  // namespace holdfast::tools
