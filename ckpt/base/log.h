// ckpt/base/log.h: one line of log, to stderr and to the rank's log file.
//
// Any thread may call. Messages are formatted by absl::StrFormat; spdlog,
// behind log.cc, adds time and level and does the writing.
//
//   HF_LOG_INFO("step %d: saved %s", step, name);

#ifndef HOLDFAST_CKPT_BASE_LOG_H_
#define HOLDFAST_CKPT_BASE_LOG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace holdfast::ckpt {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// `terminal`: lowest level that reaches stderr. `file`: "" for none; opened for
// appending, kUnavailable when it cannot be. `prefix` precedes each message,
// such as "rank 3". Before the first call everything from kInfo up goes to
// stderr.
absl::Status InitLog(LogLevel terminal, const std::string& file,
                     const std::string& prefix);

void Log(LogLevel level, const std::string& message);

// Everything logged so far reaches the file. Called before an abrupt exit.
void FlushLog();

}  // namespace holdfast::ckpt

#define HF_LOG_DEBUG(...)                                   \
  ::holdfast::ckpt::Log(::holdfast::ckpt::LogLevel::kDebug, \
                        absl::StrFormat(__VA_ARGS__))
#define HF_LOG_INFO(...)                                   \
  ::holdfast::ckpt::Log(::holdfast::ckpt::LogLevel::kInfo, \
                        absl::StrFormat(__VA_ARGS__))
#define HF_LOG_WARNING(...)                                   \
  ::holdfast::ckpt::Log(::holdfast::ckpt::LogLevel::kWarning, \
                        absl::StrFormat(__VA_ARGS__))
#define HF_LOG_ERROR(...)                                   \
  ::holdfast::ckpt::Log(::holdfast::ckpt::LogLevel::kError, \
                        absl::StrFormat(__VA_ARGS__))

#endif  // HOLDFAST_CKPT_BASE_LOG_H_
