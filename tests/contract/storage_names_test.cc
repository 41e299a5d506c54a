// tests/contract/storage_names_test.cc: the sentences of ckpt/storage/storage.h
// about names and small files, asked of every backend.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/contract/storage_suite.h"

namespace holdfast::tests {
namespace {

class StorageNamesTest : public StorageTest {};

INSTANTIATE_TEST_SUITE_P(Backends, StorageNamesTest,
                         ::testing::ValuesIn(AllStorageWorlds()),
                         [](const auto& info) { return info.param.name; });

// --- Names -------------------------------------------------------------------

TEST_P(StorageNamesTest, ListIsSortedAndHidesTemporaryNames) {
  ASSERT_THAT(io_->MakeDir("d"), IsOk());
  for (const char* const name : {"d/c", "d/a", "d/b", "z"}) {
    ASSERT_THAT(io_->PutIfAbsent(name, Bytes("x")), IsOk());
  }
  ASSERT_THAT(io_->MakeDir("d/sub"), IsOk());
  ASSERT_THAT(io_->PutIfAbsent("d/sub/f", Bytes("x")), IsOk());
  if (has_directories()) world_->PlantLeftover("d");
  EXPECT_THAT(*io_->List("d"),
              ElementsAre(DirEntry{"a", false}, DirEntry{"b", false},
                          DirEntry{"c", false}, DirEntry{"sub", true}));
  EXPECT_THAT(*io_->List("."),
              ElementsAre(DirEntry{"d", true}, DirEntry{"z", false}));
  if (has_directories()) {
    EXPECT_THAT(io_->List("absent").status(), Fails(kNotFound));
    EXPECT_THAT(io_->List("z").status(), Fails(kWrongKind));
  } else {
    EXPECT_THAT(*io_->List("absent"), IsEmpty());
  }
}

TEST_P(StorageNamesTest, MakeDirWantsAParentAndAFreeName) {
  ASSERT_THAT(io_->MakeDir("d"), IsOk());
  ASSERT_THAT(io_->SyncDir("."), IsOk());
  ASSERT_THAT(io_->SyncDir("d"), IsOk());
  if (!has_directories()) return;
  EXPECT_THAT(io_->MakeDir("d"), Fails(kAlreadyExists));
  EXPECT_THAT(io_->MakeDir("no/dir"), Fails(kNotFound));
  EXPECT_THAT(io_->SyncDir("no"), Fails(kNotFound));
  ASSERT_THAT(io_->PutIfAbsent("f", Bytes("x")), IsOk());
  EXPECT_THAT(io_->MakeDir("f"), Fails(kAlreadyExists));
  EXPECT_THAT(io_->SyncDir("f"), Fails(kWrongKind));
}

TEST_P(StorageNamesTest, RenameMovesAndNeverReplaces) {
  if (!storage_->traits().has_rename) {
    ASSERT_THAT(io_->PutIfAbsent("a", Bytes("a")), IsOk());
    EXPECT_THAT(io_->Rename("a", "b"), Fails(absl::StatusCode::kUnimplemented));
    return;
  }
  ASSERT_THAT(io_->MakeDir("d"), IsOk());
  ASSERT_THAT(io_->MakeDir("empty"), IsOk());
  ASSERT_THAT(io_->PutIfAbsent("a", Bytes("a")), IsOk());
  ASSERT_THAT(io_->PutIfAbsent("b", Bytes("b")), IsOk());
  ASSERT_THAT(io_->PutIfAbsent("d/f", Bytes("f")), IsOk());
  EXPECT_THAT(io_->Rename("a", "b"), Fails(kAlreadyExists));
  EXPECT_THAT(io_->Rename("a", "d"), Fails(kAlreadyExists));
  EXPECT_THAT(io_->Rename("d", "empty"), Fails(kAlreadyExists));
  EXPECT_THAT(io_->Rename("absent", "c"), Fails(kNotFound));
  EXPECT_THAT(io_->Rename("a", "no/dir"), Fails(kNotFound));
  EXPECT_THAT(io_->Rename("d", "d/below"),
              Fails(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(Text(*io_->Get("a", 10)), "a");
  EXPECT_EQ(Text(*io_->Get("b", 10)), "b");

  EXPECT_THAT(io_->Rename("a", "empty/a"), IsOk());
  EXPECT_THAT(io_->Rename("d", "e"), IsOk());
  EXPECT_THAT(io_->Get("a", 10).status(), Fails(kNotFound));
  EXPECT_EQ(Text(*io_->Get("empty/a", 10)), "a");
  EXPECT_EQ(Text(*io_->Get("e/f", 10)), "f");
}

TEST_P(StorageNamesTest, RemoveTakesFilesAndEmptyDirectories) {
  ASSERT_THAT(io_->MakeDir("d"), IsOk());
  ASSERT_THAT(io_->PutIfAbsent("d/f", Bytes("x")), IsOk());
  if (has_directories()) {
    EXPECT_THAT(io_->Remove("d"), Fails(kWrongKind));
    EXPECT_THAT(io_->Remove("absent"), Fails(kNotFound));
    EXPECT_THAT(io_->Remove("no/dir"), Fails(kNotFound));
  }
  EXPECT_THAT(io_->Remove("d/f"), IsOk());
  EXPECT_THAT(io_->Get("d/f", 10).status(), Fails(kNotFound));
  // What a killed PutIfAbsent left does not keep its directory.
  if (has_directories()) world_->PlantLeftover("d");
  EXPECT_THAT(io_->Remove("d"), IsOk());
  EXPECT_THAT(*io_->List("."), IsEmpty());
}

TEST_P(StorageNamesTest, FreeSpaceIsThatOfADirectory) {
  const auto free = io_->FreeSpace(".");
  if (!storage_->traits().has_directories) {
    EXPECT_THAT(free.status(), Fails(absl::StatusCode::kUnimplemented));
    return;
  }
  ASSERT_THAT(free.status(), IsOk());
  EXPECT_GT(*free, 0);
  EXPECT_THAT(io_->FreeSpace("absent").status(), Fails(kNotFound));
  ASSERT_THAT(io_->PutIfAbsent("f", Bytes("x")), IsOk());
  EXPECT_THAT(io_->FreeSpace("f").status(), Fails(kWrongKind));
}

TEST_P(StorageNamesTest, ARemovedNameIsFree) {
  ASSERT_THAT(io_->PutIfAbsent("f", Bytes("old")), IsOk());
  ASSERT_THAT(io_->Remove("f"), IsOk());
  EXPECT_THAT(io_->PutIfAbsent("f", Bytes("new")), IsOk());
  EXPECT_EQ(Text(*io_->Get("f", 10)), "new");
}

// --- Small files, whole ------------------------------------------------------

TEST_P(StorageNamesTest, TheFirstPutIfAbsentWins) {
  EXPECT_THAT(io_->PutIfAbsent("f", Bytes("first")), IsOk());
  EXPECT_THAT(io_->PutIfAbsent("f", Bytes("second")), Fails(kAlreadyExists));
  EXPECT_EQ(Text(*io_->Get("f", 10)), "first");
  EXPECT_THAT(*io_->List("."), ElementsAre(DirEntry{"f", false}));
  EXPECT_THAT(io_->PutIfAbsent("empty", {}), IsOk());
  EXPECT_THAT(*io_->Get("empty", 10), IsEmpty());
  world_->PlantSymlink("link");
  EXPECT_THAT(io_->PutIfAbsent("link", Bytes("x")), Fails(kAlreadyExists));
  if (has_directories()) {
    ASSERT_THAT(io_->MakeDir("d"), IsOk());
    EXPECT_THAT(io_->PutIfAbsent("d", Bytes("x")), Fails(kAlreadyExists));
    EXPECT_THAT(io_->PutIfAbsent("no/f", Bytes("x")), Fails(kNotFound));
  }
}

TEST_P(StorageNamesTest, OfSeveralWritersExactlyOneSucceedsAndIsRead) {
  std::vector<std::unique_ptr<Storage>> storages;
  for (int i = 0; i < 6; ++i) storages.push_back(world_->Start());
  for (int round = 0; round < 10; ++round) {
    const std::string name = "f" + std::to_string(round);
    for (size_t i = 0; i < storages.size(); ++i) {
      // Copied before the call returns.
      std::vector<std::byte> bytes = Bytes("from " + std::to_string(i));
      storages[i]->PutIfAbsent(name, bytes, OpTag{i});
      std::fill(bytes.begin(), bytes.end(), std::byte{'?'});
    }
    int winners = 0;
    std::string winner;
    for (size_t i = 0; i < storages.size(); ++i) {
      const absl::Status status = Answers(*storages[i], 1)[i];
      if (status.ok()) {
        ++winners;
        winner = "from " + std::to_string(i);
      } else {
        EXPECT_THAT(status, Fails(kAlreadyExists));
      }
    }
    EXPECT_EQ(winners, 1);
    EXPECT_EQ(Text(*io_->Get(name, 100)), winner);
  }
  EXPECT_EQ(io_->List(".")->size(), 10);
}

TEST_P(StorageNamesTest, ALargePutIsWhole) {
  const AlignedBuffer data = Pattern(3'000'001, 9);
  ASSERT_THAT(io_->PutIfAbsent("f", data.span()), IsOk());
  const auto bytes = io_->Get("f", data.size());
  ASSERT_THAT(bytes.status(), IsOk());
  EXPECT_TRUE(SameBytes(*bytes, data.span()));
  // One byte less than it has is too few.
  EXPECT_THAT(io_->Get("f", data.size() - 1).status(), Fails(kNoSpace));
}

TEST_P(StorageNamesTest, APutThatDoesNotFitLeavesNoName) {
  const AlignedBuffer data = Pattern(8 * kBlock, 9);
  world_->LimitFileSize(4 * kBlock);
  EXPECT_THAT(io_->PutIfAbsent("f", data.span()), Fails(kNoSpace));
  world_->Unlimit();
  EXPECT_THAT(*io_->List("."), IsEmpty());
  EXPECT_THAT(io_->PutIfAbsent("f", data.span()), IsOk());
}

TEST_P(StorageNamesTest, APutFileIsReadLikeAnyOther) {
  const AlignedBuffer data = Pattern(2 * kBlock, 9);
  ASSERT_THAT(io_->PutIfAbsent("f", data.span()), IsOk());
  ASSERT_EQ(*io_->Open("f", kFile), data.size());
  AlignedBuffer out(data.size());
  ASSERT_EQ(*io_->Read(kFile, 0, out.span()), data.size());
  EXPECT_TRUE(SameBytes(out.span(), data.span()));
}

}  // namespace
}  // namespace holdfast::tests
