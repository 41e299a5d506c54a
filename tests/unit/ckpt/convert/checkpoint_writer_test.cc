// Checkpoints of a state for any layout: equal to the bit, restartable, and
// never half offered.

#include "ckpt/convert/checkpoint_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/convert/checkpoint_source.h"
#include "ckpt/convert/plain_layouts.h"
#include "ckpt/session/catalog_locate.h"
#include "ckpt/storage/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bare_checkpoint.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using tests::SmallLayout;

class CheckpointWriterTest : public ::testing::Test {
 protected:
  CheckpointWriterTest() {
    tests::SaveBare(dir_.path(), "saved", *SmallLayout(2, 1, 2),
                    {{"step", "300"}, {".host", "n042"}});
  }

  std::string Path(const std::string& name) { return dir_.path() + "/" + name; }

  std::unique_ptr<CheckpointSource> Source() { return Open(Path("saved")); }
  static std::unique_ptr<CheckpointSource> Open(const std::string& path) {
    auto source = CheckpointSource::Open(path, {.readers = 2}, RealClock());
    EXPECT_TRUE(source.ok()) << source.status();
    return source.ok() ? *std::move(source) : nullptr;
  }

  WriteCheckpointOptions Options(const std::string& out) {
    WriteCheckpointOptions options;
    options.out = Path(out);
    options.step = 300;
    options.threads = 2;
    return options;
  }

  // Every rank of `layout` gets what it wants from the checkpoint at `path`.
  static void ExpectHolds(const std::string& path, const JobLayout& layout) {
    const auto source = Open(path);
    ASSERT_NE(source, nullptr);
    const absl::Status status = tests::FillAll(*source, layout);
    EXPECT_TRUE(status.ok()) << status;
  }

  tests::TempDir dir_{tests::MemoryFolder()};
};

TEST_F(CheckpointWriterTest, AnyLayoutHasTheSameBytesAndTheSameDigest) {
  const auto source = Source();
  const Digest128 digest = DigestOfState(
      source->items(), source->recorded_digests(), source->attributes());
  const std::array<std::array<int, 3>, 4> meshes = {
      {{1, 1, 1}, {4, 2, 3}, {2, 1, 7}, {1, 2, 2}}};
  for (const auto& [tp, pp, dp] : meshes) {
    for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
      const auto layout = SmallLayout(tp, pp, dp);
      WriteCheckpointOptions options = Options(
          absl::StrFormat("out-%s-%d", layout->description(), int(codec)));
      options.codec = codec;
      const auto report =
          WriteCheckpoint(source.get(), *layout, options, RealClock());
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->digest, digest);
      EXPECT_EQ(report->files, static_cast<uint32_t>(layout->world()));
      EXPECT_FALSE(fs::exists(options.out + "/conversion"));
      // As a run, at its step, and as a bare directory.
      ExpectHolds(options.out, *SmallLayout(1, 1, 1));
      ExpectHolds(options.out + "@300", *layout);
      ExpectHolds(report->path, *SmallLayout(2, 2, 2));
      const auto made = Open(options.out);
      EXPECT_EQ(made->manifest().layout, layout->description());
      EXPECT_EQ(made->attributes().at(".host"), "n042");
    }
  }
}

TEST_F(CheckpointWriterTest, ACheckpointDirectoryAloneHoldsTheSame) {
  const auto source = Source();
  WriteCheckpointOptions options = Options("bare");
  options.form = WriteCheckpointOptions::Form::kCheckpoint;
  options.files_per_dir = 2;
  options.attributes = {{".note", "moved"}};
  const auto layout = SmallLayout(2, 2, 1);
  const auto report =
      WriteCheckpoint(source.get(), *layout, options, RealClock());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(fs::exists(options.out + "/d0001/shard-00003.hf"));
  ExpectHolds(options.out, *layout);
  EXPECT_EQ(Open(options.out)->attributes().at(".note"), "moved");
}

TEST_F(CheckpointWriterTest, AStateWithoutALayoutIsCutIntoRows) {
  const auto source = Source();
  for (const int parts : {1, 3}) {
    const auto layout = MakeRowLayout(source->items(), parts);
    const WriteCheckpointOptions options =
        Options(absl::StrFormat("rows%d", parts));
    const auto report =
        WriteCheckpoint(source.get(), *layout, options, RealClock());
    ASSERT_TRUE(report.ok()) << report.status();
    ExpectHolds(options.out, *SmallLayout(4, 1, 1));
  }
}

TEST_F(CheckpointWriterTest, ALayoutOfOtherItemsIsRefused) {
  const auto source = Source();
  std::vector<ItemSpec> items = source->items();
  items.pop_back();
  const auto report = WriteCheckpoint(source.get(), *MakeRowLayout(items, 1),
                                      Options("other"), RealClock());
  EXPECT_EQ(report.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(fs::exists(Path("other")));
}

TEST_F(CheckpointWriterTest, WeightsAloneHaveASubsetOfTheLayout) {
  const auto all = SmallLayout(2, 1, 2);
  std::vector<ItemSpec> weights;
  for (const ItemSpec& item : all->items()) {
    if (item.kind == "weight") weights.push_back(item);
  }
  const auto layout = MakeSubsetLayout(SmallLayout(2, 1, 2), weights);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ((*layout)->items(), weights);
  uint64_t elements = 0;
  for (int rank = 0; rank < 4; ++rank) {
    for (const Fragment& f : (*layout)->StoredBy(Rank{rank}).fragments) {
      EXPECT_LT(f.item, weights.size());
      elements += f.count;
    }
  }
  uint64_t expected = 0;
  for (const ItemSpec& item : weights) {
    expected += WholeBox(item.shape).elements();
  }
  EXPECT_EQ(elements, expected);
  weights[0].shape[0] += 1;
  EXPECT_FALSE(MakeSubsetLayout(SmallLayout(2, 1, 2), weights).ok());
}

TEST_F(CheckpointWriterTest, TheSameCallAgainVerifiesWhatIsThere) {
  const auto source = Source();
  const auto layout = SmallLayout(1, 1, 3);
  const WriteCheckpointOptions options = Options("again");
  const auto first =
      WriteCheckpoint(source.get(), *layout, options, RealClock());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second =
      WriteCheckpoint(source.get(), *layout, options, RealClock());
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(second->was_complete);
  EXPECT_EQ(second->digest, first->digest);
  EXPECT_EQ(second->run_id, first->run_id);

  std::fstream file(first->path + "/shard-00001.hf",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(5000);
  file.put('\xee');
  file.close();
  const auto third =
      WriteCheckpoint(source.get(), *layout, options, RealClock());
  EXPECT_EQ(third.status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckpointWriterTest, WhatIsNotItsOwnIsRefusedAndLeftAlone) {
  const auto source = Source();
  const auto layout = SmallLayout(1, 1, 1);
  const auto refused = [&](const WriteCheckpointOptions& options,
                           const JobLayout& target, const char* why) {
    const auto report =
        WriteCheckpoint(source.get(), target, options, RealClock());
    EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(report.status().message()), HasSubstr(why));
  };
  fs::create_directory(Path("foreign"));
  std::ofstream(Path("foreign") + "/thesis.tex") << "all of it";
  refused(Options("foreign"), *layout, "thesis.tex");
  EXPECT_EQ(fs::file_size(Path("foreign") + "/thesis.tex"), 9u);

  // The source itself, and a result of another conversion.
  WriteCheckpointOptions onto_source = Options("saved");
  onto_source.form = WriteCheckpointOptions::Form::kCheckpoint;
  refused(onto_source, *layout, "no conversion made");
  ASSERT_TRUE(
      WriteCheckpoint(source.get(), *layout, Options("taken"), RealClock())
          .ok());
  refused(Options("taken"), *SmallLayout(2, 1, 1), "another conversion");

  WriteCheckpointOptions nowhere = Options("no/such/parent");
  EXPECT_EQ(WriteCheckpoint(source.get(), *layout, nowhere, RealClock())
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CheckpointWriterTest, OneCallAtATimeWritesIntoADirectory) {
  const auto source = Source();
  const auto layout = SmallLayout(1, 1, 2);
  WriteCheckpointOptions options = Options("held");
  options.codec = Codec::kZstd;
  std::filesystem::create_directory(options.out);
  {
    const Fd other(::open(options.out.c_str(), O_RDONLY | O_DIRECTORY));
    ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
    const auto refused =
        WriteCheckpoint(source.get(), *layout, options, RealClock());
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.status().message(), HasSubstr("another process"));
    EXPECT_TRUE(std::filesystem::is_empty(options.out));
  }
  // A call holds it while it writes, and no longer.
  int tried = 0;
  options.on_progress = [&](const WriteProgress&) {
    const Fd other(::open(options.out.c_str(), O_RDONLY | O_DIRECTORY));
    EXPECT_NE(::flock(other.get(), LOCK_EX | LOCK_NB), 0);
    ++tried;
  };
  const auto report =
      WriteCheckpoint(source.get(), *layout, options, RealClock());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(tried, 0);
  const Fd after(::open(options.out.c_str(), O_RDONLY | O_DIRECTORY));
  EXPECT_EQ(::flock(after.get(), LOCK_EX | LOCK_NB), 0);
}

TEST_F(CheckpointWriterTest, FilesOfOthersUnderTheNameOfItsRecordsStay) {
  const auto source = Source();
  const auto layout = SmallLayout(1, 1, 1);
  const std::string notes = Path("notes/conversion/notes.txt");
  fs::create_directories(Path("notes/conversion"));
  std::ofstream(notes) << "keep";
  const auto report =
      WriteCheckpoint(source.get(), *layout, Options("notes"), RealClock());
  EXPECT_EQ(report.status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(fs::exists(notes));
  EXPECT_EQ(fs::file_size(notes), 4u);
}

TEST_F(CheckpointWriterTest, AStoppedCallGoesOn) {
  const auto source = Source();
  const auto layout = SmallLayout(2, 2, 2);
  std::atomic<bool> stop = true;
  WriteCheckpointOptions options = Options("stopped");
  options.stop = &stop;
  const auto stopped =
      WriteCheckpoint(source.get(), *layout, options, RealClock());
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled);
  // Half a result is no run that anybody would resume or begin in.
  EXPECT_EQ(LocateCheckpoint(options.out, {}, RealClock()).status().code(),
            absl::StatusCode::kNotFound);
  const auto run = OpenRun(options.out, {}, RealClock());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_TRUE(run->catalog.has_committed);
  EXPECT_THAT(run->catalog.committed_proof, HasSubstr("checkpoints/run.id"));

  // Another call does not go on with it.
  const auto other = WriteCheckpoint(source.get(), *SmallLayout(1, 1, 1),
                                     options, RealClock());
  EXPECT_EQ(other.status().code(), absl::StatusCode::kFailedPrecondition);
  stop = false;
  const auto report =
      WriteCheckpoint(source.get(), *layout, options, RealClock());
  ASSERT_TRUE(report.ok()) << report.status();
  ExpectHolds(options.out, *layout);
}

}  // namespace
}  // namespace holdfast::ckpt
