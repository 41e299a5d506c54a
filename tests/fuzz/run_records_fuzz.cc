// tests/fuzz/run_records_fuzz.cc: any bytes, offered as a claim, a seal, a
// run.id or a directory's name (tests/fuzz/run_records_properties.h).

#include "tests/fuzz/run_records_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  holdfast::ckpt::CheckRecordBytes(std::as_bytes(std::span(data, size)));
  return 0;
}
