#include "vector_avx512.h"

#include "path_math.h"

#include "path_elementwise.h"

#include "path_scores.h"

#include "path_attention.h"

#include "path_sample.h"

#include "dot_quads.h"

#include "path_round.h"

#include "path_quant.h"

#include "path_codes.h"

#include "path_plain.h"

#include "path_table.h"

#include "tile_unit.h"

#include "path_tiles.h"

namespace ortolan {

const Kernels kAvx512AmxKernels = tile_table("avx512-amx");

}  // namespace ortolan
