/* The aggregation kernel on CPUs: out[r] = sum over the entries k of row r of weights[k] * source[columns[k]].
 *
 * It does what torch.embedding_bag does, and rounds as that does: the entries of a row one after another, each by one
 * fused multiply-add. What it does better is to ask for rows of `source` long before it needs them. A chunk's neighbours
 * lie anywhere in a buffer that is larger than the cache, and a row that comes from memory takes as long as hundreds of
 * multiplications. pipeline/aggregate.py calls it.
 */
#include "processors.h"

#define PANEL 8               /* registers that hold a row's sum; wider rows are done in panels of columns */
#define NEAR_BYTES (12 << 10) /* of rows that are asked for into the first cache ahead of their use, */
#define FAR_BYTES (64 << 10)  /* and into the second one */

struct task {
    const int32_t *offsets, *columns; /* [rows + 1], [entries] */
    const float *weights;             /* [entries] */
    const float *source;              /* [any, width] */
    float *out;                       /* [rows, width] */
    int64_t first, last, width;       /* rows first .. last - 1; width >= LANES */
};

/* `count` registers, one beside the other from column `start` on, but for the last: it ends where the row ends, so that
 * no width needs a loop for what is left over. */
INLINE void sum_panel(const struct task *task, const int64_t start, const int count) {
    const int32_t *const offsets = task->offsets, *const columns = task->columns;
    const float *const weights = task->weights, *const source = task->source + start;
    const int64_t width = task->width, first = task->first, last = task->last, end = offsets[last];
    const int64_t flush = width - start - LANES, beside = (count - 1) * LANES;
    const int64_t tail = flush < beside ? flush : beside; /* where the last register starts */
    const int64_t near = NEAR_BYTES / (4 * LANES * count), far = FAR_BYTES / (4 * LANES * count);
    for (int64_t row = first; row < last; row++) {
        lanes sum[PANEL] = {{0}};
        for (int64_t k = offsets[row]; k < offsets[row + 1]; k++) {
            if (k + far < end) {
                const float *ahead = source + columns[k + far] * width;
                for (int i = 0; i < count; i++)
                    __builtin_prefetch(ahead + i * LANES, 0, 2);
            }
            if (k + near < end) {
                const float *ahead = source + columns[k + near] * width;
                for (int i = 0; i < count; i++)
                    __builtin_prefetch(ahead + i * LANES, 0, 3);
            }
            const float weight = weights[k];
            const float *from = source + columns[k] * width;
            for (int i = 0; i < count - 1; i++)
                sum[i] += weight * *(const lanes *)(from + i * LANES);
            sum[count - 1] += weight * *(const lanes *)(from + tail);
        }
        float *to = task->out + row * width + start;
        for (int i = 0; i < count - 1; i++)
            *(lanes *)(to + i * LANES) = sum[i];
        *(lanes *)(to + tail) = sum[count - 1];
    }
}

INLINE void sum_rows(const struct task *task) {
    int64_t start = 0;
    for (; task->width - start > PANEL * LANES; start += PANEL * LANES)
        sum_panel(task, start, PANEL);
    switch ((task->width - start + LANES - 1) / LANES) {
    case 1: sum_panel(task, start, 1); break;
    case 2: sum_panel(task, start, 2); break;
    case 3: sum_panel(task, start, 3); break;
    case 4: sum_panel(task, start, 4); break;
    case 5: sum_panel(task, start, 5); break;
    case 6: sum_panel(task, start, 6); break;
    case 7: sum_panel(task, start, 7); break;
    case 8: sum_panel(task, start, 8); break;
    }
}

FOR_EVERY_PROCESSOR
void gnnpipe_weighted_sum(
    const int32_t *offsets, const int32_t *columns, const float *weights, const float *source, float *out,
    int64_t first, int64_t last, int64_t width
) {
    const struct task task = {offsets, columns, weights, source, out, first, last, width};
    sum_rows(&task);
}
