#include "cuda_sample.h"

#include "failure.h"

namespace ortolan::cuda {
namespace {

constexpr int64_t kLevels = 16;  // of ops/triton/sample_choose.py

// NOLINTNEXTLINE: the driver's addresses are numbers, kernels' arguments pointers.
char* at(Address address) { return reinterpret_cast<char*>(address); }

// Memory of a call's own between its kernels.
struct Parts {
  Parts(const Device& device, int64_t rows, int64_t columns, bool copied) {
    const Kernel& part = device.find("sample_part/read");
    const Kernel& choose = device.find("sample_choose");
    size = part.constant("PART");
    count = (columns + size - 1) / size;
    if (count > choose.constant("PARTS") || size != choose.constant("PART")) {
      throw Failure("the bundle's sampling kernels serve no vocabulary of " + std::to_string(columns) + " tokens.");
    }
    const int64_t room = choose.constant("ROOM"), tops = device.find("sample_rank").constant("TOPS");
    for (auto* target : {&raw_peaks, &raw_firsts, &raw_sums, &peaks, &firsts, &sums, &above}) {
      take(target, rows * count * 4);
    }
    take(&masses, rows * count * 8);
    take(&levels, rows * count * kLevels * 8);
    take(&found, rows * 4);
    take(&found_scores, rows * room * 4);
    take(&found_ids, rows * room * 4);
    take(&top_values, rows * count * tops * 4);
    take(&top_ids, rows * count * tops * 4);
    if (copied) take(&scores, rows * columns * 4);
    char* base = device.scratch(bytes);
    for (auto& [target, offset] : places) *target = base + offset;
  }

  int64_t size = 0, count = 0;
  size_t bytes = 0;
  char *raw_peaks, *raw_firsts, *raw_sums, *peaks, *firsts, *sums, *above;
  char *masses, *levels, *found, *found_scores, *found_ids, *top_values, *top_ids;
  char* scores = nullptr;

 private:
  void take(char** target, int64_t wanted) {
    places.emplace_back(target, bytes);
    bytes += static_cast<size_t>((wanted + 255) / 256 * 256);
  }
  std::vector<std::pair<char**, size_t>> places;
};

}  // namespace

void sample(const Device& device, const SampleCall& call) {
  if (call.rows == 0) return;
  const bool copied = call.masked || call.listed;
  Parts own(device, call.rows, call.columns, copied);
  char *logits = at(call.logits), *numbers = at(call.numbers), *settings = at(call.settings), *ids = at(call.ids);
  char *status = at(call.status), *masks = at(call.masks);
  char* scores = copied ? own.scores : logits;
  const auto columns = static_cast<int32_t>(call.columns), parts = static_cast<int32_t>(own.count);
  const auto words = static_cast<int32_t>((call.columns + 31) / 32);
  const Grid all{call.rows, own.count}, rows{call.rows};
  Stream stream = device.stream();
  device.launch(device.find(copied ? "sample_part/copied" : "sample_part/read"), stream, all, logits, numbers, masks,
                scores, own.raw_peaks, own.raw_firsts, own.raw_sums, columns, parts, words);
  if (call.listed) {
    device.launch(device.find("sample_lists"), stream, rows, scores, settings, at(call.pending), ids,
                  at(call.token_start), at(call.token_ids), at(call.token_counts), at(call.bias_start),
                  at(call.bias_ids), at(call.bias_values), columns);
  }
  char *peaks = own.raw_peaks, *firsts = own.raw_firsts;
  if (copied) {
    peaks = own.peaks;
    firsts = own.firsts;
    device.launch(device.find("sample_part/read"), stream, all, scores, numbers, masks, scores, peaks, firsts,
                  own.sums, columns, parts, words);
  }
  if (call.drawn) {
    device.launch(device.find("sample_weigh"), stream, all, scores, settings, numbers, own.raw_peaks, peaks,
                  own.masses, own.levels, columns, parts);
  }
  if (call.drawn && call.cut) {
    device.launch(device.find("sample_gather"), stream, all, scores, settings, numbers, own.raw_peaks, peaks,
                  own.masses, own.levels, own.found, own.found_scores, own.found_ids, columns, parts);
  }
  device.launch(device.find("sample_choose"), stream, rows, scores, settings, numbers, own.raw_peaks, peaks, firsts,
                own.masses, own.found, own.found_scores, own.found_ids, ids, status, columns, parts);
  if (call.told) {
    device.launch(device.find("sample_rank"), stream, all, logits, numbers, ids, status, own.above, own.top_values,
                  own.top_ids, columns, parts);
    device.launch(device.find("sample_logprobs"), stream, rows, logits, numbers, ids, status, own.raw_peaks,
                  own.raw_sums, own.above, own.top_values, own.top_ids, at(call.logprobs), at(call.ranks),
                  at(call.top_ids), at(call.top_logprobs), columns, parts);
  }
}

void reserve_sample(const Device& device, int64_t rows, int64_t columns) { Parts(device, rows, columns, true); }

void feed(const Device& device, Address input_ids, Address token_source, Address ids, int64_t tokens) {
  const Kernel& kernel = device.find("sample_feed");
  const int64_t block = kernel.constant("BLOCK");
  device.launch(kernel, device.stream(), {(tokens + block - 1) / block}, at(input_ids), at(token_source), at(ids),
                static_cast<int32_t>(tokens));
}

}  // namespace ortolan::cuda
