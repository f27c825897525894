/* The journal under quota.c: records as lines of text with checksums, appended, replayed, replaced.
 *
 *     deepinfer-quota 1                      SUM    the first line
 *     T DAY ID REQUESTS INPUT OUTPUT         SUM    so much more was used
 *     A TICKET DAY ID INPUT                  SUM    a request with so many tokens has begun
 *     P TICKET OUTPUT                        SUM    it has generated so many so far
 *     E TICKET INPUT OUTPUT                  SUM    it has ended and used so many
 *
 * DAY is days since 1970 in UTC; SUM is XXH3 (64 bits, hexadecimal) of the line before the blank in
 * front of it. Not for several threads: quota.c holds its lock. */
#ifndef DI_SERVER_QUOTA_JOURNAL_H
#define DI_SERVER_QUOTA_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buffer.h"
#include "base/error.h"
#include "server/keys.h"

typedef struct di_quota_record {
    char kind; /* 'T', 'A', 'P' or 'E'; what a kind does not have is 0 */
    uint64_t ticket;
    int64_t day;
    char id[DI_KEY_ID_BYTES + 1];
    int64_t requests, input, output;
} di_quota_record;

typedef struct di_journal {
    char *path;
    int fd;
    int64_t size; /* of what is whole */
} di_journal;

/* Called for each record in order; false with *err ends the reading. */
typedef bool (*di_quota_record_fn)(void *user, const di_quota_record *record, di_error *err);

/* Opens or makes (mode 0600) the journal, takes its lock, replays it and cuts a torn end off.
 * False with DI_ERR_BUSY when another process has it, DI_ERR_FORMAT naming the line, _IO or
 * _NO_MEMORY. */
bool di_journal_open(di_journal *j, const char *path, di_quota_record_fn replay, void *user,
                     di_error *err);
void di_journal_close(di_journal *j);

/* Appends lines that di_quota_record_line made. On failure nothing of them stays. */
bool di_journal_append(di_journal *j, const char *lines, size_t size, di_error *err);
bool di_journal_sync(const di_journal *j, di_error *err);

/* A new file beside it with the first line and `lines`, synced and locked, not yet in its place:
 * may run without quota.c's lock while others append to the journal. */
bool di_journal_prepare(const di_journal *j, const char *lines, size_t size, di_journal *fresh,
                        di_error *err);

/* Adds to `fresh` what was appended to `j` from byte `from` on, and puts it in the place of `j`. On
 * failure `j` goes on, and `fresh` is gone. */
bool di_journal_replace(di_journal *j, int64_t from, di_journal *fresh, di_error *err);

/* So that the new name survives a power failure; where folders cannot be synced, it does not. Waits
 * for the disk. */
void di_journal_sync_name(const di_journal *j);

/* Takes a prepared file away again. */
void di_journal_discard(di_journal *fresh);

bool di_quota_record_line(const di_quota_record *record, di_buffer *out, di_error *err);

/* What di_journal_open does with a file's text: replays it, and *whole is where the torn end
 * begins. For fuzzers too. */
bool di_journal_replay(const char *text, size_t size, const char *name, di_quota_record_fn replay,
                       void *user, size_t *whole, di_error *err);

#endif
