// tests/fuzz/frame_fuzz.cc: any bytes, offered as the compressed frame of a
// unit (tests/fuzz/format_properties.h).

#include "tests/fuzz/format_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  holdfast::ckpt::CheckFrameBytes(std::as_bytes(std::span(data, size)));
  return 0;
}
