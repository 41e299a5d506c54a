// trainer/config_toml.cc: the one door to toml++.

#include "trainer/config_toml.h"

#include <toml++/toml.h>

#include <exception>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

absl::StatusOr<ConfigScalar> Scalar(const toml::node& node,
                                    const std::string& where,
                                    const std::string& key) {
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* boolean = node.as_boolean()) return boolean->get();
  if (const auto* text = node.as_string()) return text->get();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s: expected a number, true or false, a string, or a list of them; "
      "found a date, a time or a list within a list",
      where, key));
}

absl::StatusOr<ConfigEntry> Entry(const toml::node& node,
                                  const std::string& where, std::string key) {
  ConfigEntry entry{.key = std::move(key), .where = where};
  if (const toml::array* list = node.as_array()) {
    entry.is_list = true;
    for (const toml::node& element : *list) {
      HF_ASSIGN_OR_RETURN(ConfigScalar value,
                          Scalar(element, where, entry.key));
      entry.values.push_back(std::move(value));
    }
  } else {
    HF_ASSIGN_OR_RETURN(ConfigScalar value, Scalar(node, where, entry.key));
    entry.values.push_back(std::move(value));
  }
  return entry;
}

absl::Status Flatten(const toml::table& table, const std::string& prefix,
                     std::string_view name, std::vector<ConfigEntry>& out) {
  for (const auto& [key, node] : table) {
    std::string full = prefix + std::string(key.str());
    if (const toml::table* inner = node.as_table()) {
      HF_RETURN_IF_ERROR(Flatten(*inner, full + ".", name, out));
      continue;
    }
    const std::string where =
        absl::StrFormat("%s:%d", name, node.source().begin.line);
    HF_ASSIGN_OR_RETURN(ConfigEntry entry, Entry(node, where, std::move(full)));
    out.push_back(std::move(entry));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<ConfigEntry>> ReadToml(std::string_view text,
                                                  std::string_view name) {
  std::vector<ConfigEntry> entries;
  try {
    const toml::table table = toml::parse(text);
    HF_RETURN_IF_ERROR(Flatten(table, "", name, entries));
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%d: not valid TOML: %s", name,
                        error.source().begin.line, error.what()));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: reading TOML: %s", name, error.what()));
  }
  return entries;
}

absl::StatusOr<ConfigEntry> ReadSet(std::string_view set) {
  const std::string where = "--set " + std::string(set);
  const size_t equals = set.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: expected KEY=VALUE, such as --set parallel.tp=2", where));
  }
  std::string key(set.substr(0, equals));
  const std::string value(set.substr(equals + 1));
  try {
    const toml::table table = toml::parse("value = " + value);
    if (table.size() == 1 && !table.begin()->second.is_table()) {
      return Entry(table.begin()->second, where, std::move(key));
    }
  } catch (const toml::parse_error&) {
    // A bare word: below.
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s", where, error.what()));
  }
  return ConfigEntry{.key = std::move(key), .where = where, .values = {value}};
}

}  // namespace holdfast::trainer
