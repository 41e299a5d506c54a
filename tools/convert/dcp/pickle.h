// tools/convert/dcp/pickle.h: a Python pickle (protocols 2 to 5) read as data.
//
// Nothing is ever run: what a pickle would import becomes the name it would
// import (kGlobal), what it would call becomes a record of what would be called
// with what (kObject), and a name that the caller does not allow ends the
// reading. Opcodes as in Python's Lib/pickletools.py. Those of protocols 0 and
// 1 that no pickler writes at protocol 2, extension codes and out-of-band
// buffers are refused by name and offset.
//
// Any thread. Memory: 16 bytes a value, 16 more for one that holds others and 4
// for each that it holds, 4 for each that is remembered; in all at most
// `memory_max`, which is refused in words. Strings stay in the caller's bytes,
// which must outlive the pickle. Values may contain themselves (a list that is
// its own element): whoever walks one bounds the depth.

#ifndef HOLDFAST_TOOLS_CONVERT_DCP_PICKLE_H_
#define HOLDFAST_TOOLS_CONVERT_DCP_PICKLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/convert/dcp/pickle_arena.h"

namespace holdfast::tools {

enum class PickleKind : uint8_t {
  kNone,
  kBool,
  kInt,     // fits 64 bits
  kBigInt,  // does not: its little-endian two's complement as bytes
  kFloat,
  kString,      // UTF-8, not checked
  kBytes,       // bytes, bytearray, or a string of Python 2
  kTuple,       // children: elements
  kList,        // children: elements
  kDict,        // children: key, value, key, value, ...
  kSet,         // children: elements
  kGlobal,      // text: "module.name"
  kObject,      // the result of a call or of NEWOBJ; see below
  kPersistent,  // children: the id, a value that the writer names things by
};

std::string_view NameOf(PickleKind kind);

struct PickleLimits {
  size_t nodes_max = size_t{1} << 27;
  size_t stack_max = size_t{1} << 22;   // values and marks waiting
  size_t memory_max = size_t{4} << 30;  // bytes, of all values
};

struct PickleOptions {
  // Names that may be imported, "module.name". Others end the reading. Without
  // a function any name is allowed, and stays a name all the same.
  std::function<bool(std::string_view)> allowed;
  bool persistent_ids = false;
  PickleLimits limits;
};

class Pickle {
 public:
  using Node = uint32_t;

  // kInvalidArgument names opcode and offset. `bytes` may go on after the
  // pickle's end; `size()` says where that is.
  static absl::StatusOr<Pickle> Parse(std::string_view bytes,
                                      const PickleOptions& options);

  Node root() const { return root_; }
  size_t size() const { return size_; }
  size_t nodes() const { return nodes_.size(); }

  PickleKind kind(Node node) const { return nodes_[node].kind; }
  bool boolean(Node node) const { return nodes_[node].number != 0; }
  int64_t integer(Node node) const { return nodes_[node].number; }
  double number(Node node) const;  // of kFloat
  // Of kString, kBytes, kBigInt and kGlobal; empty for others.
  std::string_view text(Node node) const;
  // Of the containers, and for kObject the items that were appended to it or
  // set in it (key, value, ...): an OrderedDict's content.
  std::span<const Node> children(Node node) const;

  // What was called or made, its arguments (a kTuple), and the state that BUILD
  // gave it, if any.
  Node callee(Node object) const;
  Node arguments(Node object) const;
  std::optional<Node> state(Node object) const;

  // Of a kDict, or of a kObject's items: the value of the string `key`. Looks
  // at each entry.
  std::optional<Node> Find(Node dict, std::string_view key) const;
  // True for a kObject whose callee is the kGlobal `name`.
  bool IsCallOf(Node node, std::string_view name) const;

 private:
  friend class PickleReader;
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Value {
    PickleKind kind = PickleKind::kNone;
    // Which entry of lists_; of kObject, of objects_; of a text, its size.
    uint32_t extra = 0;
    union {
      int64_t number = 0;
      const char* data;  // of a text
    };
  };
  struct Object {
    Node callee = 0;
    Node arguments = 0;
    Node state = kNone;
    uint32_t items = kNone;  // which entry of lists_
  };

  bool IsText(Node node) const;
  size_t memory() const;

  // Of many small pieces, so that growing does not need both the old and the
  // new memory at once.
  std::deque<Value> nodes_;
  std::deque<PickleList> lists_;
  std::deque<Object> objects_;
  PickleArena arena_;
  // Names of globals, made from two strings; the text views reach in here, so
  // each is allocated by itself.
  std::vector<std::unique_ptr<std::string>> names_;
  Node root_ = 0;
  size_t size_ = 0;
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_DCP_PICKLE_H_
