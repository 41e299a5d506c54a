// The digest is compared with the formula of ckpt/FORMAT.md, written out one
// element at a time, and with itself over other cuts of the same tensor.

#include "ckpt/format/digest.h"

#include <algorithm>
#include <cstring>

#include "ckpt/base/philox.h"
#include "ckpt/format/digest_segments.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace holdfast::ckpt {
namespace {

using Bytes = std::vector<std::byte>;

Bytes RandomBytes(size_t size, uint64_t seed) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = std::byte(Philox64(seed, 0, i));
  return bytes;
}

Bytes CopyOf(const Bytes& bytes, int64_t first, int64_t count, int size) {
  return Bytes(bytes.begin() + first * size,
               bytes.begin() + (first + count) * size);
}

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// One element at `index` of the row-major order of the whole item.
Digest128 ElementDigest(const ItemSpec& item, int64_t index, uint64_t bits) {
  const Digest128 key = DigestBytes(item.name + '\0' + item.kind);
  const int64_t width = item.shape.empty() ? 1 : item.shape.back();
  const uint64_t row = index / width;
  const uint64_t column = index % width;
  const uint64_t segment = row * ((width + 63) / 64) + column / 64;
  const uint64_t j = column % 64;
  const uint64_t golden = 0x9e3779b97f4a7c15;
  return {(Mix(key.low + (segment + 1) * golden) | 1) *
              ((Mix(j + 1) >> 32) | 1) * bits,
          (Mix(key.high + (segment + 1) * golden) | 1) *
              ((Mix(j + 65) >> 32) | 1) * bits};
}

Digest128 SlowDigest(const ItemSpec& item, const Bytes& bytes) {
  const int size = SizeOf(item.dtype);
  Digest128 sum;
  for (size_t i = 0; i < bytes.size() / size; ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * size, size);
    if (size >= 4) bits ^= bits >> (4 * size);
    sum += ElementDigest(item, i, bits);
  }
  return sum;
}

Digest128 WholeDigest(const ItemSpec& item, const Bytes& bytes) {
  const Box whole = WholeBox(item.shape);
  return DigestRun(item, whole, 0, whole.elements(), bytes);
}

TEST(DigestTest, IsTheFormulaOfTheDocumentInEveryShapeAndDtype) {
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {}, {1}, {63}, {64}, {65}, {3, 200}, {2, 3, 130}, {2, 2, 2, 7}}) {
    for (const DType dtype :
         {DType::kU8, DType::kBf16, DType::kF32, DType::kF64}) {
      const ItemSpec item{"model.norm.weight", "exp_avg", dtype, shape};
      const Bytes bytes =
          RandomBytes(WholeBox(shape).elements() * SizeOf(dtype), 1);
      EXPECT_EQ(WholeDigest(item, bytes), SlowDigest(item, bytes));
    }
  }
}

TEST(DigestTest, EveryCutIntoTwoRunsAddsUp) {
  const ItemSpec item{"w", "master", DType::kF32, {3, 150}};
  const Bytes bytes = RandomBytes(450 * 4, 2);
  const Box whole = WholeBox(item.shape);
  const Digest128 expected = WholeDigest(item, bytes);
  for (int64_t cut = 0; cut <= 450; ++cut) {
    Digest128 sum = DigestRun(item, whole, cut, 450 - cut,
                              CopyOf(bytes, cut, 450 - cut, 4));
    sum += DigestRun(item, whole, 0, cut, CopyOf(bytes, 0, cut, 4));
    ASSERT_EQ(sum, expected) << "cut at " << cut;
  }
}

TEST(DigestTest, EveryCutIntoBoxesAndThenIntoRunsAddsUp) {
  const ItemSpec item{"w", "weight", DType::kBf16, {4, 3, 150}};
  const Box whole = WholeBox(item.shape);
  const Bytes bytes = RandomBytes(whole.elements() * 2, 3);
  const Digest128 expected = WholeDigest(item, bytes);
  for (int d = 0; d < 3; ++d) {
    for (int64_t cut = 1; cut < item.shape[d]; ++cut) {
      Digest128 sum;
      for (const bool upper : {false, true}) {
        Box part = whole;
        part.first[d] = upper ? cut : 0;
        part.count[d] = upper ? item.shape[d] - cut : cut;
        Bytes local;  // The part in its own row-major order.
        for (int64_t i = 0; i < part.count[0]; ++i) {
          for (int64_t j = 0; j < part.count[1]; ++j) {
            const int64_t row =
                ((part.first[0] + i) * 3 + part.first[1] + j) * 150 +
                part.first[2];
            const Bytes piece = CopyOf(bytes, row, part.count[2], 2);
            local.insert(local.end(), piece.begin(), piece.end());
          }
        }
        const int64_t elements = part.elements();
        const int64_t middle = elements * 2 / 5;
        sum += DigestRun(item, part, middle, elements - middle,
                         CopyOf(local, middle, elements - middle, 2));
        sum += DigestRun(item, part, 0, middle, CopyOf(local, 0, middle, 2));
      }
      ASSERT_EQ(sum, expected) << "dimension " << d << " cut at " << cut;
    }
  }
}

TEST(DigestTest, EveryInstructionSetGivesTheSameSums) {
  const std::vector<SegmentSums> list = ListSegmentSums();
  EXPECT_EQ(list.back().name, "plain");
  const Digest128 key{123, 456};
  for (const int size : {1, 2, 4, 8}) {
    const Bytes bytes = RandomBytes(7 * 64 * size + 1, 4);
    for (const int64_t shift : {0, 1}) {  // At an odd address, too.
      Digest128 expected;
      for (int segment = 0; segment < 7; ++segment) {
        AddPartOfSegment(size, bytes.data() + shift + segment * 64 * size, 0,
                         64, key, 99 + segment, &expected);
      }
      for (const SegmentSums& sums : list) {
        Digest128 found;
        sums.add(size, bytes.data() + shift, 7, key, 99, &found);
        EXPECT_EQ(found, expected) << sums.name << ", elements of " << size;
      }
    }
  }
}

TEST(DigestTest, EveryFlippedBitChangesBothLanes) {
  for (const DType dtype :
       {DType::kU8, DType::kBf16, DType::kF32, DType::kF64}) {
    const ItemSpec item{"w", "weight", dtype, {2, 70}};
    Bytes bytes = RandomBytes(140 * SizeOf(dtype), 5);
    const Digest128 before = WholeDigest(item, bytes);
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] ^= std::byte(1 << bit % 8);
      const Digest128 after = WholeDigest(item, bytes);
      ASSERT_NE(after.low, before.low) << "bit " << bit;
      ASSERT_NE(after.high, before.high) << "bit " << bit;
      bytes[bit / 8] ^= std::byte(1 << bit % 8);
    }
  }
}

TEST(DigestTest, ElementsThatTradePlacesAreSeen) {
  const ItemSpec item{"w", "weight", DType::kBf16, {3, 130}};
  const Bytes bytes = RandomBytes(390 * 2, 6);
  const Digest128 before = WholeDigest(item, bytes);
  const auto* const x = reinterpret_cast<const uint16_t*>(bytes.data());
  for (int a = 0; a < 390; a += 13) {
    for (int b = a + 1; b < 390; ++b) {
      if (x[a] == x[b]) continue;
      Bytes swapped = bytes;
      std::swap_ranges(swapped.begin() + 2 * a, swapped.begin() + 2 * a + 2,
                       swapped.begin() + 2 * b);
      ASSERT_NE(WholeDigest(item, swapped), before) << a << " and " << b;
    }
  }
}

TEST(DigestTest, NegatedElementsAreSeenWhateverTheirNumber) {
  for (const DType dtype : {DType::kBf16, DType::kF32, DType::kF64}) {
    const int size = SizeOf(dtype);
    const ItemSpec item{"w", "weight", dtype, {2, 70}};
    Bytes bytes = RandomBytes(140 * size, 8);
    std::vector<uint64_t> seen = {WholeDigest(item, bytes).low};
    for (int i = 0; i < 140; ++i) {
      bytes[(i + 1) * size - 1] ^= std::byte{0x80};
      seen.push_back(WholeDigest(item, bytes).low);
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  }
}

TEST(DigestTest, NameKindAndPlaceCount) {
  const Bytes bytes = RandomBytes(64 * 4, 7);
  const ItemSpec item{"w", "master", DType::kF32, {2, 64}};
  Box row = WholeBox(item.shape);
  row.count[0] = 1;
  const Digest128 first = DigestRun(item, row, 0, 64, bytes);
  row.first[0] = 1;
  EXPECT_NE(DigestRun(item, row, 0, 64, bytes), first);
  row.first[0] = 0;
  ItemSpec other = item;
  other.kind = "exp_avg";
  EXPECT_NE(DigestRun(other, row, 0, 64, bytes), first);
  other = item;
  other.name = "v";
  EXPECT_NE(DigestRun(other, row, 0, 64, bytes), first);
}

TEST(DigestTest, BytesOfEveryLengthDiffer) {
  std::vector<Digest128> seen;
  for (int length = 0; length < 40; ++length) {
    seen.push_back(DigestBytes(std::string(length, '\0')));
    seen.push_back(DigestBytes(std::string(length, 'a') + "b"));
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      EXPECT_NE(seen[i].low, seen[j].low);
      EXPECT_NE(seen[i].high, seen[j].high);
    }
  }
}

TEST(DigestTest, HexComesBack) {
  const Digest128 digest{0x0123456789abcdef, 0xfedcba9876543210};
  EXPECT_EQ(ToHex(digest), "fedcba98765432100123456789abcdef");
  EXPECT_EQ(*ParseDigest(ToHex(digest)), digest);
  for (const char* bad :
       {"", "0", "fedcba98765432100123456789abcdeg",
        "fedcba98765432100123456789abcdef0", "-edcba98765432100123456789abcdef",
        "fedcba9876543210 123456789abcdef"}) {
    EXPECT_EQ(ParseDigest(bad).status().code(),
              absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

}  // namespace
}  // namespace holdfast::ckpt
