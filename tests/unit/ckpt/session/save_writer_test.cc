// A writer over a storage that answers everything at the next Poll: what it
// calls, in which order, and that it allocates nothing between the first unit
// and the last.

#include "ckpt/session/save_writer.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "ckpt/base/aligned_buffer.h"
#include "ckpt/base/clock.h"
#include "ckpt/format/checksum.h"
#include "ckpt/format/coded_units.h"
#include "ckpt/snapshot/fence.h"
#include "ckpt/snapshot/staged_snapshot.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/late_copier.h"
#include "tests/support/sim_clock.h"
#include "tests/support/sim_layout.h"

namespace {

thread_local bool counting = false;
thread_local int64_t allocations = 0;

}  // namespace

// The sanitizers bring operators of their own; nothing is counted under them.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Never inlined: g++ would take the pair apart and warn.
[[gnu::noinline]] void* operator new(size_t size) {
  if (counting) ++allocations;
  void* const memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t size,
                                     const std::nothrow_t&) noexcept {
  return operator new(size);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
#endif

namespace holdfast::ckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::FillFragment;
using tests::SimClock;
using tests::SimLayout;

// Keeps the names of the calls and answers each with OK, or with what the test
// wants for the n-th call of a kind.
class ScriptedStorage : public Storage {
 public:
  const StorageTraits& traits() const override { return traits_; }
  size_t queue_depth() const override { return answers_.size(); }
  void RegisterBuffers(std::span<const std::span<std::byte>>) override {}
  void Create(std::string_view, FileId, uint64_t, OpTag tag) override {
    Note("create");
    Answer(tag, absl::OkStatus());
  }
  void OpenForWrite(std::string_view, FileId, OpTag tag) override {
    Note("open");
    Answer(tag, absl::OkStatus());
  }
  void Write(FileId, uint64_t offset, std::span<const std::byte> data,
             OpTag tag) override {
    ++writes;
    if (offset + data.size() <= file.size()) {
      std::copy(data.begin(), data.end(), file.begin() + offset);
    }
    most_in_flight = std::max(most_in_flight, pending());
    Answer(tag, writes == failing_write
                    ? absl::ResourceExhaustedError("no space left")
                    : absl::OkStatus());
    bytes += data.size();
  }
  void Sync(FileId, OpTag tag) override {
    Note("sync");
    Answer(tag, absl::OkStatus());
  }
  void SyncDir(std::string_view, OpTag tag) override {
    Note("syncdir");
    Answer(tag, absl::OkStatus());
  }
  void Close(FileId, OpTag tag) override {
    Note("close");
    Answer(tag, absl::OkStatus());
  }
  size_t Poll(std::span<Completion> out) override {
    size_t count = 0;
    while (!silent && count < out.size() && taken_ < given_) {
      out[count++] = answers_[taken_++ % answers_.size()];
    }
    return count;
  }

  void Open(std::string_view, FileId, OpTag) override { std::abort(); }
  void Read(FileId, uint64_t, std::span<std::byte>, OpTag) override {
    std::abort();
  }
  void MakeDir(std::string_view, OpTag) override { std::abort(); }
  void Rename(std::string_view, std::string_view, OpTag) override {
    std::abort();
  }
  void List(std::string_view, std::vector<DirEntry>*, OpTag) override {
    std::abort();
  }
  void Remove(std::string_view, OpTag) override { std::abort(); }
  void FreeSpace(std::string_view, OpTag) override { std::abort(); }
  void PutIfAbsent(std::string_view, std::span<const std::byte>,
                   OpTag) override {
    std::abort();
  }
  void Get(std::string_view, uint64_t, std::vector<std::byte>*,
           OpTag) override {
    std::abort();
  }
  void WaitForCompletion(int) override {}

  size_t pending() const { return given_ - taken_; }

  std::vector<std::string> calls;
  int64_t writes = 0;
  int64_t failing_write = -1;
  uint64_t bytes = 0;
  size_t most_in_flight = 0;
  bool silent = false;
  std::vector<std::byte> file;  // as long as what shall be kept

 private:
  void Note(const char* call) { calls.push_back(call); }
  void Answer(OpTag tag, absl::Status status) {
    answers_[given_++ % answers_.size()] = {tag, std::move(status), 0};
  }
  StorageTraits traits_;
  std::array<Completion, 64> answers_;
  size_t given_ = 0;
  size_t taken_ = 0;
};

class SaveWriterTest : public testing::Test {
 protected:
  explicit SaveWriterTest(SaveWriterOptions options = {})
      : plans_(&layout_, Rank{0}), memory_(4) {
    const Holding stored = layout_.StoredBy(Rank{0});
    for (size_t i = 0; i < stored.region_bytes.size(); ++i) {
      memory_[i] = AlignedBuffer(stored.region_bytes[i]);
      regions_.push_back(memory_[i].span());
    }
    for (const Fragment& f : stored.fragments) {
      FillFragment(layout_, f, 5, regions_);
    }
    fence_ = std::make_unique<Fence>(plans_.SnapshotUnits(), regions_, clock_,
                                     FenceOptions{});
    env_.storage = &storage_;
    env_.clock = &clock_;
    env_.ops_max = 6;
    writer_ =
        std::make_unique<SaveWriter>(env_, &plans_, fence_.get(), options);
  }

  void Start() {
    fence_->Arm();
    writer_->Start(1, "checkpoints/x", {{}, {5, 1, 1}, 0, 1});
  }
  void Turn() {
    std::array<Completion, 4> completions;
    const size_t count = storage_.Poll(completions);
    for (size_t i = 0; i < count; ++i) writer_->OnCompletion(completions[i]);
    writer_->Poll();
  }
  // Threads that code are waited for by turning round: on a busy machine they
  // may get no processor for a while.
  template <typename Condition>
  void TurnUntil(Condition condition) {
    const absl::Duration end = RealClock().Monotonic() + absl::Seconds(60);
    while (!condition() && RealClock().Monotonic() < end) Turn();
  }
  void Run() {
    TurnUntil([this] { return writer_->finished(); });
    ASSERT_TRUE(writer_->finished());
  }

  SimClock clock_;
  SimLayout layout_{1};
  SavePlans plans_;
  std::vector<AlignedBuffer> memory_;
  std::vector<std::span<std::byte>> regions_;
  std::unique_ptr<Fence> fence_;
  ScriptedStorage storage_;
  SessionEnv env_;
  std::unique_ptr<SaveWriter> writer_;
};

TEST_F(SaveWriterTest, SyncsTheDirectoryAndTheFileTwiceBeforeItSucceeds) {
  Start();
  Run();
  EXPECT_TRUE(writer_->succeeded()) << writer_->status();
  EXPECT_THAT(storage_.calls,
              ElementsAre("create", "syncdir", "sync", "sync", "close"));
  EXPECT_EQ(storage_.bytes, plans_.own().file_bytes);
  EXPECT_LE(storage_.most_in_flight, env_.ops_max);
  EXPECT_FALSE(fence_->armed()) << "the optimizer is free";
}

TEST_F(SaveWriterTest, DigestsEveryItemOnce) {
  Start();
  Run();
  const Holding stored = layout_.StoredBy(Rank{0});
  for (const Fragment& f : stored.fragments) {
    const ItemSpec& item = layout_.items()[f.item];
    EXPECT_EQ(writer_->item_digests()[f.item],
              DigestRun(item, f.part, f.first, f.count,
                        regions_[f.region].subspan(
                            f.offset, f.count * SizeOf(item.dtype))));
  }
}

TEST_F(SaveWriterTest, AllocatesNothingBetweenTheFirstUnitAndTheLast) {
  for (int save = 0; save < 2; ++save) {
    storage_.writes = 0;
    Start();
    while (storage_.writes < 2) Turn();
    allocations = 0;
    counting = true;
    while (writer_->units_ended() + 1 < plans_.own().units.size()) Turn();
    counting = false;
    Run();
    // The first save builds tables.
    if (save > 0) {
      EXPECT_EQ(allocations, 0);
    }
    EXPECT_TRUE(writer_->succeeded());
  }
}

TEST_F(SaveWriterTest, AFailedWriteFreesTheOptimizerAndClosesTheFile) {
  storage_.failing_write = 4;
  Start();
  while (writer_->status().ok()) Turn();
  EXPECT_TRUE(fence_->TryWrite(0, 0, regions_[0].size()))
      << "nobody waits for a save that has failed";
  Run();
  EXPECT_FALSE(writer_->succeeded());
  EXPECT_EQ(writer_->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(writer_->status().message()),
              HasSubstr("of its file: no space left"));
  EXPECT_THAT(storage_.calls, ElementsAre("create", "close"));
  EXPECT_FALSE(fence_->armed());
}

TEST_F(SaveWriterTest, AStorageThatFallsSilentIsGivenUp) {
  Start();
  Turn();
  Turn();
  storage_.silent = true;
  clock_.Sleep(absl::Minutes(3));
  Turn();
  EXPECT_EQ(writer_->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(writer_->finished()) << "its memory is still in use";
  storage_.silent = false;
  Run();
  EXPECT_FALSE(writer_->succeeded());
}

// Copies that never come, as of a device that hangs.
TEST_F(SaveWriterTest, ASnapshotThatHandsOutNothingIsGivenUp) {
  tests::LateCopier copier(regions_);
  const std::vector<SnapshotUnit> units = plans_.SnapshotUnits();
  CopyPlan copies = PlanCopies(units, 0);
  const auto arena = copier.TakeMemory(copies.arena_bytes);
  StagedSnapshot staged(units, regions_.size(), std::move(copies), *arena,
                        copier, clock_);
  SaveWriter writer(env_, &plans_, &staged, {});
  staged.Arm();
  writer.Start(1, "checkpoints/x", {{}, {5, 1, 1}, 0, 1});
  const auto turn = [&] {
    std::array<Completion, 4> completions;
    const size_t count = storage_.Poll(completions);
    for (size_t i = 0; i < count; ++i) writer.OnCompletion(completions[i]);
    writer.Poll();
  };
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_TRUE(writer.status().ok()) << writer.status();
  clock_.Sleep(absl::Minutes(3));
  for (int i = 0; i < 20; ++i) turn();
  EXPECT_TRUE(writer.finished());
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(staged.armed()) << "the optimizer is free";
}

// Coded files: by the caller, and by two threads.
class PackedWriterTest : public SaveWriterTest,
                         public testing::WithParamInterface<int> {
 protected:
  explicit PackedWriterTest(bool recheck = false)
      : SaveWriterTest({.recheck = recheck,
                        .codec = Codec::kZstd,
                        .codec_threads = GetParam()}) {}

  std::span<const std::byte> Unit(size_t unit) const {
    const WriteUnit& place = plans_.own().units[unit];
    return regions_[place.region].subspan(place.region_offset, place.bytes);
  }
};

TEST_P(PackedWriterTest, WritesAFileThatDecodesToTheState) {
  for (int save = 0; save < 2; ++save) {
    storage_.file.assign(plans_.own().file_bytes, std::byte{0xee});
    Start();
    Run();
    ASSERT_TRUE(writer_->succeeded()) << writer_->status();
    const SaveFileFacts facts = writer_->facts();
    EXPECT_LT(facts.file_bytes, plans_.own().file_bytes);
    const auto file = std::span(storage_.file).first(facts.file_bytes);
    const auto footer = DecodeShardFooter(file.last(kShardBlockBytes));
    ASSERT_TRUE(footer.ok()) << footer.status();
    EXPECT_EQ(footer->plain_bytes, facts.plain_bytes);
    const auto index =
        file.subspan(footer->index_offset, CodedIndexBytes(footer->unit_count));
    EXPECT_EQ(Crc32c(index), writer_->crc_index());
    const auto units = DecodeCodedIndex(index, footer->unit_count);
    ASSERT_TRUE(units.ok()) << units.status();
    ASSERT_EQ(units->size(), plans_.own().units.size());
    std::map<uint64_t, CodedUnit> by_place;
    uint64_t place = kShardBlockBytes;
    for (const CodedUnit& unit : *units) {
      by_place[place] = unit;
      place += unit.bytes;
    }
    ZstdDecoder decoder(kUnitBytesMax);
    int packed = 0;
    for (size_t i = 0; i < plans_.own().units.size(); ++i) {
      const CodedUnit& unit = by_place.at(plans_.own().units[i].file_offset);
      const auto stored = file.subspan(unit.offset, unit.bytes_stored);
      std::vector<std::byte> plain(stored.begin(), stored.end());
      if (unit.codec == Codec::kZstd) {
        ++packed;
        plain.resize(unit.bytes);
        ASSERT_TRUE(decoder.Decode(stored, unit.planes, plain).ok());
      }
      ASSERT_TRUE(std::equal(plain.begin(), plain.end(), Unit(i).begin(),
                             Unit(i).end()))
          << i;
    }
    EXPECT_GT(packed, 2);
  }
}

TEST_P(PackedWriterTest, DigestsEveryItemAsAPlainFileDoes) {
  Start();
  Run();
  SaveWriter plain(env_, &plans_, fence_.get(), {});
  fence_->Arm();
  plain.Start(1, "checkpoints/x", {{}, {5, 1, 1}, 0, 1});
  while (!plain.finished()) {
    std::array<Completion, 4> completions;
    const size_t count = storage_.Poll(completions);
    for (size_t i = 0; i < count; ++i) plain.OnCompletion(completions[i]);
    plain.Poll();
  }
  EXPECT_EQ(writer_->item_digests(), plain.item_digests());
}

TEST_P(PackedWriterTest, AllocatesNothingBetweenTheFirstUnitAndTheLast) {
  for (int save = 0; save < 2; ++save) {
    storage_.writes = 0;
    Start();
    while (storage_.writes < 2) Turn();
    allocations = 0;
    counting = true;
    while (writer_->units_ended() + 1 < plans_.own().units.size()) Turn();
    counting = false;
    Run();
    if (save > 0) {
      EXPECT_EQ(allocations, 0);
    }
    EXPECT_TRUE(writer_->succeeded());
  }
}

TEST_P(PackedWriterTest, AUnitIsFreeWhenItIsCodedThoughNothingIsWritten) {
  Start();
  // The file is there and its header on the way; no unit can have been
  // answered.
  TurnUntil([&] { return storage_.writes > 0; });
  storage_.silent = true;
  const size_t buffers = 4;  // of 6 calls two are for other things
  TurnUntil([&] { return writer_->units_ended() == buffers; });
  EXPECT_EQ(writer_->units_ended(), buffers);
  const WriteUnit& first = plans_.own().units[0];
  EXPECT_TRUE(fence_->TryWrite(first.region, first.region_offset, first.bytes));
  EXPECT_EQ(fence_->costs().bytes_copied, 0);
  // It may change now, and the file does not.
  regions_[first.region][first.region_offset] ^= std::byte{1};
  storage_.silent = false;
  Run();
  EXPECT_TRUE(writer_->succeeded()) << writer_->status();
}

TEST_P(PackedWriterTest, AFailedWriteFreesTheOptimizerAndTheNextSaveIsWhole) {
  storage_.failing_write = 4;
  Start();
  while (writer_->status().ok()) Turn();
  EXPECT_TRUE(fence_->TryWrite(0, 0, regions_[0].size()));
  Run();
  EXPECT_FALSE(writer_->succeeded());
  EXPECT_EQ(writer_->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(storage_.calls, ElementsAre("create", "close"));
  EXPECT_FALSE(fence_->armed());
  Start();
  Run();
  EXPECT_TRUE(writer_->succeeded()) << writer_->status();
}

TEST_P(PackedWriterTest, APoisonedSnapshotCanOnlyFail) {
  Start();
  Turn();
  Turn();
  fence_->Poison(absl::ResourceExhaustedError("waited too long"));
  Run();
  EXPECT_FALSE(writer_->succeeded());
  EXPECT_EQ(writer_->status().message(), "waited too long");
}

INSTANTIATE_TEST_SUITE_P(ByTheCaller, PackedWriterTest, testing::Values(0));
INSTANTIATE_TEST_SUITE_P(ByThreads, PackedWriterTest, testing::Values(2));

class RecheckingPackedWriterTest : public PackedWriterTest {
 protected:
  RecheckingPackedWriterTest() : PackedWriterTest(/*recheck=*/true) {}
};

TEST_P(RecheckingPackedWriterTest, AStoreWithoutTheFenceFailsTheSave) {
  Start();
  Turn();  // the file is there, units are begun and not all coded
  Turn();
  const WriteUnit& place = plans_.own().units[writer_->units_ended()];
  regions_[place.region][place.region_offset] ^= std::byte{1};
  Run();
  EXPECT_EQ(writer_->status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(writer_->status().message()),
              HasSubstr("something stores without the fence"));
}
INSTANTIATE_TEST_SUITE_P(ByTheCaller, RecheckingPackedWriterTest,
                         testing::Values(0));

class RecheckingWriterTest : public SaveWriterTest {
 protected:
  RecheckingWriterTest() : SaveWriterTest({.recheck = true}) {}
};

TEST_F(RecheckingWriterTest, AStoreWithoutTheFenceFailsTheSave) {
  Start();
  Turn();  // the file is there, the header and some units are under way
  storage_.silent = true;
  for (int i = 0; i < 8; ++i) Turn();  // hashed, not yet answered
  regions_[plans_.own().units[0].region][plans_.own().units[0].region_offset] ^=
      std::byte{1};
  storage_.silent = false;
  Run();
  EXPECT_EQ(writer_->status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(writer_->status().message()),
              HasSubstr("something stores without the fence"));
}

TEST_F(SaveWriterTest, APoisonedSnapshotCanOnlyFail) {
  Start();
  Turn();
  Turn();
  fence_->Poison(absl::ResourceExhaustedError("waited too long"));
  Run();
  EXPECT_FALSE(writer_->succeeded());
  EXPECT_EQ(writer_->status().message(), "waited too long");
}

}  // namespace
}  // namespace holdfast::ckpt
