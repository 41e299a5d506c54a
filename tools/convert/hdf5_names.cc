// tools/convert/hdf5_names.cc: see hdf5_names.h.

#include "tools/convert/hdf5_names.h"

#include "absl/strings/str_format.h"

namespace holdfast::tools {
namespace {

bool IsEscaped(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f || c == '/' || c == '%';
}

int Digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

std::string Hdf5Name(std::string_view name) {
  if (name.empty()) return "%";
  if (name == ".") return "%2e";
  std::string out;
  for (const char c : name) {
    if (IsEscaped(c)) {
      absl::StrAppendFormat(&out, "%%%02x", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out;
}

std::optional<std::string> NameOfHdf5(std::string_view link) {
  std::string name;
  if (link == "%") return name;
  for (size_t i = 0; i < link.size(); ++i) {
    if (link[i] != '%') {
      name += link[i];
      continue;
    }
    if (i + 2 >= link.size() || Digit(link[i + 1]) < 0 ||
        Digit(link[i + 2]) < 0) {
      return std::nullopt;
    }
    name += static_cast<char>(Digit(link[i + 1]) * 16 + Digit(link[i + 2]));
    i += 2;
  }
  // One name, one spelling.
  if (Hdf5Name(name) != link) return std::nullopt;
  return name;
}

}  // namespace holdfast::tools
