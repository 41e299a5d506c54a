// tools/common/progress.cc: when to print, and what.

#include "tools/common/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "tools/common/text.h"

namespace holdfast::tools {
namespace {

constexpr absl::Duration kTerminalPeriod = absl::Milliseconds(100);
constexpr absl::Duration kPlainPeriod = absl::Seconds(10);
constexpr absl::Duration kSilent = absl::Seconds(1);

}  // namespace

Progress::Progress(const Options& options, ckpt::Clock& clock)
    : options_(options),
      doing_(options.doing),
      clock_(clock),
      start_(clock.Monotonic()),
      printed_at_(start_) {}

std::string Progress::Amount(uint64_t amount) const {
  return options_.unit.empty() ? BytesText(static_cast<double>(amount))
                               : CountText(amount);
}

std::string Progress::Rate(absl::Duration time) const {
  const double seconds = std::max(absl::ToDoubleSeconds(time), 1e-9);
  const double rate = static_cast<double>(done_) / seconds;
  std::string text = options_.unit.empty()
                         ? BytesText(rate) + "/s"
                         : absl::StrFormat("%.3g %s/s", rate, options_.unit);
  if (options_.raw_per_s > 0) {
    absl::StrAppendFormat(&text, " (%.0f %% of the raw %s/s)",
                          100 * rate / options_.raw_per_s,
                          BytesText(options_.raw_per_s));
  }
  return text;
}

std::string Progress::Line(absl::Duration time) const {
  const std::string unit = options_.unit.empty() ? "" : " " + options_.unit;
  if (total_ == 0) {
    return absl::StrFormat("%s  %s%s  %s", doing_, Amount(done_), unit,
                           Rate(time));
  }
  std::string line = absl::StrFormat(
      "%s  %.0f %%  %s of %s%s  %s", doing_,
      100.0 * static_cast<double>(done_) / static_cast<double>(total_),
      Amount(done_), Amount(total_), unit, Rate(time));
  if (done_ > 0 && done_ < total_) {
    const double left = absl::ToDoubleSeconds(time) *
                        static_cast<double>(total_ - done_) /
                        static_cast<double>(done_);
    line += "  " + DurationText(left) + " left";
  }
  return line;
}

void Progress::Update(uint64_t done, uint64_t total) {
  done_ = done;
  total_ = total;
  const absl::Duration now = clock_.Monotonic();
  if (now - printed_at_ <
      (options_.terminal ? kTerminalPeriod : kPlainPeriod)) {
    return;
  }
  printed_at_ = now;
  printed_ = true;
  std::string line = Line(now - start_);
  if (options_.terminal) {
    const size_t width = line.size();
    // Covers what is left of a longer line.
    if (width < shown_) line += std::string(shown_ - width, ' ');
    shown_ = width;
    line = "\r" + line;
  } else {
    line += "\n";
  }
  std::fputs(line.c_str(), options_.out);
  std::fflush(options_.out);
}

void Progress::Finish() {
  const absl::Duration time = clock_.Monotonic() - start_;
  if (!printed_ && time < kSilent) return;
  if (shown_ > 0) {
    const std::string blank(shown_, ' ');
    std::fprintf(options_.out, "\r%s\r", blank.c_str());
  }
  const std::string line =
      absl::StrFormat("%s: %s%s in %s, %s\n", options_.doing, Amount(done_),
                      options_.unit.empty() ? "" : " " + options_.unit,
                      DurationText(absl::ToDoubleSeconds(time)), Rate(time));
  std::fputs(line.c_str(), options_.out);
  std::fflush(options_.out);
}

bool Progress::IsTerminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) == 1 &&
         (term == nullptr || std::strcmp(term, "dumb") != 0);
}

}  // namespace holdfast::tools
