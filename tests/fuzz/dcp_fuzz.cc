// tests/fuzz/dcp_fuzz.cc: any bytes, offered as the metadata of a torch
// checkpoint or as an entry of torch.save (tests/fuzz/dcp_properties.h).

#include "tests/fuzz/dcp_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  holdfast::tools::CheckDcpBytes({reinterpret_cast<const char*>(data), size});
  return 0;
}
