/* The CUDA backend itself: the choice of a card, buffers, faults. Ops are in ops.c, memory behind
 * them in memory.c. */
#include "ops/cuda/card/card.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/version.h"
#include "ops/cuda/card/ops.h"
#include "ops/cuda/card/part.h"
#include "ops/cuda/card/queue.h"

/* ---- faults -----------------------------------------------------------------------------------*/

bool di_card_check(di_card *c, cudaError_t result) {
    if (result == cudaSuccess) {
        return true;
    }
    if (!c->fault_op) {
        c->fault_op = c->op ? c->op : "a copy";
        c->fault = result;
    }
    cudaGetLastError();
    return false;
}

bool di_card_short(di_card *c, size_t bytes) {
    if (!c->fault_op) {
        c->fault_op = c->op ? c->op : "a copy";
        c->fault = cudaErrorMemoryAllocation;
        c->no_memory = bytes;
    }
    return false;
}

bool di_card_enter(di_card *c, const char *op) {
    if (c->fault_op) {
        return false;
    }
    c->op = op;
    if (!di_card_check(c, cudaSetDevice(c->device))) {
        return false;
    }
    if (c->trap && strcmp(c->trap, op) == 0) {
        dk_trap(c->stream);
    }
    return true;
}

void di_card_waits(di_card *c, const char *why) {
    if (c->guard && c->in_step && !c->fault_op) {
        c->fault_op = why;
        c->waited = true;
    }
}

void di_card_leave(di_card *c) {
    di_card_check(c, cudaGetLastError());
    if (c->watch) {
        di_card_check(c, cudaStreamSynchronize(c->stream));
    }
}

/* Errors behind which a process gets nothing else from its card, as CUDA's manual says of each. */
static bool is_lost(cudaError_t fault) {
    switch (fault) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorContained:
        return true;
    default:
        return false;
    }
}

bool di_card_report(di_card *c, di_error *err) {
    if (!c->fault_op) {
        return true;
    }
    const char *op = c->fault_op;
    cudaError_t fault = c->fault;
    size_t bytes = c->no_memory;
    bool waited = c->waited;
    c->fault_op = NULL;
    c->no_memory = 0;
    c->waited = false;
    if (waited) {
        return di_fail(err, DI_ERR_INTERNAL, "cuda:%d: %s made the host wait inside a step",
                       c->device, op);
    }
    if (fault == cudaErrorMemoryAllocation && bytes == 0) { /* the driver's own needs */
        return di_fail(err, DI_ERR_NO_MEMORY, "cuda:%d: %s: its memory is full", c->device, op);
    }
    if (fault == cudaErrorMemoryAllocation) {
        return di_fail(err, DI_ERR_NO_MEMORY,
                       "cuda:%d: %s: no memory for %zu bytes more; beside state and activations "
                       "%zu bytes are taken, %zu of them by weights",
                       c->device, op, bytes, c->bytes, c->weight_bytes);
    }
    return di_fail(err, is_lost(fault) ? DI_ERR_DEVICE : DI_ERR_INTERNAL, "cuda:%d: %s: %s%s",
                   c->device, op, cudaGetErrorString(fault),
                   c->watch ? "" : " (DI_CUDA_SYNC=1 names the operation for certain)");
}

static bool synchronise(di_backend *be, di_error *err) {
    di_card *c = di_card_of(be);
    if (di_card_enter(c, "sync")) {
        di_card_waits(c, "sync");
        di_card_check(c, cudaStreamSynchronize(c->stream));
    }
    return di_card_report(c, err);
}

/* ---- buffers ----------------------------------------------------------------------------------*/

/* cudaMalloc aligns to 256 bytes and more. Failure is the caller's to report. */
static void *buffer_alloc(di_backend *be, size_t bytes) {
    di_card *c = di_card_of(be);
    void *p = NULL;
    if (cudaSetDevice(c->device) != cudaSuccess ||
        cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    return p;
}

static void buffer_free(di_backend *be, void *buffer) {
    di_card *c = di_card_of(be);
    cudaSetDevice(c->device);
    cudaFree(buffer);
}

static void upload(di_backend *be, void *to, const void *from_host, size_t bytes) {
    di_card *c = di_card_of(be);
    if (bytes && di_card_enter(c, "upload")) {
        di_card_upload(c, to, from_host, bytes);
        di_card_leave(c);
    }
}

static void download(di_backend *be, void *to_host, const void *from, size_t bytes) {
    di_card *c = di_card_of(be);
    if (bytes && di_card_enter(c, "download")) {
        di_card_waits(c, "download");
        di_card_check(c, cudaMemcpyAsync(to_host, from, bytes, cudaMemcpyDeviceToHost, c->stream));
        di_card_leave(c);
    }
}

static void copy(di_backend *be, void *to, const void *from, size_t bytes) {
    di_card *c = di_card_of(be);
    if (bytes && di_card_enter(c, "copy")) {
        di_card_check(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->stream));
        di_card_leave(c);
    }
}

static void destroy(di_backend *be) {
    di_card *c = di_card_of(be);
    cudaSetDevice(c->device);
    if (c->stream) {
        cudaStreamSynchronize(c->stream);
    }
    di_card_memory_destroy(c);
    di_card_marks_destroy(&c->marks);
    di_card_branches_destroy(c);
    if (c->stream) {
        cudaStreamDestroy(c->stream);
    }
    cudaGetLastError(); /* a card with a fault refuses even this */
    di_free(c);
}

/* ---- choice -----------------------------------------------------------------------------------*/

/* sm_90a and sm_100a code runs on exactly these. */
static bool usable(int major, int minor) {
    return (major == 9 || major == 10) && minor == 0;
}

static cudaError_t get_capability(int device, int *major, int *minor) {
    cudaError_t result = cudaDeviceGetAttribute(major, cudaDevAttrComputeCapabilityMajor, device);
    return result == cudaSuccess
               ? cudaDeviceGetAttribute(minor, cudaDevAttrComputeCapabilityMinor, device)
               : result;
}

static bool cannot_be_used(int device, cudaError_t why, di_error *err) {
    cudaGetLastError();
    return di_fail(err, DI_ERR_UNSUPPORTED, "cuda:%d cannot be used: %s", device,
                   cudaGetErrorString(why));
}

static bool count_cards(int *count, di_error *err) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaError_t result = cudaGetDeviceCount(count);
    cudaGetLastError();
    if (driver == 0) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "no NVIDIA driver on this machine");
    }
    if (result == cudaErrorInsufficientDriver) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "the NVIDIA driver is too old: it offers CUDA %d.%d, this build needs %d.%d",
                       driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    if (result != cudaSuccess || *count == 0) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "no NVIDIA card: %s",
                       result == cudaSuccess ? "the driver finds none"
                                             : cudaGetErrorString(result));
    }
    return true;
}

static bool check_card(int device, di_error *err) {
    int count = 0, major = 0, minor = 0;
    if (!count_cards(&count, err)) {
        return false;
    }
    if (device < 0 || device >= count) {
        return di_fail(err, DI_ERR_UNSUPPORTED, "cuda:%d: there %s %d card%s here, from cuda:0 on",
                       device, count == 1 ? "is" : "are", count, count == 1 ? "" : "s");
    }
    cudaError_t result = get_capability(device, &major, &minor);
    if (result != cudaSuccess) {
        return cannot_be_used(device, result, err);
    }
    if (!usable(major, minor)) {
        return di_fail(err, DI_ERR_UNSUPPORTED,
                       "cuda:%d has compute capability %d.%d; the kernels are for 9.0 (Hopper) and "
                       "10.0 (Blackwell)",
                       device, major, minor);
    }
    return true;
}

static bool open_card(di_card *c, di_error *err) {
    cudaError_t result = cudaSetDevice(c->device);
    if (result == cudaSuccess) {
        result = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
    }
    if (result == cudaErrorMemoryAllocation) {
        return di_fail(err, DI_ERR_NO_MEMORY, "cuda:%d: its memory is full", c->device);
    }
    if (result != cudaSuccess) {
        return cannot_be_used(c->device, result, err);
    }
    if (!di_card_marks_create(&c->marks) || !di_card_branches_create(c)) {
        return di_fail(err, DI_ERR_NO_MEMORY, "cuda:%d: no memory for streams and events",
                       c->device);
    }
    return di_card_memory_create(c, err);
}

#ifdef DI_DEBUG
static const bool guard_by_default = true;
#else
static const bool guard_by_default = false;
#endif

static bool switched_on(const char *name, bool otherwise) {
    const char *value = getenv(name);
    return value && *value ? strcmp(value, "0") != 0 : otherwise;
}

static di_backend *create(int device, di_error *err) {
    if (!check_card(device, err)) {
        return NULL;
    }
    di_card *c = di_calloc(1, sizeof *c);
    if (!c) {
        di_fail(err, DI_ERR_NO_MEMORY, "no memory for the cuda backend");
        return NULL;
    }
    c->base.ops = &di_card_ops;
    c->device = device;
    c->watch = switched_on("DI_CUDA_SYNC", false);
    c->guard = !c->watch && switched_on("DI_CUDA_GUARD", guard_by_default);
    c->host_tables = switched_on("DI_CUDA_HOST_TABLES", false);
    c->trap = getenv("DI_CUDA_TRAP");
    if (!open_card(c, err)) {
        cudaGetLastError();
        destroy(&c->base);
        return NULL;
    }
    return &c->base;
}

/* ---- the part's table -------------------------------------------------------------------------*/

static void describe(char *text, size_t size) {
    di_error err;
    int count = 0, driver = 0;
    cudaDriverGetVersion(&driver);
    if (!count_cards(&count, &err)) {
        snprintf(text, size, "%s", err.message);
        return;
    }
    int used = snprintf(text, size, "driver for CUDA %d.%d", driver / 1000, driver % 1000 / 10);
    for (int i = 0; i < count && used >= 0 && (size_t)used < size; i++) {
        struct cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) == cudaSuccess) {
            used += snprintf(text + used, size - (size_t)used, "; cuda:%d %s, %zu MiB%s", i, p.name,
                             p.totalGlobalMem >> 20,
                             usable(p.major, p.minor) ? "" : ", of no use (no kernels for it)");
        }
    }
}

static void free_order(di_backend *be, bool allowed) {
    di_card_of(be)->free_order = allowed;
}

static void forget(di_backend *be) {
    di_card *c = di_card_of(be);
    cudaSetDevice(c->device);
    di_card_forget(c);
}

static size_t bytes_taken(const di_backend *be) {
    return ((const di_card *)be)->bytes;
}

static void read_all(di_backend *be, const void *buffer, size_t bytes) {
    di_card *c = di_card_of(be);
    if (di_card_enter(c, "read_all")) {
        uint32_t *sink = di_card_scratch(c, DI_CARD_USE_LIST, 1, sizeof *sink);
        if (sink) {
            dk_read_all(c->stream, buffer, bytes, sink);
        }
        di_card_leave(c);
    }
}

__attribute__((visibility("default"))) const di_cuda_part di_cuda_part_table = {
    .size = sizeof(di_cuda_part),
    .version = di_version_string,
    .revision = di_git_revision,
    .create = create,
    .describe = describe,
    .free_order = free_order,
    .forget = forget,
    .bytes = bytes_taken,
    .read_all = read_all,
};

const di_ops di_card_ops = {
    .name = "cuda",
    .alloc = buffer_alloc,
    .free = buffer_free,
    .upload = upload,
    .download = download,
    .copy = copy,
    .sync = synchronise,
    .destroy = destroy,
    .embed = di_card_embed,
    .gather_rows = di_card_gather_rows,
    .mhc_mix = di_card_mhc_mix,
    .mhc_pre = di_card_mhc_pre,
    .mhc_post = di_card_mhc_post,
    .stream_mean = di_card_stream_mean,
    .rms_norm = di_card_rms_norm,
    .linear = di_card_linear,
    .linear_pair = di_card_linear_pair,
    .linear_f32 = di_card_linear_f32,
    .linear_add_f32 = di_card_linear_add_f32,
    .linear_grouped = di_card_linear_grouped,
    .rope_table = di_card_rope_table,
    .rope = di_card_rope,
    .window_make = di_card_window_make,
    .window_store = di_card_window_store,
    .compress = di_card_compress,
    .entry_store = di_card_entry_store,
    .index_topk = di_card_index_topk,
    .attention_keys = di_card_attention_keys,
    .attention = di_card_attention,
    .route = di_card_route,
    .moe = di_card_moe,
    .engram = di_card_engram,
    .queue = &di_card_queue_ops,
};
