// tools/convert/dcp/pickle_reader.h: the machine that a pickle is a program
// for, with every instruction that could run code taken out. For pickle*.cc
// alone.
//
// Each opcode reads at most what is left of the input and makes at most one
// value, so time and memory are linear in the input, and `limits` ends them
// sooner.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_PICKLE_READER_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_PICKLE_READER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
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

  absl::StatusOr<Node> Make(PickleKind kind, int64_t number = 0);
  absl::StatusOr<Node> MakeList(PickleKind kind,
                                std::span<const Node> children);
  absl::Status Append(std::span<const Node> more, PickleList* list);
  absl::Status CheckMemory() const;
  absl::Status MakeText(PickleKind kind, std::string_view text);
  absl::Status MakeGlobal(std::string_view module, std::string_view name);
  absl::Status MakeObject(Node callee, Node arguments);
  absl::Status Push(absl::StatusOr<Node> node);

  // The topmost value above the last mark.
  absl::StatusOr<Node> Pop();
  // All values above the last mark, which goes too.
  absl::StatusOr<std::vector<Node>> PopToMark();
  // The list that APPEND and ADDITEMS (`pairs` false) or SETITEM (true) extend.
  absl::StatusOr<PickleList*> Extended(bool pairs, bool set);

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
  std::optional<Node> empty_tuple_;  // there is one, as in Python
  size_t name_bytes_ = 0;            // of all globals so far
  size_t copied_ = 0;                // named arguments of all objects so far
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_PICKLE_READER_H_
