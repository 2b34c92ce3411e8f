/* How rows enter history, for loops that make them. */
#include <stdint.h>

struct entry {
    float *served, *following; /* [rows, width] */
    float share;
    int64_t stride; /* of the rows whose drift is measured; 0: of none */
    double *drift;  /* the squares of (fresh - served) and of fresh are added to it */
};

/* `fresh` [rows, width] are the entry's rows from `first` on. */
void gnnpipe_enter(struct entry entry, const float *fresh, int64_t first, int64_t rows, int64_t width);
