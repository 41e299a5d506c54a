// tests/contract/storage_test.cc: the sentences of ckpt/storage/storage.h,
// asked of every backend. What a power cut may take is asked of the simulated
// disk in tests/sim/sim_storage_test.cc; real disks cannot be asked here.

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/contract/storage_suite.h"

namespace holdfast::tests {
namespace {

INSTANTIATE_TEST_SUITE_P(Backends, StorageTest,
                         ::testing::ValuesIn(AllStorageWorlds()),
                         [](const auto& info) { return info.param.name; });

// --- Writing a shard ---------------------------------------------------------

TEST_P(StorageTest, OneOfTwoStoragesCreatesAName) {
  const std::unique_ptr<Storage> other = world_->Start();
  for (int i = 0; i < 20; ++i) {
    const std::string name = "f" + std::to_string(i);
    storage_->Create(name, FileId(i), 0, OpTag{1});
    other->Create(name, FileId(i), 0, OpTag{1});
    const absl::Status a = Answers(*storage_, 1)[1];
    const absl::Status b = Answers(*other, 1)[1];
    EXPECT_NE(a.ok(), b.ok());
    EXPECT_THAT(a.ok() ? b : a, Fails(kAlreadyExists));
  }
}

TEST_P(StorageTest, CreateRefusesAnyNameThatIsTaken) {
  world_->PlantSymlink("link");
  EXPECT_THAT(io_->Create("link", kFile), Fails(kAlreadyExists));
  if (has_directories()) {
    ASSERT_THAT(io_->MakeDir("d"), IsOk());
    EXPECT_THAT(io_->Create("d", kFile), Fails(kAlreadyExists));
    EXPECT_THAT(io_->Create("nowhere/f", kFile), Fails(kNotFound));
    ASSERT_THAT(io_->PutIfAbsent("f", Bytes("x")), IsOk());
    EXPECT_THAT(io_->Create("f/g", kFile), Fails(kWrongKind));
  }
  // The id of a failed Create is free.
  EXPECT_THAT(io_->Create("free", kFile), IsOk());
}

TEST_P(StorageTest, WhatIsWrittenInAnyOrderIsReadByAnother) {
  const size_t pieces = 16;
  const size_t size = 3 * kBlock;
  const AlignedBuffer data = Pattern(pieces * size, 7);
  ASSERT_THAT(io_->Create("f", kFile, data.size()), IsOk());
  for (size_t i = 0; i < pieces; ++i) {
    const size_t at = i * 7 % pieces * size;
    storage_->Write(kFile, at, data.span().subspan(at, size), OpTag{i});
  }
  for (const auto& [tag, status] : Answers(*storage_, pieces)) {
    EXPECT_THAT(status, IsOk());
  }
  ASSERT_THAT(io_->Sync(kFile), IsOk());
  ASSERT_THAT(io_->Close(kFile), IsOk());

  const std::unique_ptr<Storage> other = world_->Start();
  Blocking reader(*other);
  ASSERT_EQ(*reader.Open("f", kFile), data.size());
  AlignedBuffer out(data.size());
  for (size_t i = 0; i < pieces; ++i) {
    other->Read(kFile, i * size, out.span().subspan(i * size, size), OpTag{i});
  }
  for (const auto& [tag, status] : Answers(*other, pieces)) {
    EXPECT_THAT(status, IsOk());
  }
  EXPECT_TRUE(SameBytes(out.span(), data.span()));
  EXPECT_THAT(reader.Close(kFile), IsOk());
}

TEST_P(StorageTest, AfterSyncAFileEndsWhereItsFurthestWriteDid) {
  const AlignedBuffer data = Pattern(kBlock, 1);
  // Reserved more than it needs.
  ASSERT_THAT(io_->Create("long", kFile, 100 * kBlock), IsOk());
  ASSERT_THAT(io_->Write(kFile, 4 * kBlock, data.span()), IsOk());
  ASSERT_THAT(io_->Sync(kFile), IsOk());
  EXPECT_EQ(*io_->Open("long", kOther), 5 * kBlock);
  ASSERT_THAT(io_->Close(kOther), IsOk());
  // Written to again.
  ASSERT_THAT(io_->Write(kFile, 8 * kBlock, data.span()), IsOk());
  ASSERT_THAT(io_->Sync(kFile), IsOk());
  ASSERT_THAT(io_->Close(kFile), IsOk());
  // Reserved less.
  ASSERT_THAT(io_->Create("short", kFile, kBlock), IsOk());
  ASSERT_THAT(io_->Write(kFile, 2 * kBlock, data.span()), IsOk());
  ASSERT_THAT(io_->Sync(kFile), IsOk());
  ASSERT_THAT(io_->Close(kFile), IsOk());

  EXPECT_EQ(*io_->Open("long", kFile), 9 * kBlock);
  EXPECT_EQ(*io_->Open("short", kOther), 3 * kBlock);
  AlignedBuffer out(9 * kBlock);
  ASSERT_EQ(*io_->Read(kFile, 0, out.span()), 9 * kBlock);
  // Nobody wrote the holes.
  EXPECT_TRUE(
      SameBytes(out.span().first(kBlock), AlignedBuffer(kBlock).span()));
  EXPECT_TRUE(SameBytes(out.span().subspan(4 * kBlock, kBlock), data.span()));
  EXPECT_TRUE(SameBytes(out.span().subspan(8 * kBlock, kBlock), data.span()));
}

// One makes the file, the other writes into it; each syncs its own.
TEST_P(StorageTest, TwoStoragesFillOneFile) {
  const AlignedBuffer data = Pattern(9 * kBlock, 21);
  const std::unique_ptr<Storage> other = world_->Start();
  Blocking guest(*other);
  ASSERT_THAT(io_->Create("f", kFile, 20 * kBlock), IsOk());
  if (!has_directories()) {
    EXPECT_THAT(guest.OpenForWrite("f", kOther).status(),
                Fails(absl::StatusCode::kUnimplemented));
    return;
  }
  ASSERT_EQ(*guest.OpenForWrite("f", kOther), 20 * kBlock);
  ASSERT_THAT(guest.Write(kOther, 2 * kBlock,
                          data.span().subspan(2 * kBlock, 3 * kBlock)),
              IsOk());
  ASSERT_THAT(guest.Sync(kOther), IsOk());
  // What the other has reserved, a guest leaves as it is.
  EXPECT_EQ(*io_->Open("f", kOther), 20 * kBlock);
  ASSERT_THAT(io_->Close(kOther), IsOk());
  ASSERT_THAT(guest.Write(kOther, 5 * kBlock,
                          data.span().subspan(5 * kBlock, 3 * kBlock)),
              IsOk());
  ASSERT_THAT(guest.Sync(kOther), IsOk());
  ASSERT_THAT(guest.Close(kOther), IsOk());
  ASSERT_THAT(io_->Write(kFile, 0, data.span().first(2 * kBlock)), IsOk());
  ASSERT_THAT(
      io_->Write(kFile, 8 * kBlock, data.span().subspan(8 * kBlock, kBlock)),
      IsOk());
  ASSERT_THAT(io_->Sync(kFile), IsOk());
  ASSERT_THAT(io_->Close(kFile), IsOk());

  ASSERT_EQ(*guest.Open("f", kFile), data.size());
  AlignedBuffer out(data.size());
  ASSERT_EQ(*guest.Read(kFile, 0, out.span()), data.size());
  EXPECT_TRUE(SameBytes(out.span(), data.span()));
}

TEST_P(StorageTest, AGuestMayMakeAFileLonger) {
  if (!has_directories()) GTEST_SKIP() << "objects are written whole";
  const AlignedBuffer data = Pattern(kBlock, 22);
  WriteFile("f", data.span());
  ASSERT_EQ(*io_->OpenForWrite("f", kFile), kBlock);
  ASSERT_THAT(io_->Write(kFile, 3 * kBlock, data.span()), IsOk());
  ASSERT_THAT(io_->Sync(kFile), IsOk());
  ASSERT_THAT(io_->Close(kFile), IsOk());
  ASSERT_EQ(*io_->Open("f", kFile), 4 * kBlock);
  AlignedBuffer out(4 * kBlock);
  ASSERT_EQ(*io_->Read(kFile, 0, out.span()), out.size());
  EXPECT_TRUE(SameBytes(out.span().first(kBlock), data.span()));
  EXPECT_TRUE(SameBytes(out.span().subspan(3 * kBlock), data.span()));
}

TEST_P(StorageTest, OnlyRegularFilesThatAreThereAreOpenedForWriting) {
  if (!has_directories()) GTEST_SKIP() << "objects are written whole";
  world_->PlantSymlink("link");
  EXPECT_THAT(io_->OpenForWrite("link", kFile).status(), Fails(kWrongKind));
  EXPECT_THAT(io_->OpenForWrite("absent", kFile).status(), Fails(kNotFound));
  EXPECT_THAT(io_->OpenForWrite("no/such", kFile).status(), Fails(kNotFound));
  ASSERT_THAT(io_->MakeDir("d"), IsOk());
  EXPECT_THAT(io_->OpenForWrite("d", kFile).status(), Fails(kWrongKind));
  // Nothing was made, and the id is free.
  const std::vector<DirEntry> there = *io_->List(".");
  EXPECT_EQ(there.size(), 2u);
  EXPECT_THAT(io_->Create("absent", kFile), IsOk());
}

TEST_P(StorageTest, AFailedWritePoisonsAFileForTheGuestAlone) {
  if (!has_directories()) GTEST_SKIP() << "objects are written whole";
  const AlignedBuffer data = Pattern(8 * kBlock, 23);
  const std::unique_ptr<Storage> other = world_->Start();
  Blocking guest(*other);
  ASSERT_THAT(io_->Create("f", kFile), IsOk());
  ASSERT_THAT(guest.OpenForWrite("f", kFile).status(), IsOk());
  world_->LimitFileSize(4 * kBlock);
  EXPECT_THAT(guest.Write(kFile, kBlock, data.span()), Fails(kNoSpace));
  world_->Unlimit();
  EXPECT_THAT(guest.Sync(kFile), Fails(kNoSpace));
  EXPECT_THAT(guest.Close(kFile), Fails(kNoSpace));
  EXPECT_THAT(io_->Write(kFile, 0, data.span()), IsOk());
  EXPECT_THAT(io_->Sync(kFile), IsOk());
  EXPECT_THAT(io_->Close(kFile), IsOk());
}

TEST_P(StorageTest, AnEmptyFileCanBeSynced) {
  ASSERT_THAT(io_->Create("f", kFile, 10 * kBlock), IsOk());
  EXPECT_THAT(io_->Sync(kFile), IsOk());
  EXPECT_THAT(io_->Close(kFile), IsOk());
  EXPECT_EQ(*io_->Open("f", kFile), 0);
}

TEST_P(StorageTest, SyncWhileWritesAreUnansweredIsAnsweredToo) {
  const AlignedBuffer data = Pattern(16 * kBlock, 3);
  ASSERT_THAT(io_->Create("f", kFile, data.size()), IsOk());
  for (uint64_t i = 0; i < 16; ++i) {
    storage_->Write(kFile, i * kBlock, data.span().subspan(i * kBlock, kBlock),
                    OpTag{i});
    if (i % 4 == 3) storage_->Sync(kFile, OpTag{100 + i});
  }
  for (const auto& [tag, status] : Answers(*storage_, 20)) {
    EXPECT_THAT(status, IsOk()) << tag;
  }
  EXPECT_THAT(io_->Close(kFile), IsOk());
}

TEST_P(StorageTest, AFailedWritePoisonsTheFileAndOnlyTheFile) {
  const AlignedBuffer data = Pattern(8 * kBlock, 5);
  ASSERT_THAT(io_->Create("f", kFile), IsOk());
  ASSERT_THAT(io_->Write(kFile, 0, data.span().first(kBlock)), IsOk());
  world_->LimitFileSize(4 * kBlock);
  EXPECT_THAT(io_->Write(kFile, kBlock, data.span()), Fails(kNoSpace));
  world_->Unlimit();
  // The trouble is over, the file is not to be trusted all the same.
  EXPECT_THAT(io_->Write(kFile, 0, data.span()), Fails(kNoSpace));
  EXPECT_THAT(io_->Sync(kFile), Fails(kNoSpace));
  EXPECT_THAT(io_->Close(kFile), Fails(kNoSpace));
  // Closed it is, and another one works, under the same id.
  WriteFile("g", data.span());
}

TEST_P(StorageTest, CreateRefusesWhatCannotFitAndLeavesNoName) {
  world_->LimitFileSize(4 * kBlock);
  EXPECT_THAT(io_->Create("f", kFile, 8 * kBlock), Fails(kNoSpace));
  world_->Unlimit();
  EXPECT_THAT(*io_->List("."), IsEmpty());
  EXPECT_THAT(io_->Create("f", kFile, 8 * kBlock), IsOk());
}

TEST_P(StorageTest, RegisteredAndOrdinaryMemoryWriteTheSame) {
  std::unique_ptr<Storage> storage = world_->Start();
  AlignedBuffer a = Pattern(16 * kBlock, 11);
  AlignedBuffer b = Pattern(4 * kBlock, 12);
  AlignedBuffer ordinary = Pattern(4 * kBlock, 13);
  const std::vector<std::span<std::byte>> buffers = {a.span(), b.span()};
  storage->RegisterBuffers(buffers);
  Blocking io(*storage);
  ASSERT_THAT(io.Create("f", kFile), IsOk());
  ASSERT_THAT(io.Write(kFile, 0, a.span()), IsOk());
  ASSERT_THAT(io.Write(kFile, 16 * kBlock, b.span().subspan(kBlock)), IsOk());
  ASSERT_THAT(io.Write(kFile, 19 * kBlock, ordinary.span()), IsOk());
  ASSERT_THAT(io.Sync(kFile), IsOk());
  ASSERT_THAT(io.Close(kFile), IsOk());
  AlignedBuffer out(23 * kBlock);
  ASSERT_EQ(*io.Open("f", kFile), out.size());
  ASSERT_EQ(*io.Read(kFile, 0, out.span()), out.size());
  EXPECT_TRUE(SameBytes(out.span().first(16 * kBlock), a.span()));
  EXPECT_TRUE(SameBytes(out.span().subspan(16 * kBlock, 3 * kBlock),
                        b.span().subspan(kBlock)));
  EXPECT_TRUE(SameBytes(out.span().subspan(19 * kBlock), ordinary.span()));
  // And back into registered memory.
  ASSERT_EQ(*io.Read(kFile, 19 * kBlock, b.span()), 4 * kBlock);
  EXPECT_TRUE(SameBytes(b.span(), ordinary.span()));
}

// --- Reading -----------------------------------------------------------------

TEST_P(StorageTest, PastTheEndIsAnErrorAndTheLastBlockIsZeroFilled) {
  const AlignedBuffer data = Pattern(5000, 2);
  ASSERT_THAT(io_->PutIfAbsent("f", data.span()), IsOk());
  ASSERT_EQ(*io_->Open("f", kFile), 5000);
  AlignedBuffer out(3 * kBlock);
  std::memset(out.data(), 0xFF, out.size());
  ASSERT_EQ(*io_->Read(kFile, 0, out.span().first(2 * kBlock)), 5000);
  EXPECT_TRUE(SameBytes(out.span().first(5000), data.span()));
  for (size_t i = 5000; i < 2 * kBlock; ++i) {
    ASSERT_EQ(out.data()[i], std::byte{0}) << i;
  }
  EXPECT_EQ(*io_->Read(kFile, kBlock, out.span().first(kBlock)), 5000 - kBlock);
  EXPECT_THAT(io_->Read(kFile, 0, out.span()).status(), Fails(kPastEnd));
  EXPECT_THAT(io_->Read(kFile, 2 * kBlock, out.span().first(kBlock)).status(),
              Fails(kPastEnd));
  EXPECT_THAT(io_->Read(kFile, kBlock, out.span().first(2 * kBlock)).status(),
              Fails(kPastEnd));
  // An error of Read poisons nothing.
  EXPECT_EQ(*io_->Read(kFile, 0, out.span().first(kBlock)), kBlock);
  EXPECT_THAT(io_->Close(kFile), IsOk());
}

TEST_P(StorageTest, OnlyRegularFilesAreOpened) {
  world_->PlantSymlink("link");
  EXPECT_THAT(io_->Open("link", kFile).status(), Fails(kWrongKind));
  EXPECT_THAT(io_->Get("link", 100).status(), Fails(kWrongKind));
  EXPECT_THAT(io_->Open("absent", kFile).status(), Fails(kNotFound));
  EXPECT_THAT(io_->Get("absent", 100).status(), Fails(kNotFound));
  EXPECT_THAT(io_->Open("no/such/dir", kFile).status(), Fails(kNotFound));
  if (has_directories()) {
    ASSERT_THAT(io_->MakeDir("d"), IsOk());
    EXPECT_THAT(io_->Open("d", kFile).status(), Fails(kWrongKind));
    EXPECT_THAT(io_->Get("d", 100).status(), Fails(kWrongKind));
  }
}

TEST_P(StorageTest, SeveralFilesAreOpenAtOnce) {
  const AlignedBuffer data = Pattern(20 * kBlock, 4);
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_THAT(io_->Create("f" + std::to_string(i), FileId{i}), IsOk());
  }
  for (uint32_t i = 0; i < 20; ++i) {
    storage_->Write(FileId{i}, 0, data.span().subspan(i * kBlock, kBlock),
                    OpTag{i});
  }
  for (const auto& [tag, status] : Answers(*storage_, 20)) {
    EXPECT_THAT(status, IsOk());
  }
  for (uint32_t i = 0; i < 20; ++i) {
    ASSERT_THAT(io_->Close(FileId{i}), IsOk());
    const auto bytes = io_->Get("f" + std::to_string(i), kBlock);
    ASSERT_THAT(bytes.status(), IsOk());
    EXPECT_TRUE(SameBytes(*bytes, data.span().subspan(i * kBlock, kBlock)));
  }
}

// --- Answers -----------------------------------------------------------------

TEST_P(StorageTest, AFullQueueIsAnsweredAndCanBeFilledAgain) {
  const std::unique_ptr<Storage> storage = world_->Start(32);
  ASSERT_EQ(storage->queue_depth(), 32);
  const AlignedBuffer data = Pattern(kBlock, 1);
  ASSERT_THAT(Blocking(*storage).Create("f", kFile), IsOk());
  for (int round = 0; round < 3; ++round) {
    for (uint64_t i = 0; i < 32; ++i) {
      storage->Write(kFile, i * kBlock, data.span(), OpTag{i});
    }
    for (const auto& [tag, status] : Answers(*storage, 32, round + 1)) {
      EXPECT_THAT(status, IsOk());
    }
  }
}

TEST_P(StorageTest, NothingAskedIsNothingAnswered) {
  Completion answer;
  EXPECT_EQ(storage_->Poll({&answer, 1}), 0);
  const auto begin = std::chrono::steady_clock::now();
  storage_->WaitForCompletion(20);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_EQ(storage_->Poll({&answer, 1}), 0);
}

// --- Bugs of the caller ------------------------------------------------------

using StorageDeathTest = StorageTest;
INSTANTIATE_TEST_SUITE_P(Backends, StorageDeathTest,
                         ::testing::ValuesIn(AllStorageWorlds()),
                         [](const auto& info) { return info.param.name; });

TEST_P(StorageDeathTest, WhatIsNotAlignedIsABug) {
  const AlignedBuffer data = Pattern(2 * kBlock, 1);
  AlignedBuffer out(2 * kBlock);
  ASSERT_THAT(io_->Create("f", kFile), IsOk());
  ASSERT_THAT(io_->PutIfAbsent("g", data.span()), IsOk());
  ASSERT_THAT(io_->Open("g", kOther).status(), IsOk());
  EXPECT_DEATH(storage_->Write(kFile, 512, data.span(), OpTag{1}), "aligned");
  EXPECT_DEATH(storage_->Write(kFile, 0, data.span().first(100), OpTag{1}),
               "aligned");
  EXPECT_DEATH(
      storage_->Write(kFile, 0, data.span().subspan(512, kBlock), OpTag{1}),
      "aligned");
  EXPECT_DEATH(storage_->Write(kFile, 0, {}, OpTag{1}), "no bytes");
  EXPECT_DEATH(storage_->Read(kOther, 512, out.span(), OpTag{1}), "aligned");
  EXPECT_DEATH(storage_->Read(kOther, 0, out.span().first(100), OpTag{1}),
               "aligned");
}

TEST_P(StorageDeathTest, AnIdIsForOneOpenFileAndOneDirection) {
  const AlignedBuffer data = Pattern(kBlock, 1);
  AlignedBuffer out(kBlock);
  ASSERT_THAT(io_->Create("f", kFile), IsOk());
  ASSERT_THAT(io_->PutIfAbsent("g", data.span()), IsOk());
  ASSERT_THAT(io_->Open("g", kOther).status(), IsOk());
  EXPECT_DEATH(storage_->Create("h", kFile, 0, OpTag{1}), "in use");
  EXPECT_DEATH(storage_->Open("g", kFile, OpTag{1}), "in use");
  EXPECT_DEATH(storage_->Read(kFile, 0, out.span(), OpTag{1}), "for writing");
  EXPECT_DEATH(storage_->Write(kOther, 0, data.span(), OpTag{1}),
               "for reading");
  EXPECT_DEATH(storage_->Sync(FileId{77}, OpTag{1}), "not open");
  EXPECT_DEATH(storage_->Close(FileId{77}, OpTag{1}), "not open");
}

TEST_P(StorageDeathTest, NamesAreRelativeAndPlain) {
  for (const char* const name : {"", "/a", "a/", "a//b", "..", "a/../b", ".",
                                 "a/.", ".tmp.1.1", "a/.tmp.x"}) {
    EXPECT_DEATH(storage_->Create(name, kFile, 0, OpTag{1}), "name") << name;
    EXPECT_DEATH(storage_->PutIfAbsent(name, {}, OpTag{1}), "name") << name;
  }
}

TEST_P(StorageDeathTest, OneCallTooManyIsABug) {
  const std::unique_ptr<Storage> storage = world_->Start(4);
  for (uint64_t i = 0; i < 4; ++i) storage->MakeDir("d", OpTag{i});
  EXPECT_DEATH(storage->MakeDir("d", OpTag{4}), "queue depth");
}

}  // namespace
}  // namespace holdfast::tests
