// tools/convert/hdf5_archive.h: a checkpoint as one HDF5 file that explains
// itself, and back, bit for bit.
//
//   /                    attributes: format = "holdfast archive 1", about,
//                        step, checkpoint, run_id, parent, layout, world,
//                        time_unix_ms (of the checkpoint; for people), digest
//   /attributes          attributes: the checkpoint's own, by name: the step,
//                        the data cursor, the configuration (".config"), ...
//   /state/NAME/KIND     a dataset: a tensor's weight, master, exp_avg, ...
//       dtype            "bfloat16", "float32", ...
//       digest           its logical digest (ckpt/FORMAT.md), 32 digits
//
// Datasets are contiguous, little-endian and without filters. HDF5 has no
// bfloat16: such a dataset is uint16, the upper half of a float32's bits, and
// its `dtype` says so. In Python:
//
//   f = h5py.File("run7.h5")
//   d = f["state/model.norm.weight/weight"]
//   if d.attrs["dtype"] == b"bfloat16":
//       x = (d[:].astype("u4") << 16).view("f4")
//   f["attributes"].attrs[".config"].decode()
//
// Attributes that are text are strings of fixed length, others bytes (uint8).
// Names that HDF5 cannot have are escaped (hdf5_names.h).
//
// Out: streaming, 16 MiB a thread, digests computed on the way and compared
// with the checkpoint's; the file appears whole and synced, or not at all. In:
// only what is above; a tensor's own digest is compared by whoever writes the
// checkpoint, and the root's says that /attributes (but for those of the run,
// which begin with a dot) and digests are the export's. Who has changed a
// tensor on purpose removes its digest: it alone is then not compared, which a
// note says.

#ifndef HOLDFAST_TOOLS_CONVERT_HDF5_ARCHIVE_H_
#define HOLDFAST_TOOLS_CONVERT_HDF5_ARCHIVE_H_

#include "absl/status/statusor.h"
#include "ckpt/convert/state_source.h"
#include "tools/convert/formats.h"

namespace holdfast::tools {

inline constexpr char kHdf5Format[] = "holdfast archive 1";

// kInvalidArgument: the file is not whole, hostile, or has something that a
// checkpoint cannot have; names the place. kNotFound: no such file, or no
// archive.
absl::StatusOr<ImportedState> OpenHdf5(const ImportRequest& request);

// `request.out` is a file that does not exist. kDataLoss: what was read does
// not have the digest that the source records.
absl::StatusOr<ExportReport> WriteHdf5(ckpt::StateSource* source,
                                       const ExportRequest& request);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_HDF5_ARCHIVE_H_
