# cmake -DVERSION=... -DCOMPILER=... -DOUTPUT=... -DHEADERS=a:b:... -P this file
#
# Writes a header with one line of text that is equal in a program and a plug-in
# exactly when both were compiled from the same interface: version, compiler and
# a checksum of the headers that both include.
string(REPLACE ":" ";" headers "${HEADERS}")
set(all "")
foreach(header ${headers})
  file(SHA256 ${header} sum)
  string(APPEND all ${sum})
endforeach()
string(SHA256 all "${all}")
string(SUBSTRING ${all} 0 16 all)
set(text "// Made by kernels/cmake/plugin_build.cmake.\n#define HOLDFAST_PLUGIN_BUILD \"holdfast ${VERSION}, interface ${all}, ${COMPILER}\"\n")
file(WRITE ${OUTPUT} "${text}")
