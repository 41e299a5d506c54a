// tests/support/tsan_suppressions.cc: what ThreadSanitizer must not judge.
//
// Part of every test program. oneDNN is a binary that was not built with TSan:
// its locks and atomics are invisible, so its cache of generated kernels looks
// like a race between ranks that are threads. So is Abseil, whose library
// counts the users of a status's text: the last of two threads to let go frees
// it.

#ifdef __SANITIZE_THREAD__
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:libdnnl.so\nmutex:libdnnl.so\nrace:absl::*Status::Unref\n";
}
#endif
