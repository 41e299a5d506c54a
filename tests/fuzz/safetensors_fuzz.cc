// tests/fuzz/safetensors_fuzz.cc: any bytes, offered as a safetensors file
// (tests/fuzz/safetensors_properties.h).

#include "tests/fuzz/safetensors_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  holdfast::tools::CheckSafetensorsBytes(std::as_bytes(std::span(data, size)));
  return 0;
}
