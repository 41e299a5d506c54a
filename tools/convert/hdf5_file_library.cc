// tools/convert/hdf5_file_library.cc: see hdf5_file_library.h.

#include "tools/convert/hdf5_file_library.h"

namespace holdfast::tools::hdf5 {

using ckpt::DType;

namespace {

// IEEE 754 binary16, as numpy.float16 has it.
Id HalfType() {
  Id type(H5Tcopy(H5T_IEEE_F32LE));
  if (!type.valid() || H5Tset_fields(type.get(), 15, 10, 5, 0, 10) < 0 ||
      H5Tset_size(type.get(), 2) < 0 || H5Tset_ebias(type.get(), 15) < 0) {
    return Id();
  }
  return type;
}

}  // namespace

std::string LastError() {
  std::string text;
  const auto take = [](unsigned, const H5E_error2_t* error, void* data) {
    if (error->desc != nullptr) {
      *static_cast<std::string*>(data) = error->desc;
    }
    return herr_t{0};
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, take, &text);
  return text.empty() ? "the HDF5 library does not say why" : text;
}

bool PrepareLibrary() {
  return H5open() >= 0 && H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0 &&
         H5PLset_loading_state(0) >= 0;
}

Id FileAccess() {
  Id access(H5Pcreate(H5P_FILE_ACCESS));
  if (!access.valid() || H5Pset_fapl_sec2(access.get()) < 0 ||
      H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V110) < 0 ||
      H5Pset_alignment(access.get(), 64 << 10, 4096) < 0 ||
      H5Pset_file_locking(access.get(), false, true) < 0) {
    return Id();
  }
  return access;
}

Id StoredType(DType dtype) {
  switch (dtype) {
    case DType::kBf16:  // its bits; the attribute says what they are
      return Id(H5Tcopy(H5T_STD_U16LE));
    case DType::kF16:
      return HalfType();
    case DType::kF32:
      return Id(H5Tcopy(H5T_IEEE_F32LE));
    case DType::kF64:
      return Id(H5Tcopy(H5T_IEEE_F64LE));
    case DType::kI32:
      return Id(H5Tcopy(H5T_STD_I32LE));
    case DType::kI64:
      return Id(H5Tcopy(H5T_STD_I64LE));
    case DType::kU8:
      return Id(H5Tcopy(H5T_STD_U8LE));
  }
  return Id();
}

const char* TypeName(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF32:
      return "float32";
    case DType::kF64:
      return "float64";
    case DType::kI32:
      return "int32";
    case DType::kI64:
      return "int64";
    case DType::kU8:
      return "uint8";
  }
  return "";
}

}  // namespace holdfast::tools::hdf5
