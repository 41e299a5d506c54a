// HDF5 files that others made, or made to harm: each is refused with its place,
// or read as what it says. Made here with the library itself.

#include <hdf5.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"
#include "tools/convert/hdf5_archive.h"

namespace holdfast::tools {
namespace {

using ::testing::HasSubstr;

class Hdf5HostileTest : public ::testing::Test {
 protected:
  // A file with /attributes and /state/w, and what `add` puts into /state/w.
  absl::StatusOr<ImportedState> Read(
      const std::function<void(hid_t file, hid_t w)>& add) {
    const std::string path = dir_.path() + "/x.h5";
    const hid_t file =
        H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t attributes =
        H5Gcreate2(file, "attributes", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t state =
        H5Gcreate2(file, "state", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    const hid_t w =
        H5Gcreate2(state, "w", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    add(file, w);
    H5Gclose(w);
    H5Gclose(state);
    H5Gclose(attributes);
    H5Fclose(file);
    ImportRequest request;
    request.from = path;
    request.memory_max = memory_max_;
    return OpenHdf5(request);
  }
  static void Put(hid_t group, const char* name, hid_t type,
                  std::vector<hsize_t> shape, hid_t creation = H5P_DEFAULT,
                  bool write = true) {
    const hid_t space = shape.empty()
                            ? H5Screate(H5S_SCALAR)
                            : H5Screate_simple(static_cast<int>(shape.size()),
                                               shape.data(), nullptr);
    const hid_t dataset = H5Dcreate2(group, name, type, space, H5P_DEFAULT,
                                     creation, H5P_DEFAULT);
    ASSERT_GE(dataset, 0);
    if (write) {
      std::vector<char> bytes(H5Sget_simple_extent_npoints(space) *
                              H5Tget_size(type));
      ASSERT_GE(
          H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data()),
          0);
    }
    H5Dclose(dataset);
    H5Sclose(space);
  }
  void ExpectRefused(const std::function<void(hid_t file, hid_t w)>& add,
                     const std::string& why) {
    const auto read = Read(add);
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << read.status();
    EXPECT_THAT(read.status().message(), HasSubstr(why));
  }

  const tests::TempDir dir_;
  uint64_t memory_max_ = uint64_t{1} << 30;
};

TEST_F(Hdf5HostileTest,
       NamesAndAttributesBeyondTheMemoryThatThereIsAreRefused) {
  const auto tensors = [](hid_t, hid_t w) {
    for (int i = 0; i < 50; ++i) {
      Put(w, ("k" + std::to_string(i)).c_str(), H5T_IEEE_F32LE, {2});
    }
  };
  const auto text = [](hid_t file, hid_t w) {
    Put(w, "weight", H5T_IEEE_F32LE, {2});
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, 20'000);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute =
        H5Acreate2(file, "long", type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, type, std::string(20'000, 'x').data());
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
  };
  const auto names = [](hid_t file, hid_t w) {
    Put(w, "weight", H5T_IEEE_F32LE, {2});
    const hid_t space = H5Screate(H5S_SCALAR);
    for (int i = 0; i < 200; ++i) {
      const hid_t attribute =
          H5Acreate2(file, ("a" + std::to_string(i)).c_str(), H5T_STD_I64LE,
                     space, H5P_DEFAULT, H5P_DEFAULT);
      const int64_t value = 1;
      H5Awrite(attribute, H5T_NATIVE_INT64, &value);
      H5Aclose(attribute);
    }
    H5Sclose(space);
  };
  for (const auto& add :
       std::vector<std::function<void(hid_t, hid_t)>>{tensors, text, names}) {
    memory_max_ = 200'000;
    const auto read = Read(add);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_GT(read->memory_bytes, 20'000u);
    EXPECT_LE(read->memory_bytes, memory_max_);
    memory_max_ = 40'000;
    ExpectRefused(add, "--memory-limit");
  }
}

TEST_F(Hdf5HostileTest, APlainFileOfAnotherProgramIsRead) {
  const auto read = Read([](hid_t, hid_t w) {
    Put(w, "weight", H5T_IEEE_F32LE, {4, 5});
    Put(w, "count", H5T_STD_I64LE, {});
  });
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->source->items().size(), 2);
  EXPECT_EQ(read->source->items()[0].kind, "count");
  EXPECT_THAT(read->source->recorded_digests(), testing::IsEmpty());
  EXPECT_EQ(read->notes.size(), 1);
}

TEST_F(Hdf5HostileTest, LinksThatLeadElsewhereAreRefused) {
  std::ofstream(dir_.path() + "/other.h5") << "secret";
  ExpectRefused(
      [](hid_t, hid_t w) {
        H5Lcreate_external("other.h5", "/x", w, "weight", H5P_DEFAULT,
                           H5P_DEFAULT);
      },
      "/state/w/weight is a link to somewhere else");
  ExpectRefused(
      [](hid_t, hid_t w) {
        H5Lcreate_soft("/attributes", w, "weight", H5P_DEFAULT, H5P_DEFAULT);
      },
      "is a link to somewhere else");
  ExpectRefused(
      [](hid_t file, hid_t) {
        H5Ldelete(file, "state", H5P_DEFAULT);
        H5Lcreate_external("other.h5", "/", file, "state", H5P_DEFAULT,
                           H5P_DEFAULT);
      },
      "/state is a link to somewhere else");
}

TEST_F(Hdf5HostileTest, BytesInOtherFilesAreRefused) {
  ExpectRefused(
      [](hid_t, hid_t w) {
        const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_external(creation, "/etc/passwd", 0, H5F_UNLIMITED);
        Put(w, "weight", H5T_STD_U8LE, {100}, creation, /*write=*/false);
        H5Pclose(creation);
      },
      "keeps its bytes in other files");
}

TEST_F(Hdf5HostileTest, ChunksFiltersAndVirtualDatasetsAreRefused) {
  ExpectRefused(
      [](hid_t, hid_t w) {
        const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        const hsize_t chunk = 10;
        H5Pset_chunk(creation, 1, &chunk);
        // A filter that nobody has.
        H5Pset_filter(creation, 32999, H5Z_FLAG_OPTIONAL, 0, nullptr);
        Put(w, "weight", H5T_STD_U8LE, {100}, creation, /*write=*/false);
        H5Pclose(creation);
      },
      "h5repack -l CONTI -f NONE");
  ExpectRefused(
      [](hid_t, hid_t w) {
        const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        const hsize_t size = 100;
        const hid_t space = H5Screate_simple(1, &size, nullptr);
        H5Pset_virtual(creation, space, "/etc/passwd", "/x", space);
        Put(w, "weight", H5T_STD_U8LE, {100}, creation, /*write=*/false);
        H5Sclose(space);
        H5Pclose(creation);
      },
      "not in this file");
  ExpectRefused(
      [](hid_t, hid_t w) {
        const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_layout(creation, H5D_COMPACT);
        Put(w, "weight", H5T_STD_U8LE, {100}, creation);
        H5Pclose(creation);
      },
      "h5repack");
}

TEST_F(Hdf5HostileTest, ShapesThatCannotBeAreRefused) {
  // Nothing is written: such a file takes no space.
  const auto huge = [](std::vector<hsize_t> shape) {
    return [shape](hid_t, hid_t w) {
      Put(w, "weight", H5T_IEEE_F64LE, shape, H5P_DEFAULT, /*write=*/false);
    };
  };
  ExpectRefused(huge({hsize_t{1} << 40}), "has no bytes");
  ExpectRefused(huge({hsize_t{1} << 30, hsize_t{1} << 28}), "2^56");
  ExpectRefused(huge({0, 4}), "must be from 1 up");
  ExpectRefused(huge({2, 2, 2, 2, 2}), "5 dimensions");
}

TEST_F(Hdf5HostileTest, TypesThatAreNotOursAreRefused) {
  for (const hid_t type : {H5T_IEEE_F32BE, H5T_STD_U16LE, H5T_STD_U64LE,
                           H5T_STD_I8LE, H5T_STD_REF_OBJ}) {
    ExpectRefused(
        [type](hid_t, hid_t w) {
          Put(w, "weight", type, {4}, H5P_DEFAULT, type != H5T_STD_REF_OBJ);
        },
        type == H5T_STD_REF_OBJ ? "/state/w/weight" : "little-endian");
  }
}

TEST_F(Hdf5HostileTest, WhatIsNoTensorInsideOfStateIsRefused) {
  ExpectRefused(
      [](hid_t, hid_t w) {
        H5Gclose(
            H5Gcreate2(w, "weight", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
      },
      "/state/w/weight is no dataset");
  ExpectRefused(
      [](hid_t file, hid_t) {
        const hid_t state = H5Gopen2(file, "state", H5P_DEFAULT);
        Put(state, "stray", H5T_STD_U8LE, {4});
        H5Gclose(state);
      },
      "/state/stray is no group");
  // A group inside itself.
  ExpectRefused(
      [](hid_t file, hid_t w) {
        H5Lcreate_hard(file, "/state", w, "weight", H5P_DEFAULT, H5P_DEFAULT);
      },
      "/state/w/weight is no dataset");
  ExpectRefused([](hid_t, hid_t) {}, "/state has no tensors");
}

TEST_F(Hdf5HostileTest, AttributesOfOtherKindsAreRefused) {
  ExpectRefused(
      [](hid_t file, hid_t w) {
        Put(w, "weight", H5T_STD_U8LE, {4});
        const hid_t type = H5Tcopy(H5T_C_S1);
        H5Tset_size(type, H5T_VARIABLE);
        const hid_t space = H5Screate(H5S_SCALAR);
        const hid_t group = H5Gopen2(file, "attributes", H5P_DEFAULT);
        const hid_t attribute =
            H5Acreate2(group, "step", type, space, H5P_DEFAULT, H5P_DEFAULT);
        const char* const text = "300";
        H5Awrite(attribute, type, &text);
        H5Aclose(attribute);
        H5Gclose(group);
        H5Sclose(space);
        H5Tclose(type);
      },
      "attribute 'step' of /attributes: expected a string of fixed length");
}

TEST_F(Hdf5HostileTest, AStepThatIsNoCountIsRefused) {
  const auto with_step = [](const char* text) {
    return [text](hid_t file, hid_t w) {
      Put(w, "weight", H5T_IEEE_F32LE, {4});
      const hid_t type = H5Tcopy(H5T_C_S1);
      H5Tset_size(type, std::string(text).size());
      const hid_t space = H5Screate(H5S_SCALAR);
      const hid_t step =
          H5Acreate2(file, "step", type, space, H5P_DEFAULT, H5P_DEFAULT);
      ASSERT_GE(H5Awrite(step, type, text), 0);
      H5Aclose(step);
      H5Sclose(space);
      H5Tclose(type);
    };
  };
  ExpectRefused(with_step("abc"), "its attribute step is 'abc'");
  ExpectRefused(with_step("7x"), "its attribute step is '7x'");
  ExpectRefused(with_step("-4"), "its attribute step is '-4'");
  const auto read = Read(with_step("77"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->step, 77);
}

TEST_F(Hdf5HostileTest, AFileWithoutOurGroupsIsNoArchive) {
  const auto read =
      Read([](hid_t file, hid_t) { H5Ldelete(file, "state", H5P_DEFAULT); });
  EXPECT_TRUE(absl::IsNotFound(read.status())) << read.status();
  EXPECT_THAT(read.status().message(), HasSubstr("no archive"));
}

}  // namespace
}  // namespace holdfast::tools
