// tools/convert/hdf5_file.h: the door to HDF5: what an archive holds, made and
// read. What it means: hdf5_archive.h.
//
// The library makes and reads everything but the tensors' bytes. Those lie in
// the file in one piece each (contiguous datasets, without filters), so that
// they are written and read with plain calls at the offsets that it says: in
// parallel, in bounded memory, and without its caches.
//
// A foreign file is refused with kInvalidArgument when it has a link that is no
// hard link, external storage, a filter, a virtual, chunked or compact dataset,
// a type that we have not, more dimensions or elements than a checkpoint may
// have, bytes beyond the file's end, a digest that is none, or a user block.
// Plugins are not loaded.
//
// Thread: one at a time in the whole process; the library is not thread-safe.

#ifndef HOLDFAST_TOOLS_CONVERT_HDF5_FILE_H_
#define HOLDFAST_TOOLS_CONVERT_HDF5_FILE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ckpt/format/digest.h"
#include "ckpt/layout/holding.h"

namespace holdfast::tools {

struct Hdf5Tensor {
  ckpt::ItemSpec item;
  std::optional<ckpt::Digest128> digest;
  uint64_t offset = 0;  // of its first byte in the file
};

struct Hdf5Contents {
  std::map<std::string, std::string> facts;  // of the root
  std::map<std::string, std::string> attributes;
  std::vector<Hdf5Tensor> tensors;  // sorted by (name, kind)
  uint64_t memory_bytes = 0;        // all of it, about
};

// The archive in the file that `fd` is open on. `path` is for messages.
// kNotFound: a group that an archive has is not there: it is none.
// kInvalidArgument also when names, shapes and attributes take more than
// `memory_max` bytes.
absl::StatusOr<Hdf5Contents> ReadHdf5(int fd, const std::string& path,
                                      uint64_t memory_max);

class Hdf5Writer {
 public:
  // Makes `path`, an empty file of the caller's, an HDF5 file.
  static absl::StatusOr<std::unique_ptr<Hdf5Writer>> Create(
      const std::string& path);
  ~Hdf5Writer();

  absl::Status AddFact(const std::string& name, const std::string& value);
  absl::Status AddFact(const std::string& name, int64_t value);
  absl::Status AddAttribute(const std::string& name, const std::string& value);
  // Space for a tensor; where in the file it is.
  absl::StatusOr<uint64_t> AddTensor(const ckpt::ItemSpec& item);
  absl::Status SetDigest(const ckpt::ItemSpec& item, const std::string& digest);
  // Everything but the tensors' bytes is in the file.
  absl::Status Close();

 private:
  struct State;
  explicit Hdf5Writer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_HDF5_FILE_H_
