/* Memory of laws: see law.h. */
#include "sample/law.h"

#include "base/alloc.h"

bool di_draft_law_reserve(di_draft_law *law, int count, di_error *err) {
    size_t n = (size_t)count;
    if (n <= law->capacity) {
        return true;
    }
    int32_t *ids = di_realloc_array(law->ids, n, sizeof *ids);
    law->ids = ids ? ids : law->ids;
    uint64_t *weights = ids ? di_realloc_array(law->weights, n, sizeof *weights) : NULL;
    law->weights = weights ? weights : law->weights;
    if (!weights) {
        return di_fail(err, DI_ERR_NO_MEMORY, "no memory for a draft's %d tokens", count);
    }
    law->capacity = n;
    return true;
}

void di_draft_law_free(di_draft_law *law) {
    di_free(law->ids);
    di_free(law->weights);
    *law = (di_draft_law){0};
}
