/* NEON with FEAT_DotProd, FEAT_I8MM (usdot, sudot: unsigned by signed bytes) and FEAT_BF16: bfmlalt adds the odd
 * product of a pair, then bfmlalb the even one, each rounded once. They round as FPCR says; bfdot and bfmmla round to
 * odd. */
#define MP_NATIVE_DOTPROD
#define MP_NATIVE_I8MM
#define MP_NATIVE_BFMLAL
#include "neon.h"
