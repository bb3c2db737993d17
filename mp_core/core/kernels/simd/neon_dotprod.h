/* NEON with FEAT_DotProd: sdot multiplies signed bytes and adds four products. */
#define MP_NATIVE_DOTPROD
#include "neon.h"
