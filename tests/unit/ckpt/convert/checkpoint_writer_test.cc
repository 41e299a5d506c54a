// Checkpoints of a state for any layout: equal to the bit, restartable, and
// never half offered.

#include "ckpt/convert/checkpoint_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/convert/checkpoint_source.h"
#include "ckpt/convert/convert_plan.h"
#include "ckpt/convert/convert_record.h"
#include "ckpt/convert/plain_layouts.h"
#include "ckpt/session/catalog_locate.h"
#include "ckpt/storage/fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bare_checkpoint.h"
#include "tests/support/saved_run.h"
#include "tests/support/scoped_env.h"
#include "tests/support/temp_dir.h"

namespace holdfast::ckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
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

  // A conversion of many rounds that stopped when it recorded round 3.
  WriteCheckpointOptions Begun(const std::string& out, Codec codec) {
    WriteCheckpointOptions options = Options(out);
    options.codec = codec;
    options.threads = 1;  // rounds end in order
    options.window_bytes = 64 << 10;
    options.round_bytes = 128 << 10;
    const tests::ScopedEnv fault("HOLDFAST_FAULT",
                                 "op=put,match=round-00003,do=fail");
    const auto failed =
        WriteCheckpoint(Source().get(), *layout_, options, RealClock());
    EXPECT_EQ(failed.status().code(), absl::StatusCode::kUnavailable)
        << failed.status();
    return options;
  }

  tests::TempDir dir_{tests::MemoryFolder()};
  const std::unique_ptr<TrainLayout> layout_ = SmallLayout(4, 1, 3);
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

// Whoever can write there can write a record whose checksum is right.
TEST_F(CheckpointWriterTest, ARecordThatSaysWhatCannotBeCountsForNothing) {
  const std::vector<std::function<void(RoundRecord&)>> forgeries = {
      [](RoundRecord& r) { r.units[0].bytes_stored = 1u << 30; },
      [](RoundRecord& r) { r.units[0].bytes_stored = UINT32_MAX; },
      [](RoundRecord& r) { r.units[1].bytes = kUnitBytesMax + 4096; },
      [](RoundRecord& r) { r.units[0].offset = UINT64_MAX - 4095; },
      [](RoundRecord& r) { r.units[0].offset += 1; },
      [](RoundRecord& r) { r.units[0].offset = 0; },
      [](RoundRecord& r) { r.digests[0].first = 1u << 30; },
      [](RoundRecord& r) { r.round = 7; },
      [](RoundRecord& r) { r.units.pop_back(); },
  };
  for (size_t i = 0; i < forgeries.size(); ++i) {
    SCOPED_TRACE(i);
    const WriteCheckpointOptions options =
        Begun(absl::StrFormat("forged%d", i), Codec::kZstd);
    const std::string name = options.out + "/" + RoundRecordName(1);
    std::ifstream in(name, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    auto record = DecodeRound(std::as_bytes(std::span(text)));
    ASSERT_TRUE(record.ok()) << record.status();
    forgeries[i](*record);
    const std::vector<std::byte> forged = EncodeRound(*record);
    std::ofstream(name, std::ios::binary)
        .write(reinterpret_cast<const char*>(forged.data()),
               static_cast<std::streamsize>(forged.size()));
    const auto report =
        WriteCheckpoint(Source().get(), *layout_, options, RealClock());
    ASSERT_TRUE(report.ok()) << report.status();
    // The round before it was kept, and the one behind the hole was not.
    EXPECT_GT(report->bytes_verified, 0u);
    EXPECT_LT(report->bytes_verified, uint64_t{256} << 10);
    ExpectHolds(options.out, *layout_);
  }
}

// Units that each may be, and together may not: their reader would refuse them.
TEST_F(CheckpointWriterTest, UnitsThatLieOnEachOtherAreNotCommitted) {
  const WriteCheckpointOptions options = Begun("pile", Codec::kZstd);
  const std::string name = options.out + "/" + RoundRecordName(0);
  std::ifstream in(name, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  auto record = DecodeRound(std::as_bytes(std::span(text)));
  ASSERT_TRUE(record.ok()) << record.status();
  // Two units of one size in one file, under the name of one.
  bool found = false;
  const ConvertPlan plan =
      PlanConversion(*layout_, {.window_bytes = 64 << 10,
                                .round_bytes = 128 << 10,
                                .round_bytes_per_file = 0});
  for (size_t i = 0; i < record->units.size() && !found; ++i) {
    for (size_t j = 0; j < i && !found; ++j) {
      if (plan.order[i].file != plan.order[j].file ||
          record->units[i].bytes != record->units[j].bytes) {
        continue;
      }
      record->units[i] = record->units[j];
      found = true;
    }
  }
  ASSERT_TRUE(found);
  const std::vector<std::byte> forged = EncodeRound(*record);
  std::ofstream(name, std::ios::binary)
      .write(reinterpret_cast<const char*>(forged.data()),
             static_cast<std::streamsize>(forged.size()));
  const auto report =
      WriteCheckpoint(Source().get(), *layout_, options, RealClock());
  EXPECT_EQ(report.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(report.status().message(), HasSubstr("Remove the directory"));
  EXPECT_FALSE(LocateCheckpoint(options.out, {}, RealClock()).ok());
}

TEST_F(CheckpointWriterTest, WhatABadSectorTookIsWrittenAgain) {
  for (const Codec codec : {Codec::kNone, Codec::kZstd}) {
    uint64_t verified[4] = {};
    int i = 0;
    for (const std::string fault :
         {"do=count", "op=read,match=a01/shard-00001,do=fail",
          "op=read,match=a01/shard-00001,do=fail,lasting=yes",
          "op=get,match=round-00001,do=fail,lasting=yes"}) {
      SCOPED_TRACE(fault);
      const WriteCheckpointOptions options =
          Begun(absl::StrFormat("bad-%d-%d", int(codec), i), codec);
      {
        const tests::ScopedEnv bad("HOLDFAST_FAULT", fault);
        const auto report =
            WriteCheckpoint(Source().get(), *layout_, options, RealClock());
        ASSERT_TRUE(report.ok()) << report.status();
        verified[i++] = report->bytes_verified;
      }
      ExpectHolds(options.out, *layout_);
    }
    // A storage that stumbles once takes nothing away.
    EXPECT_GT(verified[0], 0u);
    EXPECT_EQ(verified[1], verified[0]);
    EXPECT_LT(verified[2], verified[0]);
    EXPECT_LT(verified[3], verified[0]);
  }
}

TEST_F(CheckpointWriterTest, AFileThatCannotBeWrittenIsNamedWithWhatToDo) {
  const WriteCheckpointOptions options = Begun("unwritable", Codec::kNone);
  {
    const tests::ScopedEnv bad("HOLDFAST_FAULT",
                               "op=write,match=shard-00001,do=fail");
    const auto report =
        WriteCheckpoint(Source().get(), *layout_, options, RealClock());
    EXPECT_EQ(report.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(report.status().message(),
                AllOf(HasSubstr("shard-00001.hf"), HasSubstr("remove that")));
  }
  // As it says.
  const auto begun =
      fs::recursive_directory_iterator(options.out + "/checkpoints");
  for (const auto& entry : begun) {
    if (entry.path().filename() == "shard-00001.hf") fs::remove(entry.path());
  }
  const auto report =
      WriteCheckpoint(Source().get(), *layout_, options, RealClock());
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->bytes_verified, 0u);
  ExpectHolds(options.out, *layout_);
}

TEST_F(CheckpointWriterTest, WhileSpaceIsReservedThereIsProgress) {
  const tests::ScopedEnv slow("HOLDFAST_FAULT", "op=create,do=delay,ms=60");
  WriteCheckpointOptions options = Options("slow");
  std::map<std::string, int> phases;
  options.on_progress = [&](const WriteProgress& at) {
    ++phases[at.phase];
    EXPECT_GT(at.bytes_total, 0u);
  };
  const auto report =
      WriteCheckpoint(Source().get(), *layout_, options, RealClock());
  ASSERT_TRUE(report.ok()) << report.status();
  // Twelve files.
  EXPECT_GT(phases["reserving"], 3);
  // And a wish to stop is heard.
  std::atomic<bool> stop = true;
  options.out = Path("slow2");
  options.stop = &stop;
  phases.clear();
  EXPECT_EQ(WriteCheckpoint(Source().get(), *layout_, options, RealClock())
                .status()
                .code(),
            absl::StatusCode::kCancelled);
  EXPECT_LE(phases["reserving"], 4);
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
