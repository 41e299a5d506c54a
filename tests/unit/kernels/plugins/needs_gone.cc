// A plug-in that needs a library which is not where programs run.

extern "C" int something_else();

extern "C" const void* holdfast_device_plugin() {
  return something_else() == 0 ? nullptr : "";
}
