/* A slot's fresh rows enter history: following = lerp(served, fresh, share), then served = fresh, in one pass.
 *
 * It rounds as torch.lerp does for a share below one half: one fused multiply-add. torch would take two passes, and a
 * dozen small calls for the drift of a few rows; pipeline/history.py does it so where this is missing.
 */
#include "blend.h"
#include "processors.h"

/* Nobody reads `following` before the next epoch: where that can be said, it goes past the caches, which Python and the
 * rows of the next sum need more. */
INLINE void put(float *place, lanes value, const int past_caches) {
#if defined(__x86_64__)
    if (past_caches) {
        asm volatile("vmovntps %1, %0" : "=m"(*(lanes *)place) : "v"(value));
        return;
    }
#endif
    *(lanes *)place = value;
}

INLINE void blend_all(
    float *served, const float *fresh, float *following, int64_t numbers, float share, const int past_caches
) {
    int64_t i = 0;
    for (; i + LANES <= numbers; i += LANES) {
        const lanes new = *(const lanes *)(fresh + i), old = *(const lanes *)(served + i);
        put(following + i, old + share * (new - old), past_caches);
        *(lanes *)(served + i) = new;
    }
    for (; i < numbers; i++) {
        following[i] = __builtin_fmaf(share, fresh[i] - served[i], served[i]);
        served[i] = fresh[i];
    }
}

FOR_EVERY_PROCESSOR
static void blend(float *served, const float *fresh, float *following, int64_t numbers, float share) {
    blend_all(served, fresh, following, numbers, share, 0);
}

#if defined(__x86_64__)
__attribute__((target("avx512f"))) static void blend_past_caches(
    float *served, const float *fresh, float *following, int64_t numbers, float share
) {
    blend_all(served, fresh, following, numbers, share, 1);
}
#endif

FOR_EVERY_PROCESSOR
void gnnpipe_enter(struct entry entry, const float *fresh, int64_t first, int64_t rows, int64_t width) {
    float *const served = entry.served + first * width, *const following = entry.following + first * width;
    const int64_t into = entry.stride ? first % entry.stride : 0;
    for (int64_t row = into ? entry.stride - into : 0; entry.stride && row < rows; row += entry.stride) {
        float difference = 0, magnitude = 0;
        for (int64_t i = row * width; i < (row + 1) * width; i++) {
            difference += (fresh[i] - served[i]) * (fresh[i] - served[i]);
            magnitude += fresh[i] * fresh[i];
        }
        entry.drift[0] += difference;
        entry.drift[1] += magnitude;
    }
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && (uintptr_t)following % (4 * LANES) == 0) {
        blend_past_caches(served, fresh, following, rows * width, entry.share);
        return;
    }
#endif
    blend(served, fresh, following, rows * width, entry.share);
}

void gnnpipe_blend(
    float *served, const float *fresh, float *following, int64_t rows, int64_t width, float share, int64_t stride,
    double *drift
) {
    const struct entry entry = {served, following, share, stride, drift};
    gnnpipe_enter(entry, fresh, 0, rows, width);
}
