// A checkpoint as an HDF5 file and back: every bit, attribute and digest; and
// what is refused.

#include "tools/convert/hdf5_archive.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/base/check.h"
#include "ckpt/convert/checkpoint_source.h"
#include "ckpt/convert/checkpoint_writer.h"
#include "ckpt/convert/plain_layouts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bare_checkpoint.h"
#include "tests/support/temp_dir.h"
#include "tools/convert/hdf5_names.h"
#include "tools/convert/train_target.h"

namespace holdfast::tools {
namespace {

namespace fs = std::filesystem;
using ckpt::DType;
using ckpt::ItemSpec;
using ckpt::WantedRun;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A state in memory, of which byte k of item i is a number of both.
class MadeState final : public ckpt::StateSource {
 public:
  MadeState(std::vector<ItemSpec> items,
            std::map<std::string, std::string> attributes)
      : items_(std::move(items)), attributes_(std::move(attributes)) {}
  const std::vector<ItemSpec>& items() const override { return items_; }
  const std::map<std::string, std::string>& attributes() const override {
    return attributes_;
  }
  absl::Status Fill(std::span<const WantedRun> wants) override {
    for (const WantedRun& want : wants) {
      const ItemSpec& item = items_[want.item];
      const auto size = static_cast<size_t>(ckpt::SizeOf(item.dtype));
      size_t at = 0;
      for (const ckpt::Box& box :
           ckpt::BoxesOfRun(want.part, want.first, want.count)) {
        for (int64_t i = 0; i < box.elements(); ++i) {
          int64_t rest = i;
          int64_t element = 0;
          int64_t scale = 1;
          for (int d = box.dimensions - 1; d >= 0; --d) {
            element += (box.first[d] + rest % box.count[d]) * scale;
            rest /= box.count[d];
            scale *= item.shape[d];
          }
          for (size_t b = 0; b < size; ++b) {
            want.out[at++] = ByteOf(want.item, element * size + b);
          }
        }
      }
      if (at != want.out.size()) return absl::InternalError("another count");
    }
    return absl::OkStatus();
  }
  static std::byte ByteOf(size_t item, uint64_t place) {
    const uint64_t mixed = (item * 1000003 + place) * 0x9e3779b97f4a7c15;
    return static_cast<std::byte>(mixed >> 56);
  }

 private:
  std::vector<ItemSpec> items_;
  std::map<std::string, std::string> attributes_;
};

class Hdf5ArchiveTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const {
    return dir_.path() + "/" + name;
  }
  absl::StatusOr<ExportReport> Write(ckpt::StateSource* source,
                                     const std::string& name) const {
    ExportRequest request;
    request.out = Path(name);
    return WriteHdf5(source, request);
  }
  absl::StatusOr<ImportedState> Read(const std::string& name) const {
    ImportRequest request;
    request.from = Path(name);
    return OpenHdf5(request);
  }
  // Every type, shapes of 0 to 4 dimensions, one beyond a buffer, names that
  // HDF5 cannot have.
  static MadeState Odd() {
    std::map<std::string, std::string> attributes = {
        {".config", "[model]\nlayers = 2\n"},
        {"a/b %", "slashes"},
        {"binary", std::string("\0\xff\n\0", 4)},
        {"empty", ""},
        {"large", std::string(300'000, 'x')},
        {"umlaut \xc3\xa4", "\xc3\xa4\xf0\x9f\x98\x80"},
    };
    return MadeState({{".", "tensor", DType::kU8, {3}},
                      {"a/b%c", "bytes", DType::kU8, {5, 7}},
                      {"double", "tensor", DType::kF64, {2, 3, 4, 5}},
                      {"half", "tensor", DType::kF16, {33}},
                      {"long", "tensor", DType::kI64, {1, 1}},
                      {"model.norm.weight", "exp_avg", DType::kF32, {64}},
                      {"model.norm.weight", "weight", DType::kBf16, {64}},
                      {"number", "tensor", DType::kI32, {}},
                      {"wide", "tensor", DType::kF32, {3, 2'000'001}}},
                     std::move(attributes));
  }

  const tests::TempDir dir_;
};

TEST_F(Hdf5ArchiveTest, ItComesBackBitForBit) {
  MadeState made = Odd();
  const auto report = Write(&made, "a.h5");
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->tensors, made.items().size());
  const auto read = Read("a.h5");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->source->items(), made.items());
  EXPECT_EQ(read->source->attributes(), made.attributes());
  ASSERT_EQ(read->source->recorded_digests().size(), made.items().size());
  for (ckpt::ItemIndex i = 0; i < made.items().size(); ++i) {
    const ItemSpec& item = made.items()[i];
    const ckpt::Box whole = ckpt::WholeBox(item.shape);
    std::vector<std::byte> bytes(ckpt::BytesOf(item, whole.elements()));
    const WantedRun want{i, whole, 0, whole.elements(), bytes};
    ASSERT_TRUE(read->source->Fill({&want, 1}).ok());
    for (size_t k = 0; k < bytes.size(); ++k) {
      ASSERT_EQ(bytes[k], MadeState::ByteOf(i, k)) << item.name << " " << k;
    }
    EXPECT_EQ(ckpt::DigestRun(item, whole, 0, whole.elements(), bytes),
              read->source->recorded_digests()[i]);
  }
}

TEST_F(Hdf5ArchiveTest, TheStepOfATrainingStateIsItsOwn) {
  trainer::ModelConfig model;
  const auto attributes =
      ImportedAttributes(model, {.origin = "a test", .step = 41});
  const std::vector<ItemSpec> items = {{"w", "weight", DType::kF32, {4}}};
  // Not of a checkpoint, so that the archive says no step.
  MadeState made(items, attributes);
  ASSERT_TRUE(Write(&made, "a.h5").ok());
  const auto read = Read("a.h5");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 41);

  // Saved under another step than the one that a resume would take.
  tests::SaveBare(dir_.path(), "saved", *tests::SmallLayout(1, 1, 1),
                  attributes);
  auto source =
      ckpt::CheckpointSource::Open(Path("saved"), {}, ckpt::RealClock());
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE(Write(source->get(), "b.h5").ok());
  EXPECT_THAT(
      std::string(Read("b.h5").status().message()),
      HasSubstr("its attribute step is 300, that of /attributes is 41"));
}

TEST_F(Hdf5ArchiveTest, AnyRunOfAnyBoxIsRead) {
  MadeState made = Odd();
  ASSERT_TRUE(Write(&made, "a.h5").ok());
  const auto read = Read("a.h5");
  ASSERT_TRUE(read.ok()) << read.status();
  constexpr ckpt::ItemIndex kDouble = 2;
  ckpt::Box part;
  part.dimensions = 4;
  part.first = {0, 1, 1, 2};
  part.count = {2, 2, 3, 2};
  for (int64_t first = 0; first < part.elements(); ++first) {
    for (int64_t count = 1; first + count <= part.elements(); ++count) {
      std::vector<std::byte> found(8 * count);
      std::vector<std::byte> expected(8 * count);
      const WantedRun want{kDouble, part, first, count, found};
      const WantedRun same{kDouble, part, first, count, expected};
      ASSERT_TRUE(read->source->Fill({&want, 1}).ok());
      ASSERT_TRUE(made.Fill({&same, 1}).ok());
      ASSERT_EQ(found, expected) << first << " " << count;
    }
  }
}

TEST_F(Hdf5ArchiveTest, ACheckpointComesBackOnAnyLayout) {
  tests::SaveBare(dir_.path(), "saved", *tests::SmallLayout(2, 2, 2),
                  {{"step", "300"}, {".host", "n042"}}, /*zstd_level=*/0);
  auto source =
      ckpt::CheckpointSource::Open(Path("saved"), {}, ckpt::RealClock());
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE(Write(source->get(), "a.h5").ok());

  auto read = Read("a.h5");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 300);
  ckpt::WriteCheckpointOptions options;
  options.out = Path("back");
  options.step = read->step;
  options.threads = 2;
  const auto written =
      ckpt::WriteCheckpoint(read->source.get(), *tests::SmallLayout(1, 1, 3),
                            options, ckpt::RealClock());
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->digest, ckpt::LogicalDigest((*source)->manifest()));
}

TEST_F(Hdf5ArchiveTest, NothingIsReplacedAndNothingHalfIsLeft) {
  MadeState made = Odd();
  ASSERT_TRUE(Write(&made, "a.h5").ok());
  const auto before = fs::last_write_time(Path("a.h5"));
  const auto again = Write(&made, "a.h5");
  EXPECT_TRUE(absl::IsFailedPrecondition(again.status())) << again.status();
  EXPECT_EQ(fs::last_write_time(Path("a.h5")), before);

  // A source that fails in the middle.
  class Failing final : public ckpt::StateSource {
   public:
    explicit Failing(MadeState made) : made_(std::move(made)) {}
    const std::vector<ItemSpec>& items() const override {
      return made_.items();
    }
    const std::map<std::string, std::string>& attributes() const override {
      return made_.attributes();
    }
    absl::Status Fill(std::span<const WantedRun> wants) override {
      if (++calls_ == 2) return absl::DataLossError("a bad sector");
      return made_.Fill(wants);
    }

   private:
    MadeState made_;
    int calls_ = 0;
  } failing(Odd());
  const auto failed = Write(&failing, "b.h5");
  EXPECT_TRUE(absl::IsDataLoss(failed.status())) << failed.status();
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.path()), {}), 1);
}

TEST_F(Hdf5ArchiveTest, WhoIsKilledLeavesNoArchive) {
  const pid_t child = fork();
  if (child == 0) {
    class Killed final : public ckpt::StateSource {
     public:
      explicit Killed(MadeState made) : made_(std::move(made)) {}
      const std::vector<ItemSpec>& items() const override {
        return made_.items();
      }
      const std::map<std::string, std::string>& attributes() const override {
        return made_.attributes();
      }
      absl::Status Fill(std::span<const WantedRun> wants) override {
        if (++calls_ == 2) kill(getpid(), SIGKILL);
        return made_.Fill(wants);
      }

     private:
      MadeState made_;
      int calls_ = 0;
    } killed(Odd());
    Write(&killed, "a.h5").IgnoreError();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(Path("a.h5")));
  // What is left of it is taken away by the next one.
  EXPECT_TRUE(fs::exists(Path(".a.h5.partial")));
  MadeState made = Odd();
  ASSERT_TRUE(Write(&made, "a.h5").ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.path()), {}), 1);
}

TEST_F(Hdf5ArchiveTest, AFlippedBitOfATensorHasAnotherDigest) {
  MadeState made = Odd();
  ASSERT_TRUE(Write(&made, "a.h5").ok());
  const auto size = fs::file_size(Path("a.h5"));
  std::fstream file(Path("a.h5"),
                    std::ios::in | std::ios::out | std::ios::binary);
  // Most of the file is the widest tensor.
  file.seekg(static_cast<std::streamoff>(size / 2));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(size / 2));
  file.put(static_cast<char>(byte ^ 4));
  file.close();
  const auto read = Read("a.h5");
  ASSERT_TRUE(read.ok()) << read.status();
  ckpt::WriteCheckpointOptions options;
  options.out = Path("back");
  options.threads = 1;
  const auto written = ckpt::WriteCheckpoint(
      read->source.get(), *ckpt::MakeRowLayout(read->source->items(), 2),
      options, ckpt::RealClock());
  EXPECT_TRUE(absl::IsDataLoss(written.status())) << written.status();
}

// Whatever is cut off or changed in the file's structure ends in a status.
TEST_F(Hdf5ArchiveTest, FilesThatAreNotWholeAreRefused) {
  MadeState made({{"w", "weight", DType::kF32, {64, 4}}}, {{"step", "1"}});
  ASSERT_TRUE(Write(&made, "a.h5").ok());
  std::ifstream in(Path("a.h5"), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  for (size_t size = 0; size < whole.size(); size += 97) {
    std::ofstream(Path("cut.h5"), std::ios::binary) << whole.substr(0, size);
    const auto read = Read("cut.h5");
    ASSERT_TRUE(absl::IsInvalidArgument(read.status()) ||
                absl::IsNotFound(read.status()))
        << size << read.status();
    EXPECT_THAT(read.status().message(), HasSubstr("cut.h5"));
  }
  std::ofstream(Path("text.h5")) << "no HDF5 at all";
  EXPECT_TRUE(absl::IsInvalidArgument(Read("text.h5").status()));
  EXPECT_TRUE(absl::IsNotFound(Read("none.h5").status()));
  fs::create_symlink(Path("a.h5"), Path("link.h5"));
  EXPECT_TRUE(absl::IsInvalidArgument(Read("link.h5").status()));
  ASSERT_EQ(mkfifo(Path("fifo.h5").c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(Read("fifo.h5").status()));
}

TEST(Hdf5NamesTest, AnyNameHasOneSpelling) {
  for (const std::string& name :
       {std::string(""), std::string("."), std::string(".."),
        std::string("a/b"), std::string("%2f"), std::string("a\0b", 3),
        std::string("\n\x7f"), std::string("\xff\xc3")}) {
    const std::string link = Hdf5Name(name);
    EXPECT_THAT(link,
                AllOf(testing::Not(IsEmpty()), testing::Not(HasSubstr("/")),
                      testing::Not(testing::StrEq("."))));
    EXPECT_EQ(NameOfHdf5(link), name);
  }
  for (const char* link : {"a%", "a%2", "%2F", "%61", "a%zz"}) {
    EXPECT_EQ(NameOfHdf5(link), std::nullopt) << link;
  }
}

}  // namespace
}  // namespace holdfast::tools
