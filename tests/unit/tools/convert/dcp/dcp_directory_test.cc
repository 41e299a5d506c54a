// tests/golden/dcp-mixed was saved by four ranks of torch
// (tests/golden/make_dcp_golden.py): element i of every tensor is i, so each
// read can be checked by what it should count to. Damage is done to copies.

#include "tools/convert/dcp/dcp_directory.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "ckpt/base/philox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace holdfast::tools {
namespace {

namespace fs = std::filesystem;
using ckpt::Box;
using ckpt::DType;
using ::testing::HasSubstr;

constexpr char kGolden[] = HOLDFAST_SOURCE_DIR "/tests/golden/dcp-mixed";

double ValueAt(DType dtype, const std::byte* at) {
  const auto as = [&](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kF32:
      return as(float{});
    case DType::kF64:
      return as(double{});
    case DType::kI64:
      return static_cast<double>(as(int64_t{}));
    case DType::kI32:
      return as(int32_t{});
    case DType::kU8:
      return as(uint8_t{});
    case DType::kBf16:
      return std::bit_cast<float>(uint32_t{as(uint16_t{})} << 16);
    case DType::kF16: {  // small whole numbers
      const uint16_t bits = as(uint16_t{});
      if (bits == 0) return 0;
      return std::ldexp(1 + (bits & 0x3ff) / 1024.0, (bits >> 10) - 15);
    }
  }
  return -1;
}

std::unique_ptr<DcpDirectory> OpenGolden(const DcpOptions& options = {}) {
  auto directory = DcpDirectory::Open(kGolden, options);
  EXPECT_TRUE(directory.ok()) << directory.status();
  return directory.ok() ? *std::move(directory) : nullptr;
}

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t length : shape) product *= length;
  return product;
}

// Elements of a run of a box, by counting one by one.
std::vector<double> Expected(const std::vector<int64_t>& shape, const Box& part,
                             int64_t first, int64_t count) {
  std::vector<double> values;
  for (int64_t i = first; i < first + count; ++i) {
    int64_t rest = i, index = 0, stride = 1;
    for (int d = part.dimensions - 1; d >= 0; --d) {
      index += (part.first[d] + rest % part.count[d]) * stride;
      rest /= part.count[d];
      stride *= shape[d];
    }
    values.push_back(static_cast<double>(index));
  }
  return values;
}

std::vector<double> ReadRun(DcpDirectory& directory, size_t tensor,
                            const Box& part, int64_t first, int64_t count) {
  const TorchType& type = directory.metadata().tensors[tensor].type;
  std::vector<std::byte> bytes(static_cast<size_t>(count * type.bytes));
  const absl::Status status = directory.Read(tensor, part, first, count, bytes);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(ValueAt(*type.dtype, bytes.data() + i * type.bytes));
  }
  return values;
}

TEST(DcpDirectoryTest, NamesTypesAndShapesAreThoseOfTheState) {
  const auto directory = OpenGolden();
  ASSERT_NE(directory, nullptr);
  std::vector<std::string> found;
  for (const DcpTensor& tensor : directory->metadata().tensors) {
    std::string line = tensor.name + " " + tensor.type.name;
    for (const int64_t length : tensor.shape) {
      line += " " + std::to_string(length);
    }
    found.push_back(line);
  }
  EXPECT_THAT(found,
              testing::ElementsAre(
                  "bytes uint8 200", "deep float64 2 3 4", "flags bool 2",
                  "grid float32 10 6", "halves float16 5", "ints int64 6",
                  "rows.twice bfloat16 10 3", "rows.uneven float32 7",
                  "scalar float32", "small int32 6", "turned float32 4 3"));
  std::vector<std::string> blobs;
  for (const DcpBlob& blob : directory->metadata().blobs) {
    blobs.push_back(blob.name);
  }
  EXPECT_THAT(blobs, testing::ElementsAre("pair", "step", "words"));
  EXPECT_EQ(directory->metadata().version, "1.0.0");
  EXPECT_TRUE(directory->HasChecksums().value());
}

TEST(DcpDirectoryTest, EveryTensorCountsFromZeroInWholeAndInParts) {
  // Kept whole, and read again piece by piece.
  for (const uint64_t kept : {uint64_t{1} << 20, uint64_t{900}}) {
    DcpOptions options;
    options.kept_bytes_max = kept;
    const auto directory = OpenGolden(options);
    ASSERT_NE(directory, nullptr);
    uint64_t draws = 0;
    const auto draw = [&](int64_t below) {
      return static_cast<int64_t>(ckpt::Philox64(kept, 1, draws++) %
                                  static_cast<uint64_t>(below));
    };
    for (size_t t = 0; t < directory->metadata().tensors.size(); ++t) {
      const DcpTensor& tensor = directory->metadata().tensors[t];
      if (!tensor.type.dtype.has_value()) continue;  // flags
      SCOPED_TRACE(tensor.name);
      const Box whole = ckpt::WholeBox(tensor.shape);
      if (tensor.name == "scalar") {
        EXPECT_EQ(ReadRun(*directory, t, whole, 0, 1)[0], 7);
        continue;
      }
      const int64_t all = Elements(tensor.shape);
      EXPECT_EQ(ReadRun(*directory, t, whole, 0, all),
                Expected(tensor.shape, whole, 0, all));
      for (int i = 0; i < 60; ++i) {
        Box part = whole;
        for (int d = 0; d < part.dimensions; ++d) {
          part.first[d] = draw(tensor.shape[d]);
          part.count[d] = 1 + draw(tensor.shape[d] - part.first[d]);
        }
        const int64_t first = draw(part.elements());
        const int64_t count = 1 + draw(part.elements() - first);
        EXPECT_EQ(ReadRun(*directory, t, part, first, count),
                  Expected(tensor.shape, part, first, count))
            << ckpt::ToString(part) << " from " << first << ", " << count;
      }
    }
  }
}

TEST(DcpDirectoryTest, AValueThatIsNoTensorIsAnInertPickle) {
  const auto directory = OpenGolden();
  ASSERT_NE(directory, nullptr);
  const DcpBlob* const step = directory->FindBlob("step");
  ASSERT_NE(step, nullptr);
  const auto value = directory->ReadBlob(*step);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->pickle.integer(value->pickle.root()), 7);
  const auto pair = directory->ReadBlob(*directory->FindBlob("pair"));
  ASSERT_TRUE(pair.ok());
  const auto both = pair->pickle.children(pair->pickle.root());
  ASSERT_EQ(both.size(), 2u);
  EXPECT_EQ(pair->pickle.number(both[0]), 0.5);
  EXPECT_EQ(pair->pickle.integer(both[1]), -3);
}

TEST(DcpDirectoryTest, ABlobsBytesAreTheArchiveThatTorchSaved) {
  const auto directory = OpenGolden();
  ASSERT_NE(directory, nullptr);
  const DcpBlob* const words = directory->FindBlob("words");
  ASSERT_NE(words, nullptr);
  std::string bytes(words->place.length, '\0');
  const size_t half = bytes.size() / 2;
  const auto out =
      std::as_writable_bytes(std::span(bytes.data(), bytes.size()));
  ASSERT_TRUE(directory->ReadBlobBytes(*words, half, out.subspan(half)).ok());
  ASSERT_TRUE(directory->ReadBlobBytes(*words, 0, out.first(half)).ok());
  MemorySource source(bytes, "words");
  const auto value = ReadTorchValue(&source, 0, bytes.size());
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->pickle.text(value->pickle.root()), "hello");
  EXPECT_EQ(directory->ReadFile("common.pt").status().code(),
            absl::StatusCode::kNotFound);
}

// Reads every tensor and every value; the first error.
absl::Status ReadEverything(const std::string& path) {
  auto opened = DcpDirectory::Open(path);
  if (!opened.ok()) return opened.status();
  DcpDirectory& directory = **opened;
  for (size_t t = 0; t < directory.metadata().tensors.size(); ++t) {
    const DcpTensor& tensor = directory.metadata().tensors[t];
    const int64_t all = Elements(tensor.shape);
    std::vector<std::byte> bytes(static_cast<size_t>(all * tensor.type.bytes));
    const absl::Status read =
        directory.Read(t, ckpt::WholeBox(tensor.shape), 0, all, bytes);
    if (!read.ok()) return read;
  }
  for (const DcpBlob& blob : directory.metadata().blobs) {
    const auto value = directory.ReadBlob(blob);
    if (!value.ok()) return value.status();
  }
  return absl::OkStatus();
}

std::string CopyGolden(const tests::TempDir& dir) {
  const std::string copy = dir.path() + "/dcp";
  fs::copy(kGolden, copy);
  return copy;
}

std::string Contents(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void Store(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(DcpDirectoryTest, AFlippedBitOfAnyElementIsFound) {
  const tests::TempDir dir;
  const std::string copy = CopyGolden(dir);
  ASSERT_TRUE(ReadEverything(copy).ok()) << ReadEverything(copy);
  // Where the elements of each chunk lie, from the reader itself.
  const auto golden = OpenGolden();
  int tried = 0;
  for (const DcpTensor& tensor : golden->metadata().tensors) {
    const DcpPlace& place = tensor.chunks[0].place;
    const std::string file = copy + "/" + golden->metadata().files[place.file];
    const std::string whole = Contents(file);
    MemorySource source(whole, file);
    const auto stored = ReadTorchTensor(&source, place.offset, place.length);
    ASSERT_TRUE(stored.ok());
    std::string damaged = whole;
    damaged[stored->data + stored->record.size / 2] ^= 0x10;
    Store(file, damaged);
    const absl::Status status = ReadEverything(copy);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << tensor.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("crc32 is"));
    Store(file, whole);
    ++tried;
  }
  EXPECT_EQ(tried, 11);
}

TEST(DcpDirectoryTest, RecordsWithoutChecksumsAreReadAndToldApart) {
  // As torch writes them after set_crc32_options(False): zeros for checksums in
  // the directories.
  const tests::TempDir dir;
  const std::string copy = CopyGolden(dir);
  for (const auto& entry : fs::directory_iterator(copy)) {
    std::string bytes = Contents(entry.path());
    const std::string_view mark("PK\x01\x02", 4);
    for (size_t at = 0; (at = bytes.find(mark, at)) != std::string::npos;
         at += mark.size()) {
      bytes.replace(at + 16, 4, 4, '\0');
    }
    Store(entry.path(), bytes);
  }
  EXPECT_TRUE(ReadEverything(copy).ok()) << ReadEverything(copy);
  EXPECT_FALSE((*DcpDirectory::Open(copy))->HasChecksums().value());
}

TEST(DcpDirectoryTest, AnyFlippedByteIsRefusedOrHarmless) {
  // What may pass: times, flags and padding that nobody reads.
  const tests::TempDir dir(tests::MemoryFolder());
  const std::string copy = CopyGolden(dir);
  int refused = 0, passed = 0;
  for (const auto& entry : fs::directory_iterator(copy)) {
    const std::string whole = Contents(entry.path());
    for (size_t at = 0; at < whole.size(); at += 37) {
      std::string damaged = whole;
      damaged[at] ^= 0x41;
      Store(entry.path(), damaged);
      (ReadEverything(copy).ok() ? passed : refused) += 1;
    }
    Store(entry.path(), whole);
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(passed, 10);
}

TEST(DcpDirectoryTest, AFileCutShortMissingOrReplacedIsRefused) {
  const tests::TempDir dir;
  const std::string copy = CopyGolden(dir);
  const fs::path file = copy + "/__1_0.distcp";
  const std::string whole = Contents(file);
  Store(file, whole.substr(0, whole.size() - 1));
  EXPECT_EQ(ReadEverything(copy).code(), absl::StatusCode::kDataLoss);
  fs::remove(file);
  EXPECT_EQ(ReadEverything(copy).code(), absl::StatusCode::kNotFound);
  Store(copy + "/elsewhere", whole);
  fs::create_symlink("elsewhere", file);
  const absl::Status link = ReadEverything(copy);
  EXPECT_THAT(std::string(link.message()), HasSubstr("is a symbolic link"));
  fs::remove(file);
  ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);
  const absl::Status fifo = ReadEverything(copy);
  EXPECT_THAT(std::string(fifo.message()), HasSubstr("is not a regular file"));
}

TEST(DcpDirectoryTest, MoreFilesThanAreAllowedAtFirstAreAskedFor) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan looks at objects through a pipe, for which no "
                  "descriptor would be left";
#endif
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(0);  // the lowest that is free
  ASSERT_GE(next, 0);
  ::close(next);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next) + 2;  // the directory and one file
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto directory =
      DcpDirectory::Open(HOLDFAST_SOURCE_DIR "/tests/golden/dcp-titan");
  EXPECT_TRUE(directory.ok()) << directory.status();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST(DcpDirectoryTest, ASaveThatHasNotFinishedIsNoCheckpoint) {
  const tests::TempDir dir;
  const std::string copy = CopyGolden(dir);
  fs::rename(copy + "/.metadata", copy + "/.metadata.tmp");
  const auto opened = DcpDirectory::Open(copy);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(opened.status().message()),
              HasSubstr("has no .metadata"));
}

TEST(DcpDirectoryTest, AnotherFileNameInTheMetadataLeadsNowhere) {
  const tests::TempDir dir;
  const std::string copy = CopyGolden(dir);
  std::string metadata = Contents(copy + "/.metadata");
  const std::string from = "__1_0.distcp", to = "../../secret";
  ASSERT_EQ(from.size(), to.size());
  const size_t at = metadata.find(from);
  ASSERT_NE(at, std::string::npos);
  metadata.replace(at, from.size(), to);
  Store(copy + "/.metadata", metadata);
  const absl::Status status = ReadEverything(copy);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("leads out of the directory"));
}

TEST(DcpDirectoryTest, ANameThatMetadataDoesNotHaveIsRefusedUnread) {
  const tests::TempDir dir;
  const std::string copy = CopyGolden(dir);
  std::string metadata = Contents(copy + "/.metadata");
  const std::string from = "PosixPath", to = "PosixEvil";
  const size_t at = metadata.find(from);
  ASSERT_NE(at, std::string::npos);
  metadata.replace(at, from.size(), to);
  Store(copy + "/.metadata", metadata);
  EXPECT_THAT(std::string(ReadEverything(copy).message()),
              HasSubstr("it names 'pathlib.PosixEvil'"));
}

}  // namespace
}  // namespace holdfast::tools
