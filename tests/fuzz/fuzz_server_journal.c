/* Any lines as a journal of quotas: refused with the line, or opened to counters that are the same
 * when it is opened again. Checksums would keep a fuzzer out: a line that begins with '!' is taken
 * without it and given the right sum. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/log.h"
#include "server/quota.h"
#include "server/quota_journal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static void put_line(di_buffer *out, const char *line, size_t size, bool ended) {
    if (size > 0 && line[0] == '!') {
        char sum[20];
        snprintf(sum, sizeof sum, " %016" PRIx64, (uint64_t)XXH3_64bits(line + 1, size - 1));
        require(di_buffer_append(out, line + 1, size - 1, NULL) &&
                di_buffer_append_text(out, sum, NULL));
    } else {
        require(size == 0 || di_buffer_append(out, line, size, NULL));
    }
    require(!ended || di_buffer_append(out, "\n", 1, NULL));
}

static void write_journal(const uint8_t *data, size_t size, di_buffer *out) {
    const char *text = (const char *)data;
    for (size_t at = 0; at < size;) {
        const char *newline = memchr(text + at, '\n', size - at);
        size_t length = newline ? (size_t)(newline - text) - at : size - at;
        put_line(out, text + at, length, newline != NULL);
        at += length + 1;
    }
}

static int64_t wall(void *user) {
    (void)user;
    return (int64_t)20000 * 86400;
}

static di_quota *open_again(const char *path, di_error *err) {
    di_quota_options options = {.journal = path, .flush_seconds = -1, .clock.wall = wall};
    return di_quota_open(&options, err);
}

static di_quota_status status_of(di_quota *q) {
    const di_key key = {.id = "a"};
    di_quota_status s;
    di_quota_get_status(q, &key, &s);
    s.day_ends = 0;
    require(s.day_requests >= 0 && s.day_input_tokens >= 0 && s.day_output_tokens >= 0);
    require(s.day_reserved == 0 && s.running == 0);
    return s;
}

static bool same_bucket(di_quota_bucket a, di_quota_bucket b) {
    return a.limit == b.limit && a.remaining == b.remaining && a.reset_seconds == b.reset_seconds;
}

static bool same_status(const di_quota_status *a, const di_quota_status *b) {
    return same_bucket(a->requests, b->requests) && same_bucket(a->input_tokens, b->input_tokens) &&
           same_bucket(a->output_tokens, b->output_tokens) && a->day_requests == b->day_requests &&
           a->day_input_tokens == b->day_input_tokens &&
           a->day_output_tokens == b->day_output_tokens && a->day_reserved == b->day_reserved &&
           a->running == b->running && a->day_ends == b->day_ends;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    di_log_set_level(DI_LOG_ERROR);
    di_buffer text = {0};
    write_journal(data, size, &text);
    int fd = memfd_create("journal", MFD_CLOEXEC);
    require(fd >= 0);
    require(text.size == 0 || write(fd, text.data, text.size) == (ssize_t)text.size);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    di_error err = {0};
    di_quota *q = open_again(path, &err);
    if (q) {
        di_quota_status before = status_of(q);
        di_quota_close(q);
        q = open_again(path, NULL);
        require(q != NULL);
        di_quota_status after = status_of(q);
        require(same_status(&before, &after));
        di_quota_close(q);
    } else {
        require(err.code == DI_ERR_FORMAT);
    }
    close(fd);
    di_buffer_free(&text);
    return 0;
}
