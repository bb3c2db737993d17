/* NEON with FEAT_DotProd, FEAT_I8MM (usdot, sudot: unsigned by signed bytes) and FEAT_BF16: bfmlalt, then bfmlalb, add
 * the odd, then the even product of a pair, each rounded once. They obey FPCR, unlike bfdot and bfmmla, which round to
 * odd. */
#define MP_NATIVE_DOTPROD
#define MP_NATIVE_I8MM
#define MP_NATIVE_BFMLAL
#include "neon.h"
