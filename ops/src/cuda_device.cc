#include "cuda_device.h"

#include "failure.h"

namespace ortolan::cuda {
namespace {

constexpr size_t kBlasWorkspace = size_t{32} << 20;
constexpr size_t kScratchUnit = size_t{1} << 20;
constexpr size_t kCounterBytes = size_t{1} << 20;
constexpr int kPlainSharedMemory = 48 << 10;  // beyond it a kernel must ask

std::map<int64_t, std::unique_ptr<Device>>& open_devices() {
  static auto* devices = new std::map<int64_t, std::unique_ptr<Device>>;
  return *devices;
}

std::mutex& devices_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::string text_of(const std::pair<char, int64_t>* given, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += (i ? ", " : "") + std::string(1, given[i].first);
    if (given[i].first != 'f') text += " " + std::to_string(given[i].second);
  }
  return text;
}

}  // namespace

int Kernel::constant(const char* name) const {
  const auto found = constants.find(name);
  if (found == constants.end())
    throw Failure("kernel " + key + " was packed without its constant " + name + "." + kMisfit);
  if (found->second < 1)
    throw Failure("kernel " + key + " was packed with " + name + " of 0." + kMisfit);
  return found->second;
}

Device::Device(int ordinal) {
  int count = 0;
  check(driver().device_count(&count), "counting GPUs");
  if (ordinal < 0 || ordinal >= count) {
    throw Failure("there is no GPU " + std::to_string(ordinal) + ": this machine shows " + std::to_string(count) +
                  ". Check CUDA_VISIBLE_DEVICES.");
  }
  check(driver().device_get(&id_, ordinal), "opening a GPU");
  check(driver().primary_retain(&context_, id_), "opening the GPU's context");
  try {
    make_current();
    check(driver().stream_create(&stream_, kNonBlocking), "creating a stream");
    blas_ = std::make_unique<Blas>(stream_, reinterpret_cast<Address>(scratch(kBlasWorkspace)), kBlasWorkspace);
    scratch_.emplace_back(0, 0);  // what cuBLAS uses is nobody else's
    check(driver().allocate(&counters_, kCounterBytes), "allocating counters");
    check(driver().fill(counters_, 0, kCounterBytes, stream_), "clearing counters");
  } catch (...) {
    give_back();
    throw;
  }
}

Device::~Device() { give_back(); }

void Device::give_back() noexcept {
  driver().set_current(context_);
  if (stream_) driver().stream_synchronize(stream_);
  blas_.reset();
  for (const auto& part : scratch_) {
    if (part.first) driver().release(part.first);
  }
  if (counters_) driver().release(counters_);
  for (Module module : modules_) driver().module_unload(module);
  if (stream_) driver().stream_destroy(stream_);
  driver().primary_release(id_);
}

void Device::make_current() const { check(driver().set_current(context_), "entering the GPU's context"); }

void Device::add(Kernel kernel, const void* image) {
  make_current();
  Module module = nullptr;
  check(driver().module_load(&module, image), "loading kernel " + kernel.key);
  modules_.push_back(module);
  check(driver().module_function(&kernel.function, module, kernel.entry.c_str()),
        "finding " + kernel.entry + " of kernel " + kernel.key);
  if (kernel.shared > kPlainSharedMemory) {
    check(driver().function_set(kernel.function, kMaxDynamicSharedMemory, kernel.shared),
          "giving kernel " + kernel.key + " " + std::to_string(kernel.shared) + " bytes of shared memory");
  }
  const auto dependent = kernel.constants.find("DEPENDENT");
  kernel.dependent = dependent != kernel.constants.end() && dependent->second != 0;
  Variants& variants = kernels_[kernel.key];
  variants.push_back(std::make_unique<Kernel>(std::move(kernel)));
}

const Kernel* Device::known(const std::string& key, int64_t rows, int64_t columns) const {
  const auto found = kernels_.find(key);
  if (found == kernels_.end()) return nullptr;
  for (const auto& kernel : found->second) {
    if (rows <= kernel->rows && columns >= kernel->columns) return kernel.get();
  }
  return nullptr;
}

const Kernel& Device::find(const std::string& key, int64_t rows, int64_t columns) const {
  if (const Kernel* kernel = known(key, rows, columns)) return *kernel;
  throw Failure("the bundle packs no kernel " + key + " for " + std::to_string(rows) + " rows of " +
                std::to_string(columns) + " columns." + kMisfit);
}

char* Device::scratch(size_t bytes) const {
  if (scratch_.empty() || scratch_.back().second < bytes) {
    const size_t size = (bytes + kScratchUnit - 1) / kScratchUnit * kScratchUnit;
    Address address = 0;
    check(driver().allocate(&address, size), "allocating " + std::to_string(size) + " bytes of scratch memory");
    scratch_.emplace_back(address, size);
  }
  // NOLINTNEXTLINE: the driver's addresses are numbers, kernels' arguments pointers.
  return reinterpret_cast<char*>(scratch_.back().first);
}

int32_t* Device::counters(int64_t count) const {
  if (count * static_cast<int64_t>(sizeof(int32_t)) > static_cast<int64_t>(kCounterBytes)) {
    throw Failure("a kernel asks for " + std::to_string(count) + " counters, but there are " +
                  std::to_string(kCounterBytes / sizeof(int32_t)) + ". Run fewer sequences (max_sequences).");
  }
  // NOLINTNEXTLINE: the driver's addresses are numbers, kernels' arguments pointers.
  return reinterpret_cast<int32_t*>(counters_);
}

void Device::expect(const Kernel& kernel, const std::pair<char, int64_t>* given, size_t count) {
  bool fits = count == kernel.arguments.size();
  for (size_t i = 0; fits && i < count; ++i) {
    const char wanted = kernel.arguments[i];
    const bool aligned = wanted == 'P' || wanted == 'I';
    fits = given[i].first == (aligned ? wanted - 'A' + 'a' : wanted) && (!aligned || given[i].second % 16 == 0);
  }
  if (!fits) {
    throw Failure("kernel " + kernel.key + " takes " + kernel.arguments +
                  " (capitals: multiples of 16), but is given " + text_of(given, count) + "." + kMisfit);
  }
}

void Device::submit(const Kernel& kernel, Stream stream, Grid grid, void** parameters) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  // It may start before the kernel ahead of it has ended, and waits by itself where it must.
  LaunchAttribute early{kProgrammaticSerialization, 0, {1}};
  const LaunchConfig config{static_cast<unsigned>(grid.x),
                            static_cast<unsigned>(grid.y),
                            static_cast<unsigned>(grid.z),
                            static_cast<unsigned>(32 * kernel.warps),
                            1,
                            1,
                            static_cast<unsigned>(kernel.shared),
                            stream,
                            &early,
                            kernel.dependent ? 1u : 0u};
  const Result result = driver().launch(&config, kernel.function, parameters, nullptr);
  if (result) {
    check(result, "launching kernel " + kernel.key + " over [" + std::to_string(grid.x) + ", " +
                      std::to_string(grid.y) + ", " + std::to_string(grid.z) + "] programs of " +
                      std::to_string(kernel.warps) + " warps with " + std::to_string(kernel.shared) +
                      " bytes of shared memory");
  }
}

int64_t open_device(int ordinal) {
  auto device = std::make_unique<Device>(ordinal);
  const std::lock_guard<std::mutex> lock(devices_mutex());
  static int64_t next = 0;
  open_devices()[++next] = std::move(device);
  return next;
}

void close_device(int64_t number) {
  std::unique_ptr<Device> device;
  {
    const std::lock_guard<std::mutex> lock(devices_mutex());
    const auto found = open_devices().find(number);
    if (found == open_devices().end()) return;
    device = std::move(found->second);
    open_devices().erase(found);
  }
}

Device& device_of(int64_t number) {
  const std::lock_guard<std::mutex> lock(devices_mutex());
  const auto found = open_devices().find(number);
  if (found == open_devices().end()) throw Failure("no GPU is open as number " + std::to_string(number) + ".");
  return *found->second;
}

}  // namespace ortolan::cuda
