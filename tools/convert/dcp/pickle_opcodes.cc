// tools/convert/dcp/pickle_opcodes.cc: what each opcode does to the stack.

#include <array>
#include <cstring>
#include <span>

#include "ckpt/base/status_macros.h"
#include "tools/convert/dcp/pickle_reader.h"

namespace holdfast::tools {

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
      if (!empty_tuple_.has_value()) {
        HF_ASSIGN_OR_RETURN(empty_tuple_, MakeList(PickleKind::kTuple, {}));
      }
      return Push(*empty_tuple_);
    case kEmptyList:
      return Push(MakeList(PickleKind::kList, {}));
    case kEmptyDict:
      return Push(MakeList(PickleKind::kDict, {}));
    case kEmptySet:
      return Push(MakeList(PickleKind::kSet, {}));
    case kTuple1:
    case kTuple2:
    case kTuple3: {
      std::array<Node, 3> elements;
      const size_t count = opcode_ - kTuple1 + 1;
      for (size_t i = count; i > 0; --i) {
        HF_ASSIGN_OR_RETURN(elements[i - 1], Pop());
      }
      return Push(
          MakeList(PickleKind::kTuple, std::span(elements).first(count)));
    }
    case kTupleOfMark:
    case kListOfMark:
    case kFrozenSet: {
      HF_ASSIGN_OR_RETURN(const std::vector<Node> elements, PopToMark());
      return Push(MakeList(opcode_ == kTupleOfMark  ? PickleKind::kTuple
                           : opcode_ == kListOfMark ? PickleKind::kList
                                                    : PickleKind::kSet,
                           elements));
    }
    case kDictOfMark: {
      HF_ASSIGN_OR_RETURN(const std::vector<Node> entries, PopToMark());
      if (entries.size() % 2 != 0) return Fail("a key has no value");
      return Push(MakeList(PickleKind::kDict, entries));
    }
    case kAppend: {
      HF_ASSIGN_OR_RETURN(const Node value, Pop());
      HF_ASSIGN_OR_RETURN(PickleList* const list,
                          Extended(/*pairs=*/false, /*set=*/false));
      return Append({&value, 1}, list);
    }
    case kSetItem: {
      HF_ASSIGN_OR_RETURN(const Node value, Pop());
      HF_ASSIGN_OR_RETURN(const Node key, Pop());
      HF_ASSIGN_OR_RETURN(PickleList* const entries,
                          Extended(/*pairs=*/true, /*set=*/false));
      return Append(std::array<Node, 2>{key, value}, entries);
    }
    default: {  // kAppends, kSetItems, kAddItems
      HF_ASSIGN_OR_RETURN(const std::vector<Node> more, PopToMark());
      const bool pairs = opcode_ == kSetItems;
      if (pairs && more.size() % 2 != 0) return Fail("a key has no value");
      HF_ASSIGN_OR_RETURN(PickleList* const list,
                          Extended(pairs, opcode_ == kAddItems));
      return Append(more, list);
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
      // One dictionary, remembered, could be copied into object after object.
      copied_ += pickle_.children(named).size();
      if (copied_ > bytes_.size()) {
        return Fail("its objects share their named arguments");
      }
      HF_RETURN_IF_ERROR(MakeObject(callee, arguments));
      HF_ASSIGN_OR_RETURN(PickleList* const items,
                          Extended(/*pairs=*/true, /*set=*/false));
      return Append(pickle_.children(named), items);
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
      if (object.state != Pickle::kNone) {
        return Fail("the object already has a state");
      }
      object.state = state;
      return absl::OkStatus();
    }
    default: {  // kBinPersId
      if (!options_.persistent_ids) {
        return Fail("persistent ids do not belong here");
      }
      HF_ASSIGN_OR_RETURN(const Node id, Pop());
      return Push(MakeList(PickleKind::kPersistent, {&id, 1}));
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

}  // namespace holdfast::tools
