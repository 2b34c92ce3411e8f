/* Dense layers: y = relu(x W^T + b), and from dy the gradients of x, W and b.
 *
 * The libraries that torch brings along are made for matrices that are large both ways; these are thousands of rows long
 * and some dozen columns wide. Here a block of rows stays in the first cache until all is done that is to be done with
 * it, and every result is written where it belongs: one call and one pass over memory for what would be six.
 */
#include <stdlib.h>

#include "blend.h"
#include "processors.h"

#define BLOCK 96 /* rows */
#define TALL 6   /* rows of a tile of a result, */
#define WIDE 4   /* and registers in each of them */

/* ---- out = a b, for a [rows, depth] and b packed in panels --------------------------------------------------- */

INLINE int64_t padded(int64_t columns) { return (columns + LANES - 1) / LANES * LANES; }

/* b [depth, columns] (`row` and `step`: how far its rows and columns lie apart), cut into panels of LANES columns, one
 * after another, [depth, LANES] each; what the last one lacks is zero. */
INLINE void pack(const float *b, int64_t depth, int64_t columns, int64_t row, int64_t step, float *packed) {
    for (int64_t start = 0; start < columns; start += LANES)
        for (int64_t k = 0; k < depth; k++, packed += LANES)
            for (int64_t i = 0; i < LANES; i++)
                packed[i] = start + i < columns ? b[k * row + (start + i) * step] : 0;
}

/* The first `columns` of `wide` registers, in each of `tall` rows. */
INLINE void store_tile(
    lanes sum[TALL][WIDE], float *out, int64_t stride, int64_t columns, int relu, const int tall, const int wide
) {
    for (int r = 0; r < tall; r++)
        for (int i = 0; i < wide; i++) {
            lanes value = sum[r][i];
            if (relu)
                value = (lanes)((flags)value & ~(value <= 0)); /* what is no number stays none */
            if ((i + 1) * LANES <= columns)
                *(lanes *)(out + r * stride + i * LANES) = value;
            else
                for (int64_t c = i * LANES; c < columns; c++)
                    out[r * stride + c] = value[c - i * LANES];
        }
}

/* What sums start from: a bias (`row` 0), what is there already (`row` its stride), or NULL for zero. */
struct start {
    const float *values;
    int64_t row;
};

INLINE void multiply_tile(
    const float *a, const float *packed, struct start start, float *out, int64_t depth, int64_t stride,
    int64_t columns, int relu, const int tall, const int wide
) {
    lanes sum[TALL][WIDE] = {{{0}}};
    for (int r = 0; start.values && r < tall; r++)
        for (int i = 0; i < wide; i++) {
            const float *from = start.values + r * start.row + i * LANES;
            if ((i + 1) * LANES <= columns)
                sum[r][i] = *(const lanes *)from;
            else
                for (int64_t c = i * LANES; c < columns; c++)
                    sum[r][i][c - i * LANES] = start.values[r * start.row + c];
        }
    for (int64_t k = 0; k < depth; k++)
        for (int i = 0; i < wide; i++) {
            const lanes right = *(const lanes *)(packed + (i * depth + k) * LANES);
            for (int r = 0; r < tall; r++)
                sum[r][i] += a[r * depth + k] * right;
        }
    store_tile(sum, out, stride, columns, relu, tall, wide);
}

INLINE void multiply_panel(
    const float *a, const float *packed, struct start start, float *out, int64_t rows, int64_t depth, int64_t stride,
    int64_t columns, int relu, const int wide
) {
    for (int64_t r = 0; r < rows;) {
        const struct start here = {start.values ? start.values + r * start.row : 0, start.row};
        const float *const left = a + r * depth;
        if (r + TALL <= rows) {
            multiply_tile(left, packed, here, out + r * stride, depth, stride, columns, relu, TALL, wide);
            r += TALL;
        } else {
            multiply_tile(left, packed, here, out + r * stride, depth, stride, columns, relu, 1, wide);
            r += 1;
        }
    }
}

/* out [rows, columns] = a [rows, depth] x packed + start, and ReLU of it if asked for. */
INLINE void multiply(
    const float *a, const float *packed, struct start start, float *out, int64_t rows, int64_t depth, int64_t columns,
    int relu, int64_t wide
) {
    for (int64_t c = 0; c < columns;) {
        const int64_t rest = columns - c, left = (rest + LANES - 1) / LANES, registers = left < wide ? left : wide;
        const float *const panel = packed + c * depth;
        const struct start from = {start.values ? start.values + c : 0, start.row};
        switch (registers) {
        case 1: multiply_panel(a, panel, from, out + c, rows, depth, columns, rest, relu, 1); break;
        case 2: multiply_panel(a, panel, from, out + c, rows, depth, columns, rest, relu, 2); break;
        case 3: multiply_panel(a, panel, from, out + c, rows, depth, columns, rest, relu, 3); break;
        case 4: multiply_panel(a, panel, from, out + c, rows, depth, columns, rest, relu, 4); break;
        }
        c += registers * LANES;
    }
}

/* ---- out += share a^T b, for a [rows, outputs] and b [rows, inputs] ------------------------------------------- */

INLINE void add_tile(
    const float *a, const float *b, float *out, int64_t rows, int64_t outputs, int64_t inputs, float share,
    const int tall, const int wide
) {
    lanes sum[TALL][WIDE] = {{{0}}}; /* of this block alone: what is small is not lost beside the sum of all rows */
    for (int64_t row = 0; row < rows; row++) {
        lanes right[WIDE];
        for (int i = 0; i < wide; i++)
            right[i] = *(const lanes *)(b + row * inputs + i * LANES);
        for (int o = 0; o < tall; o++)
            for (int i = 0; i < wide; i++)
                sum[o][i] += a[row * outputs + o] * right[i];
    }
    for (int o = 0; o < tall; o++)
        for (int i = 0; i < wide; i++)
            *(lanes *)(out + o * inputs + i * LANES) += share * sum[o][i];
}

/* All outputs from `first` to `last` - 1, of `wide` registers of inputs. */
INLINE void add_panel(
    const float *a, const float *b, float *out, int64_t rows, int64_t outputs, int64_t inputs, float share,
    int64_t first, int64_t last, const int wide
) {
    int64_t o = first;
    for (; o + TALL <= last; o += TALL)
        add_tile(a + o, b, out + o * inputs, rows, outputs, inputs, share, TALL, wide);
    switch (last - o) {
    case 1: add_tile(a + o, b, out + o * inputs, rows, outputs, inputs, share, 1, wide); break;
    case 2: add_tile(a + o, b, out + o * inputs, rows, outputs, inputs, share, 2, wide); break;
    case 3: add_tile(a + o, b, out + o * inputs, rows, outputs, inputs, share, 3, wide); break;
    case 4: add_tile(a + o, b, out + o * inputs, rows, outputs, inputs, share, 4, wide); break;
    case 5: add_tile(a + o, b, out + o * inputs, rows, outputs, inputs, share, 5, wide); break;
    }
}

INLINE void add_product(
    const float *a, const float *b, float *out, int64_t rows, int64_t outputs, int64_t inputs, float share,
    int64_t first, int64_t last, int64_t wide
) {
    int64_t i = 0;
    for (; wide == WIDE && i + WIDE * LANES <= inputs; i += WIDE * LANES)
        add_panel(a, b + i, out + i, rows, outputs, inputs, share, first, last, WIDE);
    for (; i + LANES <= inputs; i += LANES)
        add_panel(a, b + i, out + i, rows, outputs, inputs, share, first, last, 1);
    for (int64_t row = 0; i < inputs && row < rows; row++) /* the last few, which fill no register */
        for (int64_t o = first; o < last; o++)
            for (int64_t rest = i; rest < inputs; rest++)
                out[o * inputs + rest] += share * a[row * outputs + o] * b[row * inputs + rest];
}

/* ---- what pipeline and models call ---------------------------------------------------------------------------- */

/* out [rows, columns] = x [rows, depth] b [depth, columns], + bias [columns] or NULL, or + what is there already if
 * `adds`, and ReLU of it if `relu`. `row` and `step`: how far b's rows and columns lie apart. `wide`: registers of a row that are worked on at once, WIDE or 1; more
 * than a processor has are slow. Returns 0 if there is no memory to work in. */
FOR_EVERY_PROCESSOR
int64_t gnnpipe_product(
    const float *x, const float *b, const float *bias, float *out, int64_t rows, int64_t depth, int64_t columns,
    int64_t row, int64_t step, int64_t adds, int64_t relu, int64_t wide
) {
    const struct start start = {adds ? out : bias, adds ? columns : 0};
    float *packed = aligned_alloc(64, 4 * (depth ? depth : 1) * padded(columns));
    if (!packed)
        return 0;
    pack(b, depth, columns, row, step, packed);
    multiply(x, packed, start, out, rows, depth, columns, relu, wide);
    free(packed);
    return 1;
}

/* The same, but the result enters history (blend.c), and starts from `before` [rows, columns] if that is there. A tile at a
 * time: what history served is asked for from memory while the rows that replace it are multiplied. */
FOR_EVERY_PROCESSOR
int64_t gnnpipe_product_to_history(
    const float *x, const float *b, const float *bias, const float *before, int64_t rows, int64_t depth,
    int64_t columns, int64_t row, int64_t step, int64_t relu, int64_t wide, float *served, float *following, float share,
    int64_t stride, double *drift
) {
    const struct entry entry = {served, following, share, stride, drift};
    const int64_t packed_size = (depth ? depth : 1) * padded(columns);
    float *packed = aligned_alloc(64, 4 * (packed_size + TALL * padded(columns)));
    if (!packed)
        return 0;
    float *const fresh = packed + packed_size;
    pack(b, depth, columns, row, step, packed);
    for (int64_t first = 0; first < rows; first += TALL) {
        const int64_t count = rows - first < TALL ? rows - first : TALL;
        const struct start start = {before ? before + first * columns : bias, before ? columns : 0};
        for (int64_t i = 0; i < count * columns; i += LANES)
            __builtin_prefetch(served + first * columns + i, 1, 2);
        multiply(x + first * depth, packed, start, fresh, count, depth, columns, relu, wide);
        gnnpipe_enter(entry, fresh, first, count, columns);
    }
    free(packed);
    return 1;
}

/* From dy [rows, outputs], where y [rows, outputs] is what ReLU made, and dropout with what it keeps scaled by `scale`
 * (NULL: there was none):
 *   dx [rows, inputs] = dy b, if b [outputs, inputs] is there;
 *   dw [outputs, inputs] += share dy^T x, its rows from `first` to `last` - 1, if x [rows, inputs] is there;
 *   db [outputs] += the sum of dy's rows, if db is there.
 * Returns 0 if there is no memory to work in. */
FOR_EVERY_PROCESSOR
int64_t gnnpipe_gradients(
    const float *dy, const float *y, const float *b, const float *x, float *dx, float *dw, float *db, int64_t rows,
    int64_t outputs, int64_t inputs, float scale, float share, int64_t first, int64_t last, int64_t wide
) {
    const struct start nothing = {0, 0};
    const int64_t packed_size = b ? outputs * padded(inputs) : 0, stopped_size = BLOCK * padded(outputs);
    float *work = aligned_alloc(64, 4 * (packed_size + stopped_size + padded(outputs)));
    if (!work)
        return 0;
    float *packed = work, *stopped = packed + packed_size, *total = stopped + stopped_size;
    if (b)
        pack(b, outputs, inputs, inputs, 1, packed);
    for (int64_t o = 0; o < outputs; o++)
        total[o] = 0;
    for (int64_t block = 0; block < rows; block += BLOCK) {
        const int64_t count = rows - block < BLOCK ? rows - block : BLOCK;
        const float *here = dy + block * outputs;
        if (y) { /* what comes back stops where zero was given */
            const float *result = y + block * outputs;
            for (int64_t i = 0; i < count * outputs; i++)
                stopped[i] = result[i] <= 0 ? 0 : scale * here[i];
            here = stopped;
        }
        if (dx)
            multiply(here, packed, nothing, dx + block * inputs, count, outputs, inputs, 0, wide);
        if (dw)
            add_product(here, x + block * inputs, dw, count, outputs, inputs, share, first, last, wide);
        for (int64_t row = 0; db && row < count; row++)
            for (int64_t o = 0; o < outputs; o++)
                total[o] += here[row * outputs + o];
    }
    for (int64_t o = 0; db && o < outputs; o++)
        db[o] += total[o];
    free(work);
    return 1;
}
