/* Which entries of a sparse matrix carry a gradient in this epoch: those whose column stands at a position or after it.
 *
 * torch would do it in eight passes; each epoch asks for every edge.
 */
#include "processors.h"

/* Copies such entries of columns and weights [entries], row by row, and how many come before each row to kept_offsets
 * [rows + 1]. positions [any] are those of the columns. Returns how many there are. */
FOR_EVERY_PROCESSOR
int64_t gnnpipe_fresh_entries(
    const int32_t *offsets, const int32_t *columns, const float *weights, const int32_t *positions, int64_t position,
    int64_t rows, int32_t *kept_offsets, int32_t *kept_columns, float *kept_weights
) {
    int32_t count = 0;
    for (int64_t row = 0; row < rows; row++) {
        kept_offsets[row] = count;
        for (int32_t k = offsets[row]; k < offsets[row + 1]; k++) {
            kept_columns[count] = columns[k]; /* written over by the next one if it does not count */
            kept_weights[count] = weights[k];
            count += positions[columns[k]] >= position;
        }
    }
    kept_offsets[rows] = count;
    return count;
}
