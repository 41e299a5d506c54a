// Rotary embedding on the device: the processor's bits, its table's too.

#include "kernels/rope.h"
#include "tests/device/kernel_case.h"

namespace holdfast::tests {
namespace {

using kernels::RopeArgs;

class KernelsOnDevice_Rope : public OnDevice {
 protected:
  template <typename T>
  void ExpectTurns(int64_t sequences, int64_t positions, int64_t heads,
                   int64_t head_dim, int64_t stride, size_t offset = 0) {
    const uint64_t seed = FreshSeed();
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " heads " << heads << " of " << head_dim
                 << " stride " << stride << " offset " << offset);
    const auto x = RandomValues<T>(sequences * positions * stride, seed);
    std::vector<float> table(
        static_cast<size_t>(kernels::RopeTableSize(positions, head_dim)));
    kernels::RopeFillTable(CpuStream(), table.data(), 5000, positions, head_dim,
                           500000.0f);
    const auto stream = device().NewStream();
    DeviceArray<float> device_table(device(), table.size());
    kernels::RopeFillTable(*stream, device_table.data(), 5000, positions,
                           head_dim, 500000.0f);
    ExpectSameBits(device_table.Get(*stream), table);
    for (const bool forward : {true, false}) {
      RopeArgs<T> args = {.stride = stride,
                          .sequences = sequences,
                          .positions = positions,
                          .heads = heads,
                          .head_dim = head_dim};
      auto turned = x;
      args.x = turned.data();
      args.table = table.data();
      forward ? kernels::RopeForward(CpuStream(), args)
              : kernels::RopeBackward(CpuStream(), args);
      DeviceArray<T> device_x(device(), x, offset);
      args.x = device_x.data();
      args.table = device_table.data();
      forward ? kernels::RopeForward(*stream, args)
              : kernels::RopeBackward(*stream, args);
      ExpectSameBits(device_x.Get(*stream), turned);
    }
  }
};

TEST_F(KernelsOnDevice_Rope, SmallShapesAndAddresses) {
  ExpectTurns<float>(2, 7, 3, 64, 3 * 64 + 16);
  ExpectTurns<Bf16>(2, 7, 3, 64, 3 * 64 + 16);
  ExpectTurns<Bf16>(1, 3, 2, 2, 5);
  ExpectTurns<Bf16>(3, 5, 1, 128, 128);
  ExpectTurns<Bf16>(2, 3, 5, 20, 104, 1);
  ExpectTurns<Bf16>(1, 4, 2, 48, 100);
  ExpectTurns<Bf16>(0, 4, 2, 16, 32);
}

TEST_F(KernelsOnDevice_Rope, HeadsOfModels) {
  ExpectTurns<Bf16>(2, 300, 32, 64, 48 * 64);
  ExpectTurns<float>(1, 300, 40, 128, 40 * 128);
}

TEST_F(KernelsOnDevice_Rope, Bandwidth) {
  if (!HasSpeed(device())) GTEST_SKIP() << "no GPU to measure";
  const int64_t heads = 40;
  const RopeArgs<Bf16> base = {.stride = heads * 64,
                               .sequences = 8,
                               .positions = 2048,
                               .heads = heads,
                               .head_dim = 64};
  Zeros zeros(device());
  RopeArgs<Bf16> args = base;
  args.x = zeros.Of<Bf16>(8 * 2048 * heads * 64);
  args.table = zeros.Of<float>(kernels::RopeTableSize(2048, 64));
  const auto stream = device().NewStream();
  RecordBandwidth(device(), *stream, "rope bf16", 4.0 * 8 * 2048 * heads * 64,
                  [&] { kernels::RopeForward(*stream, args); });
}

}  // namespace
}  // namespace holdfast::tests
