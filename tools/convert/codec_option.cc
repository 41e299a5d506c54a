// tools/convert/codec_option.cc: see codec_option.h.

#include "tools/convert/codec_option.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace holdfast::tools {

std::string CheckCodec(const std::string& text) {
  if (text == "none" || text == ckpt::kZstdName) return "";
  const std::string prefix = std::string(ckpt::kZstdName) + ":";
  int level = 0;
  if (text.rfind(prefix, 0) == 0 &&
      absl::SimpleAtoi(text.substr(prefix.size()), &level) &&
      level >= ckpt::kZstdLevelMin && level <= ckpt::ZstdLevelMax()) {
    return "";
  }
  return absl::StrFormat("'%s' is none of none, zstd, zstd:%d to zstd:%d", text,
                         ckpt::kZstdLevelMin, ckpt::ZstdLevelMax());
}

CodecOption ParseCodec(const std::string& text) {
  if (text == "none") return {};
  CodecOption option = {ckpt::Codec::kZstd, ckpt::kZstdLevelDefault};
  const size_t colon = text.find(':');
  if (colon != std::string::npos) {
    absl::SimpleAtoi(text.substr(colon + 1), &option.level);
  }
  return option;
}

}  // namespace holdfast::tools
