// tests/fuzz/shard_fuzz.cc: any bytes, offered as a header, a footer and an
// index of a shard file (tests/fuzz/format_properties.h).

#include "tests/fuzz/format_properties.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  holdfast::ckpt::CheckShardBytes(std::as_bytes(std::span(data, size)));
  return 0;
}
