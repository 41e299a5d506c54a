// What appears whole or not at all: a file, a directory; and how they are
// written.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/storage/errno_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tests/unit/tools/convert/hf_files.h"
#include "tools/convert/dcp/byte_source.h"
#include "tools/convert/foreign_files.h"
#include "tools/convert/out_file.h"
#include "tools/convert/partial_directory.h"
#include "tools/convert/partial_file.h"
#include "tools/convert/safetensors_writer.h"

namespace holdfast::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kSignature[] = "\x89SIG";
bool IsOurs(const std::string& name) { return name.ends_with(".ours"); }

class PartialTest : public testing::Test {
 protected:
  std::string Path(const std::string& name) const {
    return dir_.path() + "/" + name;
  }
  bool Exists(const std::string& name) const { return fs::exists(Path(name)); }
  absl::StatusCode MakeFile(const std::string& name, uint64_t bytes = 0) const {
    return PartialFile::Create(Path(name), bytes, kSignature).status().code();
  }
  absl::StatusCode MakeDirectory(const std::string& name,
                                 uint64_t bytes = 0) const {
    return PartialDirectory::Create(Path(name), bytes, &IsOurs).status().code();
  }

  tests::TempDir dir_;
};

TEST_F(PartialTest, AFileHasItsNameWhenItIsPublishedAndElseNothingStays) {
  {
    auto file = PartialFile::Create(Path("a"), 3, kSignature);
    ASSERT_TRUE(file.ok()) << file.status();
    const std::string text = "abc";
    ASSERT_TRUE(
        WriteAllAt(file->fd(), 0, std::as_bytes(std::span(text)), file->path())
            .ok());
    EXPECT_FALSE(Exists("a"));
    EXPECT_TRUE(Exists(".a.partial"));
    ASSERT_TRUE(file->Publish().ok());
    ASSERT_TRUE(PartialFile::Create(Path("b"), 0, kSignature).ok());
  }
  EXPECT_EQ(ReadText(Path("a")), "abc");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.path()),
                          fs::directory_iterator()),
            1);
}

TEST_F(PartialTest, WhatIsThereOrAppearsMeanwhileIsNotReplaced) {
  WriteText(Path("a"), "mine");
  fs::create_directory(Path("d"));
  EXPECT_EQ(MakeFile("a"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(MakeFile("d"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(MakeDirectory("a"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(MakeDirectory("d/"), absl::StatusCode::kFailedPrecondition);

  auto file = PartialFile::Create(Path("late"), 0, kSignature);
  auto directory = PartialDirectory::Create(Path("later"), 0, &IsOurs);
  ASSERT_TRUE(file.ok() && directory.ok());
  WriteText(Path("late"), "first");
  fs::create_directory(Path("later"));
  WriteText(Path("later/x"), "first");
  for (const absl::Status& status : {file->Publish(), directory->Publish()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(status.message(), HasSubstr("has appeared meanwhile"));
  }
  EXPECT_EQ(ReadText(Path("late")), "first");
  EXPECT_EQ(ReadText(Path("later/x")), "first");
}

TEST_F(PartialTest, WhatAKilledOneLeftGoesAndNothingElse) {
  WriteText(Path(".a.partial"), std::string(kSignature) + "...");
  EXPECT_EQ(MakeFile("a"), absl::StatusCode::kOk);
  WriteText(Path(".a.partial"), std::string(1000, '\0'));
  EXPECT_EQ(MakeFile("a"), absl::StatusCode::kOk);
  WriteText(Path(".a.partial"), "");
  EXPECT_EQ(MakeFile("a"), absl::StatusCode::kOk);
  EXPECT_FALSE(Exists(".a.partial"));

  WriteText(Path(".a.partial"), "a letter");
  EXPECT_EQ(MakeFile("a"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReadText(Path(".a.partial")), "a letter");
  fs::create_directory(Path(".c.partial"));
  EXPECT_NE(MakeFile("c"), absl::StatusCode::kOk);
  fs::create_symlink(Path(".a.partial"), Path(".e.partial"));
  EXPECT_NE(MakeFile("e"), absl::StatusCode::kOk);
  EXPECT_NE(MakeDirectory("e"), absl::StatusCode::kOk);
  ASSERT_EQ(::mkfifo(Path(".p.partial").c_str(), 0600), 0);
  EXPECT_EQ(MakeFile("p"), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Exists(".c.partial") && Exists(".e.partial") &&
              Exists(".p.partial"));

  fs::create_directory(Path(".d.partial"));
  WriteText(Path(".d.partial/x.ours"), "half");
  EXPECT_EQ(MakeDirectory("d"), absl::StatusCode::kOk);
  EXPECT_FALSE(Exists(".d.partial"));
  fs::create_directory(Path(".d.partial"));
  WriteText(Path(".d.partial/x.ours"), "half");
  WriteText(Path(".d.partial/y"), "mine");
  EXPECT_EQ(MakeDirectory("d"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReadText(Path(".d.partial/y")), "mine");
  EXPECT_EQ(ReadText(Path(".d.partial/x.ours")), "half");
}

TEST_F(PartialTest, OneAtATime) {
  auto file = PartialFile::Create(Path("a"), 0, kSignature);
  auto directory = PartialDirectory::Create(Path("d"), 0, &IsOurs);
  ASSERT_TRUE(file.ok() && directory.ok());
  EXPECT_EQ(MakeFile("a"), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(MakeDirectory("d"), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(file->Publish().ok());
  EXPECT_TRUE(directory->Publish().ok());
}

TEST_F(PartialTest, APlaceThatCannotBeIsSaidAtOnce) {
  WriteText(Path("file"), "");
  for (const char* out : {"none/a", "file/a", ".."}) {
    EXPECT_EQ(MakeFile(out), absl::StatusCode::kInvalidArgument) << out;
    EXPECT_EQ(MakeDirectory(out), absl::StatusCode::kInvalidArgument) << out;
  }
  EXPECT_EQ(MakeFile("a", uint64_t{1} << 62),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(MakeDirectory("a", uint64_t{1} << 62),
            absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(Exists(".a.partial"));
}

// An error of the system is what ckpt/storage says of it, whoever meets it; a
// program then ends as its table says (74 for I/O, never 70, our own bug).
TEST_F(PartialTest, ErrorsOfTheSystemHaveTheCodesOfTheStorage) {
  const std::string bytes = "x";
  EXPECT_EQ(WriteAllAt(-1, 0, std::as_bytes(std::span(bytes)), "it").code(),
            ckpt::CodeOfErrno(EBADF));
  const ckpt::Fd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  const absl::Status written =
      WriteAllAt(full.get(), 0, std::as_bytes(std::span(bytes)), "it");
  EXPECT_EQ(written.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(written.message(), HasSubstr("writing it: No space left"));
  const auto none = ForeignDirectory::Open(Path("none"));
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  const auto loose = FileSource::OpenIn(-1, "dir", "file");
  EXPECT_EQ(loose.status().code(), ckpt::CodeOfErrno(EBADF));
}

// On the test's own disk, and where there is no O_DIRECT or only by chance.
TEST_F(PartialTest, BytesAreWhereTheyBelongHoweverTheyAreAligned) {
  ckpt::AlignedBuffer memory(20000);
  for (size_t i = 0; i < memory.size(); ++i) {
    memory.data()[i] = static_cast<std::byte>(i * 7 + i / 251);
  }
  for (const std::string& dir : {dir_.path(), std::string("/dev/shm")}) {
    ckpt::Fd fd(::open(dir.c_str(), O_TMPFILE | O_RDWR, 0600));
    if (!fd.valid()) continue;
    OutFile file(fd.get(), "it");
    ASSERT_TRUE(file.Reserve(20000).ok());
    const std::pair<size_t, size_t> parts[] = {
        {8192, 11808}, {0, 4096}, {4097, 4095}, {4096, 1}};
    for (const auto& [offset, bytes] : parts) {
      ASSERT_TRUE(
          file.WriteAt(offset, memory.span().subspan(offset, bytes)).ok());
    }
    std::vector<std::byte> back(20001);
    EXPECT_EQ(::pread(fd.get(), back.data(), back.size(), 0), 20000);
    EXPECT_EQ(std::memcmp(back.data(), memory.data(), 20000), 0);
  }
}

// The same files, whoever writes which window of them.
TEST_F(PartialTest, SafetensorsAreTheSameOnAnyNumberOfThreads) {
  SafetensorsToWrite what;
  const std::vector<int64_t> lengths = {3, 0, 5000, 1, 1024, 9000, 2, 700};
  for (size_t t = 0; t < lengths.size(); ++t) {
    what.tensors.push_back({"t" + std::to_string(t),
                            "F32",
                            {lengths[t]},
                            0,
                            static_cast<uint64_t>(lengths[t]) * 4});
  }
  what.file_bytes_max = 24000;
  what.window_bytes = 4096;
  what.fill = [&](std::span<const TensorRun> runs, int) {
    for (const TensorRun& run : runs) {
      EXPECT_EQ(run.first % 4, 0);
      EXPECT_EQ(run.out.size() % 4, 0);
      for (size_t i = 0; i < run.out.size(); ++i) {
        run.out[i] = static_cast<std::byte>((run.first + i) * 31 + run.tensor);
      }
    }
    return absl::OkStatus();
  };
  std::vector<std::string> names;
  for (const int threads : {1, 4}) {
    const std::string out = "out" + std::to_string(threads);
    auto directory = PartialDirectory::Create(Path(out), 0, &IsOurs);
    ASSERT_TRUE(directory.ok());
    std::atomic<uint64_t> done = 0;
    auto written =
        WriteSafetensors(*directory, what, {.threads = threads}, &done);
    ASSERT_TRUE(written.ok()) << written.status();
    names = *written;
    EXPECT_EQ(done, 15730 * 4);
    ASSERT_TRUE(directory->Publish().ok());
  }
  EXPECT_EQ(names.size(), 5);  // four and the index
  for (const std::string& name : names) {
    EXPECT_EQ(ReadText(Path("out1/" + name)), ReadText(Path("out4/" + name)));
  }
  std::string all;
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    const std::string text = ReadText(Path("out1/" + names[i]));
    uint64_t header = 0;
    std::memcpy(&header, text.data(), 8);
    all += text.substr(8 + header);
  }
  std::string wanted;
  for (size_t t = 0; t < lengths.size(); ++t) {
    for (int64_t i = 0; i < lengths[t] * 4; ++i) {
      wanted += static_cast<char>(i * 31 + t);
    }
  }
  EXPECT_EQ(all, wanted);
}

}  // namespace
}  // namespace holdfast::tools
