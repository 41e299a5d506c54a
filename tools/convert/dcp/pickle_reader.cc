// tools/convert/dcp/pickle_reader.cc: the machine that a pickle is a program
// for, with every instruction that could run code taken out.
//
// Each opcode reads at most what is left of the input and makes at most one
// value, so time and memory are linear in the input, and `limits` ends them
// sooner.

#include <bit>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "tools/convert/dcp/pickle.h"

namespace holdfast::tools {

// Values of the opcodes, as in Python's Lib/pickle.py.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNoneValue = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobalName = 'c',
  kDictOfMark = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kListOfMark = 'l',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTupleOfMark = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kNewObjEx = 0x92,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96,
};

class PickleReader {
 public:
  PickleReader(std::string_view bytes, const PickleOptions& options)
      : bytes_(bytes), options_(options) {}

  absl::StatusOr<Pickle> Read();

 private:
  using Node = Pickle::Node;

  absl::Status Fail(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrFormat(
        "pickle, opcode 0x%02x at offset %d: %s", opcode_, at_, what));
  }
  absl::Status Step(bool* stopped);
  absl::Status Scalar();
  absl::Status Containers();
  absl::Status Objects();
  absl::Status Memo();

  // Little-endian unsigned of `size` bytes.
  absl::StatusOr<uint64_t> Unsigned(int size);
  absl::StatusOr<std::string_view> Counted(int size_bytes);
  absl::StatusOr<std::string_view> Line();

  absl::StatusOr<Node> Make(PickleKind kind, int64_t number = 0,
                            const char* data = nullptr);
  absl::StatusOr<Node> MakeList(PickleKind kind, std::vector<Node> children);
  absl::Status MakeText(PickleKind kind, std::string_view text);
  absl::Status MakeGlobal(std::string_view module, std::string_view name);
  absl::Status MakeObject(Node callee, Node arguments);
  absl::Status Push(absl::StatusOr<Node> node);

  // The topmost value above the last mark.
  absl::StatusOr<Node> Pop();
  // All values above the last mark, which goes too.
  absl::StatusOr<std::vector<Node>> PopToMark();
  // The list that APPEND and ADDITEMS (`pairs` false) or SETITEM (true) extend.
  absl::StatusOr<std::vector<Node>*> Extended(bool pairs, bool set);

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  std::string_view bytes_;
  const PickleOptions& options_;
  size_t position_ = 0;
  size_t at_ = 0;  // of the opcode under way
  uint8_t opcode_ = 0;
  Pickle pickle_;
  std::vector<Node> stack_;
  std::vector<size_t> marks_;  // heights of stack_
  std::vector<Node> memo_;
  std::vector<bool> in_memo_;
  size_t name_bytes_ = 0;  // of all globals so far
};

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

absl::StatusOr<PickleReader::Node> PickleReader::Make(PickleKind kind,
                                                      int64_t number,
                                                      const char* data) {
  if (pickle_.nodes_.size() >= options_.limits.nodes_max) {
    return Fail(
        absl::StrFormat("more than %d values", options_.limits.nodes_max));
  }
  pickle_.nodes_.push_back({kind, 0, number, data});
  return static_cast<Node>(pickle_.nodes_.size() - 1);
}

absl::StatusOr<PickleReader::Node> PickleReader::MakeList(
    PickleKind kind, std::vector<Node> children) {
  HF_ASSIGN_OR_RETURN(const Node node, Make(kind));
  pickle_.nodes_[node].extra = static_cast<uint32_t>(pickle_.lists_.size());
  pickle_.lists_.push_back(std::move(children));
  return node;
}

absl::Status PickleReader::MakeText(PickleKind kind, std::string_view text) {
  return Push(Make(kind, static_cast<int64_t>(text.size()), text.data()));
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
  pickle_.objects_.push_back({callee, arguments, 0, false, {}});
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

absl::StatusOr<std::vector<PickleReader::Node>*> PickleReader::Extended(
    bool pairs, bool set) {
  if (stack_.size() <= floor()) return Fail("there is no container for it");
  const Pickle::Value& value = pickle_.nodes_[stack_.back()];
  if (value.kind == PickleKind::kObject) {
    return &pickle_.objects_[value.extra].items;
  }
  const PickleKind wanted = pairs ? PickleKind::kDict
                            : set ? PickleKind::kSet
                                  : PickleKind::kList;
  if (value.kind != wanted) {
    return Fail(absl::StrFormat("it extends %s", NameOf(value.kind)));
  }
  return &pickle_.lists_[value.extra];
}

absl::Status PickleReader::Scalar() {
  switch (opcode_) {
    case kNoneValue:
      return Push(Make(PickleKind::kNone));
    case kNewTrue:
      return Push(Make(PickleKind::kBool, 1));
    case kNewFalse:
      return Push(Make(PickleKind::kBool, 0));
    case kBinInt: {
      HF_ASSIGN_OR_RETURN(const uint64_t bits, Unsigned(4));
      return Push(Make(PickleKind::kInt, static_cast<int32_t>(bits)));
    }
    case kBinInt1:
    case kBinInt2: {
      HF_ASSIGN_OR_RETURN(const uint64_t value,
                          Unsigned(opcode_ == kBinInt1 ? 1 : 2));
      return Push(Make(PickleKind::kInt, static_cast<int64_t>(value)));
    }
    case kLong1:
    case kLong4: {
      HF_ASSIGN_OR_RETURN(const std::string_view digits,
                          Counted(opcode_ == kLong1 ? 1 : 4));
      if (digits.size() > 8) return MakeText(PickleKind::kBigInt, digits);
      int64_t value = 0;
      std::memcpy(&value, digits.data(), digits.size());
      if (!digits.empty() && digits.size() < 8) {  // the sign of its last byte
        const int unused = 64 - 8 * static_cast<int>(digits.size());
        value = static_cast<int64_t>(static_cast<uint64_t>(value) << unused) >>
                unused;
      }
      return Push(Make(PickleKind::kInt, value));
    }
    case kBinFloat: {
      HF_ASSIGN_OR_RETURN(const uint64_t bits, Unsigned(8));
      return Push(Make(PickleKind::kFloat,
                       static_cast<int64_t>(__builtin_bswap64(bits))));
    }
    case kShortBinString:
    case kShortBinBytes: {
      HF_ASSIGN_OR_RETURN(const std::string_view text, Counted(1));
      return MakeText(PickleKind::kBytes, text);
    }
    case kBinString:
    case kBinBytes: {
      HF_ASSIGN_OR_RETURN(const std::string_view text, Counted(4));
      return MakeText(PickleKind::kBytes, text);
    }
    case kBinBytes8:
    case kByteArray8: {
      HF_ASSIGN_OR_RETURN(const std::string_view text, Counted(8));
      return MakeText(PickleKind::kBytes, text);
    }
    case kShortBinUnicode:
    case kBinUnicode:
    case kBinUnicode8: {
      HF_ASSIGN_OR_RETURN(const std::string_view text,
                          Counted(opcode_ == kShortBinUnicode ? 1
                                  : opcode_ == kBinUnicode    ? 4
                                                              : 8));
      return MakeText(PickleKind::kString, text);
    }
    default:
      return Fail("this opcode is not one of protocols 2 to 5 as written");
  }
}

absl::Status PickleReader::Containers() {
  switch (opcode_) {
    case kEmptyTuple:
      return Push(MakeList(PickleKind::kTuple, {}));
    case kEmptyList:
      return Push(MakeList(PickleKind::kList, {}));
    case kEmptyDict:
      return Push(MakeList(PickleKind::kDict, {}));
    case kEmptySet:
      return Push(MakeList(PickleKind::kSet, {}));
    case kTuple1:
    case kTuple2:
    case kTuple3: {
      std::vector<Node> elements(opcode_ - kTuple1 + 1);
      for (size_t i = elements.size(); i > 0; --i) {
        HF_ASSIGN_OR_RETURN(elements[i - 1], Pop());
      }
      return Push(MakeList(PickleKind::kTuple, std::move(elements)));
    }
    case kTupleOfMark:
    case kListOfMark:
    case kFrozenSet: {
      HF_ASSIGN_OR_RETURN(std::vector<Node> elements, PopToMark());
      return Push(MakeList(opcode_ == kTupleOfMark  ? PickleKind::kTuple
                           : opcode_ == kListOfMark ? PickleKind::kList
                                                    : PickleKind::kSet,
                           std::move(elements)));
    }
    case kDictOfMark: {
      HF_ASSIGN_OR_RETURN(std::vector<Node> entries, PopToMark());
      if (entries.size() % 2 != 0) return Fail("a key has no value");
      return Push(MakeList(PickleKind::kDict, std::move(entries)));
    }
    case kAppend: {
      HF_ASSIGN_OR_RETURN(const Node value, Pop());
      HF_ASSIGN_OR_RETURN(std::vector<Node>* const list,
                          Extended(/*pairs=*/false, /*set=*/false));
      list->push_back(value);
      return absl::OkStatus();
    }
    case kSetItem: {
      HF_ASSIGN_OR_RETURN(const Node value, Pop());
      HF_ASSIGN_OR_RETURN(const Node key, Pop());
      HF_ASSIGN_OR_RETURN(std::vector<Node>* const entries,
                          Extended(/*pairs=*/true, /*set=*/false));
      entries->push_back(key);
      entries->push_back(value);
      return absl::OkStatus();
    }
    default: {  // kAppends, kSetItems, kAddItems
      HF_ASSIGN_OR_RETURN(const std::vector<Node> more, PopToMark());
      const bool pairs = opcode_ == kSetItems;
      if (pairs && more.size() % 2 != 0) return Fail("a key has no value");
      HF_ASSIGN_OR_RETURN(std::vector<Node>* const list,
                          Extended(pairs, opcode_ == kAddItems));
      list->insert(list->end(), more.begin(), more.end());
      return absl::OkStatus();
    }
  }
}

absl::Status PickleReader::Objects() {
  switch (opcode_) {
    case kGlobalName: {
      HF_ASSIGN_OR_RETURN(const std::string_view module, Line());
      HF_ASSIGN_OR_RETURN(const std::string_view name, Line());
      return MakeGlobal(module, name);
    }
    case kStackGlobal: {
      HF_ASSIGN_OR_RETURN(const Node name, Pop());
      HF_ASSIGN_OR_RETURN(const Node module, Pop());
      if (pickle_.kind(module) != PickleKind::kString ||
          pickle_.kind(name) != PickleKind::kString) {
        return Fail("module and name are not strings");
      }
      return MakeGlobal(pickle_.text(module), pickle_.text(name));
    }
    case kReduce:
    case kNewObj: {
      HF_ASSIGN_OR_RETURN(const Node arguments, Pop());
      HF_ASSIGN_OR_RETURN(const Node callee, Pop());
      if (pickle_.kind(arguments) != PickleKind::kTuple) {
        return Fail("the arguments are no tuple");
      }
      return MakeObject(callee, arguments);
    }
    case kNewObjEx: {
      HF_ASSIGN_OR_RETURN(const Node named, Pop());
      HF_ASSIGN_OR_RETURN(const Node arguments, Pop());
      HF_ASSIGN_OR_RETURN(const Node callee, Pop());
      if (pickle_.kind(arguments) != PickleKind::kTuple ||
          pickle_.kind(named) != PickleKind::kDict) {
        return Fail("the arguments are no tuple and dictionary");
      }
      HF_RETURN_IF_ERROR(MakeObject(callee, arguments));
      pickle_.objects_.back().items.assign(pickle_.children(named).begin(),
                                           pickle_.children(named).end());
      return absl::OkStatus();
    }
    case kBuild: {
      HF_ASSIGN_OR_RETURN(const Node state, Pop());
      if (stack_.size() <= floor()) return Fail("there is no object for it");
      const Pickle::Value& value = pickle_.nodes_[stack_.back()];
      if (value.kind != PickleKind::kObject) {
        return Fail(
            absl::StrFormat("it gives a state to %s", NameOf(value.kind)));
      }
      Pickle::Object& object = pickle_.objects_[value.extra];
      if (object.has_state) return Fail("the object already has a state");
      object.state = state;
      object.has_state = true;
      return absl::OkStatus();
    }
    default: {  // kBinPersId
      if (!options_.persistent_ids) {
        return Fail("persistent ids do not belong here");
      }
      HF_ASSIGN_OR_RETURN(const Node id, Pop());
      return Push(MakeList(PickleKind::kPersistent, {id}));
    }
  }
}

absl::Status PickleReader::Memo() {
  switch (opcode_) {
    case kBinGet:
    case kLongBinGet: {
      HF_ASSIGN_OR_RETURN(const uint64_t index,
                          Unsigned(opcode_ == kBinGet ? 1 : 4));
      if (index >= memo_.size() || !in_memo_[index]) {
        return Fail(absl::StrFormat("nothing was remembered as %d", index));
      }
      return Push(memo_[index]);
    }
    default: {  // kBinPut, kLongBinPut, kMemoize
      uint64_t index = memo_.size();
      if (opcode_ != kMemoize) {
        HF_ASSIGN_OR_RETURN(index, Unsigned(opcode_ == kBinPut ? 1 : 4));
      }
      // Picklers number in order, so no number exceeds the values so far.
      if (index > pickle_.nodes_.size()) {
        return Fail(absl::StrFormat("number %d is out of order", index));
      }
      if (stack_.size() <= floor()) return Fail("there is no value for it");
      if (index >= memo_.size()) {
        memo_.resize(index + 1);
        in_memo_.resize(index + 1);
      }
      memo_[index] = stack_.back();
      in_memo_[index] = true;
      return absl::OkStatus();
    }
  }
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
