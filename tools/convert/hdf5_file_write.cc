// tools/convert/hdf5_file_write.cc: an archive made: everything but the
// tensors' bytes.

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "tools/common/text.h"
#include "tools/convert/hdf5_file.h"
#include "tools/convert/hdf5_file_library.h"
#include "tools/convert/hdf5_names.h"

namespace holdfast::tools {

using ckpt::ItemSpec;
using hdf5::FileAccess;
using hdf5::Id;
using hdf5::kAttributesGroup;
using hdf5::kDigestName;
using hdf5::kStateGroup;
using hdf5::kTypeName;
using hdf5::LastError;
using hdf5::PrepareLibrary;
using hdf5::StoredType;
using hdf5::TypeName;

namespace {

// Text is a string of fixed length, in UTF-8; other bytes are an array of them.
bool PutText(hid_t object, const std::string& name, const std::string& value) {
  const bool is_text = Printable(value, /*keep_lines=*/true) == value;
  Id type(H5Tcopy(is_text ? H5T_C_S1 : H5T_STD_U8LE));
  Id space;
  if (is_text) {
    if (H5Tset_size(type.get(), std::max<size_t>(1, value.size())) < 0 ||
        H5Tset_strpad(type.get(), H5T_STR_NULLPAD) < 0 ||
        H5Tset_cset(type.get(), H5T_CSET_UTF8) < 0) {
      return false;
    }
    space = Id(H5Screate(H5S_SCALAR));
  } else {
    const hsize_t size = value.size();
    space = Id(H5Screate_simple(1, &size, nullptr));
  }
  Id creation(H5Pcreate(H5P_ATTRIBUTE_CREATE));
  if (!space.valid() || !creation.valid() ||
      H5Pset_char_encoding(creation.get(), H5T_CSET_UTF8) < 0) {
    return false;
  }
  Id attribute(H5Acreate2(object, Hdf5Name(name).c_str(), type.get(),
                          space.get(), creation.get(), H5P_DEFAULT));
  const char* const bytes = value.empty() ? "" : value.data();
  return attribute.valid() && H5Awrite(attribute.get(), type.get(), bytes) >= 0;
}

bool PutNumber(hid_t object, const std::string& name, int64_t value) {
  Id space(H5Screate(H5S_SCALAR));
  Id attribute(H5Acreate2(object, name.c_str(), H5T_STD_I64LE, space.get(),
                          H5P_DEFAULT, H5P_DEFAULT));
  return space.valid() && attribute.valid() &&
         H5Awrite(attribute.get(), H5T_NATIVE_INT64, &value) >= 0;
}

}  // namespace

struct Hdf5Writer::State {
  std::string path;
  Id file;
  Id attributes;
  Id state;

  absl::Status Failed(const std::string& doing) const {
    return absl::UnavailableError(
        absl::StrFormat("writing %s: %s: %s", path, doing, LastError()));
  }
  std::string PlaceOf(const ItemSpec& item) const {
    return Hdf5Name(item.name) + "/" + Hdf5Name(item.kind);
  }
};

Hdf5Writer::Hdf5Writer(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
Hdf5Writer::~Hdf5Writer() = default;

absl::StatusOr<std::unique_ptr<Hdf5Writer>> Hdf5Writer::Create(
    const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  if (!PrepareLibrary()) return state->Failed("starting the library");
  const Id access = FileAccess();
  state->file =
      Id(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
  if (!state->file.valid()) return state->Failed("beginning the file");
  state->attributes = Id(H5Gcreate2(state->file.get(), kAttributesGroup,
                                    H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  state->state = Id(H5Gcreate2(state->file.get(), kStateGroup, H5P_DEFAULT,
                               H5P_DEFAULT, H5P_DEFAULT));
  if (!state->attributes.valid() || !state->state.valid()) {
    return state->Failed("making groups");
  }
  return std::unique_ptr<Hdf5Writer>(new Hdf5Writer(std::move(state)));
}

absl::Status Hdf5Writer::AddFact(const std::string& name,
                                 const std::string& value) {
  if (PutText(state_->file.get(), name, value)) return absl::OkStatus();
  return state_->Failed("attribute " + name);
}

absl::Status Hdf5Writer::AddFact(const std::string& name, int64_t value) {
  if (PutNumber(state_->file.get(), name, value)) return absl::OkStatus();
  return state_->Failed("attribute " + name);
}

absl::Status Hdf5Writer::AddAttribute(const std::string& name,
                                      const std::string& value) {
  if (PutText(state_->attributes.get(), name, value)) return absl::OkStatus();
  return state_->Failed("attribute " + name);
}

absl::StatusOr<uint64_t> Hdf5Writer::AddTensor(const ItemSpec& item) {
  const std::string place = state_->PlaceOf(item);
  hsize_t lengths[ckpt::kDimensionsMax] = {};
  std::copy(item.shape.begin(), item.shape.end(), lengths);
  const Id space(item.shape.empty()
                     ? H5Screate(H5S_SCALAR)
                     : H5Screate_simple(static_cast<int>(item.shape.size()),
                                        lengths, nullptr));
  const Id type = StoredType(item.dtype);
  const Id link(H5Pcreate(H5P_LINK_CREATE));
  const Id creation(H5Pcreate(H5P_DATASET_CREATE));
  if (!space.valid() || !type.valid() ||
      H5Pset_create_intermediate_group(link.get(), 1) < 0 ||
      H5Pset_char_encoding(link.get(), H5T_CSET_UTF8) < 0 ||
      H5Pset_layout(creation.get(), H5D_CONTIGUOUS) < 0 ||
      // Its place is known at once, and nothing is written into it.
      H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY) < 0 ||
      H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER) < 0) {
    return state_->Failed("tensor " + place);
  }
  const Id dataset(H5Dcreate2(state_->state.get(), place.c_str(), type.get(),
                              space.get(), link.get(), creation.get(),
                              H5P_DEFAULT));
  if (!dataset.valid() ||
      !PutText(dataset.get(), kTypeName, TypeName(item.dtype))) {
    return state_->Failed("tensor " + place);
  }
  const haddr_t offset = H5Dget_offset(dataset.get());
  if (offset == HADDR_UNDEF) return state_->Failed("the place of " + place);
  return uint64_t{offset};
}

absl::Status Hdf5Writer::SetDigest(const ItemSpec& item,
                                   const std::string& digest) {
  const std::string place = state_->PlaceOf(item);
  const Id dataset(H5Dopen2(state_->state.get(), place.c_str(), H5P_DEFAULT));
  if (dataset.valid() && PutText(dataset.get(), kDigestName, digest)) {
    return absl::OkStatus();
  }
  return state_->Failed("the digest of " + place);
}

absl::Status Hdf5Writer::Close() {
  if (state_->attributes.Close() && state_->state.Close() &&
      state_->file.Close()) {
    return absl::OkStatus();
  }
  return state_->Failed("ending the file");
}

}  // namespace holdfast::tools
