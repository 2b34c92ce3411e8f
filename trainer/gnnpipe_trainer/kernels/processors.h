/* What our loops have in common: how wide they work, and for which processors they are compiled. */
#include <stdint.h>

#define LANES 16 /* floats that are worked on at once: what a register of AVX-512 holds */
#define INLINE static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int32_t flags __attribute__((vector_size(4 * LANES), aligned(4))); /* what comparing lanes gives */

/* One copy for each kind of processor; the loader takes the best that this one can run. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define FOR_EVERY_PROCESSOR
#endif
