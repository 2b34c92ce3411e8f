/* Numbers without their zeros: a bit for each of them, the first in the lowest, and then those whose bit is set.
 *
 * AVX-512 has instructions for it, which no compiler finds by itself. Elsewhere each number is written, and written over
 * by the next one if it does not count: a branch would be guessed wrong every second time.
 */
#include "processors.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define AVX512 __attribute__((target("avx512f")))
#endif

INLINE int64_t bit_of(const uint8_t *bits, int64_t i) { return bits[i / 8] >> i % 8 & 1; }

/* Each begins at `first`, with so many values `before` it, and returns how many there are in the end. */

static int64_t pack(
    const float *numbers, int64_t first, int64_t count, uint8_t *bits, float *values, int64_t before
) {
    for (int64_t i = first; i < count; i++) {
        const int set = numbers[i] != 0; /* also what is no number */
        bits[i / 8] = (uint8_t)(i % 8 ? bits[i / 8] | set << i % 8 : set);
        values[before] = numbers[i];
        before += set;
    }
    return before;
}

static int64_t pick(
    const float *numbers, int64_t first, int64_t count, const uint8_t *bits, float *values, int64_t before
) {
    for (int64_t i = first; i < count; i++) {
        values[before] = numbers[i];
        before += bit_of(bits, i);
    }
    return before;
}

/* Where values [room] end, the last one is repeated. */
static int64_t spread(
    const float *values, int64_t room, const uint8_t *bits, float *numbers, int64_t first, int64_t count,
    int64_t before
) {
    for (int64_t i = first; i < count; i++) {
        const int64_t set = bit_of(bits, i);
        const float value = values[before < room ? before : room - 1];
        numbers[i] = set ? value : 0;
        before += set;
    }
    return before;
}

#if defined(__x86_64__)
INLINE __mmask16 bits_of_lanes(const uint8_t *bits, int64_t i) {
    return (__mmask16)(bits[i / 8] | bits[i / 8 + 1] << 8);
}

AVX512 static int64_t pack_lanes(const float *numbers, int64_t count, uint8_t *bits, float *values) {
    int64_t before = 0, i = 0;
    for (; i + LANES <= count; i += LANES) {
        const __m512 some = _mm512_loadu_ps(numbers + i);
        const __mmask16 set = _mm512_cmp_ps_mask(some, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        bits[i / 8] = (uint8_t)set;
        bits[i / 8 + 1] = (uint8_t)(set >> 8);
        _mm512_storeu_ps(values + before, _mm512_maskz_compress_ps(set, some));
        before += __builtin_popcount(set);
    }
    return pack(numbers, i, count, bits, values, before);
}

AVX512 static int64_t pick_lanes(const float *numbers, int64_t count, const uint8_t *bits, float *values) {
    int64_t before = 0, i = 0;
    for (; i + LANES <= count; i += LANES) {
        const __mmask16 set = bits_of_lanes(bits, i);
        _mm512_storeu_ps(values + before, _mm512_maskz_compress_ps(set, _mm512_loadu_ps(numbers + i)));
        before += __builtin_popcount(set);
    }
    return pick(numbers, i, count, bits, values, before);
}

AVX512 static int64_t spread_lanes(
    const float *values, int64_t room, const uint8_t *bits, float *numbers, int64_t count
) {
    int64_t before = 0, i = 0;
    for (; i + LANES <= count && before + LANES <= room; i += LANES) {
        const __mmask16 set = bits_of_lanes(bits, i);
        _mm512_storeu_ps(numbers + i, _mm512_maskz_expand_ps(set, _mm512_loadu_ps(values + before)));
        before += __builtin_popcount(set);
    }
    return spread(values, room, bits, numbers, i, count, before);
}
#endif

/* `avx512` says whether this processor has it. */

/* bits [ceil(count / 8)] and values [count], of which as many as it returns are meant, from numbers [count]. */
int64_t gnnpipe_pack(const float *numbers, int64_t count, uint8_t *bits, float *values, int64_t avx512) {
#if defined(__x86_64__)
    if (avx512)
        return pack_lanes(numbers, count, bits, values);
#else
    (void)avx512;
#endif
    return pack(numbers, 0, count, bits, values, 0);
}

/* values [count] of numbers whose bits are known already. */
int64_t gnnpipe_pick(
    const float *numbers, int64_t count, const uint8_t *bits, float *values, int64_t avx512
) {
#if defined(__x86_64__)
    if (avx512)
        return pick_lanes(numbers, count, bits, values);
#else
    (void)avx512;
#endif
    return pick(numbers, 0, count, bits, values, 0);
}

/* numbers [count] from their bits and values [room], room >= 1. Returns how many values there should be: if there is no
 * room for so many, the numbers are wrong. */
int64_t gnnpipe_spread(
    const float *values, int64_t room, const uint8_t *bits, float *numbers, int64_t count, int64_t avx512
) {
#if defined(__x86_64__)
    if (avx512)
        return spread_lanes(values, room, bits, numbers, count);
#else
    (void)avx512;
#endif
    return spread(values, room, bits, numbers, 0, count, 0);
}
