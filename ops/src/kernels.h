// The table of inner kernels that each instruction-set path supplies, and the choice of a path.
//
// The table holds plain functions over raw pointers, so that a file compiled for a newer instruction set shares
// no inline code with the rest of the library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant_layout.h"

namespace ortolan {

enum class Activation { kSilu, kGelu, kGeluTanh };

// Rows of a panel at most, and tiles that are multiplied with it at most.
constexpr int kMostRows = 16;
constexpr int kTilesAtOnce = 2;

// Keys of one context chunk. Chunk c of a sequence holds cache positions [c * kChunk, (c + 1) * kChunk): the
// boundaries depend on the position alone, and so does the order in which a query sums over keys.
constexpr int kChunk = 128;

// What turns a score into a power of 2.
constexpr float kInverseLn2 = 1.44269504f;

// Scores of one block of a row, of which the largest is kept apart so that blocks can be passed over.
constexpr int kScoreBlock = 256;

// One head of q or k before attention: RMS norm (weight may be null), RoPE (cosine may be null), a factor.
struct HeadTransform {
  const float* norm_weight;
  float norm_epsilon;
  const float* cosine;  // rotary_dims / 2 values
  const float* sine;
  int rotary_dims;
  bool interleaved;
  float factor;
};

// One chunk of keys for several query rows. `key` and `value` hold kChunk row pointers into the cache, or to copies;
// only those in some row's [first, last) are read. Rows hold, or are padded with zeros to, `head_stride` and
// `value_stride` numbers, whole multiples of the vector width.
struct ChunkTask {
  int rows;
  bool half;             // keys and values are binary16, else binary32
  const float* queries;  // [rows, head_stride], multiplied by the score scale over ln 2 already
  int head_stride;
  int value_stride;
  const void* const* key;
  const void* const* value;
  const int* first;  // [rows], first visible key in the chunk
  const int* last;   // [rows], one past the last; a row with first >= last sees nothing
  float softcap;         // over ln 2; 0 for none
  float* scores;       // [rows, kChunk], scratch
  float* panel;        // [head_stride, 2 * width], scratch
  float* wide_values;  // [kChunk, value_stride], scratch, for binary16 only
  float* maximum;      // [rows], out, of scores in units of ln 2
  float* total;        // [rows], out: sum of 2^(score - maximum)
  float* sums;         // [rows, value_stride], out: sum of 2^(score - maximum) * value
};

// What becomes of the products of a tile: bias, activation, residual.
struct Epilogue {
  const float* bias;     // of the tile's rows; null for none
  const float* up_bias;  // of those of up
  const float* residual;  // added last, rows `stride` apart; null for none
  float* out;            // rows `stride` apart
  int64_t stride;
  int count;          // outputs of the tile, kTile but for the last tile
  bool gated;         // activation(products) * up
  Activation activation;
};

struct Kernels {
  const char* name;
  int width;   // floats in a vector
  bool exact;  // products with quantised weights keep activations in float32
  void (*gated_activation)(Activation kind, const float* gate, const float* up, float* out, size_t count);
  // sum = x + residual; y = norm(sum) * weight.
  void (*add_rms_norm)(const float* x, const float* residual, const float* weight, float epsilon, float* y,
                       float* sum, size_t count);
  // out = x / sqrt(mean(x^2) + epsilon) * weight.
  void (*rms_norm)(const float* x, const float* weight, float epsilon, float* out, size_t count);
  void (*transform_head)(const HeadTransform& how, const float* in, float* out, int head_dim);
  void (*to_half)(const float* in, uint16_t* out, int count);
  void (*to_float)(const uint16_t* in, float* out, int count);
  void (*attend_chunk)(const ChunkTask& task);
  // Adds a later chunk's partial result (maximum, total, sums) of one row to an earlier one's.
  void (*merge)(float* maximum, float* total, float* sums, float more_maximum, float more_total,
                const float* more_sums, int value_stride);
  // out = sums / (total + 2^(sink / ln 2 - maximum)); sink may be null.
  void (*finish)(float maximum, float total, const float* sums, const float* sink, float* out, int value_dim);
  // Bytes that a row's int8 activations take for each group of weights, in any panel.
  int (*group_room)(const QuantForm& form);
  // Rows of a panel: the most that `rows` fills of 16 (only with a matrix unit, where it is faster for the form), 8
  // (only with vectors of 16), 4, 2 and 1.
  int (*panel_rows)(const QuantForm& form, int64_t rows);
  // Rounds row `row` of a panel, `columns` long, to int8 by groups, padding the last.
  void (*quantise_row)(const QuantForm& form, const float* x, int64_t columns, const QuantPanel& panel, int row);
  // Rows multiplied with a tile from which on `expand` comes first; 0 for never. It must come before panels of 16.
  int (*expand_from)(const QuantForm& form);
  // A tile's codes as bytes and its scales in binary32, for which products give the same bits; returns its view.
  // `bytes` has room for form.expanded_bytes.
  QuantTile (*expand)(const QuantTile& tile, uint8_t* bytes);
  // products[t][row, kTile] of a panel with `tiles` tiles, 1 or kTilesAtOnce.
  void (*multiply_tiles)(const QuantTile* tile, int tiles, const QuantPanel& panel, float* products);
  // Gives up registers that products keep between calls, for the system to save fewer; a thread calls it after its
  // last.
  void (*release_unit)();
  // products[row, kTile] with activations in float32, rows `stride` apart: for verification, not for speed.
  void (*multiply_tile_exactly)(const QuantTile& tile, const float* x, size_t stride, int64_t columns, int count,
                                float* products);
  // products[row, kTile] of rows, one after the other, with up to kTile rows of weights in binary32; rows up to
  // kMostRows. A product's bits depend on its row and its weights alone.
  void (*multiply_plain)(const float* weights, int outputs, const float* x, int64_t columns, int rows,
                         float* products);
  // The maxima of blocks of logits; false where one is NaN or infinity. With a mask (bit i % 32 of word i / 32
  // allows token i) or where `scores` is given, writes what is allowed there, -infinity elsewhere; maxima are of that.
  bool (*scan_logits)(const float* logits, const uint32_t* mask, float* scores, float* peaks, int64_t count);
  // The largest of up to kScoreBlock values.
  float (*peak_of)(const float* x, int count);
  // Values of a block that are at least `limit`, and their places from `first` on, in order; returns how many.
  int (*gather_at_least)(const float* x, int count, float limit, int32_t first, float* values, int32_t* ids);
  int (*count_above)(const float* x, int count, float limit);
  // Sum of exp((x - peak) * scale) over a block, each written to `out` if given.
  float (*exp_sum)(const float* x, int count, float peak, float scale, float* out);
  // Sum of the weights of a block's values that are at least `limit`, and how many these are.
  float (*sum_at_least)(const float* x, const float* weights, int count, float limit, int* number);
  // Asks for the lines that finish_rows will write and add: each row's are far apart, and come while products are made.
  void (*ask_for_rows)(const Epilogue& how, int rows);
  // Turns the products of rows with one tile, or with gate and up, into rows of the result.
  void (*finish_rows)(const Epilogue& how, const float* products, const float* up, int rows);
  // One row of a tile, dequantised.
  void (*gather_row)(const QuantTile& tile, int lane, int64_t columns, float* out);
};

// Gives up at the end of a task, however it ends, what its products left in the processor.
struct UnitUse {
  const Kernels& kernels;
  ~UnitUse() { kernels.release_unit(); }
};

extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx2VnniKernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512VnniKernels;
extern const Kernels kAvx512AmxKernels;
#endif

// The table of a path this machine runs: "auto" for the fastest. Throws Failure with the available names.
const Kernels& select_kernels(const char* name);

// The paths this machine runs, fastest first, separated by commas.
const char* available_kernels();

}  // namespace ortolan
