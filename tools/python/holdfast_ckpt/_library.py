"""_library.py: libholdfast_ckpt.so by ctypes (ckpt/c/holdfast_ckpt.h).

The only file that knows the C interface. Every call releases the interpreter's
lock. Found by HOLDFAST_CKPT_LIBRARY (a path), beside this package, or where the
system's linker looks.
"""

import ctypes
import functools
import os
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)

API_VERSION = 2  # HF_CKPT_RESUME_CLAIM, keep_last=all, hf_ckpt_group_tcp
DIMENSIONS_MAX = 4
IN_PLACE = 0
RESUME_CLAIM = 4
COMMITTED = 0
PAGE = 4096

BF16, F16, F32, F64, I32, I64, U8 = range(1, 8)


class HoldfastError(RuntimeError):
    """What the library says; `code` is the name of its code, "DATA_LOSS"."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message

    def __reduce__(self):  # travels between ranks in a CheckpointException
        return HoldfastError, (self.code, self.message)


class _Sized(Structure):
    """A struct that starts with its size."""

    def __init__(self, **values):
        super().__init__(struct_bytes=ctypes.sizeof(self), **values)


class Attribute(Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class LoadRequest(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint64),
        ("step", c_int64),
        ("resume", c_int32),
        ("init_weights_only", c_int32),
        ("init_from", c_char_p),
        ("fingerprint", c_char_p),
        ("committed_proof", c_char_p),
        ("validate", c_void_p),
        ("user", c_void_p),
    ]


class LoadReport(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint64),
        ("step", c_int64),
        ("loaded", c_int32),
        ("from_init", c_int32),
        ("bytes_read", c_uint64),
        ("bytes_received", c_uint64),
        ("job_bytes_read", c_uint64),
        ("job_bytes_received", c_uint64),
        ("bytes_stored", c_uint64),
        ("seconds", c_double),
        ("bytes_per_s", c_double),
        ("raw_share", c_double),
        ("incarnation", c_uint32),
        ("stepped_over", c_uint32),
        ("id", c_char_p),
        ("run_id", c_char_p),
        ("layout_from", c_char_p),
        ("stepped_over_text", c_char_p),
    ]


class SaveReport(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint64),
        ("step", c_int64),
        ("outcome", c_int32),
        ("code", c_int32),
        ("bytes", c_uint64),
        ("bytes_total", c_uint64),
        ("seconds", c_double),
        ("write_seconds", c_double),
        ("bytes_per_s", c_double),
        ("raw_share", c_double),
        ("stage_seconds", c_double),
        ("bytes_copied", c_uint64),
        ("fence_wait_ms", c_double),
        ("fence_copy_ms", c_double),
        ("thread_cpu_seconds", c_double),
        ("id", c_char_p),
        ("message", c_char_p),
    ]


class ReaderInfo(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint64),
        ("step", c_int64),
        ("items", c_uint64),
        ("incarnation", c_uint32),
        ("world", c_uint32),
        ("time_unix_ms", c_int64),
        ("id", c_char_p),
        ("run_id", c_char_p),
        ("layout", c_char_p),
        ("path", c_char_p),
    ]


class ItemInfo(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint64),
        ("name", c_char_p),
        ("kind", c_char_p),
        ("dtype", c_int32),
        ("dimensions", c_int32),
        ("shape", c_int64 * DIMENSIONS_MAX),
        ("bytes", c_uint64),
    ]


class BoxRead(_Sized):
    _fields_ = [
        ("struct_bytes", c_uint64),
        ("item", c_uint64),
        ("first", c_int64 * DIMENSIONS_MAX),
        ("count", c_int64 * DIMENSIONS_MAX),
        ("memory", c_void_p),
        ("memory_bytes", c_uint64),
    ]


# Arguments of the functions that give a code. Handles are void pointers.
_P = POINTER(c_void_p)
_CALLS = {
    "alloc": [c_uint64, _P],
    "options_new": [_P],
    "options_set": [c_void_p, c_char_p, c_char_p],
    "log_init": [c_int32, c_char_p, c_char_p],
    "group_single": [_P],
    "group_local": [c_char_p, c_int32, c_int32, _P],
    "listen": [c_char_p, _P],
    "group_tcp": [c_void_p, c_int32, c_int32, POINTER(c_char_p), c_char_p, _P],
    "new": [c_char_p, c_void_p, c_void_p, _P],
    "add_item": [
        c_void_p,
        c_char_p,
        c_char_p,
        c_int32,
        c_int32,
        POINTER(c_int64),
        POINTER(c_uint32),
    ],
    "add_region": [c_void_p, c_void_p, c_uint64],
    "add_buffer": [
        c_void_p,
        c_uint32,
        POINTER(c_int64),
        POINTER(c_int64),
        c_void_p,
        c_uint64,
        c_int32,
        POINTER(c_uint32),
    ],
    "open": [c_void_p],
    "load": [c_void_p, POINTER(LoadRequest), POINTER(LoadReport)],
    "begin_save": [c_void_p, c_int64, POINTER(Attribute), c_uint64],
    "wait_save": [c_void_p, c_int64, POINTER(SaveReport), POINTER(c_int32)],
    "close": [c_void_p],
    "reader_open": [c_char_p, _P],
    "reader_get_info": [c_void_p, POINTER(ReaderInfo)],
    "reader_attributes": [c_void_p, POINTER(POINTER(Attribute)), POINTER(c_uint64)],
    "reader_item": [c_void_p, c_uint64, POINTER(ItemInfo)],
    "reader_find": [c_void_p, c_char_p, c_char_p, POINTER(c_uint64)],
    "reader_read": [c_void_p, POINTER(BoxRead), c_uint64],
}
_FREES = (
    "dealloc",
    "options_free",
    "group_free",
    "listener_free",
    "free",
    "reader_free",
)


def _candidates():
    given = os.environ.get("HOLDFAST_CKPT_LIBRARY")
    if given:
        return [given]
    here = os.path.dirname(os.path.abspath(__file__))
    return [
        os.path.join(here, "libholdfast_ckpt.so"),
        "libholdfast_ckpt.so.1",
        "libholdfast_ckpt.so",
    ]


@functools.cache
def library():
    """The shared library, its functions declared."""
    tried = []
    for path in _candidates():
        if os.path.isabs(path) and not os.path.exists(path):
            tried.append(f"{path}: no such file")
            continue
        try:
            lib = ctypes.CDLL(path)
            break
        except OSError as error:
            tried.append(str(error))
    else:
        raise HoldfastError(
            "NOT_FOUND",
            "libholdfast_ckpt.so was not found; install it (cmake --install) or set "
            "HOLDFAST_CKPT_LIBRARY to its path. Tried: " + "; ".join(tried),
        )
    lib.hf_ckpt_api_version.restype = c_uint32
    version = lib.hf_ckpt_api_version()
    if version < API_VERSION:
        raise HoldfastError(
            "FAILED_PRECONDITION",
            f"{lib._name} has version {version} of the C interface, this package "
            f"needs {API_VERSION}; install a newer library",
        )
    for name in ("version", "last_error"):
        getattr(lib, f"hf_ckpt_{name}").restype = c_char_p
    lib.hf_ckpt_listener_address.restype = c_char_p
    lib.hf_ckpt_listener_address.argtypes = [c_void_p]
    lib.hf_ckpt_code_name.restype = c_char_p
    lib.hf_ckpt_code_name.argtypes = [c_int32]
    for name, arguments in _CALLS.items():
        function = getattr(lib, f"hf_ckpt_{name}")
        function.restype = c_int32
        function.argtypes = arguments
    for name in _FREES:
        function = getattr(lib, f"hf_ckpt_{name}")
        function.restype = None
        function.argtypes = [c_void_p]
    # Warnings and errors to stderr; 1: what is opened and claimed, too.
    lib.hf_ckpt_log_init(int(os.environ.get("HOLDFAST_CKPT_LOG", "2")), None, None)
    return lib


def call(name, *arguments):
    """hf_ckpt_NAME; raises what it says unless it is OK."""
    lib = library()
    code = getattr(lib, f"hf_ckpt_{name}")(*arguments)
    if code != 0:
        raise HoldfastError(
            lib.hf_ckpt_code_name(code).decode(),
            lib.hf_ckpt_last_error().decode(errors="replace"),
        )


def new(name, *arguments):
    """The handle that hf_ckpt_NAME gives by its last argument."""
    handle = c_void_p()
    call(name, *arguments, byref(handle))
    return handle


def free(name, handle):
    if handle:
        getattr(library(), f"hf_ckpt_{name}")(handle)


def integers(values):
    """int64_t[], at least one long, so that it has an address."""
    return (c_int64 * max(1, len(values)))(*values)


def listener_address(listener):
    return library().hf_ckpt_listener_address(listener).decode()


def code_name(code):
    return library().hf_ckpt_code_name(code).decode()


def library_version():
    library().hf_ckpt_version.restype = c_char_p
    return library().hf_ckpt_version().decode()
