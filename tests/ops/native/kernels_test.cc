// Calls the inner kernels of each path, without ONNX Runtime, and holds them against plain loops:
//   ortolan_kernels_test [PATH ...]    the paths to test; all that this machine runs without any, and the matrix
//                                      unit's with the unit in software
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "attention_test.h"
#include "products_test.h"

namespace ortolan {
extern const Kernels kEmulatedTilesKernels;
}

#if defined(__SANITIZE_ADDRESS__)
// GCC 13 looks for uses after return by default, and the frames that it keeps for that are not aligned to 64 bytes: a
// whole vector stored to a local array would trap.
extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=0"; }
#endif

namespace {

std::vector<std::string> available() {
  std::vector<std::string> names;
  std::string name;
  for (const char* at = ortolan::available_kernels();; ++at) {
    if (*at && *at != ',') {
      name += *at;
      continue;
    }
    names.push_back(name);
    name.clear();
    if (!*at) return names;
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<std::string> names(arguments + 1, arguments + count);
  const std::string emulated = ortolan::kEmulatedTilesKernels.name;
  if (names.empty()) {
    names = available();
    names.push_back(emulated);
  }
  int failures = 0;
  for (const std::string& name : names) {
    try {
      const ortolan::Kernels& kernels =
          name == emulated ? ortolan::kEmulatedTilesKernels : ortolan::select_kernels(name.c_str());
      ortolan::test::Report report;
      ortolan::test::test_products(kernels, report);
      ortolan::test::test_single_codes(kernels, report);
      ortolan::test::test_plain_weights(kernels, report);
      ortolan::test::test_epilogue(kernels, report);
      ortolan::test::test_attention(kernels, report);
      ortolan::test::test_elementwise(kernels, report);
      std::printf("%s: %d checks, %d failures\n", name.c_str(), report.checks(), report.failures());
      failures += report.failures();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 2;
    }
  }
  return failures ? 1 : 0;
}
