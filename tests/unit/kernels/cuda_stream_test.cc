// A CUDA stream's own part, over a device that only counts.

#include "kernels/cuda_stream.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda_device.h"

namespace holdfast::kernels {
namespace {

class CountingDevice final : public CudaDevice {
 public:
  std::string_view name() const override { return "counting"; }
  absl::StatusOr<Buffer> Allocate(MemorySpace, size_t) override {
    return absl::UnimplementedError("not for this test");
  }
  void Free(const Buffer&) override {}
  std::unique_ptr<Stream> NewStream() override {
    return NewCudaStream(CudaPriority::kNormal);
  }
  void Copy(const Buffer&, const Buffer&, Stream&) override {}
  Event Record(Stream&) override { return Event::kPassed; }
  void WaitFor(Stream&, Event) override {}
  bool Query(Event) override { return true; }
  void Sync(Event) override {}
  void Sync(Stream&) override {}
  const CudaProcessor& processor() const override { return processor_; }
  void MakeCurrent() override {}
  void Fail(const std::string& what) override { failed.push_back(what); }
  void CheckLaunch(const char*) override {}
  std::unique_ptr<CudaStream> NewCudaStream(CudaPriority) override {
    return std::make_unique<CudaStream>(this, nullptr, nullptr);
  }

  std::vector<size_t> grown;
  std::vector<void*> closed_with;
  std::vector<std::string> failed;
  std::vector<std::unique_ptr<char[]>> memory;
  size_t bytes_max = 1 << 20;
  bool ends = true;  // Its work, when a stream closes.

 protected:
  void* GrowScratch(CudaStream& stream, void* old, size_t bytes) override {
    if (old != nullptr) {
      EXPECT_EQ(old, memory.back().get());
    }
    grown.push_back(bytes);
    if (bytes > bytes_max) {
      Fail(std::string(stream.last_operation()) + " needs too much");
      return nullptr;
    }
    memory.push_back(std::make_unique<char[]>(bytes));
    return memory.back().get();
  }
  bool Close(CudaStream&, void* scratch) override {
    closed_with.push_back(scratch);
    return ends;
  }

 private:
  const CudaProcessor processor_{.multiprocessors = 132};
};

TEST(CudaStreamTest, ScratchGrowsToTheLargestRequestAndStands) {
  CountingDevice device;
  {
    const auto stream = device.NewCudaStream(CudaPriority::kNormal);
    float* const first = stream->Scratch<float>(100);
    EXPECT_NE(first, nullptr);
    EXPECT_EQ(stream->Scratch<float>(50), first);
    EXPECT_EQ(stream->Scratch<char>(400), reinterpret_cast<char*>(first));
    double* const larger = stream->Scratch<double>(100);
    EXPECT_NE(static_cast<void*>(larger), static_cast<void*>(first));
    EXPECT_EQ(stream->Scratch<float>(200), static_cast<void*>(larger));
    EXPECT_EQ(device.grown, (std::vector<size_t>{400, 800}));
    EXPECT_EQ(stream->scratch_bytes(), 800u);
    EXPECT_TRUE(device.closed_with.empty());
  }
  ASSERT_EQ(device.closed_with.size(), 1u);
  EXPECT_EQ(device.closed_with[0], device.memory.back().get());
}

TEST(CudaStreamTest, WithoutMemoryScratchIsNullAndTheDeviceKnowsForWhat) {
  CountingDevice device;
  const auto stream = device.NewCudaStream(CudaPriority::kNormal);
  stream->Scratch<char>(64);
  stream->set_last_operation("RmsNormBackward");
  EXPECT_EQ(stream->Scratch<char>(2 << 20), nullptr);
  EXPECT_EQ(device.failed,
            std::vector<std::string>{"RmsNormBackward needs too much"});
  EXPECT_EQ(stream->scratch_bytes(), 0u);
  EXPECT_NE(stream->Scratch<char>(64), nullptr);
}

TEST(CudaStreamTest, LibraryStateGoesWithTheStream) {
  CountingDevice device;
  const auto state = std::make_shared<int>(5);
  {
    const auto stream = device.NewCudaStream(CudaPriority::kNormal);
    stream->library_state() = state;
    EXPECT_EQ(state.use_count(), 2);
  }
  EXPECT_EQ(state.use_count(), 1);
}

TEST(CudaStreamDeathTest, HostCodeOnAGpusStreamIsOurOwnBug) {
  CountingDevice device;
  const auto stream = device.NewCudaStream(CudaPriority::kNormal);
  EXPECT_FALSE(stream->immediate());
  stream->set_last_operation("Matmul");
  EXPECT_DEATH(stream->Launch([] {}),
               "host code launched on a stream of a GPU, after Matmul");
}

TEST(CudaStreamTest, ALibrarysStateIsLeftWhereTheGpuDoesNotEnd) {
  const auto state = std::make_shared<int>(1);
  for (const bool ends : {true, false}) {
    CountingDevice device;
    device.ends = ends;
    device.NewCudaStream(CudaPriority::kNormal)->library_state() = state;
    EXPECT_EQ(state.use_count(), ends ? 1 : 2);
  }
}

}  // namespace
}  // namespace holdfast::kernels
