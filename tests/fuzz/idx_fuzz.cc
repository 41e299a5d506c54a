// tests/fuzz/idx_fuzz.cc: any bytes, offered as PREFIX.idx
// (tests/fuzz/idx_properties.h).

#include "tests/fuzz/idx_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  holdfast::trainer::CheckIdxBytes(std::as_bytes(std::span(data, size)));
  return 0;
}
