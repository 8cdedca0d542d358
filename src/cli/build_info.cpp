#include "cli/build_info.h"

#include "device/isa.h"
#ifdef PLUMB_HAVE_CUDA
#include "device/cuda_device.h"
#endif

namespace plumb {

std::string build_id() { return PLUMB_VERSION "+" PLUMB_COMMIT; }

std::string version_text() {
  const DeviceInfo cpu = detect_cpu();
  std::string isas;
  for (const Isa isa : cpu.isas) isas += " " + to_string(isa);
  std::string text = "plumb " + build_id() + "\ncompiler " PLUMB_COMPILER ", " PLUMB_BUILD_TYPE;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  text += ", sanitizers on";
#endif
#ifdef PLUMB_FAULTS
  text += ", fault injection compiled in";
#endif
  text += "\nbackends reference, cpu";
#ifdef PLUMB_HAVE_CUDA
  text += ", cuda (" + cuda_architectures() + ")";
#endif
  text += "\nthis machine: " + std::to_string(cpu.cores) + " cores," + isas + "\n";
  return text;
}

}  // namespace plumb
