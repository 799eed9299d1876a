// The matrix unit's path with the unit in software and portable vectors, so that every machine tests its logic.
#include "vector_portable.h"

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

#include "tile_emulation.h"

#include "path_tiles.h"

namespace ortolan {

extern const Kernels kEmulatedTilesKernels;
const Kernels kEmulatedTilesKernels = tile_table("emulated-tiles");

}  // namespace ortolan
