/* Functions of exponentials and logarithms, in float64 (doubles.h). functions.def bounds |x| where that leaves the
 * float results as they are. Comparisons with NaN are false, so that NaN stays. */

/* x = n + rest, |rest| <= 1/2, |x| < 2^11; *power = 2^n. Adding 1.5 2^52 rounds to an integer, which is then in the
 * lowest bits. */
MP_INLINE double split_integer(double x, double *power) {
    const double shifted = x + 0x1.8p52;
    *power = double_of((bits_of(shifted) << 52) + ((uint64_t)1023 << 52));
    return shifted - 0x1.8p52;
}

/* (e^r - 1) / r, |r| <= ln(2) / 2; relative error 2^-37.5. */
MP_INLINE double expm1_slope(double r) {
    double p = 0x1.a0036f48d3294p-16;
    p = p * r + 0x1.a16f654272cf1p-13;
    p = p * r + 0x1.6c1766e751864p-10;
    p = p * r + 0x1.1110b22108f7fp-7;
    p = p * r + 0x1.555554f36e137p-5;
    p = p * r + 0x1.5555557350b37p-3;
    p = p * r + 0x1.0000000017126p-1;
    return p * r + 1.0;
}

/* e^x = power (1 + part), |x| < 1400: e^x - 1 = power part + (power - 1) has no cancellation. */
MP_INLINE double split_exponential(double x, double *power) {
    const double r = x - split_integer(x * 0x1.71547652b82fep+0, power) * 0x1.62e42fefa39efp-1;
    return r * expm1_slope(r);
}
MP_INLINE double exp_in_double(double x) {
    double power;
    const double part = split_exponential(x, &power);
    return power * part + power;
}
MP_INLINE double expm1_of(double x) {
    double power;
    const double part = split_exponential(x, &power);
    return power * part + (power - 1.0);
}

MP_INLINE double expm1_in_double(double x) { return copysign(expm1_of(x), x); }
MP_BLOCK(expm1_in_double)

MP_INLINE double exp2_in_double(double x) {
    double power;
    const double r = (x - split_integer(x, &power)) * 0x1.62e42fefa39efp-1;
    return power * (r * expm1_slope(r)) + power;
}
MP_BLOCK(exp2_in_double)

/* sinh x and cosh x of x = n ln 2 + r are sinh r C + cosh r S and cosh r C + sinh r S, where C and S are the hyperbolic
 * cosine and sine of n ln 2: no cancellation, since S is 0 or has the sign of x. Relative errors 2^-37.5. */
typedef struct { double sine_of_rest, cosine_of_rest, sine, cosine; } hyperbolic_parts;
MP_INLINE hyperbolic_parts split_hyperbolic(double x) {
    double power;
    const double n = split_integer(x * 0x1.71547652b82fep+0, &power), r = x - n * 0x1.62e42fefa39efp-1, z = r * r;
    double s = 0x1.a16f8b08b0d1ep-13;
    s = s * z + 0x1.1110b209b3812p-7;
    s = s * z + 0x1.555555735c407p-3;
    double c = 0x1.a17414c581202p-16;
    c = c * z + 0x1.6c16362729097p-10;
    c = c * z + 0x1.555555817033dp-5;
    c = c * z + 0x1.ffffffffeeabdp-2;
    const double half = 0.5 * power, other = double_of(((uint64_t)2045 << 52) - bits_of(power)); /* 2^-n / 2 */
    return (hyperbolic_parts){r * (s * z + 1.0), c * z + 1.0, half - other, half + other};
}
MP_INLINE double sinh_in_double(double x) {
    const hyperbolic_parts p = split_hyperbolic(x);
    return copysign(p.sine_of_rest * p.cosine + p.cosine_of_rest * p.sine, x);
}
MP_BLOCK(sinh_in_double)
MP_INLINE double cosh_in_double(double x) {
    const hyperbolic_parts p = split_hyperbolic(x);
    return p.cosine_of_rest * p.cosine + p.sine_of_rest * p.sine;
}
MP_BLOCK(cosh_in_double)

/* 2 atanh(s) / s of z = s^2 <= 1/9; relative error 2^-38.4. */
MP_INLINE double atanh_slope(double z) {
    double p = 0x1.be1a51f2f4fbfp-3;
    p = p * z + 0x1.5f41ae565beebp-3;
    p = p * z + 0x1.c8b9e7db51cd6p-3;
    p = p * z + 0x1.248a65def9a6cp-2;
    p = p * z + 0x1.9999bcc768c5bp-2;
    p = p * z + 0x1.5555553b4ff41p-1;
    return p * z + 2.0;
}

/* n a + log(m) b, where x = 2^n m, sqrt(1/2) <= m < sqrt(2): with a = b log 2 a multiple of log x. log m = 2 atanh(s),
 * s = (m - 1) / (m + 1). n is read as the last bits of a double of 2^52 or more. */
MP_INLINE double scaled_logarithm(double x, double a, double b) {
    const uint64_t u = bits_of(x) - 0x3FE6A09E667F3BCDu /* sqrt(1/2) */, n = (u + ((uint64_t)1024 << 52)) >> 52;
    const double m = double_of(bits_of(x) - ((n - 1024) << 52)), s = (m - 1.0) / (m + 1.0);
    const double y = (double_of(n | (uint64_t)1075 << 52) - (0x1p52 + 1024.0)) * a + s * atanh_slope(s * s) * b;
    const double not_above = x < 0.0 ? (double)NAN : -(double)INFINITY, inside = x > 0.0 ? y : not_above;
    return x < (double)INFINITY ? inside : x; /* NaN stays too */
}
MP_INLINE double log2_in_double(double x) { return scaled_logarithm(x, 1.0, 0x1.71547652b82fep+0); }
MP_BLOCK(log2_in_double)
MP_INLINE double log10_in_double(double x) {
    return scaled_logarithm(x, 0x1.34413509f79ffp-2, 0x1.bcb7b1526e50ep-2);
}
MP_BLOCK(log10_in_double)

MP_INLINE double log_in_double(double x) { return scaled_logarithm(x, 0x1.62e42fefa39efp-1, 1.0); }

/* asinh u = 2 atanh(s), s = u / (1 + sqrt(1 + u^2)), for s <= 1/3; else log(u + sqrt(1 + u^2)). */
MP_INLINE double arcsinh_in_double(double x) {
    const double u = fabs(x), root = sqrt(u * u + 1.0), s = u / (1.0 + root), large = log_in_double(u + root);
    return copysign(u > 0.75 ? large : s * atanh_slope(s * s), x);
}
MP_BLOCK(arcsinh_in_double)

/* acosh x = 2 atanh(s), s = sqrt((x - 1) / (x + 1)), for s <= 1/3; else log(x + sqrt(x^2 - 1)). NaN below 1, where s or
 * its numerator is. */
MP_INLINE double arccosh_in_double(double x) {
    const double above = sqrt(x - 1.0), below = sqrt(x + 1.0), s = above / below;
    const double large = log_in_double(x + above * below);
    return x > 1.25 ? large : s * atanh_slope(s * s);
}
MP_BLOCK(arccosh_in_double)

/* atanh u, for u > 1/3 the logarithm of (1 + u) / (1 - u), halved: Inf at 1, NaN beyond. */
MP_INLINE double arctanh_in_double(double x) {
    const double u = fabs(x), large = log_in_double((1.0 + u) / (1.0 - u));
    return copysign(0.5 * (u > 0x1.5555555555555p-2 ? large : u * atanh_slope(u * u)), x);
}
MP_BLOCK(arctanh_in_double)

/* erf u = 1 - e^(-u g(u)) for 0 <= u <= 4: the error of g adds a relative error of 2^-38 to erf. From 4 on, where
 * functions.def bounds u, the result rounds to 1. */
MP_INLINE double erf_in_double(double x) {
    const double u = fabs(x);
    double g = -0x1.1c10f4de68206p-27;
    g = g * u + 0x1.8593fe97a0864p-23;
    g = g * u + -0x1.dc2702b6954b4p-20;
    g = g * u + 0x1.518ff43eea998p-17;
    g = g * u + -0x1.2668e8c54def8p-15;
    g = g * u + 0x1.1129b06c92dbfp-14;
    g = g * u + 0x1.f2594c603babap-16;
    g = g * u + -0x1.37db01aeb2babp-11;
    g = g * u + 0x1.bd64a3b33d17fp-10;
    g = g * u + -0x1.b8c4aec5bbc46p-13;
    g = g * u + -0x1.3965b9fed9f6ep-6;
    g = g * u + 0x1.a4f4ddb9c7f6fp-4;
    g = g * u + 0x1.45f306e25d46ep-1;
    g = g * u + 0x1.20dd7504255eap+0;
    return copysign(expm1_of(-u * g), x);
}
MP_BLOCK(erf_in_double)

/* erfc u = e^(-u^2) t P(t), t = 1 / (1 + 0.4 u), 0 <= u <= 10.3, relative error 2^-38; beyond, the result rounds to 0.
 * u^2 is exact. erfc(-u) = 2 - erfc u. */
MP_INLINE double erfc_in_double(double x) {
    const double u = fabs(x), t = 1.0 / (1.0 + 0.4 * u);
    double p = -0x1.088c201405975p-6;
    p = p * t + 0x1.06d31b512aa7ep-3;
    p = p * t + -0x1.c1d3c0a0404c4p-2;
    p = p * t + 0x1.a95e589df679ap-1;
    p = p * t + -0x1.ddebc50b8ed0ep-1;
    p = p * t + 0x1.5497d3f050a00p-1;
    p = p * t + -0x1.87a1e2f5807cap-2;
    p = p * t + 0x1.4a9207cc86ccep-3;
    p = p * t + 0x1.acd345d3d672ap-6;
    p = p * t + 0x1.0a321932ebbaep-3;
    p = p * t + 0x1.5cd68c7564e15p-3;
    p = p * t + 0x1.a96fdbf801132p-3;
    p = p * t + 0x1.ce2bea00d6d01p-3;
    p = p * t + 0x1.ce2f35a9b0193p-3;
    const double tail = exp_in_double(-(u * u)) * (t * p), other = 2.0 - tail;
    return x < 0.0 ? other : tail;
}
MP_BLOCK(erfc_in_double)

MP_INLINE double reciprocal_root_in_double(double x) { return 1.0 / sqrt(x); }
MP_BLOCK(reciprocal_root_in_double)

/* x, or alpha (e^x - 1) where x < 0, times `scale`: Keras' constants. */
MP_INLINE double selu_in_double(double x) {
    const double scale = 1.0507009873554805, alpha = 1.6732632423543772;
    const double below = scale * alpha * expm1_of(x < -200.0 ? -200.0 : x), above = scale * x;
    return x < 0.0 ? below : above;
}
MP_BLOCK(selu_in_double)

/* x / (1 + |x|). */
MP_INLINE double softsign_in_double(double x) { return x / (1.0 + fabs(x)); }
MP_BLOCK(softsign_in_double)

/* -log(1 + e^-x) = min(x, 0) - log(1 + w), w = e^-|x|; log(1 + w) = 2 atanh(s), s = w / (2 + w) <= 1/3. */
MP_INLINE double log_sigmoid_in_double(double x) {
    const double u = fabs(x), w = exp_in_double(u > 200.0 ? -200.0 : -u), s = w / (2.0 + w);
    return (x < 0.0 ? x : 0.0) - s * atanh_slope(s * s);
}
MP_BLOCK(log_sigmoid_in_double)

/* x tanh(log(1 + w)) = x n / (n + 2), w = e^x, n = w (w + 2); x from 40 on. */
MP_INLINE double mish_in_double(double x) {
    const double low = x < -200.0 ? -200.0 : x, w = exp_in_double(low), n = w * (w + 2.0), y = low * (n / (n + 2.0));
    return x > 40.0 ? x : y;
}
MP_BLOCK(mish_in_double)
