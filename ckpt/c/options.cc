// ckpt/c/options.cc: one table of names.

#include "ckpt/c/options.h"

#include <charconv>
#include <limits>
#include <memory>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/c/guard.h"
#include "ckpt/c/holdfast_ckpt.h"

namespace holdfast::ckpt {
namespace {

using Place =
    std::variant<int*, int64_t*, uint64_t*, double*, bool*, std::string*>;

std::vector<std::pair<const char*, Place>> PlacesIn(COptions* options) {
  CheckpointerOptions& c = options->checkpointer;
  return {
      {"keep_last", &c.keep_last},
      {"keep_every", &c.keep_every},
      {"keep_older_s", &c.keep_older_s},
      {"fence_ms", &c.fence_ms},
      {"arena_bytes", &c.arena_bytes},
      {"open_timeout_ms", &options->open_timeout_ms},
      {"load_timeout_ms", &c.load_timeout_ms},
      {"begin_timeout_ms", &c.begin_timeout_ms},
      {"vote_timeout_ms", &c.vote_timeout_ms},
      {"io_timeout_ms", &c.io_timeout_ms},
      {"close_timeout_ms", &c.close_timeout_ms},
      {"storage", &c.storage},
      {"queue_depth", &c.queue_depth},
      {"direct_io", &c.direct_io},
      {"files", &c.files},
      {"codec", &c.codec},
      {"codec_level", &c.codec_level},
      {"codec_threads", &c.codec_threads},
      {"raw_write_bytes_per_s", &c.raw_write_bytes_per_s},
      {"raw_read_bytes_per_s", &c.raw_read_bytes_per_s},
      {"layout", &options->layout},
      {"fault_spec", &c.fault_spec},
      {"protect_unreleased", &c.protect_unreleased},
      {"recheck_after_write", &c.recheck_after_write},
  };
}

// False: the text is not one, or has more behind it.
template <typename Number>
bool ParseNumber(std::string_view text, Number* number) {
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, *number);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

absl::Status Set(std::string_view name, std::string_view value, Place place) {
  const auto wrong = [&](const std::string& expected) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "option %s is '%s'; expected %s", name, value, expected));
  };
  return std::visit(
      [&](auto* target) -> absl::Status {
        using Type = std::remove_pointer_t<decltype(target)>;
        if constexpr (std::is_same_v<Type, std::string>) {
          *target = value;
        } else if constexpr (std::is_same_v<Type, bool>) {
          if (value != "true" && value != "false") {
            return wrong("true or false");
          }
          *target = value == "true";
        } else if constexpr (std::is_same_v<Type, double>) {
          double number = 0;
          if (!ParseNumber(value, &number) || !(number >= 0) ||
              number > std::numeric_limits<double>::max()) {
            return wrong("a number from 0 up");
          }
          *target = number;
        } else {
          Type number = 0;
          if (!ParseNumber(value, &number)) {
            return wrong(absl::StrFormat("a whole number, at most %d",
                                         std::numeric_limits<Type>::max()));
          }
          *target = number;
        }
        return absl::OkStatus();
      },
      place);
}

}  // namespace

absl::Status SetOption(std::string_view name, std::string_view value,
                       COptions* options) {
  if (name == "keep_last" && value == "all") {
    options->checkpointer.keep_last = kKeepAll;
    return absl::OkStatus();
  }
  std::vector<const char*> names;
  for (const auto& [known, place] : PlacesIn(options)) {
    if (name == known) return Set(name, value, place);
    names.push_back(known);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("there is no option '%s'; there are %s", name,
                      absl::StrJoin(names, ", ")));
}

}  // namespace holdfast::ckpt

using holdfast::ckpt::Guard;
using holdfast::ckpt::NullArgument;

extern "C" {

hf_ckpt_code hf_ckpt_options_new(hf_ckpt_options** options) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_options_new", options);
    *options = new hf_ckpt_options;
    return absl::OkStatus();
  });
}

hf_ckpt_code hf_ckpt_options_set(hf_ckpt_options* options, const char* name,
                                 const char* value) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_options_set", options);
    HF_REQUIRE_NOT_NULL("hf_ckpt_options_set", name);
    HF_REQUIRE_NOT_NULL("hf_ckpt_options_set", value);
    return holdfast::ckpt::SetOption(name, value, &options->options);
  });
}

hf_ckpt_code hf_ckpt_measure_device(const char* dir, double* write,
                                    double* read) {
  return Guard(__func__, [&]() -> absl::Status {
    HF_REQUIRE_NOT_NULL("hf_ckpt_measure_device", dir);
    HF_REQUIRE_NOT_NULL("hf_ckpt_measure_device", write);
    HF_REQUIRE_NOT_NULL("hf_ckpt_measure_device", read);
    HF_ASSIGN_OR_RETURN(const holdfast::ckpt::RawDevice device,
                        holdfast::ckpt::MeasureRawDevice(dir));
    *write = device.write_bytes_per_s;
    *read = device.read_bytes_per_s;
    return absl::OkStatus();
  });
}

void hf_ckpt_options_free(hf_ckpt_options* options) { delete options; }

}  // extern "C"
