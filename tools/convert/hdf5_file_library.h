// tools/convert/hdf5_file_library.h: the only file that includes <hdf5.h>: what
// reading and writing an archive share of the library. Inside of
// hdf5_file_*.cc.
//
// Thread: one at a time in the whole process.

#ifndef HOLDFAST_TOOLS_CONVERT_HDF5_FILE_LIBRARY_H_
#define HOLDFAST_TOOLS_CONVERT_HDF5_FILE_LIBRARY_H_

#include <hdf5.h>

#include <string>
#include <utility>

#include "ckpt/layout/tensor.h"

namespace holdfast::tools::hdf5 {

inline constexpr char kStateGroup[] = "state";
inline constexpr char kAttributesGroup[] = "attributes";
inline constexpr char kTypeName[] = "dtype";
inline constexpr char kDigestName[] = "digest";

// An identifier of the library that closes itself.
class Id {
 public:
  explicit Id(hid_t id = H5I_INVALID_HID) : id_(id) {}
  ~Id() { Close(); }
  Id(Id&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  Id& operator=(Id&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  hid_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }
  // False: what was behind it could not be written.
  bool Close() {
    if (id_ < 0) return true;
    // A file is no object: its count has to come down by its own call.
    const hid_t id = std::exchange(id_, H5I_INVALID_HID);
    return (H5Iget_type(id) == H5I_FILE ? H5Fclose(id) : H5Idec_ref(id)) >= 0;
  }

 private:
  hid_t id_;
};

// The innermost sentence of the library's last error.
std::string LastError();

// It does not print, and loads no plugin that a file asks for.
bool PrepareLibrary();

// HDF5 1.8's file format, which keeps attributes of any length; plain file
// calls; and no locks, since the descriptor is somebody's.
Id FileAccess();

// How a tensor's elements are stored, and their type as people of numpy say it.
Id StoredType(ckpt::DType dtype);
const char* TypeName(ckpt::DType dtype);

}  // namespace holdfast::tools::hdf5

#endif  // HOLDFAST_TOOLS_CONVERT_HDF5_FILE_LIBRARY_H_
