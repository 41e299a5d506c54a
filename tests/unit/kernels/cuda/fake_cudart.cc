// tests/unit/kernels/cuda/fake_cudart.cc: streams as queues, memory of the
// heap.

#include "tests/unit/kernels/cuda/fake_cudart.h"

#include <stdlib.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>

#include "gtest/gtest.h"
#include "kernels/cuda_driver.h"

// What the runtime's handles point to.
struct CUstream_st {
  std::deque<std::function<void()>> queue;
  size_t ran = 0;  // Operations run since the stream was made.
  int asked = 0;   // Whether all is over, since it last ran.
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  size_t passes_at = 0;  // Operations of the stream that come before it.
  int asked = 0;         // Whether it has passed, since it was recorded.
};

namespace holdfast::kernels {
namespace {

// More than a test asks in passing.
constexpr int kAsksMin = 5;

std::unique_ptr<FakeCudart> fake = std::make_unique<FakeCudart>();
cudaError_t last_error = cudaSuccess;
std::vector<std::unique_ptr<CUstream_st>> gone;

cudaError_t Return(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

// The error that the test has asked `function` for, once.
cudaError_t Asked(const std::string& function) {
  const auto found = fake->fail_next.find(function);
  if (found == fake->fail_next.end()) return cudaSuccess;
  const cudaError_t error = found->second;
  fake->fail_next.erase(found);
  return error;
}

void RunUpTo(CUstream_st* stream, size_t count) {
  if (fake->stuck) return;
  stream->asked = 0;
  while (stream->ran < count && !stream->queue.empty()) {
    const auto work = std::move(stream->queue.front());
    stream->queue.pop_front();
    ++stream->ran;
    work();
  }
}

bool Passed(const CUevent_st* event) {
  return event->stream == nullptr || event->stream->ran >= event->passes_at;
}

size_t Used() {
  size_t used = 0;
  for (const auto& [memory, bytes] : fake->device_memory) used += bytes;
  return used;
}

cudaError_t Give(void** memory, size_t bytes) {
  if (Used() + bytes > fake->device_bytes) return cudaErrorMemoryAllocation;
  // 256 bytes past a page: aligned as the runtime promises and no better.
  void* page = nullptr;
  if (::posix_memalign(&page, 4096, bytes + 256) != 0) {
    return cudaErrorMemoryAllocation;
  }
  char* const base = static_cast<char*>(page);
  std::memset(base, 0xab, bytes + 256);
  *memory = base + 256;
  fake->device_memory[*memory] = bytes;
  return cudaSuccess;
}

cudaError_t TakeBack(void* memory) {
  if (fake->device_memory.erase(memory) == 0) return cudaErrorInvalidValue;
  std::free(static_cast<char*>(memory) - 256);
  return cudaSuccess;
}

}  // namespace

FakeCudart& Fake() { return *fake; }

// The plug-in's own ends this process (kernels/cuda_plugin.cu).
void EndWithoutTeardown() { ++fake->ends_without_teardown; }

void ResetFake() {
  EXPECT_TRUE(fake->device_memory.empty()) << "device memory is left";
  EXPECT_TRUE(fake->registered.empty()) << "registered memory is left";
  EXPECT_EQ(fake->streams, 0);
  EXPECT_EQ(fake->events, 0);
  gone.clear();
  fake = std::make_unique<FakeCudart>();
  last_error = cudaSuccess;
}

void FakeCudart::TakeBackTheRest() {
  stuck = false;
  while (!device_memory.empty()) TakeBack(device_memory.begin()->first);
  for (const cudaEvent_t event : open_events) delete event;
  for (const cudaStream_t stream : open_streams) delete stream;
  open_events.clear();
  open_streams.clear();
  streams = events = 0;
}

void FakeCudart::Enqueue(cudaStream_t stream, std::function<void()> work) {
  stream->queue.push_back(std::move(work));
}

}  // namespace holdfast::kernels

using holdfast::kernels::Asked;
using holdfast::kernels::Fake;
using holdfast::kernels::Return;

extern "C" {

// --- the machine

cudaError_t cudaDriverGetVersion(int* version) {
  *version = Fake().driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  if (Fake().driver < 13000) return Return(cudaErrorInsufficientDriver);
  if (Fake().devices == 0) return Return(cudaErrorNoDevice);
  *count = Fake().devices;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "a fake GPU");
  properties->major = Fake().capability_major;
  properties->multiProcessorCount = 132;
  return Return(Asked("cudaGetDeviceProperties"));
}
cudaError_t cudaDeviceGetPCIBusId(char* bus, int length, int ordinal) {
  std::snprintf(bus, static_cast<size_t>(length), "0000:%02x:00.0", ordinal);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = Fake().lacks.count(attribute) != 0                     ? 0
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 232448
                                                                  : 1;
  return Return(Asked("cudaDeviceGetAttribute"));
}
cudaError_t cudaSetDevice(int ordinal) {
  {
    static std::mutex mutex;  // NCCL's wire aborts in a thread of its own.
    const std::lock_guard lock(mutex);
    Fake().current.push_back(ordinal);
  }
  return Return(Asked("cudaSetDevice"));
}
cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

// --- errors

cudaError_t cudaGetLastError() {
  const cudaError_t error = holdfast::kernels::last_error;
  holdfast::kernels::last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory"
         : error == cudaErrorIllegalAddress ? "an illegal memory access"
                                            : "some error";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
         : error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress"
                                            : "cudaErrorOther";
}

// --- memory

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = Fake().device_bytes;
  *free = Fake().device_bytes - holdfast::kernels::Used();
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  if (const cudaError_t error = Asked("cudaMalloc")) return Return(error);
  return Return(holdfast::kernels::Give(memory, bytes));
}
cudaError_t cudaFree(void* memory) {
  return Return(holdfast::kernels::TakeBack(memory));
}
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t) {
  if (const cudaError_t error = Asked("cudaMallocAsync")) return Return(error);
  return Return(holdfast::kernels::Give(memory, bytes));
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  // When the stream comes to it: work before may still use it.
  stream->queue.push_back([=] { holdfast::kernels::TakeBack(memory); });
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, size_t, unsigned) {
  if (const cudaError_t error = Asked("cudaHostRegister")) return Return(error);
  Fake().registered.insert(memory);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  return Return(Fake().registered.erase(memory) == 1 ? cudaSuccess
                                                     : cudaErrorInvalidValue);
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes,
                            cudaStream_t stream) {
  stream->queue.push_back([=] { std::memset(memory, value, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* memory, size_t pitch, int value,
                              size_t width, size_t height,
                              cudaStream_t stream) {
  stream->queue.push_back([=] {
    for (size_t row = 0; row < height; ++row) {
      std::memset(static_cast<char*>(memory) + row * pitch, value, width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                            cudaMemcpyKind kind, cudaStream_t stream) {
  EXPECT_EQ(kind, cudaMemcpyDefault);
  if (const cudaError_t error = Asked("cudaMemcpyAsync")) return Return(error);
  stream->queue.push_back([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

// --- streams and events

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  EXPECT_EQ(flags, static_cast<unsigned>(cudaStreamNonBlocking));
  *stream = new CUstream_st;
  Fake().open_streams.insert(*stream);
  ++Fake().streams;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags,
                                         int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (Fake().fault != cudaSuccess) {
    stream->queue.clear();  // A context that has ended runs nothing more.
    return Return(Fake().fault);
  }
  if (++stream->asked >= holdfast::kernels::kAsksMin) {
    holdfast::kernels::RunUpTo(stream, ~size_t{0});
  }
  return Return(stream->queue.empty() ? cudaSuccess : cudaErrorNotReady);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  EXPECT_TRUE(stream->queue.empty()) << "a stream goes with work left";
  // Events may still ask it how far it had come.
  holdfast::kernels::gone.emplace_back(stream);
  Fake().open_streams.erase(stream);
  --Fake().streams;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned) {
  CUstream_st* const other = event->stream;
  const size_t count = event->passes_at;
  stream->queue.push_back([=] { holdfast::kernels::RunUpTo(other, count); });
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  if (const cudaError_t error = Asked("cudaEventCreateWithFlags")) {
    return Return(error);
  }
  *event = new CUevent_st;
  Fake().open_events.insert(*event);
  ++Fake().events;
  ++Fake().events_made;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Fake().open_events.erase(event);
  delete event;
  --Fake().events;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = Asked("cudaEventRecord")) return Return(error);
  event->stream = stream;
  event->passes_at = stream->ran + stream->queue.size();
  event->asked = 0;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (Fake().fault != cudaSuccess) return Return(Fake().fault);
  if (!holdfast::kernels::Passed(event) &&
      ++event->asked >= holdfast::kernels::kAsksMin) {
    holdfast::kernels::RunUpTo(event->stream, event->passes_at);
  }
  return Return(holdfast::kernels::Passed(event) ? cudaSuccess
                                                 : cudaErrorNotReady);
}

}  // extern "C"
