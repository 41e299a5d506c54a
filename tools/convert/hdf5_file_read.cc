// tools/convert/hdf5_file_read.cc: what an archive holds, nothing of it
// believed.

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "ckpt/base/status_macros.h"
#include "ckpt/format/manifest_rules.h"
#include "ckpt/storage/errno_status.h"
#include "tools/convert/foreign_tensors.h"
#include "tools/convert/hdf5_file.h"
#include "tools/convert/hdf5_file_library.h"
#include "tools/convert/hdf5_names.h"

namespace holdfast::tools {

using ckpt::DType;
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

// As many as a manifest of the largest size could list, and what it may hold.
constexpr uint64_t kLinksMax = 1'000'000;
constexpr uint64_t kAttributesMax = 100'000;
constexpr uint64_t kAttributeBytesMax = ckpt::kManifestBytesMax;

constexpr DType kTypes[] = {DType::kBf16, DType::kF16, DType::kF32, DType::kF64,
                            DType::kI32,  DType::kI64, DType::kU8};

absl::Status Bad(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", path, what));
}

// Memory that a file may make us take, counted before it is taken.
struct Budget {
  uint64_t max = 0;
  uint64_t taken = 0;

  uint64_t left() const { return max - taken; }
  bool Take(uint64_t bytes) {
    if (bytes > left()) return false;
    taken += bytes;
    return true;
  }
  absl::Status Spent(const std::string& path, const std::string& of) const {
    return Bad(path, absl::StrFormat(
                         "the names, shapes and attributes up to %s take more "
                         "than the %d bytes of memory that are left for them "
                         "(--memory-limit)",
                         of, max));
  }
};
// Of a name in a list, and of an attribute beside name and value: of each what
// the lists and their copies take.
constexpr uint64_t kNameBytes = 64;
constexpr uint64_t kAttributeBytes = 256;
// The library has a value as well, and a checkpoint's writer puts it into the
// manifest.
constexpr uint64_t kValueCopies = 4;

// The descriptor's own file, whatever its path means by now.
std::string PathOf(int fd) { return absl::StrFormat("/proc/self/fd/%d", fd); }

// --- Attributes ------------------------------------------------------------

// What PutText and PutNumber write; none for anything else, and for more than
// `bytes_max`.
std::optional<std::string> TakeText(hid_t object, const std::string& name,
                                    uint64_t bytes_max) {
  Id attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT));
  if (!attribute.valid()) return std::nullopt;
  Id type(H5Aget_type(attribute.get()));
  Id space(H5Aget_space(attribute.get()));
  if (!type.valid() || !space.valid()) return std::nullopt;
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  const uint64_t size = H5Tget_size(type.get());
  if (count < 0 ||
      (size > 0 && static_cast<uint64_t>(count) > bytes_max / size)) {
    return std::nullopt;
  }
  const H5T_class_t of_class = H5Tget_class(type.get());
  if (of_class == H5T_INTEGER && size == 8 && count == 1) {
    int64_t value = 0;
    if (H5Aread(attribute.get(), H5T_NATIVE_INT64, &value) < 0) {
      return std::nullopt;
    }
    return std::to_string(value);
  }
  const bool is_text = of_class == H5T_STRING && count == 1 &&
                       H5Tis_variable_str(type.get()) == 0;
  const bool is_bytes = H5Tequal(type.get(), H5T_STD_U8LE) > 0;
  if (!is_text && !is_bytes) return std::nullopt;
  std::string value(static_cast<uint64_t>(count) * size, '\0');
  if (!value.empty() &&
      H5Aread(attribute.get(), type.get(), value.data()) < 0) {
    return std::nullopt;
  }
  if (is_text) value.resize(std::min(value.find('\0'), value.size()));
  return value;
}

bool TakesMore(hid_t object, const std::string& name, uint64_t bytes) {
  Id attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT));
  return attribute.valid() && H5Aget_storage_size(attribute.get()) > bytes;
}

absl::Status TakeAll(hid_t object, const std::string& path,
                     const std::string& of, uint64_t* left, Budget* budget,
                     std::map<std::string, std::string>* out) {
  struct Found {
    std::vector<std::string> names;
    Budget* budget;
    bool is_spent = false;
  } found{{}, budget};
  const auto take = [](hid_t, const char* name, const H5A_info_t*, void* data) {
    auto* const found = static_cast<Found*>(data);
    found->is_spent =
        !found->budget->Take(kAttributeBytes + 2 * std::strlen(name));
    if (found->is_spent || found->names.size() >= kAttributesMax) {
      return herr_t{-1};
    }
    found->names.emplace_back(name);
    return herr_t{0};
  };
  const herr_t listed =
      H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, take, &found);
  if (found.is_spent) return budget->Spent(path, of);
  if (listed < 0) {
    return Bad(path, absl::StrFormat("listing the attributes of %s: %s", of,
                                     LastError()));
  }
  for (const std::string& link : found.names) {
    const auto name = NameOfHdf5(link);
    const uint64_t affordable = budget->left() / kValueCopies;
    auto value = TakeText(object, link, std::min(*left, affordable));
    if (!value && affordable < *left && TakesMore(object, link, affordable)) {
      return budget->Spent(path, absl::StrFormat("'%s' of %s", link, of));
    }
    if (!name || !value) {
      return Bad(path, absl::StrFormat(
                           "attribute '%s' of %s: expected a string of fixed "
                           "length, a 64-bit integer or bytes, at most %d in "
                           "all",
                           link, of, kAttributeBytesMax));
    }
    *left -= value->size();
    budget->Take(kValueCopies * value->size());
    (*out)[*name] = *std::move(value);
  }
  return absl::OkStatus();
}

// --- Tensors ---------------------------------------------------------------

// The names of hard links in a group; any other kind of link is refused.
absl::StatusOr<std::vector<std::string>> Links(hid_t group,
                                               const std::string& path,
                                               const std::string& of,
                                               Budget* budget) {
  H5G_info_t info = {};
  if (H5Gget_info(group, &info) < 0) {
    return Bad(path, absl::StrFormat("%s: %s", of, LastError()));
  }
  if (info.nlinks > kLinksMax) {
    return Bad(path, absl::StrFormat("%s has %d members, at most %d are read",
                                     of, info.nlinks, kLinksMax));
  }
  struct Found {
    std::vector<std::string> names;
    std::string wrong;
    Budget* budget;
    bool is_spent = false;
  } found{{}, {}, budget};
  const auto take = [](hid_t, const char* name, const H5L_info_t* link,
                       void* data) {
    auto* const found = static_cast<Found*>(data);
    if (link->type != H5L_TYPE_HARD || found->names.size() >= kLinksMax) {
      found->wrong = name;
      return herr_t{1};
    }
    found->is_spent = !found->budget->Take(kNameBytes + std::strlen(name));
    if (found->is_spent) return herr_t{1};
    found->names.emplace_back(name);
    return herr_t{0};
  };
  if (H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, take, &found) <
      0) {
    return Bad(path, absl::StrFormat("%s: %s", of, LastError()));
  }
  if (found.is_spent) return budget->Spent(path, of);
  if (!found.wrong.empty()) {
    return Bad(path, absl::StrFormat("%s/%s is a link to somewhere else; only "
                                     "what is in the file itself is read",
                                     of, found.wrong));
  }
  return std::move(found.names);
}

absl::Status CheckStorage(hid_t dataset, const std::string& path,
                          const std::string& of, uint64_t bytes,
                          uint64_t file_bytes, uint64_t* offset) {
  Id creation(H5Dget_create_plist(dataset));
  if (!creation.valid()) {
    return Bad(path, absl::StrFormat("%s: %s", of, LastError()));
  }
  if (H5Pget_external_count(creation.get()) != 0) {
    return Bad(path,
               of + " keeps its bytes in other files, which are not read");
  }
  if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS ||
      H5Pget_nfilters(creation.get()) != 0) {
    return Bad(path, of + " is stored in chunks, compressed, or not in this "
                          "file; h5repack -l CONTI -f NONE makes it one piece");
  }
  const haddr_t at = H5Dget_offset(dataset);
  if (at == HADDR_UNDEF) {
    return Bad(path, of + " has no bytes: nothing was written into it");
  }
  if (H5Dget_storage_size(dataset) != bytes || at > file_bytes ||
      bytes > file_bytes - at) {
    return Bad(path, absl::StrFormat(
                         "%s has %d bytes from %d on, and the file has %d", of,
                         bytes, static_cast<uint64_t>(at), file_bytes));
  }
  *offset = at;
  return absl::OkStatus();
}

absl::StatusOr<Hdf5Tensor> ReadTensor(hid_t dataset, const std::string& path,
                                      const std::string& of, std::string name,
                                      std::string kind, uint64_t file_bytes) {
  Hdf5Tensor tensor;
  tensor.item.name = std::move(name);
  tensor.item.kind = std::move(kind);
  Id space(H5Dget_space(dataset));
  const int dimensions = H5Sget_simple_extent_ndims(space.get());
  if (dimensions < 0 || dimensions > ckpt::kDimensionsMax) {
    return Bad(path,
               absl::StrFormat("%s has %d dimensions, expected at most %d", of,
                               dimensions, ckpt::kDimensionsMax));
  }
  hsize_t lengths[ckpt::kDimensionsMax] = {};
  if (H5Sget_simple_extent_dims(space.get(), lengths, nullptr) < 0 ||
      H5Sget_simple_extent_type(space.get()) == H5S_NULL) {
    return Bad(path, absl::StrFormat("%s: %s", of, LastError()));
  }
  for (int d = 0; d < dimensions; ++d) {
    // Beyond 2^63 it becomes negative, which CheckItem refuses.
    tensor.item.shape.push_back(static_cast<int64_t>(lengths[d]));
  }
  constexpr uint64_t kTextBytesMax = 256;
  std::string named;
  if (H5Aexists(dataset, kTypeName) > 0) {
    named = TakeText(dataset, kTypeName, kTextBytesMax).value_or("?");
  }
  const htri_t has_digest = H5Aexists(dataset, kDigestName);
  if (has_digest != 0) {
    const auto text = TakeText(dataset, kDigestName, kTextBytesMax);
    const auto digest = ckpt::ParseDigest(text.value_or(""));
    if (!digest.ok()) {
      return Bad(path, absl::StrFormat("%s: its digest is '%s'; 32 hexadecimal "
                                       "digits or no such attribute: expected",
                                       of, text.value_or("not readable")));
    }
    tensor.digest = *digest;
  }
  Id type(H5Dget_type(dataset));
  const DType* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](DType dtype) {
        return H5Tequal(type.get(), StoredType(dtype).get()) > 0 &&
               (named == TypeName(dtype) ||
                (named.empty() && dtype != DType::kBf16));
      });
  if (found == std::end(kTypes)) {
    return Bad(path,
               absl::StrFormat("%s: its type%s is none of bfloat16 (as uint16 "
                               "with dtype = \"bfloat16\"), float16, float32, "
                               "float64, int32, int64, uint8, little-endian",
                               of, named.empty() ? "" : ", '" + named + "',"));
  }
  tensor.item.dtype = *found;
  const absl::Status possible = ckpt::CheckItem(tensor.item);
  if (!possible.ok()) {
    return Bad(path,
               absl::StrFormat("%s: %s", of, std::string(possible.message())));
  }
  const uint64_t bytes = ckpt::WholeBox(tensor.item.shape).elements() *
                         ckpt::SizeOf(tensor.item.dtype);
  HF_RETURN_IF_ERROR(
      CheckStorage(dataset, path, of, bytes, file_bytes, &tensor.offset));
  return tensor;
}

// A member that must be of this kind.
absl::StatusOr<Id> OpenMember(hid_t group, const std::string& link,
                              H5I_type_t kind, const std::string& path,
                              const std::string& of) {
  Id object(H5Oopen(group, link.c_str(), H5P_DEFAULT));
  if (!object.valid()) {
    return Bad(path, absl::StrFormat("%s: %s", of, LastError()));
  }
  if (H5Iget_type(object.get()) != kind) {
    return Bad(path, absl::StrFormat("%s is no %s", of,
                                     kind == H5I_GROUP ? "group" : "dataset"));
  }
  return object;
}

absl::Status ReadState(hid_t state, const std::string& path,
                       uint64_t file_bytes, Budget* budget,
                       Hdf5Contents* contents) {
  HF_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                      Links(state, path, "/state", budget));
  for (const std::string& name_link : names) {
    const std::string of = "/state/" + name_link;
    const auto name = NameOfHdf5(name_link);
    if (!name) return Bad(path, of + " is no tensor's name: '%' and no byte");
    HF_ASSIGN_OR_RETURN(const Id group,
                        OpenMember(state, name_link, H5I_GROUP, path, of));
    HF_ASSIGN_OR_RETURN(const std::vector<std::string> kinds,
                        Links(group.get(), path, of, budget));
    for (const std::string& kind_link : kinds) {
      const std::string what = of + "/" + kind_link;
      const auto kind = NameOfHdf5(kind_link);
      if (!kind) return Bad(path, what + " is no kind: '%' and no byte");
      if (contents->tensors.size() >= kLinksMax) {
        return Bad(path,
                   absl::StrFormat("it has more than %d tensors", kLinksMax));
      }
      if (!budget->Take(kTableBytes + 2 * (name->size() + kind->size()))) {
        return budget->Spent(path, what);
      }
      HF_ASSIGN_OR_RETURN(
          const Id dataset,
          OpenMember(group.get(), kind_link, H5I_DATASET, path, what));
      HF_ASSIGN_OR_RETURN(
          Hdf5Tensor tensor,
          ReadTensor(dataset.get(), path, what, *name, *kind, file_bytes));
      contents->tensors.push_back(std::move(tensor));
    }
  }
  std::sort(contents->tensors.begin(), contents->tensors.end(),
            [](const Hdf5Tensor& a, const Hdf5Tensor& b) {
              return std::tie(a.item.name, a.item.kind) <
                     std::tie(b.item.name, b.item.kind);
            });
  return absl::OkStatus();
}

absl::StatusOr<Id> OpenGroup(hid_t file, const char* name,
                             const std::string& path) {
  if (H5Lexists(file, name, H5P_DEFAULT) <= 0) {
    return absl::NotFoundError(absl::StrFormat(
        "%s: it has no group /%s, so it is no archive of a checkpoint", path,
        name));
  }
  H5L_info_t link = {};
  if (H5Lget_info(file, name, &link, H5P_DEFAULT) < 0 ||
      link.type != H5L_TYPE_HARD) {
    return Bad(path, absl::StrFormat("/%s is a link to somewhere else", name));
  }
  return OpenMember(file, name, H5I_GROUP, path, absl::StrFormat("/%s", name));
}

}  // namespace

absl::StatusOr<Hdf5Contents> ReadHdf5(int fd, const std::string& path,
                                      uint64_t memory_max) {
  struct stat st = {};
  if (::fstat(fd, &st) != 0) {
    return ckpt::ErrnoStatus(errno, "looking at", path);
  }
  if (!PrepareLibrary()) return absl::UnavailableError(LastError());
  const Id access = FileAccess();
  Id file(H5Fopen(PathOf(fd).c_str(), H5F_ACC_RDONLY, access.get()));
  if (!file.valid()) {
    return Bad(path, "is no whole HDF5 file: " + LastError());
  }
  Id creation(H5Fget_create_plist(file.get()));
  hsize_t user_block = 0;
  if (H5Pget_userblock(creation.get(), &user_block) < 0 || user_block != 0) {
    return Bad(path,
               "has a user block before its HDF5 part; h5unjam removes "
               "it");
  }
  Hdf5Contents contents;
  Budget budget{.max = memory_max};
  uint64_t left = kAttributeBytesMax;
  HF_RETURN_IF_ERROR(
      TakeAll(file.get(), path, "/", &left, &budget, &contents.facts));
  HF_ASSIGN_OR_RETURN(const Id attributes,
                      OpenGroup(file.get(), kAttributesGroup, path));
  HF_RETURN_IF_ERROR(TakeAll(attributes.get(), path, "/attributes", &left,
                             &budget, &contents.attributes));
  HF_ASSIGN_OR_RETURN(const Id state, OpenGroup(file.get(), kStateGroup, path));
  HF_RETURN_IF_ERROR(ReadState(state.get(), path,
                               static_cast<uint64_t>(st.st_size), &budget,
                               &contents));
  contents.memory_bytes = budget.taken;
  return contents;
}

}  // namespace holdfast::tools
