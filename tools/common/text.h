// tools/common/text.h: numbers, tables and failures as people read them.
//
// Shared by all programs. Results go to stdout, messages to stderr.

#ifndef HOLDFAST_TOOLS_COMMON_TEXT_H_
#define HOLDFAST_TOOLS_COMMON_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace holdfast::tools {

// "12 B", "1.50 kB", "12.3 MB", "1.37 GB", "7.00 TB": decimal units, three
// digits.
std::string BytesText(double bytes);

// "4096", "256M", "5GB" and "1.5T" (decimal), "64KiB" and "2Gi" (binary).
// kInvalidArgument: something else, or more than 63 bits.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// "1,234,567"
std::string CountText(uint64_t count);

// "850 ms", "4.2 s", "3 min 20 s", "2 h 5 min", "3 d 4 h"
std::string DurationText(double seconds);

// `text` as a terminal may see it: control characters (C0, DEL, C1) and bytes
// that are no UTF-8 become "\x1b". What comes out of files may hold them, and
// they could rewrite what stands above. `keep_lines` lets '\n' pass.
std::string Printable(std::string_view text, bool keep_lines = false);

enum class Align { kLeft, kRight };

// Rows as columns two spaces apart, each as wide as its longest cell, without
// trailing spaces. Rows may have fewer cells than there are columns. Widths are
// in bytes, so cells are ASCII; each goes through Printable. `aligns` may be
// shorter: the rest is kLeft.
std::string TableText(const std::vector<std::vector<std::string>>& rows,
                      const std::vector<Align>& aligns = {});

// `text` in lines of at most `width`, broken at spaces, every line but the
// first indented by `indent`.
std::string WrapText(std::string_view text, size_t width, size_t indent);

// Says "PROGRAM: MESSAGE", Printable, on stderr and returns the exit code for
// the status (trainer/fault/exit_codes.h). `program` is "holdfast data".
int ReportFailure(std::string_view program, const absl::Status& status);

// Flushes stdout and returns `code`, or the code for I/O with a message when
// results could not be written: a full disk must not look like success.
int FinishOutput(std::string_view program, int code);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_COMMON_TEXT_H_
