// Sample on a GPU: the kernels that choose a token for each row of logits, launched one after the other.
#pragma once

#include "cuda_device.h"

namespace ortolan::cuda {

// What SampleCall of ops/cuda.py fills in. Addresses are the device's, of arrays as ops.schema.SAMPLE has them. `pending`
// int32 [rows] names the row of `ids`, as they are before this call, whose token a row's lists do not count yet; -1
// none. top_ids and top_logprobs are [rows, 20].
struct SampleCall {
  Address logits, settings, numbers, pending;
  Address token_start, token_ids, token_counts, bias_start, bias_ids, bias_values, masks;
  Address ids, status, logprobs, ranks, top_ids, top_logprobs;
  int64_t rows, columns;
  int64_t masked, listed;  // whether any row has a mask, a list
  int64_t drawn, cut;      // whether any row's token is drawn, and from less than all tokens
  int64_t told;            // whether any row's log-probabilities are asked for
};

// Queues the choice on the device's stream.
void sample(const Device& device, const SampleCall& call);

// Takes the scratch memory that `sample` needs for rows of columns, whatever they ask for.
void reserve_sample(const Device& device, int64_t rows, int64_t columns);

// Puts sampled ids where token_source int32 [tokens] is not -1 into input_ids int64 [tokens].
void feed(const Device& device, Address input_ids, Address token_source, Address ids, int64_t tokens);

}  // namespace ortolan::cuda
