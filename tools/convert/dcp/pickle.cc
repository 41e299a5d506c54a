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

std::string_view Pickle::text(Node node) const {
  const Value& value = nodes_[node];
  if (value.data == nullptr) return {};
  return {value.data, static_cast<size_t>(value.number)};
}

std::span<const Pickle::Node> Pickle::children(Node node) const {
  const Value& value = nodes_[node];
  switch (value.kind) {
    case PickleKind::kTuple:
    case PickleKind::kList:
    case PickleKind::kDict:
    case PickleKind::kSet:
    case PickleKind::kPersistent:
      return lists_[value.extra];
    case PickleKind::kObject:
      return objects_[value.extra].items;
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
  if (!entry.has_state) return std::nullopt;
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
