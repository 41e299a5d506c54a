// tools/convert/dcp/pickle.cc: the values of a pickle, once they are read.

#include "tools/convert/dcp/pickle.h"

#include <bit>

namespace holdfast::tools {

std::string_view NameOf(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return "a truth value";
    case PickleKind::kInt:
      return "an integer";
    case PickleKind::kBigInt:
      return "an integer of more than 64 bits";
    case PickleKind::kFloat:
      return "a float";
    case PickleKind::kString:
      return "a string";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kTuple:
      return "a tuple";
    case PickleKind::kList:
      return "a list";
    case PickleKind::kDict:
      return "a dictionary";
    case PickleKind::kSet:
      return "a set";
    case PickleKind::kGlobal:
      return "an imported name";
    case PickleKind::kObject:
      return "an object";
    case PickleKind::kPersistent:
      return "a persistent id";
  }
  return "a value";
}

double Pickle::number(Node node) const {
  return std::bit_cast<double>(nodes_[node].number);
}

bool Pickle::IsText(Node node) const {
  switch (nodes_[node].kind) {
    case PickleKind::kString:
    case PickleKind::kBytes:
    case PickleKind::kBigInt:
    case PickleKind::kGlobal:
      return true;
    default:
      return false;
  }
}

size_t Pickle::memory() const {
  return nodes_.size() * sizeof(Value) + lists_.size() * sizeof(PickleList) +
         objects_.size() * sizeof(Object) + arena_.bytes();
}

std::string_view Pickle::text(Node node) const {
  if (!IsText(node)) return {};
  return {nodes_[node].data, nodes_[node].extra};
}

std::span<const Pickle::Node> Pickle::children(Node node) const {
  const Value& value = nodes_[node];
  switch (value.kind) {
    case PickleKind::kTuple:
    case PickleKind::kList:
    case PickleKind::kDict:
    case PickleKind::kSet:
    case PickleKind::kPersistent: {
      const PickleList& list = lists_[value.extra];
      return {list.data, list.size};
    }
    case PickleKind::kObject: {
      const uint32_t items = objects_[value.extra].items;
      if (items == kNone) return {};
      return {lists_[items].data, lists_[items].size};
    }
    default:
      return {};
  }
}

Pickle::Node Pickle::callee(Node object) const {
  return objects_[nodes_[object].extra].callee;
}

Pickle::Node Pickle::arguments(Node object) const {
  return objects_[nodes_[object].extra].arguments;
}

std::optional<Pickle::Node> Pickle::state(Node object) const {
  const Object& entry = objects_[nodes_[object].extra];
  if (entry.state == kNone) return std::nullopt;
  return entry.state;
}

std::optional<Pickle::Node> Pickle::Find(Node dict,
                                         std::string_view key) const {
  if (kind(dict) != PickleKind::kDict && kind(dict) != PickleKind::kObject) {
    return std::nullopt;
  }
  const std::span<const Node> entries = children(dict);
  for (size_t i = 0; i + 1 < entries.size(); i += 2) {
    if (kind(entries[i]) == PickleKind::kString && text(entries[i]) == key) {
      return entries[i + 1];
    }
  }
  return std::nullopt;
}

bool Pickle::IsCallOf(Node node, std::string_view name) const {
  return kind(node) == PickleKind::kObject &&
         kind(callee(node)) == PickleKind::kGlobal &&
         text(callee(node)) == name;
}

}  // namespace holdfast::tools
