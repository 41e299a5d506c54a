// Stored bytes that are not what was stored. Wherever the damage is, no rank
// keeps a byte of that checkpoint: all step back together and say why.

#include <cstring>

#include "ckpt/format/shard.h"
#include "ckpt/session/owner_session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/start_fixture.h"

namespace holdfast::ckpt {
namespace {

using ::testing::HasSubstr;
using tests::SimStorage;
using tests::StartWorld;

constexpr RunId kOtherRun = {9, 9, 9};

class LoadDamageTest : public StartTest,
                       public testing::WithParamInterface<int> {
 protected:
  LoadDamageTest() : StartTest(GetParam()) {}

  // Every rank holds step 200, says so, and the seal says why not 300.
  void ExpectSteppedBack(const std::string& reason) {
    const auto world = Start();
    EXPECT_EQ(world->LoadedBy(200), "");
    for (int r = 0; r < world->world(); ++r) {
      ASSERT_EQ(world->result(r).stepped_over.size(), 1);
      EXPECT_EQ(world->result(r).stepped_over[0].checkpoint.id, k300);
      EXPECT_THAT(world->result(r).stepped_over[0].reason,
                  testing::AllOf(HasSubstr("damaged: "), HasSubstr(reason)));
    }
    EXPECT_THAT(world->result(0).notes, testing::Contains(HasSubstr(reason)));
    // It is never offered again.
    EXPECT_EQ(Look().newest()->id, k200);
    EXPECT_EQ(Start()->LoadedBy(200), "");
  }

  uint64_t IndexOffset(int file) const {
    const ShardFile& shard = manifest_300_.files[file];
    return shard.bytes - kShardBlockBytes - shard.index_bytes();
  }
  // The bytes of a file, through the storage.
  std::vector<std::byte> Contents(const std::string& name) {
    SimStorage storage(disk_, {.process = 92});
    auto bytes = Blocking(storage).Get(name, uint64_t{1} << 30);
    Check(bytes.status());
    return *std::move(bytes);
  }
  void Replace(const std::string& name, std::span<const std::byte> bytes) {
    SimStorage storage(disk_, {.process = 92});
    Blocking blocking(storage);
    Check(blocking.Remove(name));
    Check(blocking.PutIfAbsent(name, bytes));
  }
};

TEST_P(LoadDamageTest, AFlippedBitInTheHeader) {
  disk_.FlipBit(Shard(k300, 1), 20, 3);
  ExpectSteppedBack("shard-00001.hf, offset 0: header: ");
}

TEST_P(LoadDamageTest, AFlippedBitInTheData) {
  disk_.FlipBit(Shard(k300, 1), 4096 + 700, 0);
  ExpectSteppedBack("shard-00001.hf, offset 4096 (");
}

TEST_P(LoadDamageTest, AFlippedBitInTheLastUnit) {
  disk_.FlipBit(Shard(k300, 2), IndexOffset(2) - 4096 + 1, 7);
  ExpectSteppedBack("crc32c is");
}

TEST_P(LoadDamageTest, AFlippedBitInTheIndex) {
  disk_.FlipBit(Shard(k300, 1), IndexOffset(1) + 3, 3);
  ExpectSteppedBack("index has crc32c");
}

TEST_P(LoadDamageTest, AFlippedBitInTheFooter) {
  disk_.FlipBit(Shard(k300, 1), manifest_300_.files[1].bytes - 2048, 3);
  ExpectSteppedBack("footer: ");
}

TEST_P(LoadDamageTest, AFlippedBitInTheManifest) {
  disk_.FlipBit(AttemptDir(k300) + "/MANIFEST", 100, 3);
  ExpectSteppedBack("MANIFEST");
}

TEST_P(LoadDamageTest, TheMessageNamesTensorAndRows) {
  disk_.FlipBit(Shard(k300, 0), 4096 + 700, 0);
  ExpectSteppedBack("weight of 'model.embed_tokens.weight', rows 0-");
}

TEST_P(LoadDamageTest, AMissingFile) {
  SimStorage storage(disk_, {.process = 92});
  Check(Blocking(storage).Remove(Shard(k300, 2)));
  ExpectSteppedBack("shard-00002.hf");
}

TEST_P(LoadDamageTest, AFileCutShort) {
  disk_.Truncate(Shard(k300, 2), manifest_300_.files[2].bytes - 4096);
  ExpectSteppedBack("the manifest records");
}

TEST_P(LoadDamageTest, AFileThatIsLonger) {
  auto bytes = Contents(Shard(k300, 2));
  bytes.resize(bytes.size() + 4096);
  Replace(Shard(k300, 2), bytes);
  ExpectSteppedBack("the manifest records");
}

TEST_P(LoadDamageTest, AFileOfAnotherRun) {
  // The same in everything but the run.
  SimStorage storage(disk_, {.process = 92});
  tests::CheckpointSpec spec;
  spec.run_id = kOtherRun;
  spec.id = k300;
  spec.seed = 300;
  spec.zstd_level = GetParam();
  Check(tests::WriteShards(storage, *saved_layout_, spec, "other").status());
  Replace(Shard(k300, 1), Contents("other/shard-00001.hf"));
  ExpectSteppedBack("of run " + ToHex(kOtherRun));
}

TEST_P(LoadDamageTest, AManifestOfAnotherRun) {
  Manifest other = manifest_300_;
  other.run_id = kOtherRun;
  Replace(AttemptDir(k300) + "/MANIFEST", EncodeManifest(other));
  ExpectSteppedBack(ToHex(kOtherRun));
}

TEST_P(LoadDamageTest, AManifestOfAnotherCheckpoint) {
  Replace(AttemptDir(k300) + "/MANIFEST",
          Contents(AttemptDir(k200) + "/MANIFEST"));
  ExpectSteppedBack("step-000000200.i0002.a01");
}

TEST_P(LoadDamageTest, AnEmptyFile) {
  disk_.Truncate(Shard(k300, 2), 0);
  ExpectSteppedBack("has 0 bytes");
}

TEST_P(LoadDamageTest, ALinkInPlaceOfAFile) {
  SimStorage storage(disk_, {.process = 92});
  Check(Blocking(storage).Remove(Shard(k300, 2)));
  disk_.PlantSymlink(Shard(k300, 2));
  ExpectSteppedBack("shard-00002.hf");
}

TEST_P(LoadDamageTest, TheSameFileOfAnotherCheckpoint) {
  const auto foreign = Contents(Shard(k200, 1));
  Replace(Shard(k300, 1), foreign);
  ExpectSteppedBack("is file 1 of 8 of step-000000200.i0002.a01");
}

TEST_P(LoadDamageTest, TwoFilesSwapped) {
  // Of two ranks whose files have the same size.
  const std::vector<ShardFile>& files = manifest_300_.files;
  size_t i = 0;
  size_t j = 1;
  while (j < files.size() && files[i].bytes != files[j].bytes) {
    if (++j == files.size()) j = ++i + 1;
  }
  ASSERT_LT(j, files.size());
  const auto a = Contents(Shard(k300, i));
  const auto b = Contents(Shard(k300, j));
  Replace(Shard(k300, i), b);
  Replace(Shard(k300, j), a);
  ExpectSteppedBack(absl::StrFormat("is file %d of 8", j));
}

TEST_P(LoadDamageTest, TwoDamagedCheckpointsAreBothSteppedOver) {
  disk_.FlipBit(Shard(k300, 1), 4096, 0);
  disk_.FlipBit(Shard(k200, 0), 8192, 0);
  const auto world = Start();
  EXPECT_EQ(world->LoadedBy(100), "");
  EXPECT_EQ(world->result(2).stepped_over.size(), 2);
}

TEST_P(LoadDamageTest, WhenNothingIsLeftTheRunDoesNotSilentlyStartAgain) {
  disk_.FlipBit(Shard(k300, 1), 4096, 0);
  disk_.FlipBit(Shard(k200, 1), 4096, 0);
  disk_.FlipBit(Shard(k100, 1), 4096, 0);
  const auto world = Start();
  for (int r = 0; r < world->world(); ++r) {
    EXPECT_TRUE(absl::IsNotFound(world->result(r).status));
    EXPECT_THAT(world->result(r).status.message(), HasSubstr("crc32c"));
  }
  // Nothing was sealed, so a person may still repair it.
  EXPECT_EQ(Look().seal->incarnation, 2);
}

TEST_P(LoadDamageTest, AFeatureOfTheFutureIsRefusedAndNotSteppedOver) {
  // The body starts at byte 24 with the list of features, empty or of "zstd";
  // its length stands before it, the checksum of everything at the end
  // (ckpt/FORMAT.md).
  std::vector<std::byte> bytes = EncodeManifest(manifest_300_);
  bytes.resize(bytes.size() - 4);
  const size_t list = manifest_300_.features_must.empty() ? 1 : 6;
  bytes.erase(bytes.begin() + 24, bytes.begin() + 24 + list);
  const std::string feature = "\x01\x05holes";
  for (size_t i = 0; i < feature.size(); ++i) {
    bytes.insert(bytes.begin() + 24 + i, static_cast<std::byte>(feature[i]));
  }
  const uint64_t body = bytes.size() - 24;
  std::memcpy(bytes.data() + 16, &body, sizeof(body));
  const uint32_t crc = Crc32c(bytes);
  bytes.resize(bytes.size() + 4);
  std::memcpy(bytes.data() + bytes.size() - 4, &crc, 4);
  Replace(AttemptDir(k300) + "/MANIFEST", bytes);
  const auto before = disk_.Names();
  const auto world = Start();
  EXPECT_TRUE(absl::IsFailedPrecondition(world->result(1).status))
      << world->result(1).status;
  EXPECT_THAT(world->result(1).status.message(), HasSubstr("holes"));
  EXPECT_EQ(disk_.Names(), before);
}

// Reads of one rank bring a wrong byte; everybody else's do not.
class LyingStorage final : public Storage {
 public:
  explicit LyingStorage(Storage& inner) : inner_(inner) {}
  const StorageTraits& traits() const override { return inner_.traits(); }
  size_t queue_depth() const override { return inner_.queue_depth(); }
  void RegisterBuffers(std::span<const std::span<std::byte>>) override {}
  void Create(std::string_view name, FileId file, uint64_t size,
              OpTag tag) override {
    inner_.Create(name, file, size, tag);
  }
  void OpenForWrite(std::string_view name, FileId file, OpTag tag) override {
    inner_.OpenForWrite(name, file, tag);
  }
  void Write(FileId file, uint64_t offset, std::span<const std::byte> data,
             OpTag tag) override {
    inner_.Write(file, offset, data, tag);
  }
  void Sync(FileId file, OpTag tag) override { inner_.Sync(file, tag); }
  void Close(FileId file, OpTag tag) override { inner_.Close(file, tag); }
  void Open(std::string_view name, FileId file, OpTag tag) override {
    inner_.Open(name, file, tag);
  }
  void Read(FileId file, uint64_t offset, std::span<std::byte> out,
            OpTag tag) override {
    if (offset > 0 && offset < 16384) lies_[tag] = out;
    inner_.Read(file, offset, out, tag);
  }
  void MakeDir(std::string_view name, OpTag tag) override {
    inner_.MakeDir(name, tag);
  }
  void SyncDir(std::string_view name, OpTag tag) override {
    inner_.SyncDir(name, tag);
  }
  void Rename(std::string_view from, std::string_view to, OpTag tag) override {
    inner_.Rename(from, to, tag);
  }
  void List(std::string_view dir, std::vector<DirEntry>* entries,
            OpTag tag) override {
    inner_.List(dir, entries, tag);
  }
  void Remove(std::string_view name, OpTag tag) override {
    inner_.Remove(name, tag);
  }
  void FreeSpace(std::string_view dir, OpTag tag) override {
    inner_.FreeSpace(dir, tag);
  }
  void PutIfAbsent(std::string_view name, std::span<const std::byte> contents,
                   OpTag tag) override {
    inner_.PutIfAbsent(name, contents, tag);
  }
  void Get(std::string_view name, uint64_t size_max,
           std::vector<std::byte>* contents, OpTag tag) override {
    inner_.Get(name, size_max, contents, tag);
  }
  size_t Poll(std::span<Completion> out) override {
    const size_t count = inner_.Poll(out);
    for (size_t i = 0; i < count; ++i) {
      const auto lie = lies_.extract(out[i].tag);
      if (!lie.empty()) lie.mapped()[10] ^= std::byte{1};
    }
    return count;
  }
  void WaitForCompletion(int wait_ms) override {
    inner_.WaitForCompletion(wait_ms);
  }

 private:
  Storage& inner_;
  std::map<OpTag, std::span<std::byte>> lies_;
};

TEST_P(LoadDamageTest, ARankThatAloneReadsWrongBytesCostsNoCheckpoint) {
  StartWorld::Options options;
  options.wrap = [](int rank, Storage& inner) {
    return rank == 3 ? std::make_unique<LyingStorage>(inner) : nullptr;
  };
  const auto world = Start(options);
  EXPECT_TRUE(absl::IsUnavailable(world->result(1).status))
      << world->result(1).status;
  EXPECT_THAT(world->result(1).status.message(),
              testing::AllOf(HasSubstr("rank 3 (sim1) reads"),
                             HasSubstr("rank 0 (sim0) reads the same bytes "
                                       "whole")));
  EXPECT_EQ(Start()->LoadedBy(300), "");
}

INSTANTIATE_TEST_SUITE_P(Plain, LoadDamageTest, testing::Values(-1));
INSTANTIATE_TEST_SUITE_P(Coded, LoadDamageTest, testing::Values(0));

}  // namespace
}  // namespace holdfast::ckpt
