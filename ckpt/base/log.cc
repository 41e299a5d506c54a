// ckpt/base/log.cc: the one door to spdlog.

#include "ckpt/base/log.h"

#include <memory>
#include <mutex>
#include <vector>

#include "spdlog/sinks/basic_file_sink.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace holdfast::ckpt {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

struct State {
  std::mutex mutex;
  std::string prefix;
  std::shared_ptr<spdlog::logger> logger;
};

State& TheState() {
  // Never destroyed: threads may log while the process ends.
  static State* const state = [] {
    auto* s = new State;
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    s->logger = std::make_shared<spdlog::logger>("holdfast", sink);
    s->logger->set_level(spdlog::level::info);
    s->logger->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    return s;
  }();
  return *state;
}

}  // namespace

absl::Status InitLog(LogLevel terminal, const std::string& file,
                     const std::string& prefix) {
  std::vector<spdlog::sink_ptr> sinks;
  auto err = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  err->set_level(ToSpdlog(terminal));
  err->set_pattern("%H:%M:%S.%e %l %v");
  sinks.push_back(std::move(err));
  if (!file.empty()) {
    // spdlog reports a file that it cannot open by an exception only.
    try {
      auto to_file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(file);
      to_file->set_level(spdlog::level::debug);
      to_file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
      sinks.push_back(std::move(to_file));
    } catch (const spdlog::spdlog_ex& error) {
      return absl::UnavailableError(
          absl::StrFormat("opening log file %s: %s", file, error.what()));
    }
  }
  auto logger =
      std::make_shared<spdlog::logger>("holdfast", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::debug);
  logger->flush_on(spdlog::level::info);
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.logger = std::move(logger);
  state.prefix = prefix.empty() ? "" : prefix + ": ";
  return absl::OkStatus();
}

void Log(LogLevel level, const std::string& message) {
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.logger->log(ToSpdlog(level), "{}{}", state.prefix, message);
}

void FlushLog() {
  State& state = TheState();
  const std::lock_guard<std::mutex> lock(state.mutex);
  state.logger->flush();
}

}  // namespace holdfast::ckpt
