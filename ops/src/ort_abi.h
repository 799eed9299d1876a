// The part of ONNX Runtime's C ABI that this library calls: opaque handles, the custom-op table and the
// slot numbers of the functions. The API table is append-only, so these slots hold for every runtime whose
// version is at least kApiVersion.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtApi;  // an array of function pointers, read by slot
struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtShapeInferContext;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  int (*GetInputType)(const OrtCustomOp*, size_t);
  size_t (*GetInputTypeCount)(const OrtCustomOp*);
  int (*GetOutputType)(const OrtCustomOp*, size_t);
  size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void (*KernelCompute)(void*, OrtKernelContext*);
  void (*KernelDestroy)(void*);
  int (*GetInputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetOutputCharacteristic)(const OrtCustomOp*, size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, size_t);
  int (*GetVariadicInputMinArity)(const OrtCustomOp*);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp*);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp*);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp*);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*KernelComputeV2)(void*, OrtKernelContext*);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  int (*GetStartVersion)(const OrtCustomOp*);
  int (*GetEndVersion)(const OrtCustomOp*);
  size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};

}  // extern "C"

namespace ortolan::abi {

// The first version whose custom-op table ends with the alias map.
constexpr uint32_t kApiVersion = 18;

enum ErrorCode : int { kFail = 1, kInvalidArgument = 2, kNotImplemented = 9 };

// kActivation is no type of ORT's: it stands for the one that a session's activations have.
enum ElementType : int {
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kFloat16 = 10,
  kUint32 = 12,
  kBfloat16 = 16,
  kActivation = -1
};

enum Characteristic : int { kRequired = 0, kOptional = 1 };

enum MemoryType : int { kCpuInput = -2, kDefaultMemory = 0 };

enum Slot : size_t {
  kCreateStatus = 0,
  kGetErrorMessage = 2,
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kGetTensorMutableData = 51,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kKernelInfoGetAttributeFloat = 85,
  kKernelInfoGetAttributeInt64 = 86,
  kKernelInfoGetAttributeString = 87,
  kKernelContextGetInputCount = 88,
  kKernelContextGetInput = 90,
  kKernelContextGetOutput = 91,
  kReleaseStatus = 93,
  kReleaseTensorTypeAndShapeInfo = 99,
  kKernelContextGetGpuComputeStream = 193,
  kKernelInfoGetInputCount = 230,
  kHasSessionConfigEntry = 237,
  kGetSessionConfigEntry = 238,
  kKernelInfoGetConstantInput = 249,
  kKernelContextParallelFor = 274,
};

}  // namespace ortolan::abi
