// ckpt/format/byte_planes.cc: SplitPlanes and JoinPlanes, 16 elements at a
// time.
//
// Vectors of 16 bytes in the compiler's own notation, which becomes a handful
// of instructions on every processor (punpck and pack on x86-64). Even and odd
// bytes are taken apart once for planes of 2, twice for 4, three times for 8.

#include <algorithm>
#include <array>
#include <cstring>

#include "ckpt/base/check.h"
#include "ckpt/format/codec.h"

namespace holdfast::ckpt {
namespace {

using Lanes = uint8_t __attribute__((vector_size(16)));
template <int kWidth>
using Block = std::array<Lanes, kWidth>;  // 16 elements

Lanes Even(Lanes a, Lanes b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20,
                                 22, 24, 26, 28, 30);
}
Lanes Odd(Lanes a, Lanes b) {
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21,
                                 23, 25, 27, 29, 31);
}
Lanes Low(Lanes a, Lanes b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21,
                                 6, 22, 7, 23);
}
Lanes High(Lanes a, Lanes b) {
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13,
                                 29, 14, 30, 15, 31);
}

// 16 elements one after the other, to plane after plane. The even bytes are
// those of elements of half the width, and their planes are the even planes.
template <int kWidth>
Block<kWidth> Split(const Block<kWidth>& in) {
  if constexpr (kWidth == 1) {
    return in;
  } else {
    Block<kWidth / 2> even, odd;
    for (int i = 0; i < kWidth / 2; ++i) {
      even[i] = Even(in[2 * i], in[2 * i + 1]);
      odd[i] = Odd(in[2 * i], in[2 * i + 1]);
    }
    even = Split<kWidth / 2>(even);
    odd = Split<kWidth / 2>(odd);
    Block<kWidth> out;
    for (int i = 0; i < kWidth / 2; ++i) {
      out[2 * i] = even[i];
      out[2 * i + 1] = odd[i];
    }
    return out;
  }
}

// The way back, step by step.
template <int kWidth>
Block<kWidth> Join(const Block<kWidth>& in) {
  if constexpr (kWidth == 1) {
    return in;
  } else {
    Block<kWidth / 2> even, odd;
    for (int i = 0; i < kWidth / 2; ++i) {
      even[i] = in[2 * i];
      odd[i] = in[2 * i + 1];
    }
    even = Join<kWidth / 2>(even);
    odd = Join<kWidth / 2>(odd);
    Block<kWidth> out;
    for (int i = 0; i < kWidth / 2; ++i) {
      out[2 * i] = Low(even[i], odd[i]);
      out[2 * i + 1] = High(even[i], odd[i]);
    }
    return out;
  }
}

template <int kWidth>
void SplitAll(const std::byte* in, size_t elements, std::byte* out) {
  size_t i = 0;
  for (; i + 16 <= elements; i += 16) {
    Block<kWidth> block;
    std::memcpy(&block, in + i * kWidth, sizeof(block));
    block = Split<kWidth>(block);
    for (int plane = 0; plane < kWidth; ++plane) {
      std::memcpy(out + plane * elements + i, &block[plane], 16);
    }
  }
  for (; i < elements; ++i) {
    for (int plane = 0; plane < kWidth; ++plane) {
      out[plane * elements + i] = in[i * kWidth + plane];
    }
  }
}

template <int kWidth>
void JoinAll(const std::byte* in, size_t elements, std::byte* out) {
  size_t i = 0;
  for (; i + 16 <= elements; i += 16) {
    Block<kWidth> block;
    for (int plane = 0; plane < kWidth; ++plane) {
      std::memcpy(&block[plane], in + plane * elements + i, 16);
    }
    block = Join<kWidth>(block);
    std::memcpy(out + i * kWidth, &block, sizeof(block));
  }
  for (; i < elements; ++i) {
    for (int plane = 0; plane < kWidth; ++plane) {
      out[i * kWidth + plane] = in[plane * elements + i];
    }
  }
}

void CopyRest(std::span<const std::byte> in, size_t done,
              std::span<std::byte> out) {
  std::copy(in.begin() + done, in.end(), out.begin() + done);
}

}  // namespace

void SplitPlanes(std::span<const std::byte> in, int width,
                 std::span<std::byte> out) {
  HF_CHECK(IsPlaneCount(width) && in.size() == out.size(),
           "%d bytes into %d as planes of %d", in.size(), out.size(), width);
  const size_t elements = in.size() / width;
  if (width == 1) SplitAll<1>(in.data(), elements, out.data());
  if (width == 2) SplitAll<2>(in.data(), elements, out.data());
  if (width == 4) SplitAll<4>(in.data(), elements, out.data());
  if (width == 8) SplitAll<8>(in.data(), elements, out.data());
  CopyRest(in, elements * width, out);
}

void JoinPlanes(std::span<const std::byte> in, int width,
                std::span<std::byte> out) {
  HF_CHECK(IsPlaneCount(width) && in.size() == out.size(),
           "%d bytes into %d from planes of %d", in.size(), out.size(), width);
  const size_t elements = in.size() / width;
  if (width == 1) JoinAll<1>(in.data(), elements, out.data());
  if (width == 2) JoinAll<2>(in.data(), elements, out.data());
  if (width == 4) JoinAll<4>(in.data(), elements, out.data());
  if (width == 8) JoinAll<8>(in.data(), elements, out.data());
  CopyRest(in, elements * width, out);
}

}  // namespace holdfast::ckpt
