/* Nearest names by the optimal string alignment distance. See suggest.h. */
#include "base/suggest.h"

#include <string.h>

enum { LONGEST = 63 };

static int smallest(int a, int b, int c) {
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Row by row; a swap looks two rows back, so three rows are kept. */
int di_edit_distance(const char *a, const char *b) {
    int rows[3][LONGEST + 1];
    int n = (int)strnlen(a, LONGEST), m = (int)strnlen(b, LONGEST);
    for (int j = 0; j <= m; j++) {
        rows[0][j] = j;
    }
    for (int i = 1; i <= n; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            row[j] = smallest(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                two_above[j - 2] + 1 < row[j]) {
                row[j] = two_above[j - 2] + 1;
            }
        }
    }
    return rows[n % 3][m];
}

const char *di_suggest(const char *word, const char *const *names, size_t count) {
    int length = (int)strnlen(word, LONGEST), limit = length / 3;
    limit = limit < 1 ? 1 : limit > 3 ? 3 : limit;
    const char *best = NULL;
    for (size_t i = 0; i < count && length >= 3; i++) {
        if (strncmp(word, names[i], (size_t)length) == 0) {
            return names[i]; /* cut short */
        }
    }
    for (size_t i = 0; i < count; i++) {
        int distance = di_edit_distance(word, names[i]);
        if (distance <= limit) {
            best = names[i];
            limit = distance - 1;
        }
    }
    return best;
}
