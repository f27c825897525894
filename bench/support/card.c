#include "support/card.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "support/synthetic.h"

di_backend *be;
int only_rows;

static const char *only;
static double ceiling;     /* bytes a second */
static unsigned megahertz; /* of the latest timing, at least; 0: not told */

_Noreturn void give_up(const char *what) {
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

void wait_for_all(void) {
    di_error err;
    if (!be->ops->sync(be, &err)) {
        give_up(err.message);
    }
}

/* ---- data ------------------------------------------------------------------------------------*/

static synthetic_kind kind_of(di_dtype dtype) {
    return dtype == DI_F8_E4M3 ? SYNTHETIC_E4M3
           : dtype == DI_BF16  ? SYNTHETIC_BF16
                               : SYNTHETIC_E2M1;
}

enum { MOST_CODES = 96 << 20 };

static const double WEIGHT_DEVIATION = 0.022; /* about what all of the model's have */

/* `bytes` of a weight, at an address of their own. */
static void *codes_at_own_address(synthetic_kind kind, size_t bytes) {
    static int files[SYNTHETIC_Q8 + 1];
    int *file = &files[kind];
    if (*file == 0) {
        *file = memfd_create("codes", 0);
        if (*file < 0 || ftruncate(*file, (off_t)MOST_CODES) != 0) {
            give_up("no memory for codes");
        }
        void *p = mmap(NULL, MOST_CODES, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
        synthetic_fill(p, MOST_CODES, kind, 0, WEIGHT_DEVIATION);
        munmap(p, MOST_CODES);
    }
    void *p = bytes <= MOST_CODES ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, *file, 0) : MAP_FAILED;
    if (p == MAP_FAILED) {
        give_up("no address space for codes");
    }
    return p;
}

di_tensor make_weight(di_dtype dtype, int64_t rows, int64_t k) {
    static uint8_t *scales[2];
    const size_t most = (size_t)16 << 20;
    synthetic_kind kind = kind_of(dtype);
    di_tensor w = {.dtype = dtype, .rank = 2, .shape = {rows, k}};
    w.data = codes_at_own_address(kind, (size_t)(rows * k) * (size_t)di_dtype_bits(dtype) / 8);
    if (dtype == DI_BF16) {
        return w;
    }
    uint8_t **all = &scales[dtype == DI_FP4_E2M1];
    if (!*all) {
        *all = di_alloc(most);
        memset(*all, synthetic_scale(kind, WEIGHT_DEVIATION), most);
    }
    w.scale_block[0] = dtype == DI_FP4_E2M1 ? 1 : 32;
    w.scale_block[1] = 32;
    w.scale = *all;
    return w;
}

size_t weight_bytes(const di_tensor *w) {
    size_t values = (size_t)(w->shape[0] * w->shape[1]);
    size_t scales = w->scale ? values / 32 / (size_t)w->scale_block[0] : 0;
    return values * (size_t)di_dtype_bits(w->dtype) / 8 + scales;
}

void *device(size_t bytes) {
    void *p = be->ops->alloc(be, bytes);
    if (!p) {
        give_up("the card has no memory left");
    }
    return p;
}

void fill(void *to, size_t bytes, const void *piece) {
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        be->ops->upload(be, (char *)to + at, piece, n);
    }
}

di_bf16 *device_bf16(size_t n) {
    static di_bf16 piece[PIECE / sizeof(di_bf16)];
    synthetic_fill(piece, sizeof piece, SYNTHETIC_Q8, 0, 0);
    di_bf16 *p = device(n * sizeof *p);
    fill(p, n * sizeof *p, piece);
    return p;
}

void *device_bytes(size_t n, uint64_t mask) {
    static uint64_t piece[PIECE / sizeof(uint64_t)];
    for (size_t i = 0; i < PIECE / sizeof *piece; i++) {
        piece[i] = synthetic_random() & mask;
    }
    void *p = device(n);
    fill(p, n, piece);
    return p;
}

/* ---- timing ----------------------------------------------------------------------------------*/

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The clock of the first card's multiprocessors now, by the driver's library for such questions; 0
 * without one. */
static unsigned clock_now(void) {
    enum { MULTIPROCESSORS = 1 };
    typedef int init_fn(void), open_fn(unsigned, void **), clock_fn(void *, int, unsigned *);
    static bool tried;
    static clock_fn *clock_of;
    static void *card;
    unsigned clock = 0;
    if (!tried) {
        void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        init_fn *init = lib ? (init_fn *)dlsym(lib, "nvmlInit_v2") : NULL;
        open_fn *open = lib ? (open_fn *)dlsym(lib, "nvmlDeviceGetHandleByIndex_v2") : NULL;
        if (init && open && init() == 0 && open(0, &card) == 0) {
            clock_of = (clock_fn *)dlsym(lib, "nvmlDeviceGetClockInfo");
        }
        tried = true;
    }
    return clock_of && clock_of(card, MULTIPROCESSORS, &clock) == 0 ? clock : 0;
}

/* Waits for a run that has been queued, and notes the clock it goes at. */
static void finish_run(int run) {
    unsigned now = clock_now();
    megahertz = run == 0 || now < megahertz ? now : megahertz;
    wait_for_all();
}

double per_call(call_fn *f, void *user, int cycle) {
    int calls = cycle;
    double times[5], start;
    for (int i = 0; i < cycle; i++) {
        f(user, i); /* uploads what is used for the first time */
    }
    wait_for_all();
    start = di_now();
    for (int i = 0; i < cycle; i++) {
        f(user, i);
    }
    wait_for_all();
    double once = (di_now() - start) / cycle;
    while (calls * once < 0.02) {
        calls += cycle;
    }
    for (int r = 0; r < 5; r++) {
        start = di_now();
        for (int i = 0; i < calls; i++) {
            f(user, i % cycle);
        }
        finish_run(r);
        times[r] = (di_now() - start) / calls;
    }
    qsort(times, 5, sizeof *times, by_size);
    return times[2];
}

double per_recorded_call(call_fn *f, void *user, int cycle) {
    const di_queue_ops *queue = be->ops->queue;
    double once = per_call(f, user, cycle), times[5], start;
    di_error err;
    if (!queue->record(be)) {
        return once; /* DI_CUDA_SYNC: nothing is */
    }
    for (int i = 0; i < cycle; i++) {
        f(user, i);
    }
    di_program *program = queue->recorded(be, &err);
    if (!program) {
        give_up(err.message);
    }
    int replays = (int)(0.02 / (once * cycle)) + 1;
    for (int r = 0; r < 5; r++) {
        start = di_now();
        for (int i = 0; i < replays; i++) {
            if (!queue->replay(be, program)) {
                give_up("scratch memory has moved since the recording");
            }
        }
        finish_run(r);
        times[r] = (di_now() - start) / replays / cycle;
    }
    queue->program_free(be, program);
    qsort(times, 5, sizeof *times, by_size);
    return times[2];
}

bool wanted(const char *name) {
    return !only || strstr(name, only);
}

void tell(const char *name, double seconds, double bytes, double flops) {
    printf("%-44s %10.1f us %8.1f GB/s %5.1f %% %8.1f TFLOP/s", name, 1e6 * seconds,
           bytes / seconds * 1e-9, 100 * bytes / seconds / ceiling, flops / seconds * 1e-12);
    if (megahertz > 0) {
        printf(" %6u MHz", megahertz);
    }
    putchar('\n');
    fflush(stdout);
}

typedef struct reading {
    void *buffer;
    size_t bytes;
} reading;

static void do_nothing(void *user, int i) {
    (void)user;
    (void)i;
    di_cuda_read_all(be, NULL, 0);
}

static void read_once(void *user, int i) {
    const reading *r = user;
    (void)i;
    di_cuda_read_all(be, r->buffer, r->bytes);
}

static void measure_ceiling(void) {
    reading r = {.bytes = (size_t)4 << 30};
    r.buffer = device(r.bytes);
    ceiling = (double)r.bytes / per_call(read_once, &r, 1);
    printf("reading memory: %.0f GB/s\n", ceiling * 1e-9);
    printf("a recorded launch of nothing: %.2f us\n",
           1e6 * per_recorded_call(do_nothing, NULL, 100));
    be->ops->free(be, r.buffer);
}

bool card_open(int argc, char **argv) {
    di_error err;
    char found[512];
    only = argc > 1 ? argv[1] : NULL;
    only_rows = argc > 2 ? atoi(argv[2]) : 0;
    di_cuda_describe(found, sizeof found);
    be = di_cuda_create(0, &err);
    if (!be) {
        printf("skip: %s\n", err.message);
        return false;
    }
    printf("%s\n", found);
    measure_ceiling();
    return true;
}

void card_close(void) {
    be->ops->destroy(be);
}
