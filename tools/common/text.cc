// tools/common/text.cc: formatting, and how programs end.

#include "tools/common/text.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "trainer/fault/exit_codes.h"

namespace holdfast::tools {
namespace {

// The bytes of the character that `text` begins with; 0 when a terminal must
// not see it, or it is none.
size_t CharacterLength(std::string_view text) {
  const auto byte = [&text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const size_t length = first >= 0xf0   ? 4
                        : first >= 0xe0 ? 3
                        : first >= 0xc2 ? 2
                                        : 0;
  if (first > 0xf4) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // C1 controls, as U+009B, which begins a sequence as ESC [ does.
  return first == 0xc2 && byte(1) < 0xa0 ? 0 : length;
}

}  // namespace

std::string BytesText(double bytes) {
  if (bytes < 1000) return absl::StrFormat("%.0f B", bytes);
  constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  double value = bytes / 1000;
  // 999.5 would print as 1000.
  while (value >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f %s", decimals, value, kUnits[unit]);
}

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  const size_t digits =
      std::min(text.find_first_not_of("0123456789."), text.size());
  std::string unit(text.substr(digits));
  double scale = 1;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kPrefixes = "kMGT";
    const size_t power = unit[0] == 'K' ? 0 : kPrefixes.find(unit[0]);
    const std::string rest = unit.substr(1);
    const bool binary = rest == "i" || rest == "iB";
    if (power == std::string_view::npos ||
        !(rest.empty() || rest == "B" || binary)) {
      scale = 0;
    }
    for (size_t i = 0; i <= power && scale > 0; ++i) {
      scale *= binary ? 1024 : 1000;
    }
  }
  double number = 0;
  if (scale == 0 ||
      !absl::SimpleAtod(std::string(text.substr(0, digits)), &number) ||
      !(number * scale <= 9.2e18)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "'%s' is no number of bytes; 4096, 256M, 5GB or 2GiB is expected",
        std::string(text)));
  }
  return static_cast<uint64_t>(number * scale);
}

std::string CountText(uint64_t count) {
  std::string text = std::to_string(count);
  for (auto at = static_cast<ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string DurationText(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds < 0.9995) return absl::StrFormat("%.0f ms", seconds * 1000);
  if (seconds < 59.95) return absl::StrFormat("%.1f s", seconds);
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) {
    return absl::StrFormat("%d min %d s", whole / 60, whole % 60);
  }
  if (whole < 86400) {
    return absl::StrFormat("%d h %d min", whole / 3600, whole / 60 % 60);
  }
  return absl::StrFormat("%d d %d h", whole / 86400, whole / 3600 % 24);
}

std::string TableText(const std::vector<std::vector<std::string>>& cells,
                      const std::vector<Align>& aligns) {
  std::vector<std::vector<std::string>> rows = cells;
  for (auto& row : rows) {
    for (std::string& cell : row) cell = Printable(cell);
  }
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    if (row.size() > widths.size()) widths.resize(row.size(), 0);
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string fill(widths[i] - row[i].size(), ' ');
      const bool right = i < aligns.size() && aligns[i] == Align::kRight;
      line += i == 0 ? "" : "  ";
      line += right ? fill + row[i] : row[i] + fill;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string Printable(std::string_view text, bool keep_lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = CharacterLength(text);
    if (length > 0 || (keep_lines && text[0] == '\n')) {
      const size_t taken = std::max<size_t>(length, 1);
      out += text.substr(0, taken);
      text.remove_prefix(taken);
    } else {
      absl::StrAppendFormat(&out, "\\x%02x",
                            static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
    }
  }
  return out;
}

std::string WrapText(std::string_view text, size_t width, size_t indent) {
  std::string out;
  size_t column = 0;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    if (column > 0 && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!out.empty()) {
      out += " ";
      ++column;
    }
    out += word;
    column += word.size();
  }
  return out;
}

int ReportFailure(std::string_view program, const absl::Status& status) {
  const std::string line = absl::StrFormat(
      "%s: %s\n", program, Printable(std::string(status.message()), true));
  std::fflush(stdout);
  std::fputs(line.c_str(), stderr);
  return trainer::ExitCodeOf(status);
}

int FinishOutput(std::string_view program, int code) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  // An earlier write failed and its reason is gone, with what it should have
  // written: the output is damaged already, and one more byte asks again.
  if (errno == 0 && ::write(STDOUT_FILENO, "\n", 1) == 1) errno = 0;
  const std::string line =
      absl::StrFormat("%s: writing results to stdout: %s\n", program,
                      errno == 0 ? "failed" : std::strerror(errno));
  std::fputs(line.c_str(), stderr);
  return trainer::kExitIo;
}

}  // namespace holdfast::tools
