#include "kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include <string>
#include <vector>

#include "failure.h"

namespace ortolan {
namespace {

#if defined(__x86_64__)
// AVX-VNNI: leaf 7, sub-leaf 1, bit 4 of EAX; older compilers' __builtin_cpu_supports do not know its name.
bool has_avx_vnni() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 4)) != 0;
}

// AMX: leaf 7, bits 24 (tiles) and 25 (bytes) of EDX. Linux lets a process use the registers only once it has asked
// for them (arch_prctl, ARCH_REQ_XCOMP_PERM for feature 18), and refuses where it does not save them.
bool has_amx() {
#if defined(__linux__)
  constexpr unsigned int kTilesAndBytes = (1u << 24) | (1u << 25);
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & kTilesAndBytes) == kTilesAndBytes &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

std::vector<const Kernels*> detect() {
  std::vector<const Kernels*> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  if (vnni && has_amx()) found.push_back(&kAvx512AmxKernels);
  if (vnni) found.push_back(&kAvx512VnniKernels);
  if (avx512) found.push_back(&kAvx512Kernels);
  if (avx2 && has_avx_vnni()) found.push_back(&kAvx2VnniKernels);
  if (avx2) found.push_back(&kAvx2Kernels);
#endif
  found.push_back(&kPortableKernels);
  return found;
}

const std::vector<const Kernels*>& available() {
  static const std::vector<const Kernels*> found = detect();
  return found;
}

}  // namespace

const char* available_kernels() {
  static const std::string names = [] {
    std::string joined;
    for (const Kernels* kernels : available()) joined += (joined.empty() ? "" : ",") + std::string(kernels->name);
    return joined;
  }();
  return names.c_str();
}

const Kernels& select_kernels(const char* name) {
  const std::string wanted = name;
  if (wanted == "auto") return *available().front();
  for (const Kernels* kernels : available()) {
    if (wanted == kernels->name) return *kernels;
  }
  throw Failure("ortolan.kernels: this machine has no path '" + wanted + "'. It runs: " + available_kernels() +
                ". Choose one of these or 'auto'.");
}

}  // namespace ortolan
