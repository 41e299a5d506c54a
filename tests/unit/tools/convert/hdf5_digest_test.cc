// What an archive's digests find: each tensor's alone, and the state's.
// Archives of a checkpoint, changed here with the library itself.

#include <hdf5.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "ckpt/convert/checkpoint_source.h"
#include "ckpt/convert/checkpoint_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/bare_checkpoint.h"
#include "tests/support/temp_dir.h"
#include "tools/convert/hdf5_archive.h"
#include "tools/convert/hdf5_names.h"

namespace holdfast::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Hdf5DigestTest : public ::testing::Test {
 protected:
  void SetUp() override {
    tests::SaveBare(dir_.path(), "saved", *tests::SmallLayout(1, 1, 1),
                    {{"cursor", "1200"}, {".host", "n042"}});
    const auto source = ckpt::CheckpointSource::Open(dir_.path() + "/saved", {},
                                                     ckpt::RealClock());
    ASSERT_TRUE(source.ok()) << source.status();
    ASSERT_GT((*source)->items().size(), 4u);
    ExportRequest request;
    request.out = archive_;
    ASSERT_TRUE(WriteHdf5(source->get(), request).ok());
    for (size_t i = 0; i < 2; ++i) items_.push_back((*source)->items()[i]);
    items_size_ = (*source)->items().size();
  }

  void Change(const std::function<void(hid_t file)>& change) const {
    const hid_t file = H5Fopen(archive_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    ASSERT_GE(file, 0);
    change(file);
    ASSERT_GE(H5Fclose(file), 0);
  }
  static std::string Place(const ckpt::ItemSpec& item) {
    return "/state/" + Hdf5Name(item.name) + "/" + Hdf5Name(item.kind);
  }
  static void RemoveDigest(hid_t file, const std::string& place) {
    ASSERT_GE(H5Adelete_by_name(file, place.c_str(), "digest", H5P_DEFAULT), 0);
  }
  // Flips a bit of the tensor's first byte.
  void Damage(const ckpt::ItemSpec& item) const {
    Change([&](hid_t file) {
      const hid_t dataset = H5Dopen2(file, Place(item).c_str(), H5P_DEFAULT);
      const hid_t type = H5Dget_type(dataset);
      std::string bytes(H5Dget_storage_size(dataset), '\0');
      ASSERT_GE(
          H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()),
          0);
      bytes[0] = static_cast<char>(bytes[0] ^ 1);
      ASSERT_GE(
          H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()),
          0);
      H5Tclose(type);
      H5Dclose(dataset);
    });
  }
  absl::StatusOr<ImportedState> Open() const {
    ImportRequest request;
    request.from = archive_;
    return OpenHdf5(request);
  }
  absl::Status Import() {
    auto read = Open();
    if (!read.ok()) return read.status();
    ckpt::WriteCheckpointOptions options;
    options.out = absl::StrFormat("%s/out%d", dir_.path(), ++outs_);
    options.threads = 1;
    return ckpt::WriteCheckpoint(read->source.get(),
                                 *tests::SmallLayout(1, 1, 1), options,
                                 ckpt::RealClock())
        .status();
  }

  const tests::TempDir dir_;
  const std::string archive_ = dir_.path() + "/a.h5";
  std::vector<ckpt::ItemSpec> items_;
  size_t items_size_ = 0;
  int outs_ = 0;
};

TEST_F(Hdf5DigestTest, OneThatIsMissingLeavesTheOthersCompared) {
  Change([&](hid_t file) { RemoveDigest(file, Place(items_[0])); });
  const auto read = Open();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->notes,
              testing::Contains(AllOf(
                  HasSubstr(absl::StrFormat("1 of %d tensors have no digest",
                                            items_size_)),
                  HasSubstr("'" + items_[0].name + "' (" + items_[0].kind))));
  Damage(items_[0]);  // as who changes a tensor on purpose does
  EXPECT_TRUE(Import().ok()) << Import();
  Damage(items_[1]);
  const absl::Status status = Import();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(items_[1].name));
}

TEST_F(Hdf5DigestTest, WithoutAnyNothingIsCompared) {
  const auto source = ckpt::CheckpointSource::Open(dir_.path() + "/saved", {},
                                                   ckpt::RealClock());
  ASSERT_TRUE(source.ok());
  Change([&](hid_t file) {
    for (const ckpt::ItemSpec& item : (*source)->items()) {
      RemoveDigest(file, Place(item));
    }
  });
  Damage(items_[0]);
  const auto read = Open();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_THAT(read->notes,
              testing::Contains(HasSubstr("no tensor has a digest")));
  EXPECT_THAT(read->source->recorded_digests(), IsEmpty());
  EXPECT_TRUE(Import().ok());
}

TEST_F(Hdf5DigestTest, OneThatIsNoneIsRefused) {
  Change([&](hid_t file) {
    const std::string place = Place(items_[0]);
    RemoveDigest(file, place);
    const hid_t dataset = H5Dopen2(file, place.c_str(), H5P_DEFAULT);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, 31);
    const hid_t attribute =
        H5Acreate2(dataset, "digest", type, space, H5P_DEFAULT, H5P_DEFAULT);
    ASSERT_GE(H5Awrite(attribute, type, std::string(31, 'a').c_str()), 0);
    H5Aclose(attribute);
    H5Tclose(type);
    H5Sclose(space);
    H5Dclose(dataset);
  });
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(Place(items_[0])), HasSubstr("32 hexadecimal")));
}

TEST_F(Hdf5DigestTest, AChangedAttributeIsFoundByTheStatesDigest) {
  EXPECT_THAT(Open()->notes, IsEmpty());
  Change([](hid_t file) {
    const hid_t group = H5Gopen2(file, "attributes", H5P_DEFAULT);
    const hid_t attribute = H5Aopen(group, "cursor", H5P_DEFAULT);
    const hid_t type = H5Aget_type(attribute);
    ASSERT_EQ(H5Tget_size(type), 4u);
    ASSERT_GE(H5Awrite(attribute, type, "1201"), 0);
    H5Tclose(type);
    H5Aclose(attribute);
    H5Gclose(group);
  });
  const absl::Status status = Open().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("/attributes"));
  Change([](hid_t file) { RemoveDigest(file, "/"); });
  const auto read = Open();
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->source->attributes().at("cursor"), "1201");
  EXPECT_TRUE(Import().ok());
}

}  // namespace
}  // namespace holdfast::tools
