// What kernels in C are made of: numbers of all types, vectors of tokens, products of tiles.
// Sums and scores are `real`: double where inputs are double, else float.

#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef DOUBLE
typedef double real;
#else
typedef float real;
#endif

#define INLINE static inline __attribute__((always_inline))
#define R(x) ((real)(x))

typedef struct { int x, y, z; } Grid;

// Without OpenMP the caller has the threads, and each of them runs its share of the programs.
#ifdef _OPENMP
const int has_threads = 1;
#define IS_MINE(at) 1
#else
const int has_threads = 0;
#define IS_MINE(at) ((at) % threads == share)
#endif

// --- numbers ----------------------------------------------------------------------------------

typedef struct { uint16_t bits; } bf16;
typedef struct { uint16_t bits; } fp16;

INLINE float float_of_bits(uint32_t bits)
{
    union { uint32_t bits; float number; } each = {.bits = bits};
    return each.number;
}

INLINE uint32_t bits_of_float(float x)
{
    union { float number; uint32_t bits; } each = {.number = x};
    return each.bits;
}

INLINE float from_bf16(bf16 x) { return float_of_bits((uint32_t)x.bits << 16); }

// Rounded to the nearest, to even where two are as near; NaN stays NaN.
INLINE bf16 to_bf16(real x)
{
    const uint32_t bits = bits_of_float((float)x);
    const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return (bf16){(uint16_t)(x != x ? (bits >> 16) | 64 : rounded)};
}

#if defined(__FLT16_MANT_DIG__)
INLINE float from_fp16(fp16 x)
{
    union { uint16_t bits; _Float16 number; } each = {.bits = x.bits};
    return (float)each.number;
}

INLINE fp16 to_fp16(real x)
{
    union { _Float16 number; uint16_t bits; } each = {.number = (_Float16)(float)x};
    return (fp16){each.bits};
}
#else
INLINE float from_fp16(fp16 x)
{
    const uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, rest = x.bits & 0x7FFF;
    if (rest >= 0x7C00) return float_of_bits(sign | 0x7F800000 | (rest & 0x3FF) << 13);
    return float_of_bits(sign | bits_of_float(float_of_bits(rest << 13) * 0x1p112f));
}

INLINE fp16 to_fp16(real x)
{
    const uint32_t bits = bits_of_float((float)x);
    const uint32_t sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000) return (fp16){(uint16_t)(sign | 0x7E00)};
    if (rest >= 0x477FF000) return (fp16){(uint16_t)(sign | 0x7C00)};
    if (rest < 0x38800000)  // too small for an exponent of its own
        return (fp16){(uint16_t)(sign | (uint32_t)nearbyintf(float_of_bits(rest) * 0x1p24f))};
    return (fp16){(uint16_t)(sign | (rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13)};
}
#endif

INLINE float from_float(float x) { return x; }
INLINE double from_double(double x) { return x; }
INLINE int from_byte(uint8_t x) { return x; }
INLINE int from_signed_byte(int8_t x) { return x; }
INLINE int from_short(int16_t x) { return x; }
INLINE int from_int(int32_t x) { return x; }
INLINE int64_t from_long(int64_t x) { return x; }
INLINE float to_float(real x) { return (float)x; }
INLINE double to_double(real x) { return (double)x; }
INLINE int32_t to_int(int64_t x) { return (int32_t)x; }
INLINE int64_t to_long(int64_t x) { return x; }

#define number_of(x) \
    _Generic((x), bf16: from_bf16, fp16: from_fp16, float: from_float, double: from_double, \
             uint8_t: from_byte, int8_t: from_signed_byte, int16_t: from_short, \
             int32_t: from_int, int64_t: from_long)(x)
#define element_of(type, x) \
    _Generic((type){0}, bf16: to_bf16, fp16: to_fp16, float: to_float, double: to_double, \
             int32_t: to_int, int64_t: to_long)(x)
#define put(type, place, x) ((place) = element_of(type, x))
#define add_to(type, place, x) ((place) = element_of(type, number_of(place) + (x)))
#define rounded(type, x) ((real)number_of(element_of(type, x)))

// What no number of a type is beyond.
#define largest_of(type) \
    _Generic((type){0}, float: INFINITY, double: INFINITY, int64_t: INT64_MAX, default: INT32_MAX)
#define least_of(type) \
    _Generic((type){0}, float: -INFINITY, double: -INFINITY, int64_t: INT64_MIN, default: INT32_MIN)

// NaN stays NaN where it stands first, as what a spec computes does beside a constant.
#define larger(a, b) ((b) > (a) ? (b) : (a))
#define smaller(a, b) ((b) < (a) ? (b) : (a))
#define clamped(index, size) smaller(larger(index, 0), (size) - 1)
#define ceil_div(a, b) (((a) + (b) - 1) / (b))
#define floor_mod(a, b) ((((a) % (b)) + (b)) % (b))
#define floor_div(a, b) (((a) - floor_mod(a, b)) / (b))

// Whether a number is in a list, of which entries stand every so many numbers; below 0 is none.
INLINE int is_named(int64_t x, const int32_t *list, int count, int64_t step)
{
    int found = 0;
    for (int at = 0; at < count; at++) found |= x == list[at * step];
    return found & (x >= 0);
}

// --- functions --------------------------------------------------------------------------------

#ifdef DOUBLE
INLINE real exp2_of(real x) { return exp2(x); }
INLINE real exp_of(real x) { return exp(x); }
INLINE real log_of(real x) { return log(x); }
INLINE real log2_of(real x) { return log2(x); }
INLINE real sqrt_of(real x) { return sqrt(x); }
INLINE real cos_of(real x) { return cos(x); }
INLINE real sin_of(real x) { return sin(x); }
INLINE real erf_of(real x) { return erf(x); }
INLINE real floor_of(real x) { return floor(x); }
INLINE real tanh_of(real x) { return tanh(x); }
#else
// 2^x to 1.2 units in the last place, in operations that compilers make vectors of: a power of two
// by its exponent, times a polynomial within half a step (that of Cephes). Below 2^-126.5 it is 0,
// from 2^127.5 on infinite.
INLINE float exp2_of(float x)
{
    const float within = x < -127.0f ? -127.0f : (x > 128.0f ? 128.0f : x);
    const float whole = rintf(within);
    const float rest = within - whole;
    float p = 1.5353362e-4f;
    p = p * rest + 1.3398874e-3f;
    p = p * rest + 9.6184374e-3f;
    p = p * rest + 5.5503325e-2f;
    p = p * rest + 2.4022648e-1f;
    p = p * rest + 6.9314720e-1f;
    p = p * rest + 1.0f;
    return p * float_of_bits((uint32_t)((int32_t)whole + 127) << 23);  // at -127 the power is 0
}

// e^x in the same way: ln 2 is taken off in two parts.
INLINE float exp_of(float x)
{
    const float within = x < -88.1f ? -88.1f : (x > 88.8f ? 88.8f : x);
    const float whole = rintf(within * 1.44269504f);
    const float rest = (within - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float p = 1.9875691e-4f;
    p = p * rest + 1.3981999e-3f;
    p = p * rest + 8.3334519e-3f;
    p = p * rest + 4.1665796e-2f;
    p = p * rest + 1.6666665e-1f;
    p = p * rest + 5.0000001e-1f;
    p = p * rest * rest + rest + 1.0f;
    return p * float_of_bits((uint32_t)((int32_t)whole + 127) << 23);
}

INLINE real log_of(real x) { return logf(x); }
INLINE real log2_of(real x) { return log2f(x); }
INLINE real sqrt_of(real x) { return sqrtf(x); }
INLINE real cos_of(real x) { return cosf(x); }
INLINE real sin_of(real x) { return sinf(x); }
INLINE real erf_of(real x) { return erff(x); }
INLINE real floor_of(real x) { return floorf(x); }

INLINE real tanh_of(real x)
{
    const real size = x < 0 ? -x : x;
    const real shrink = exp_of(R(-2) * size);
    const real large = (x < 0 ? R(-1) : R(1)) * (1 - shrink) / (1 + shrink);
    const real square = x * x;  // below 1/8 the first terms of the series are exact to float
    const real rest = R(1.0 / 3) - square * (R(2.0 / 15) - square * R(17.0 / 315));
    const real small = x * (1 - square * rest);
    return size < R(0.125) ? small : large;
}
#endif

INLINE real abs_of(real x) { return x < 0 ? -x : x; }
INLINE real square_of(real x) { return x * x; }
INLINE real sigmoid_of(real x)
{
    const real shrink = exp_of(-abs_of(x));
    return (x < 0 ? shrink : R(1)) / (1 + shrink);
}
INLINE real silu_of(real x) { return x * sigmoid_of(x); }
INLINE real gelu_of(real x) { return R(0.5) * x * (1 + erf_of(x * R(0.7071067811865476))); }
INLINE real softplus_of(real x)
{
#ifdef DOUBLE
    return (x > 0 ? x : 0) + log1p(exp(-abs_of(x)));
#else
    return (x > 0 ? x : 0) + log1pf(exp_of(-abs_of(x)));
#endif
}
INLINE real elu_of(real x)
{
#ifdef DOUBLE
    return x > 0 ? x : expm1(x);
#else
    const real half = tanh_of(R(0.5) * (x > 0 ? 0 : x));
    return x > 0 ? x : 2 * half / (1 - half);
#endif
}
INLINE real elu_plus_one_of(real x) { return x > 0 ? x + 1 : exp_of(x > 0 ? 0 : x); }
INLINE real sign_of(real x) { return x > 0 ? R(1) : (x < 0 ? R(-1) : R(0)); }
INLINE real power_of(real base, real exponent) { return exp2_of(exponent * log2_of(base)); }
// base^exponent; below 0 it has a value where the exponent is whole. To the power of 0 all is 1.
INLINE real signed_power_of(real base, real exponent)
{
    const real size = power_of(abs_of(base), exponent), half = R(0.5) * exponent;
    const int is_whole = floor_of(exponent) == exponent, is_even = floor_of(half) == half;
    const real below = is_even ? size : (is_whole ? -size : (real)NAN);
    return exponent == 0 ? R(1) : (base < 0 ? below : size);
}
INLINE real inverse_of(real x) { return x == 0 ? R(0) : 1 / x; }
INLINE real log_or_none_of(real x) { return x > 0 ? log_of(x) : -(real)INFINITY; }

// --- vectors of tokens --------------------------------------------------------------------------

typedef struct { const real *at; int64_t step; } Rows;

// Copies `lanes` vectors into a tile, as wide as `block`: 0 beyond their width and where not seen.
#define COPY(type) \
    INLINE Rows copy_##type(real *room, const type *start, int64_t stride, const int *seen, \
                            const int lanes, const int width, const int block) \
    { \
        for (int r = 0; r < lanes; r++) { \
            real *to = room + (int64_t)r * block; \
            const type *from = start + r * stride; \
            const int own = seen && !seen[r] ? 0 : (width < block ? width : block); \
            for (int x = 0; x < own; x++) to[x] = (real)number_of(from[x]); \
            for (int x = own; x < block; x++) to[x] = 0; \
        } \
        return (Rows){room, block}; \
    }
COPY(bf16)
COPY(fp16)
COPY(float)
COPY(double)

// Vectors of `real` stay where they are when all of them are seen and as wide as the tile.
INLINE Rows rows_of_real(real *room, const real *start, int64_t stride, const int *seen,
                         const int lanes, const int width, const int block)
{
    int all = 1;
    for (int r = 0; seen && r < lanes; r++) all &= seen[r];
    if (all && width >= block) return (Rows){start, stride};
#ifdef DOUBLE
    return copy_double(room, start, stride, seen, lanes, width, block);
#else
    return copy_float(room, start, stride, seen, lanes, width, block);
#endif
}

#ifdef DOUBLE
#define load_rows(type, ...) \
    _Generic((type){0}, bf16: copy_bf16, fp16: copy_fp16, float: copy_float, \
             double: rows_of_real)(__VA_ARGS__)
#else
#define load_rows(type, ...) \
    _Generic((type){0}, bf16: copy_bf16, fp16: copy_fp16, float: rows_of_real, \
             double: copy_double)(__VA_ARGS__)
#endif

#define copy_rows(type, ...) \
    (void)_Generic((type){0}, bf16: copy_bf16, fp16: copy_fp16, float: copy_float, \
                   double: copy_double)(__VA_ARGS__)

// The transpose of a tile of vectors: four by four in registers where numbers lie side by side.
typedef real four __attribute__((vector_size(4 * sizeof(real)), aligned(sizeof(real)), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define pick(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#ifdef DOUBLE
typedef int64_t picks __attribute__((vector_size(4 * sizeof(real))));
#else
typedef int32_t picks __attribute__((vector_size(4 * sizeof(real))));
#endif
#define pick(a, b, ...) __builtin_shuffle(a, b, (picks){__VA_ARGS__})
#endif

INLINE void turn_four(const real *from, int64_t row, real *to, int64_t to_row)
{
    const four a = *(const four *)from, b = *(const four *)(from + row);
    const four c = *(const four *)(from + 2 * row), d = *(const four *)(from + 3 * row);
    const four ac = pick(a, c, 0, 4, 1, 5), bd = pick(b, d, 0, 4, 1, 5);
    const four ac_high = pick(a, c, 2, 6, 3, 7), bd_high = pick(b, d, 2, 6, 3, 7);
    *(four *)to = pick(ac, bd, 0, 4, 1, 5);
    *(four *)(to + to_row) = pick(ac, bd, 2, 6, 3, 7);
    *(four *)(to + 2 * to_row) = pick(ac_high, bd_high, 0, 4, 1, 5);
    *(four *)(to + 3 * to_row) = pick(ac_high, bd_high, 2, 6, 3, 7);
}

INLINE void turn(const int rows, const int columns, const real *from, int64_t row, int64_t column,
                 real *to)
{
    if (column == 1 && rows % 4 == 0 && columns % 4 == 0) {
        for (int r = 0; r < rows; r += 4)
            for (int x = 0; x < columns; x += 4)
                turn_four(from + r * row + x, row, to + x * rows + r, rows);
        return;
    }
    for (int r = 0; r < rows; r++)
        for (int x = 0; x < columns; x++) to[x * rows + r] = from[r * row + x * column];
}

// --- products -----------------------------------------------------------------------------------

#if defined(__AVX512F__)
#define VECTOR 64
#define VECTORS 4  // side by side in one block of sums, which stays in registers
#elif defined(__AVX2__)
#define VECTOR 32
#define VECTORS 2
#else
#define VECTOR 16
#define VECTORS 4
#endif
#define ROWS 6  // of a block of sums that is as wide as can be
#define LANES (VECTOR / (int)sizeof(real))
typedef real vector __attribute__((vector_size(VECTOR), aligned(sizeof(real)), may_alias));

// The block of rows and vectors whose sums stay in registers, a function for each of its sizes.
INLINE void sum_block(const int rows, const int vectors, int inner, const real *a, int64_t a_row,
                      int64_t a_inner, const real *b, int64_t b_step, real *out, int64_t out_step,
                      int adds)
{
    vector sums[8][4];
    _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)
        _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++) {
            const vector *before = (const vector *)(out + i * out_step + j * LANES);
            sums[i][j] = adds ? *before : (vector){0};
        }
    for (int k = 0; k < inner; k++) {
        vector own[4];
        _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)
            own[j] = *(const vector *)(b + k * b_step + j * LANES);
        _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++) {
            const real x = a[i * a_row + k * a_inner];
            _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++) sums[i][j] += x * own[j];
        }
    }
    _Pragma("GCC unroll 8") for (int i = 0; i < rows; i++)
        _Pragma("GCC unroll 4") for (int j = 0; j < vectors; j++)
            *(vector *)(out + i * out_step + j * LANES) = sums[i][j];
}

#define BLOCK_OF(rows, vectors) \
    static __attribute__((noinline)) void blocks_##rows##_##vectors( \
        int count, int inner, const real *a, int64_t a_row, int64_t a_inner, const real *b, \
        int64_t b_step, real *out, int64_t out_step, int adds) \
    { \
        for (int at = 0; at < count; at++, a += rows * a_row, out += rows * out_step) \
            sum_block(rows, vectors, inner, a, a_row, a_inner, b, b_step, out, out_step, adds); \
    }
#define BLOCKS_OF(rows) BLOCK_OF(rows, 1) BLOCK_OF(rows, 2) BLOCK_OF(rows, 4)
BLOCKS_OF(1) BLOCKS_OF(2) BLOCKS_OF(3) BLOCKS_OF(4)
BLOCKS_OF(5) BLOCKS_OF(6) BLOCKS_OF(7) BLOCKS_OF(8)

typedef void Blocks(int, int, const real *, int64_t, int64_t, const real *, int64_t, real *,
                    int64_t, int);

INLINE Blocks *blocks_of(const int rows, const int vectors)
{
#define CHOOSE(rows) \
    vectors == 4 ? blocks_##rows##_4 : vectors == 2 ? blocks_##rows##_2 : blocks_##rows##_1
    switch (rows) {
        case 1: return CHOOSE(1);
        case 2: return CHOOSE(2);
        case 3: return CHOOSE(3);
        case 4: return CHOOSE(4);
        case 5: return CHOOSE(5);
        case 6: return CHOOSE(6);
        case 7: return CHOOSE(7);
        default: return CHOOSE(8);
    }
}

INLINE void multiply_columns(const int vectors, const int rows, const int inner, const real *a,
                             int64_t a_row, int64_t a_inner, const real *b, int64_t b_step,
                             real *out, int64_t out_step, const int adds)
{
    const int most = smaller(ROWS * VECTORS / vectors, 8);
    const int blocks = ceil_div(rows, most), each = rows / blocks, wide = rows % blocks;
    const int rest = wide * (each + 1);
    if (wide)
        blocks_of(each + 1, vectors)(wide, inner, a, a_row, a_inner, b, b_step, out, out_step,
                                     adds);
    blocks_of(each, vectors)(blocks - wide, inner, a + rest * a_row, a_row, a_inner, b, b_step,
                             out + rest * out_step, out_step, adds);
}

// out[i][j] = sum over k of a[i][k] b[k][j], or added to it: [rows, inner] by [inner, columns], of
// which `columns` is a multiple of LANES and lies side by side in b and out.
INLINE void multiply(const int rows, const int inner, const int columns, const real *a,
                     int64_t a_row, int64_t a_inner, const real *b, int64_t b_step, real *out,
                     int64_t out_step, const int adds)
{
    int j = 0;
    for (; j + VECTORS * LANES <= columns; j += VECTORS * LANES)
        multiply_columns(VECTORS, rows, inner, a, a_row, a_inner, b + j, b_step, out + j,
                         out_step, adds);
    for (; VECTORS > 2 && j + 2 * LANES <= columns; j += 2 * LANES)
        multiply_columns(2, rows, inner, a, a_row, a_inner, b + j, b_step, out + j, out_step, adds);
    for (; j + LANES <= columns; j += LANES)
        multiply_columns(1, rows, inner, a, a_row, a_inner, b + j, b_step, out + j, out_step, adds);
}

// --- products of masked tiles -------------------------------------------------------------------

// What LANES rows, or keys, relate to at all: [first, end) of the others of the tile.
typedef struct { int first, end; } Span;

INLINE Span with_span(Span before, int at) { return (Span){smaller(before.first, at), at + 1}; }

// Numbers of pairs, [others, lanes]: beyond the spans there is nothing to know. Without spans all.
INLINE void multiply_pairs(const Span *spans, const int others, const int inner, const int lanes,
                           const real *a, int64_t a_row, int64_t a_inner, const real *b,
                           int64_t b_step, real *out, int64_t out_step, const int adds)
{
    if (!spans) {
        multiply(others, inner, lanes, a, a_row, a_inner, b, b_step, out, out_step, adds);
        return;
    }
    for (int at = 0; at < lanes / LANES; at++, b += LANES, out += LANES) {
        const int first = spans[at].first, end = spans[at].end;
        for (int c = 0; c < others && !adds; c++)
            if (c < first || c >= end) *(vector *)(out + c * out_step) = (vector){0};
        if (first < end)
            multiply_columns(1, end - first, inner, a + first * a_row, a_row, a_inner, b, b_step,
                             out + first * out_step, out_step, adds);
    }
}

// Sums for lanes over the others, of numbers of pairs that are 0 beyond the spans.
INLINE void multiply_lanes(const Span *spans, const int lanes, const int others, const int columns,
                           const real *a, int64_t a_row, int64_t a_inner, const real *b,
                           int64_t b_step, real *out, int64_t out_step)
{
    if (!spans) {
        multiply(lanes, others, columns, a, a_row, a_inner, b, b_step, out, out_step, 1);
        return;
    }
    for (int at = 0; at < lanes / LANES; at++, a += LANES * a_row, out += LANES * out_step) {
        const int first = spans[at].first, end = spans[at].end;
        if (first < end)
            multiply(LANES, end - first, columns, a + first * a_inner, a_row, a_inner,
                     b + first * b_step, b_step, out, out_step, 1);
    }
}

// Sums for the others over lanes.
INLINE void multiply_others(const Span *spans, const int others, const int lanes, const int columns,
                            const real *a, int64_t a_row, int64_t a_inner, const real *b,
                            int64_t b_step, real *out, int64_t out_step)
{
    if (!spans) {
        multiply(others, lanes, columns, a, a_row, a_inner, b, b_step, out, out_step, 1);
        return;
    }
    for (int at = 0; at < lanes / LANES; at++, a += LANES * a_inner, b += LANES * b_step) {
        const int first = spans[at].first, end = spans[at].end;
        if (first < end)
            multiply(end - first, LANES, columns, a + first * a_row, a_row, a_inner, b, b_step,
                     out + first * out_step, out_step, 1);
    }
}
