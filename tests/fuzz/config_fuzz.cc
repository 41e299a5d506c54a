// tests/fuzz/config_fuzz.cc: any text, offered as a configuration
// (tests/fuzz/config_properties.h).

#include <cstddef>
#include <cstdint>

#include "tests/fuzz/config_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  holdfast::trainer::CheckConfigText(
      {reinterpret_cast<const char*>(data), size});
  return 0;
}
