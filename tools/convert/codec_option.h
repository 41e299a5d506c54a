// tools/convert/codec_option.h: how people say a codec: "none", "zstd",
// "zstd:3". Pure.

#ifndef HOLDFAST_TOOLS_CONVERT_CODEC_OPTION_H_
#define HOLDFAST_TOOLS_CONVERT_CODEC_OPTION_H_

#include <string>

#include "ckpt/format/codec.h"

namespace holdfast::tools {

// "" or what is wrong with it.
std::string CheckCodec(const std::string& text);

struct CodecOption {
  ckpt::Codec codec = ckpt::Codec::kNone;
  int level = 0;
};
CodecOption ParseCodec(const std::string& text);  // CheckCodec is fine

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_CODEC_OPTION_H_
