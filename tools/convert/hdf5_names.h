// tools/convert/hdf5_names.h: names that HDF5 can have. Pure.
//
// A link's name has no '/' and is not "."; neither it nor an attribute's has a
// zero byte. Such bytes, control characters and '%' are written as %xx.

#ifndef HOLDFAST_TOOLS_CONVERT_HDF5_NAMES_H_
#define HOLDFAST_TOOLS_CONVERT_HDF5_NAMES_H_

#include <optional>
#include <string>
#include <string_view>

namespace holdfast::tools {

std::string Hdf5Name(std::string_view name);
// None: `link` is no such name.
std::optional<std::string> NameOfHdf5(std::string_view link);

}  // namespace holdfast::tools

#endif  // HOLDFAST_TOOLS_CONVERT_HDF5_NAMES_H_
