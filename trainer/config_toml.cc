// trainer/config_toml.cc: the one door to toml++.

#include "trainer/config_toml.h"

#include <exception>
#include <stdexcept>
#include <utility>

// toml++ 3.3.0 asserts its own grammar on some malformed texts, such as a key
// that starts with a byte no key may have. A wrong file must be an error with a
// line, not an abort, so its assertions throw. Under NDEBUG toml++ would turn
// them off, and some into assumptions: here they stay on in every build.
#undef NDEBUG
#define TOML_ASSERT(condition)        \
  ((condition) ? static_cast<void>(0) \
               : ::holdfast::trainer::ThrowMalformedToml())

namespace holdfast::trainer {

struct MalformedToml : std::runtime_error {
  MalformedToml() : std::runtime_error("not a key, a table or a value") {}
};

[[noreturn]] static void ThrowMalformedToml() { throw MalformedToml(); }

}  // namespace holdfast::trainer

#include <toml++/toml.h>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"

namespace holdfast::trainer {
namespace {

// The same toml++ classifies some letters beyond ASCII as neither space nor not
// (its issues 190 and 295), which is undefined behaviour for a mere comment in
// German. So no such byte reaches it: each becomes "~" and two hexadecimal
// digits, and so does "~" itself.
std::string ToAscii(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || c == '~') {
      absl::StrAppendFormat(&out, "~%02x", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::string FromAscii(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    // Messages quote text, and may have cut it off anywhere.
    if (text[i] == '~' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

absl::StatusOr<ConfigScalar> Scalar(const toml::node& node,
                                    const std::string& where,
                                    const std::string& key) {
  if (const auto* integer = node.as_integer()) return integer->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* boolean = node.as_boolean()) return boolean->get();
  if (const auto* text = node.as_string()) return FromAscii(text->get());
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
    std::string full = prefix + FromAscii(key.str());
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

namespace {

// The first line that MalformedToml is about, which does not say so itself.
int MalformedLine(std::string_view text) {
  int line = 1;
  for (size_t end = text.find('\n'); end != std::string_view::npos;
       end = text.find('\n', end + 1), ++line) {
    try {
      (void)toml::parse(ToAscii(text.substr(0, end)));
    } catch (const MalformedToml&) {
      return line;
    } catch (const std::exception&) {
      // Cut off in the middle of a list or a string, perhaps.
    }
  }
  return line;
}

}  // namespace

absl::StatusOr<std::vector<ConfigEntry>> ReadToml(std::string_view text,
                                                  std::string_view name) {
  std::vector<ConfigEntry> entries;
  // "\u007e41" would come out of FromAscii as a letter.
  const std::string lower = absl::AsciiStrToLower(std::string(text));
  if (lower.find("\\u007e") != std::string::npos ||
      lower.find("\\u0000007e") != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: '~' is spelled as an escape; write it as itself", name));
  }
  try {
    const toml::table table = toml::parse(ToAscii(text));
    HF_RETURN_IF_ERROR(Flatten(table, "", name, entries));
  } catch (const toml::parse_error& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s:%d: not valid TOML: %s", name,
                        error.source().begin.line, FromAscii(error.what())));
  } catch (const MalformedToml& error) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s:%d: not valid TOML: %s", name, MalformedLine(text), error.what()));
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
    const toml::table table = toml::parse("value = " + ToAscii(value));
    if (table.size() == 1 && !table.begin()->second.is_table()) {
      return Entry(table.begin()->second, where, std::move(key));
    }
  } catch (const toml::parse_error&) {
    // A bare word: below.
  } catch (const MalformedToml&) {
    // The same.
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %s", where, error.what()));
  }
  return ConfigEntry{.key = std::move(key), .where = where, .values = {value}};
}

}  // namespace holdfast::trainer
