// trainer/config_value.cc: one value: checked, assigned, written out again.

#include <charconv>
#include <cmath>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "trainer/config_keys.h"

namespace holdfast::trainer {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// The shortest decimal that reads back as the same bits.
std::string NumberText(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value).ptr;
  std::string text(buffer, end);
  // TOML tells numbers from integers by the point or the exponent.
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&out, "\\u%04X",
                            static_cast<unsigned>(static_cast<uint8_t>(c)));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string ScalarText(const ConfigScalar& value) {
  return std::visit(
      Overloaded{
          [](int64_t integer) { return std::to_string(integer); },
          [](double number) { return NumberText(number); },
          [](bool boolean) { return std::string(boolean ? "true" : "false"); },
          [](const std::string& text) { return Quoted(text); }},
      value);
}

std::string EntryText(const ConfigEntry& entry) {
  if (!entry.is_list) return ScalarText(entry.values[0]);
  std::vector<std::string> texts;
  for (const ConfigScalar& value : entry.values) {
    texts.push_back(ScalarText(value));
  }
  return "[" + absl::StrJoin(texts, ", ") + "]";
}

std::string IntervalText(const SaveInterval& interval) {
  if (interval.automatic) return "\"auto\"";
  if (interval.seconds > 0) {
    if (interval.seconds % 60 == 0) {
      return absl::StrFormat("\"%dmin\"", interval.seconds / 60);
    }
    return absl::StrFormat("\"%ds\"", interval.seconds);
  }
  return std::to_string(interval.steps);
}

std::string FilesText(const FileCount& files) {
  if (files.count == FileCount::kPerRank) return "\"per_rank\"";
  if (files.count == FileCount::kPerNode) return "\"per_node\"";
  return std::to_string(files.count);
}

// "30min", "90s", "2h"; nullopt for anything else, zero included.
std::optional<int64_t> ParseSeconds(std::string_view text) {
  int64_t count = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || count < 1 || count > 1'000'000) {
    return std::nullopt;
  }
  const std::string_view unit(end, text.data() + text.size() - end);
  if (unit == "s") return count;
  if (unit == "min") return count * 60;
  if (unit == "h") return count * 3600;
  return std::nullopt;
}

bool Within(const Range& range, double value) {
  if (!std::isfinite(value)) return false;
  if (value < range.low || (range.low_open && value == range.low)) return false;
  return !(value > range.high || (range.high_open && value == range.high));
}

std::string ExpectedText(const Key& key) {
  const std::string range = RangeText(key.range);
  return range.empty() ? TypeName(key) : TypeName(key) + ", " + range;
}

absl::Status Wrong(const Key& key, const ConfigEntry& entry) {
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s: expected %s; found %s", entry.where, key.name,
                      ExpectedText(key), EntryText(entry)));
}

std::optional<double> AsNumber(const ConfigScalar& value) {
  if (const auto* number = std::get_if<double>(&value)) return *number;
  if (const auto* integer = std::get_if<int64_t>(&value)) {
    return static_cast<double>(*integer);
  }
  return std::nullopt;
}

}  // namespace

std::string RangeText(const Range& range) {
  const auto text = [](double bound) {
    return bound == std::floor(bound) && std::abs(bound) < 1e15
               ? std::to_string(static_cast<int64_t>(bound))
               : NumberText(bound);
  };
  const bool low = std::isfinite(range.low);
  const bool high = std::isfinite(range.high);
  if (low && high) {
    return text(range.low) + (range.low_open ? " (excluded)" : "") + " to " +
           text(range.high) + (range.high_open ? " (excluded)" : "");
  }
  if (low) return (range.low_open ? "above " : ">= ") + text(range.low);
  if (high) return (range.high_open ? "below " : "<= ") + text(range.high);
  return "";
}

std::string TypeName(const Key& key) {
  Config config;
  return std::visit(
      Overloaded{
          [](int64_t*) -> std::string { return "integer"; },
          [](uint64_t*) -> std::string { return "integer"; },
          [](double*) -> std::string { return "number"; },
          [](bool*) -> std::string { return "true or false"; },
          [](std::vector<int64_t>*) -> std::string {
            return "list of integers";
          },
          [](std::vector<double>*) -> std::string { return "list of numbers"; },
          [](std::vector<std::string>*) -> std::string {
            return "list of strings";
          },
          [](SaveInterval*) -> std::string {
            return "integer >= 0, or a time such as \"30min\" (s, min, h), or "
                   "\"auto\"";
          },
          [](FileCount*) -> std::string {
            return "\"per_rank\", \"per_node\", or an integer";
          },
          [&](const EnumField&) -> std::string {
            std::string names;
            for (const std::string_view choice : key.choices) {
              names += (names.empty() ? "" : ", ") + Quoted(choice);
            }
            return "one of " + names;
          }},
      key.field(config));
}

std::string ValueText(const Key& key, const Config& config) {
  // The table's accessors are for writing too; nothing is written here.
  const Field field = key.field(const_cast<Config&>(config));
  const auto list = [](const auto& values, const auto& text) {
    std::vector<std::string> texts;
    for (const auto& value : values) texts.push_back(text(value));
    return "[" + absl::StrJoin(texts, ", ") + "]";
  };
  return std::visit(
      Overloaded{[](const int64_t* value) { return std::to_string(*value); },
                 [](const uint64_t* value) { return std::to_string(*value); },
                 [](const double* value) { return NumberText(*value); },
                 [](const bool* value) {
                   return std::string(*value ? "true" : "false");
                 },
                 [&](const std::vector<int64_t>* values) {
                   return list(*values,
                               [](int64_t v) { return std::to_string(v); });
                 },
                 [&](const std::vector<double>* values) {
                   return list(*values, NumberText);
                 },
                 [&](const std::vector<std::string>* values) {
                   return list(*values, Quoted);
                 },
                 [](const SaveInterval* value) { return IntervalText(*value); },
                 [](const FileCount* value) { return FilesText(*value); },
                 [&](const EnumField& value) {
                   return Quoted(key.choices[value.get(value.target)]);
                 }},
      field);
}

absl::Status AssignKey(const Key& key, const ConfigEntry& entry,
                       Config& config) {
  const Field field = key.field(config);
  const auto one = [&]() -> const ConfigScalar* {
    return entry.is_list ? nullptr : &entry.values[0];
  };
  const auto integer = [&](const ConfigScalar* value, auto& out) {
    const auto* found = value ? std::get_if<int64_t>(value) : nullptr;
    if (!found || !Within(key.range, static_cast<double>(*found))) return false;
    out = static_cast<std::remove_reference_t<decltype(out)>>(*found);
    return true;
  };
  const auto number = [&](const ConfigScalar* value, double& out) {
    const auto found = value ? AsNumber(*value) : std::nullopt;
    if (!found || !Within(key.range, *found)) return false;
    out = *found;
    return true;
  };
  const auto text = [&](const ConfigScalar* value) {
    return value ? std::get_if<std::string>(value) : nullptr;
  };
  const auto list = [&](auto& out, const auto& element) {
    if (!entry.is_list) return false;
    out.clear();
    for (const ConfigScalar& value : entry.values) {
      typename std::remove_reference_t<decltype(out)>::value_type made{};
      if (!element(&value, made)) return false;
      out.push_back(std::move(made));
    }
    return true;
  };
  const bool fits = std::visit(
      Overloaded{
          [&](int64_t* out) { return integer(one(), *out); },
          [&](uint64_t* out) { return integer(one(), *out); },
          [&](double* out) { return number(one(), *out); },
          [&](bool* out) {
            const auto* found = one() ? std::get_if<bool>(one()) : nullptr;
            if (found) *out = *found;
            return found != nullptr;
          },
          [&](std::vector<int64_t>* out) { return list(*out, integer); },
          [&](std::vector<double>* out) { return list(*out, number); },
          [&](std::vector<std::string>* out) {
            return list(*out,
                        [&](const ConfigScalar* value, std::string& element) {
                          if (text(value)) element = *text(value);
                          return text(value) && !element.empty();
                        });
          },
          [&](SaveInterval* out) {
            if (const auto* found = text(one())) {
              const auto seconds = ParseSeconds(*found);
              *out = {.seconds = seconds.value_or(0),
                      .automatic = *found == "auto"};
              return seconds.has_value() || out->automatic;
            }
            const auto* steps = one() ? std::get_if<int64_t>(one()) : nullptr;
            if (!steps || *steps < 0) return false;
            *out = {.steps = *steps};
            return true;
          },
          [&](FileCount* out) {
            if (const auto* found = text(one())) {
              out->count = *found == "per_node" ? FileCount::kPerNode
                                                : FileCount::kPerRank;
              return *found == "per_node" || *found == "per_rank";
            }
            return integer(one(), out->count);
          },
          [&](const EnumField& out) {
            const auto* found = text(one());
            for (size_t i = 0; found && i < key.choices.size(); ++i) {
              if (*found == key.choices[i]) {
                out.set(out.target, static_cast<int>(i));
                return true;
              }
            }
            return false;
          }},
      field);
  return fits ? absl::OkStatus() : Wrong(key, entry);
}

}  // namespace holdfast::trainer
