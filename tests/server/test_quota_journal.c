/* The journal of quotas: what it keeps through restarts, kill -9, torn ends, damage and full disks.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "server/quota.h"
#include "server/quota_journal.h"
#include "support/cmocka.h"
#include "support/model_files.h"

static int64_t fixed_wall(void *user) {
    return *(int64_t *)user;
}

enum { DAY = 86400 };
static int64_t noon = (int64_t)20000 * DAY + DAY / 2;

static di_quota *try_open(const char *path, double flush_seconds, int64_t compact, di_error *err) {
    di_quota_options options = {.journal = path,
                                .flush_seconds = flush_seconds,
                                .compact_bytes = compact,
                                .clock = {NULL, fixed_wall, &noon}};
    return di_quota_open(&options, err);
}

static di_quota *open_quota(const char *path) {
    di_error err = {0};
    di_quota *q = try_open(path, -1, 0, &err);
    if (!q) {
        fail_msg("%s", err.message);
    }
    return q;
}

static di_quota_ticket *come(di_quota *q, const di_key *key, int64_t input) {
    di_quota_refusal why = {0};
    int64_t granted;
    di_quota_ticket *t = di_quota_enter(q, key, &why);
    if (!t || !di_quota_reserve(q, t, input, 100, 100, &granted, &why)) {
        fail_msg("%s", why.message);
    }
    return t;
}

static void ask(di_quota *q, const di_key *key, int64_t input, int64_t output) {
    di_quota_leave(q, come(q, key, input), input, output);
}

static void expect(di_quota *q, const di_key *key, int64_t requests, int64_t input,
                   int64_t output) {
    di_quota_status s;
    di_quota_get_status(q, key, &s);
    assert_int_equal(s.day_requests, requests);
    assert_int_equal(s.day_input_tokens, input);
    assert_int_equal(s.day_output_tokens, output);
}

static const di_key alice = {.id = "alice"}, bob = {.id = "bob"};
static const di_key metered = {.id = "metered", .limits.tokens_per_day = 1000000};

/* ---- restarts ---------------------------------------------------------------------------------*/

static void test_counters_survive_a_restart(void **state) {
    (void)state;
    char *folder = files_folder();
    const char *path = files_path(folder, "quota");
    for (int round = 1; round <= 3; round++) {
        di_quota *q = open_quota(path);
        ask(q, &alice, 10, 20);
        ask(q, &bob, 1, 2);
        di_quota_ticket *t = di_quota_enter(q, &bob, NULL); /* refused for its body, say */
        di_quota_leave(q, t, 0, 0);
        expect(q, &alice, round, round * 10, round * 20);
        di_quota_close(q);
    }
    di_quota *q = open_quota(path);
    expect(q, &alice, 3, 30, 60);
    expect(q, &bob, 6, 3, 6);
    noon += DAY;
    expect(q, &bob, 0, 0, 0);
    ask(q, &bob, 5, 5);
    di_quota_close(q);
    q = open_quota(path);
    expect(q, &alice, 0, 0, 0);
    expect(q, &bob, 1, 5, 5);
    di_quota_close(q);
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);
    files_remove(folder);
}

static void test_what_was_under_way_is_charged_as_far_as_it_is_known(void **state) {
    (void)state;
    char *folder = files_folder();
    const char *path = files_path(folder, "quota"), *copy = files_path(folder, "copy");
    di_quota *q = open_quota(path);
    di_quota_ticket *a = come(q, &alice, 10), *b = come(q, &alice, 100);
    di_quota_ticket *none = di_quota_enter(q, &alice, NULL);
    di_quota_progress(a, 7);
    assert_true(di_quota_flush(q, NULL));
    di_quota_progress(a, 9);
    size_t size;
    void *bytes = files_read(path, &size);
    files_write(folder, "copy", bytes, size); /* as a killed process leaves it */
    free(bytes);
    di_quota *after = open_quota(copy);
    expect(after, &alice, 2, 110, 7);
    di_quota_close(after);
    after = open_quota(copy); /* and only once */
    expect(after, &alice, 2, 110, 7);
    di_quota_close(after);
    di_quota_leave(q, a, 10, 12);
    di_quota_leave(q, b, 0, 0);
    di_quota_leave(q, none, 0, 0);
    di_quota_close(q);
    q = open_quota(path);
    expect(q, &alice, 3, 10, 12);
    di_quota_close(q);
    files_remove(folder);
}

static void test_compaction_keeps_sums_and_what_is_under_way(void **state) {
    (void)state;
    char *folder = files_folder();
    const char *path = files_path(folder, "quota");
    di_quota *q = try_open(path, -1, 4096, NULL);
    assert_non_null(q);
    di_quota_ticket *open = come(q, &bob, 50), *entered = di_quota_enter(q, &bob, NULL);
    int64_t most = 0;
    for (int i = 0; i < 1000; i++) {
        ask(q, &alice, 1, 2);
        di_quota_progress(open, i);
        assert_true(di_quota_flush(q, NULL));
        struct stat s;
        assert_int_equal(stat(path, &s), 0);
        most = s.st_size > most ? s.st_size : most;
    }
    assert_in_range(most, 4096, 16384);
    di_quota_leave(q, open, 50, 1000);
    di_quota_leave(q, entered, 0, 0);
    expect(q, &alice, 1000, 1000, 2000);
    di_quota_close(q);
    q = open_quota(path);
    expect(q, &alice, 1000, 1000, 2000);
    expect(q, &bob, 2, 50, 1000);
    di_quota_close(q);
    files_remove(folder);
}

static void test_two_processes_cannot_share_a_journal(void **state) {
    (void)state;
    char *folder = files_folder();
    const char *path = files_path(folder, "quota");
    di_error err = {0};
    di_quota *q = open_quota(path);
    assert_null(try_open(path, -1, 0, &err));
    assert_int_equal(err.code, DI_ERR_BUSY);
    di_quota_close(q);
    q = open_quota(path);
    ask(q, &alice, 7, 8); /* but may look into it */
    di_quota_options look = {
        .journal = path, .read_only = true, .clock = {NULL, fixed_wall, &noon}};
    size_t size, again;
    void *before = files_read(path, &size);
    di_quota *reader = di_quota_open(&look, &err);
    assert_non_null(reader);
    expect(reader, &alice, 1, 7, 8);
    di_quota_close(reader);
    void *after = files_read(path, &again);
    assert_true(size == again && memcmp(before, after, size) == 0);
    free(before);
    free(after);
    di_quota_close(q);
    assert_null(try_open(files_path(folder, "no/such"), -1, 0, &err));
    assert_int_equal(err.code, DI_ERR_IO);
    assert_null(try_open(folder, -1, 0, &err));
    assert_int_equal(mkfifo(files_path(folder, "pipe"), 0600), 0);
    assert_null(try_open(files_path(folder, "pipe"), -1, 0, &err));
    files_remove(folder);
}

/* ---- damage -----------------------------------------------------------------------------------*/

/* A journal of `n` requests of alice (1 in, 2 out) and its text. */
static char *make_journal(const char *folder, int n, size_t *size) {
    di_quota *q = open_quota(files_path(folder, "quota"));
    for (int i = 0; i < n; i++) {
        ask(q, &alice, 1, 2);
    }
    di_quota_close(q);
    return files_read(files_path(folder, "quota"), size);
}

static void test_a_torn_end_is_cut_wherever_it_is_torn(void **state) {
    (void)state;
    di_log_set_level(DI_LOG_ERROR);
    char *folder = files_folder();
    size_t size;
    char *text = make_journal(folder, 4, &size);
    const char *path = files_path(folder, "torn");
    for (size_t cut = 0; cut <= size; cut++) {
        for (int zeros = 0; zeros < 2; zeros++) { /* a power failure may leave zeros */
            char *torn = calloc(1, cut + 100);
            memcpy(torn, text, cut);
            files_write(folder, "torn", torn, cut + (zeros ? 100 : 0));
            free(torn);
            int lines = 0; /* after the first: two a request, begun and ended */
            for (size_t i = 0; i < cut; i++) {
                lines += text[i] == '\n';
            }
            lines = lines > 0 ? lines - 1 : 0;
            int begun = (lines + 1) / 2, ended = lines / 2;
            di_quota *q = open_quota(path);
            expect(q, &alice, begun, begun, 2 * (int64_t)ended);
            ask(q, &alice, 1, 2);
            di_quota_close(q);
            q = open_quota(path);
            expect(q, &alice, begun + 1, begun + 1, 2 * (int64_t)ended + 2);
            di_quota_close(q);
        }
    }
    free(text);
    di_log_set_level(DI_LOG_WARN);
    files_remove(folder);
}

static void test_every_bit_that_flips_is_seen(void **state) {
    (void)state;
    di_log_set_level(DI_LOG_ERROR);
    char *folder = files_folder();
    size_t size;
    char *text = make_journal(folder, 3, &size);
    size_t last = size - 1;
    while (text[last - 1] != '\n') {
        last--;
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        di_error err = {0};
        text[bit / 8] ^= (char)(1 << bit % 8);
        files_write(folder, "flipped", text, size);
        di_quota *q = try_open(files_path(folder, "flipped"), -1, 0, &err);
        text[bit / 8] ^= (char)(1 << bit % 8);
        if (bit / 8 + 1 >= last) { /* the last line, or the end of the one before, counts as torn */
            assert_non_null(q);
            int64_t begun = bit / 8 >= last ? 3 : 2;
            expect(q, &alice, begun, begun, 4);
            di_quota_close(q);
        } else {
            if (q || err.code != DI_ERR_FORMAT || !strstr(err.message, "line ")) {
                fail_msg("bit %zu: %s", bit, q ? "not seen" : err.message);
            }
        }
    }
    free(text);
    di_log_set_level(DI_LOG_WARN);
    files_remove(folder);
}

static void test_what_is_no_journal_is_not_touched(void **state) {
    (void)state;
    char *folder = files_folder();
    static const char *const texts[] = {"hello\n", "{\"id\": \"alice\"}\n", "d", "\n",
                                        "deepinfer-quota 2 0000000000000000\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts - 1; i++) {
        di_error err = {0};
        files_write_text(folder, "other", texts[i]);
        di_quota *q = try_open(files_path(folder, "other"), -1, 0, &err);
        if (i == 2) { /* may be the beginning of a first line */
            assert_non_null(q);
            di_quota_close(q);
            continue;
        }
        assert_null(q);
        assert_int_equal(err.code, DI_ERR_FORMAT);
        size_t size;
        char *same = files_read(files_path(folder, "other"), &size);
        assert_int_equal(size, strlen(texts[i]));
        assert_memory_equal(same, texts[i], size);
        free(same);
    }
    files_remove(folder);
}

static void test_a_journal_of_days_to_come_is_refused(void **state) {
    (void)state;
    char *folder = files_folder();
    const char *path = files_path(folder, "quota");
    di_quota *q = open_quota(path);
    ask(q, &alice, 1, 1);
    di_quota_close(q);
    di_error err = {0};
    noon -= 3 * DAY;
    assert_null(try_open(path, -1, 0, &err));
    assert_non_null(strstr(err.message, "set the clock"));
    noon += 3 * DAY;
    files_remove(folder);
}

/* ---- full disks -------------------------------------------------------------------------------*/

/* No file may grow beyond so many bytes; 0: as long as it likes. */
static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_a_full_disk_refuses_metered_keys_until_it_can_be_written(void **state) {
    (void)state;
    char *folder = files_folder();
    const char *path = files_path(folder, "quota");
    struct stat s;
    signal(SIGXFSZ, SIG_IGN);
    di_log_set_level(DI_LOG_ERROR);
    for (rlim_t room = 0; room < 60; room += 7) {
        di_quota *q = open_quota(path);
        ask(q, &metered, 1, 2);
        di_quota_ticket *under_way = come(q, &metered, 10);
        assert_int_equal(stat(path, &s), 0);
        limit_files((rlim_t)s.st_size + room);
        di_quota_refusal why = {0};
        di_quota_ticket *t = NULL;
        int64_t granted;
        int accepted = 0; /* as many as there was room for */
        while ((t = di_quota_enter(q, &metered, &why)) &&
               di_quota_reserve(q, t, 1, 1, 1, &granted, &why)) {
            accepted++;
            di_quota_leave(q, t, 1, 1);
            assert_true(accepted < 3);
        }
        di_quota_leave(q, t, 0, 0);
        int tried = t != NULL;
        assert_int_equal(why.status, 503);
        assert_int_equal(why.reason, DI_QUOTA_JOURNAL);
        assert_null(di_quota_enter(q, &metered, &why));
        assert_false(di_quota_healthy(q, NULL));
        di_quota_ticket *free_one = come(q, &alice, 3); /* nothing to keep count of */
        di_quota_leave(q, free_one, 3, 3);
        di_quota_leave(q, under_way, 10, 20);
        limit_files(1); /* no room at all, not even for a new file */
        di_error err = {0};
        assert_false(di_quota_flush(q, &err));
        assert_int_equal(err.code, DI_ERR_IO);
        limit_files(0);
        assert_true(di_quota_flush(q, &err));
        assert_true(di_quota_healthy(q, NULL));
        ask(q, &metered, 1, 2);
        di_quota_status now;
        di_quota_get_status(q, &metered, &now);
        di_quota_close(q);
        q = open_quota(path);
        expect(q, &metered, now.day_requests, now.day_input_tokens, now.day_output_tokens);
        assert_int_equal(now.day_requests % 1000, 3 + accepted + tried);
        expect(q, &alice, 1, 3, 3);
        di_quota_close(q);
        assert_int_equal(unlink(path), 0);
    }
    di_log_set_level(DI_LOG_WARN);
    files_remove(folder);
}

/* ---- kill -9 ----------------------------------------------------------------------------------*/

enum { THREADS = 4, ROUNDS = 25 };

/* In memory that the parent reads after the child's death: what each thread's key has used. A
 * thread writes it right behind each call, so the journal may be one request ahead. */
typedef struct truth {
    atomic_llong requests, input, output;
    atomic_llong ahead_input, ahead_output; /* of the request under way */
} truth;

typedef struct worker {
    di_quota *q;
    truth *truth;
    di_key key;
} worker;

static void *work(void *arg) {
    worker *w = arg;
    for (unsigned i = 0;; i++) {
        int64_t input = i * 7 % 13, output = i * 11 % 30;
        atomic_store(&w->truth->ahead_input, input);
        atomic_store(&w->truth->ahead_output, output);
        di_quota_ticket *t = come(w->q, &w->key, input);
        for (int64_t so_far = 0; so_far < output; so_far++) {
            di_quota_progress(t, so_far);
        }
        di_quota_leave(w->q, t, input, output);
        atomic_fetch_add(&w->truth->requests, 1);
        atomic_fetch_add(&w->truth->input, input);
        atomic_fetch_add(&w->truth->output, output);
    }
    return NULL;
}

static void child(const char *path, truth *truths) {
    worker workers[THREADS];
    pthread_t threads[THREADS];
    di_quota *q = try_open(path, 0.001, 2000, NULL); /* compacts without pause */
    for (int i = 0; q && i < THREADS; i++) {
        workers[i] = (worker){q, &truths[i], {.id = ""}};
        snprintf(workers[i].key.id, sizeof workers[i].key.id, "key-%d", i);
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    pause();
}

static void test_kill_9_leaves_counters_within_one_request(void **state) {
    (void)state;
    char *folder = files_folder();
    const char *path = files_path(folder, "quota");
    truth *truths = mmap(NULL, THREADS * sizeof *truths, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(truths != MAP_FAILED);
    int64_t total = 0, off = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            child(path, truths);
            _exit(1);
        }
        usleep(20000 + (useconds_t)round * 1237);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        di_quota *q = open_quota(path);
        total = 0;
        for (int i = 0; i < THREADS; i++) {
            di_key key = {.id = ""};
            snprintf(key.id, sizeof key.id, "key-%d", i);
            di_quota_status s;
            di_quota_get_status(q, &key, &s);
            truth *t = &truths[i];
            int64_t requests = s.day_requests - atomic_load(&t->requests);
            int64_t input = s.day_input_tokens - atomic_load(&t->input);
            int64_t output = s.day_output_tokens - atomic_load(&t->output);
            assert_in_range(requests, 0, 1);
            assert_in_range(input, 0, atomic_load(&t->ahead_input));
            assert_in_range(output, 0, atomic_load(&t->ahead_output));
            /* What the journal has counts from now on. */
            atomic_store(&t->requests, s.day_requests);
            atomic_store(&t->input, s.day_input_tokens);
            atomic_store(&t->output, s.day_output_tokens);
            total += s.day_requests;
            off += requests;
        }
        di_quota_close(q);
    }
    print_message("# %d kills, %lld requests, %lld of them killed under way\n", ROUNDS,
                  (long long)total, (long long)off);
    assert_true(total > 100);
    munmap(truths, THREADS * sizeof *truths);
    unlink(files_path(folder, "quota.new"));
    files_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counters_survive_a_restart),
        cmocka_unit_test(test_what_was_under_way_is_charged_as_far_as_it_is_known),
        cmocka_unit_test(test_compaction_keeps_sums_and_what_is_under_way),
        cmocka_unit_test(test_two_processes_cannot_share_a_journal),
        cmocka_unit_test(test_a_torn_end_is_cut_wherever_it_is_torn),
        cmocka_unit_test(test_every_bit_that_flips_is_seen),
        cmocka_unit_test(test_what_is_no_journal_is_not_touched),
        cmocka_unit_test(test_a_journal_of_days_to_come_is_refused),
        cmocka_unit_test(test_a_full_disk_refuses_metered_keys_until_it_can_be_written),
        cmocka_unit_test(test_kill_9_leaves_counters_within_one_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
