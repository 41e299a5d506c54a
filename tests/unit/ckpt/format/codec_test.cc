// Planes and frames over every width, many sizes and every level; and frames
// that are not what they should be.

#include "ckpt/format/codec.h"

#include <cstring>
#include <string>
#include <vector>

#include "ckpt/base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

constexpr size_t kMax = size_t{1} << 20;

Bytes Random(size_t size, uint64_t seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(Philox64(seed, 0, i));
  }
  return bytes;
}

// Floats as a state has them: a narrow range of exponents, random mantissas.
Bytes Floats(size_t size, uint64_t seed) {
  Bytes bytes(size);
  for (size_t i = 0; i + 4 <= size; i += 4) {
    const uint64_t draw = Philox64(seed, 0, i);
    const float value = static_cast<float>(static_cast<int32_t>(draw)) * 1e-11f;
    std::memcpy(bytes.data() + i, &value, 4);
  }
  return bytes;
}

TEST(CodecTest, APlaneHoldsTheSameByteOfEveryElement) {
  for (const int width : {1, 2, 4, 8}) {
    for (const size_t size : {0, 1, 7, 8, 64, 127, 128, 129, 4096, 10007}) {
      SCOPED_TRACE(testing::Message() << size << " bytes of width " << width);
      const Bytes in = Random(size, size);
      Bytes planes(size);
      SplitPlanes(in, width, planes);
      const size_t elements = size / width;
      for (size_t i = 0; i < elements * width; ++i) {
        ASSERT_EQ(planes[i % width * elements + i / width], in[i]) << i;
      }
      for (size_t i = elements * width; i < size; ++i) {
        ASSERT_EQ(planes[i], in[i]) << i;
      }
      Bytes back(size);
      JoinPlanes(planes, width, back);
      EXPECT_EQ(back, in);
    }
  }
}

TEST(CodecTest, WhatIsEncodedComesBackAtEveryLevelAndSize) {
  ZstdDecoder decoder(kMax);
  for (int level = kZstdLevelMin; level <= ZstdLevelMax(); ++level) {
    ZstdEncoder encoder(level, kMax);
    // One encoder for all, large after small and back: its memory suffices.
    for (const size_t size : {kMax, size_t{4096}, size_t{100}, size_t{300001},
                              size_t{140000}, size_t{16384}}) {
      if (level > 9 && size == kMax) continue;  // slow
      for (const int planes : {1, 2, 4, 8}) {
        SCOPED_TRACE(testing::Message() << size << " bytes, level " << level
                                        << ", planes " << planes);
        const Bytes in = Floats(size, level);
        Bytes frame(size + 1000);
        const size_t length = encoder.Encode(in, planes, frame);
        ASSERT_GT(length, 0u);
        Bytes out(size);
        const absl::Status status =
            decoder.Decode(std::span(frame).first(length), planes, out);
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(out, in);
        if (level > 3) break;
      }
    }
  }
}

TEST(CodecTest, AnEncoderTakesLittleMoreThanWhatItCodes) {
  // A unit, its planes and tables; not the hundreds of MiB of an open input.
  EXPECT_LE(ZstdEncoder(1, kMax).memory_bytes(), kMax + (size_t{1} << 20));
  EXPECT_LE(ZstdEncoder(ZstdLevelMax(), kMax).memory_bytes(),
            kMax + (size_t{40} << 20));
}

TEST(CodecTest, PlanesShrinkFloats) {
  const Bytes in = Floats(kMax, 1);
  Bytes out(kMax);
  for (const int level : {0, 1}) {
    const size_t with = ZstdEncoder(level, kMax).Encode(in, 4, out);
    EXPECT_GT(with, 0u);
    EXPECT_LT(with, kMax * 85 / 100) << level;
  }
}

TEST(CodecTest, WhatDoesNotFitIsLeftAlone) {
  ZstdEncoder encoder(1, kMax);
  const Bytes noise = Random(kMax, 3);
  Bytes out(kMax);
  EXPECT_EQ(encoder.Encode(noise, 1, std::span(out).first(kMax - 4096)), 0u);
  // And the encoder is as good as new.
  const Bytes zeros(kMax);
  const size_t length = encoder.Encode(zeros, 1, out);
  EXPECT_GT(length, 0u);
  EXPECT_LT(length, 4096u);
}

class HostileFrameTest : public testing::Test {
 protected:
  HostileFrameTest() : plain_(Floats(8192, 5)), frame_(16384) {
    ZstdEncoder encoder(1, kMax);
    frame_.resize(encoder.Encode(plain_, 4, frame_));
  }

  void Refused(const Bytes& frame, size_t plain_bytes, const char* why) {
    Bytes out(plain_bytes);
    const absl::Status status = decoder_.Decode(frame, 4, out);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    // The decoder is as good as new.
    out.resize(plain_.size());
    ASSERT_TRUE(decoder_.Decode(frame_, 4, out).ok());
    EXPECT_EQ(out, plain_);
  }

  ZstdDecoder decoder_{kMax};
  const Bytes plain_;
  Bytes frame_;
};

TEST_F(HostileFrameTest, AnotherLengthThanExpectedIsRefused) {
  Refused(frame_, 4096, "frame of 8192 bytes");
  Refused(frame_, 12288, "expected 12288 bytes");
}

TEST_F(HostileFrameTest, BytesAfterTheFrameAreRefused) {
  Bytes longer = frame_;
  longer.push_back(std::byte{0});
  Refused(longer, 8192, "its zstd frame");
  // Two frames: their contents together would be what the first one says.
  Bytes twice = frame_;
  twice.insert(twice.end(), frame_.begin(), frame_.end());
  Refused(twice, 8192, "its zstd frame");
}

TEST_F(HostileFrameTest, ACutFrameIsRefusedAtEveryLength) {
  for (size_t length = 0; length < frame_.size(); length += 37) {
    Bytes cut(frame_.begin(), frame_.begin() + length);
    Bytes out(8192);
    EXPECT_EQ(decoder_.Decode(cut, 4, out).code(), absl::StatusCode::kDataLoss);
  }
}

// Magic, descriptor (4-byte content size, no single segment), window, size.
Bytes FrameThatSays(uint8_t descriptor, std::vector<uint8_t> rest) {
  Bytes frame;
  for (const uint8_t byte : {0x28, 0xb5, 0x2f, 0xfd}) {
    frame.push_back(static_cast<std::byte>(byte));
  }
  frame.push_back(static_cast<std::byte>(descriptor));
  for (const uint8_t byte : rest) frame.push_back(static_cast<std::byte>(byte));
  // A last raw block of no bytes.
  for (const uint8_t byte : {1, 0, 0}) {
    frame.push_back(static_cast<std::byte>(byte));
  }
  return frame;
}

TEST_F(HostileFrameTest, WhatAFrameClaimsIsCheckedBeforeItIsBelieved) {
  Refused(FrameThatSays(0x80, {0xf8, 0, 32, 0, 0}), 8192, "no zstd frame");
  Refused(FrameThatSays(0x80, {0x58, 0, 32, 0, 0}), 8192, "window of 2097152");
  Refused(FrameThatSays(0x80, {0x00, 255, 255, 255, 127}), 8192,
          "frame of 2147483647 bytes");
  Refused(FrameThatSays(0x00, {0x00}), 8192, "zstd frame");  // says no length
  Refused(FrameThatSays(0x81, {0x00, 7, 0, 32, 0, 0}), 8192, "dictionary 7");
  // Says 8,192 bytes and holds none.
  Refused(FrameThatSays(0x80, {0x00, 0, 32, 0, 0}), 8192, "does not");
}

TEST_F(HostileFrameTest, ASkippableFrameIsNoFrame) {
  Bytes skippable(16);
  const uint32_t head[] = {0x184d2a50, 8};
  std::memcpy(skippable.data(), head, sizeof(head));
  Refused(skippable, 8192, "no zstd frame");
}

TEST_F(HostileFrameTest, AnyFlippedBitGivesAnErrorOrOtherBytesButNoHarm) {
  Bytes out(8192);
  for (size_t bit = 0; bit < frame_.size() * 8; bit += 5) {
    Bytes bad = frame_;
    bad[bit / 8] ^= std::byte(1 << bit % 8);
    const absl::Status status = decoder_.Decode(bad, 4, out);
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
  }
}

}  // namespace
}  // namespace holdfast::ckpt
