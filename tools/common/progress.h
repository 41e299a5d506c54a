// tools/common/progress.h: one line that says how far long work has come.
//
// On a terminal the line is rewritten in place up to ten times a second:
//
//   reading  41 %  1.23 GB of 3.00 GB  812 MB/s (54 % of the raw 1.50
//   GB/s)  2.2 s left
//
// Elsewhere, so that logs stay readable, a plain line every ten seconds. Speaks
// on stderr. One thread. An update that prints nothing costs a clock reading.

#ifndef HOLDFAST_TOOLS_COMMON_PROGRESS_H_
#define HOLDFAST_TOOLS_COMMON_PROGRESS_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "ckpt/base/clock.h"

namespace holdfast::tools {

class Progress {
 public:
  struct Options {
    std::string doing = {};  // "reading"
    std::string unit = {};   // "" for bytes, or "steps", "tensors", ...
    double raw_per_s = 0;    // The bare device's rate to compare with; 0: none.
    bool terminal = IsTerminal();
    std::FILE* out = stderr;
  };

  Progress(const Options& options, ckpt::Clock& clock);

  // What is done from now on: "reserving space". Rate and time left are those
  // of all that was done so far.
  void SetDoing(std::string doing) { doing_ = std::move(doing); }

  // `done` of `total`, which may change, and be 0 while it is unknown.
  void Update(uint64_t done, uint64_t total);

  // Ends the line with what it came to: "reading: 3.00 GB in 3.7 s, 811 MB/s".
  // Says nothing if no line was printed and the work took less than a second.
  void Finish();

  // Whether stderr is a terminal that understands a carriage return.
  static bool IsTerminal();

 private:
  std::string Amount(uint64_t amount) const;
  std::string Rate(absl::Duration time) const;
  std::string Line(absl::Duration time) const;

  const Options options_;
  std::string doing_;
  ckpt::Clock& clock_;
  const absl::Duration start_;
  absl::Duration printed_at_;
  bool printed_ = false;
  size_t shown_ = 0;  // Width of the line that stands on the terminal.
  uint64_t done_ = 0;
  uint64_t total_ = 0;
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_COMMON_PROGRESS_H_
