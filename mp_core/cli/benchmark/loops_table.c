#include "loops.h"

#define MP_ISA(NAME, NEEDS, MOST, QUANTIZERS, PAIRS, QUADS, TILES) \
    extern const mp_loops mp_loops_##QUADS, mp_loops_##TILES;
#include "isa.def"
const mp_loops mp_loops_NONE;

const mp_loops_row mp_all_loops[] = {
#define MP_ISA(NAME, NEEDS, MOST, QUANTIZERS, PAIRS, QUADS, TILES) \
    {#NAME, &mp_loops_##QUADS, &mp_loops_##TILES},
#include "isa.def"
    {NULL, NULL, NULL},
};
