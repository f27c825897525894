/* API keys: what is let in, what a key file may hold, reloading under requests. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/keys.h"
#include "support/cmocka.h"
#include "support/model_files.h"

typedef struct made_key {
    char token[DI_KEY_TOKEN_BYTES], hash[DI_KEY_TOKEN_BYTES * 2];
} made_key;

static made_key make(const char *id) {
    made_key k;
    di_error err = {0};
    if (!di_key_make(id, k.token, k.hash, &err)) {
        fail_msg("%s", err.message);
    }
    return k;
}

static const char *write_keys(const char *folder, const char *text) {
    const char *path = files_path(folder, "keys.jsonl");
    files_write_text(folder, "keys.jsonl", text);
    assert_int_equal(chmod(path, 0600), 0);
    return path;
}

static di_keys *open_keys(const char *path) {
    di_error err = {0};
    di_keys *keys = di_keys_open(path, &err);
    if (!keys) {
        fail_msg("%s", err.message);
    }
    return keys;
}

static di_key_verdict verdict_of(di_keys *keys, const char *token) {
    const di_key *key;
    di_key_verdict verdict = di_keys_admit(keys, di_str_of(token), &key);
    assert_int_equal(verdict == DI_KEY_FINE, key != NULL);
    di_key_release(keys, key);
    return verdict;
}

/* ---- admission --------------------------------------------------------------------------------*/

static void test_a_made_key_is_let_in_as_its_record(void **state) {
    (void)state;
    char *folder = files_folder(), text[2048];
    made_key a = make("alice"), b = make("b-0_.x"), b2 = make("b-0_.x");
    snprintf(text, sizeof text,
             "# keys\n\n{\"id\": \"alice\", \"hash\": \"%s\", \"priority\": 5, \"concurrency\": 3, "
             "\"models\": [\"m1\", \"m2\"], \"tokens_per_day\": 1000, \"cache\": \"shared\"}\n"
             "{\"id\": \"b-0_.x\", \"hash\": [\"%s\", \"%s\"], \"expires\": \"2999-01-01\", "
             "\"note\": \"two secrets\", \"admin\": true}",
             a.hash, b.hash, b2.hash);
    di_keys *keys = open_keys(write_keys(folder, text));
    assert_int_equal(di_keys_count(keys), 2);
    assert_true(di_keys_required(keys));

    const di_key *key;
    assert_int_equal(di_keys_admit(keys, di_str_of(a.token), &key), DI_KEY_FINE);
    assert_string_equal(key->id, "alice");
    assert_int_equal(key->line, 3);
    assert_int_equal(key->priority, 5);
    assert_int_equal(key->limits.concurrency, 3);
    assert_int_equal(key->limits.tokens_per_day, 1000);
    assert_int_equal(key->limits.requests_per_minute, 0);
    assert_true(key->shared_cache && !key->admin);
    assert_true(di_key_allows_model(key, DI_STR("m2")));
    assert_false(di_key_allows_model(key, DI_STR("m")));
    assert_false(di_key_allows_model(key, DI_STR("m22")));
    di_key_release(keys, key);

    for (int i = 0; i < 2; i++) {
        assert_int_equal(di_keys_admit(keys, di_str_of(i ? b2.token : b.token), &key), DI_KEY_FINE);
        assert_string_equal(key->id, "b-0_.x");
        assert_true(key->admin && !key->shared_cache && di_key_allows_model(key, DI_STR("any")));
        di_key_release(keys, key);
    }
    di_keys_close(keys);
    files_remove(folder);
}

static void test_another_secret_is_refused_wherever_it_differs(void **state) {
    (void)state;
    char *folder = files_folder(), text[512], token[DI_KEY_TOKEN_BYTES + 32];
    made_key a = make("alice"), b = make("bob");
    snprintf(text, sizeof text,
             "{\"id\": \"alice\", \"hash\": \"%s\"}\n{\"id\": \"bob\", \"hash\": \"%s\"}\n", a.hash,
             b.hash);
    di_keys *keys = open_keys(write_keys(folder, text));
    assert_int_equal(verdict_of(keys, a.token), DI_KEY_FINE);
    for (size_t i = 0; i < strlen(a.token); i++) { /* a letter changed, or cut off there */
        strcpy(token, a.token);
        token[i] = token[i] == 'x' ? 'y' : 'x';
        assert_int_equal(verdict_of(keys, token), DI_KEY_UNKNOWN);
        token[i] = 0;
        assert_int_equal(verdict_of(keys, token), i ? DI_KEY_UNKNOWN : DI_KEY_MISSING);
    }
    snprintf(token, sizeof token, "%sx", a.token);
    assert_int_equal(verdict_of(keys, token), DI_KEY_UNKNOWN);
    snprintf(token, sizeof token, "sk-di-bob%s", strrchr(a.token, '-')); /* alice's secret */
    assert_int_equal(verdict_of(keys, token), DI_KEY_UNKNOWN);
    snprintf(token, sizeof token, "sk-di-carol%s", strrchr(a.token, '-'));
    assert_int_equal(verdict_of(keys, token), DI_KEY_UNKNOWN);
    assert_int_equal(verdict_of(keys, strchr(a.hash, ':') + 1), DI_KEY_UNKNOWN); /* the file's */
    assert_int_equal(verdict_of(keys, "sk-di-alice-"), DI_KEY_UNKNOWN);
    assert_int_equal(verdict_of(keys, ""), DI_KEY_MISSING);
    const di_key *key;
    char nul[] = "sk-di-alice-\0";
    assert_int_equal(di_keys_admit(keys, (di_str){nul, sizeof nul}, &key), DI_KEY_UNKNOWN);
    di_keys_close(keys);
    files_remove(folder);
}

static void test_disabled_and_expired_keys_are_refused_for_who_has_them(void **state) {
    (void)state;
    char *folder = files_folder(), text[1024];
    made_key a = make("off"), b = make("old");
    snprintf(text, sizeof text,
             "{\"id\": \"off\", \"hash\": \"%s\", \"disabled\": true}\n{\"id\": \"old\", \"hash\": "
             "\"%s\", \"expires\": \"2020-02-29T23:59:59Z\"}\n",
             a.hash, b.hash);
    di_keys *keys = open_keys(write_keys(folder, text));
    assert_int_equal(verdict_of(keys, a.token), DI_KEY_DISABLED);
    assert_int_equal(verdict_of(keys, b.token), DI_KEY_EXPIRED);
    a.token[strlen(a.token) - 1] ^= 1;
    assert_int_equal(verdict_of(keys, a.token), DI_KEY_UNKNOWN);
    di_keys_close(keys);
    files_remove(folder);
}

static void test_without_a_file_everybody_is_anonymous(void **state) {
    (void)state;
    di_keys *keys = open_keys(NULL);
    const di_key *key;
    assert_false(di_keys_required(keys));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(di_keys_admit(keys, di_str_of(i ? "sk-whatever" : ""), &key), DI_KEY_FINE);
        assert_string_equal(key->id, "anonymous");
        assert_true(di_key_allows_model(key, DI_STR("m")));
        char salt[DI_KEY_CACHE_SALT_BYTES];
        assert_null(di_key_cache_salt(key, (di_str){0}, salt));
        di_key_release(keys, key);
    }
    assert_true(di_keys_reload(keys, NULL, NULL));
    di_keys_close(keys);
}

static void test_secrets_are_drawn_anew_and_never_kept(void **state) {
    (void)state;
    made_key a = make("alice"), b = make("alice");
    assert_string_not_equal(a.token, b.token);
    assert_string_not_equal(a.hash, b.hash);
    assert_int_equal(strlen(a.token), strlen("sk-di-alice-") + DI_KEY_SECRET_BYTES);
    assert_null(strstr(a.hash, strrchr(a.token, '-') + 1));
    di_error err = {0};
    static const char *const bad[] = {
        "", "Alice", "-a", "a b", "a/b", "a:b", "\xc3\xa4", "a23456789012345678901234567890123"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(di_key_make(bad[i], a.token, a.hash, &err));
        assert_int_equal(err.code, DI_ERR_ARGUMENT);
    }
}

/* A comparison that stops at the first difference, or a look-up that hashes for known ids only,
 * would show as a longer time; medians of interleaved calls, so that load hits both alike. */
static void test_time_tells_neither_place_of_difference_nor_id(void **state) {
    (void)state;
    enum { KINDS = 4, ROUNDS = 4001 };
    char *folder = files_folder(), text[512], tokens[KINDS][DI_KEY_TOKEN_BYTES];
    made_key a = make("alice");
    snprintf(text, sizeof text, "{\"id\": \"alice\", \"hash\": \"%s\"}\n", a.hash);
    di_keys *keys = open_keys(write_keys(folder, text));
    for (int i = 0; i < KINDS; i++) {
        strcpy(tokens[i], a.token);
    }
    tokens[1][strlen("sk-di-alice-")] ^= 1;     /* the first letter of the secret */
    tokens[2][strlen(a.token) - 1] ^= 1;        /* its last */
    tokens[3][strlen("sk-di-alice-") - 2] ^= 1; /* an id that is not there */
    static double times[KINDS][ROUNDS];
    for (int r = 0; r < ROUNDS; r++) {
        for (int k = 0; k < KINDS; k++) {
            const di_key *key;
            double begin = di_now();
            for (int j = 0; j < 8; j++) {
                di_keys_admit(keys, di_str_of(tokens[k]), &key);
                di_key_release(keys, key);
            }
            times[k][r] = di_now() - begin;
        }
    }
    double middle[KINDS];
    for (int k = 0; k < KINDS; k++) {
        for (int i = 1; i < ROUNDS; i++) { /* insertion is enough for the lowest half */
            double t = times[k][i];
            int j = i;
            for (; j > 0 && times[k][j - 1] > t; j--) {
                times[k][j] = times[k][j - 1];
            }
            times[k][j] = t;
        }
        middle[k] = times[k][ROUNDS / 4];
        print_message("# kind %d: %.0f ns\n", k, middle[k] * 1e9 / 8);
    }
    for (int k = 2; k < KINDS; k++) {
        assert_true(middle[k] > 0.85 * middle[1] && middle[k] < 1.15 * middle[1]);
    }
    di_keys_close(keys);
    files_remove(folder);
}

/* ---- faults -----------------------------------------------------------------------------------*/

#define HASH                                                                                       \
    "\"blake2b:00112233445566778899aabbccddeeff:"                                                  \
    "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\""
#define KEY(rest) "{\"id\": \"a\", \"hash\": " HASH rest "}"

static void test_each_fault_is_named_with_its_line(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } faults[] = {
        {"{", "keys, line 1: not valid JSON"},
        {"\n# x\n[]", "keys, line 3: this is an array"},
        {"7", "line 1: this is an integer"},
        {"{}", "line 1"},
        {"{\"id\": 7, \"hash\": " HASH "}", "id"},
        {"{\"id\": \"A\", \"hash\": " HASH "}", "line 1: the key's id is 'A'"},
        {"{\"id\": \"a\"}", "\"hash\" is nothing"},
        {"{\"id\": \"a\", \"hash\": \"sha256:00\"}", "\"hash\" is another text"},
        {"{\"id\": \"a\", \"hash\": \"blake2b:zz\"}", "\"hash\" is another text"},
        {"{\"id\": \"a\", \"hash\": []}", "\"hash\" has 0 entries"},
        {"{\"id\": \"a\", \"hash\": [" HASH ", 7]}", "\"hash\" is an integer"},
        {KEY(", \"priorty\": 1"), "unknown member \"priorty\"; did you mean \"priority\"?"},
        {KEY(", \"priority\": 1.5"), "priority"},
        {KEY(", \"priority\": 1000001"), "priority"},
        {KEY(", \"concurrency\": 0"), "concurrency"},
        {KEY(", \"tokens_per_day\": -1"), "tokens_per_day"},
        {KEY(", \"tokens_per_day\": 1e3"), "tokens_per_day"},
        {KEY(", \"requests_per_minute\": \"10\""), "requests_per_minute"},
        {KEY(", \"requests_per_day\": 99999999999999999999"), "line 1"},
        {KEY(", \"models\": []"), "\"models\" is an array of 0"},
        {KEY(", \"models\": \"m\""), "\"models\" is a string"},
        {KEY(", \"models\": [\"\"]"), "\"models\" entry 1"},
        {KEY(", \"cache\": \"none\""), "\"cache\" is \"none\", allowed: \"own\" or \"shared\""},
        {KEY(", \"cache\": true"), "\"cache\" is"},
        {KEY(", \"admin\": 1"), "admin"},
        {KEY(", \"expires\": \"tomorrow\""), "\"expires\" is tomorrow"},
        {KEY(", \"expires\": \"2027-1-1\""), "\"expires\""},
        {KEY(", \"expires\": \"2027-01-01T00:00:00\""), "\"expires\""},
        {KEY(", \"note\": 1"), "\"note\""},
        {KEY(", \"id\": \"b\""), "line 1: not valid JSON"},
        {KEY("") "\n\n" KEY(""), "keys, line 3: the id \"a\" stands on line 1 too"},
        {KEY("") KEY(""), "line 1: not valid JSON"},
        {"\xff", "line 1"},
        {"[[[[[[[[[[]]]]]]]]]]", "nested"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        di_error err = {0};
        assert_false(di_keys_parse_check(faults[i].text, strlen(faults[i].text), &err));
        if (err.code != DI_ERR_FORMAT || !strstr(err.message, faults[i].message)) {
            fail_msg("%s: found \"%s\", wanted \"%s\"", faults[i].text, err.message,
                     faults[i].message);
        }
    }
    di_error err = {0};
    static const char fine[] = KEY(", \"models\": null, \"cache\": null, \"expires\": null") "\r\n";
    assert_true(di_keys_parse_check(fine, strlen(fine), &err));
    assert_true(di_keys_parse_check("", 0, &err));
}

static void test_a_file_that_others_may_read_is_refused(void **state) {
    (void)state;
    char *folder = files_folder();
    const char *path = write_keys(folder, KEY("") "\n");
    static const struct {
        mode_t mode;
        bool fine;
    } modes[] = {{0600, true},  {0400, true},  {0640, true},
                 {0644, false}, {0660, false}, {0602, false}};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        di_error err = {0};
        assert_int_equal(chmod(path, modes[i].mode), 0);
        di_keys *keys = di_keys_open(path, &err);
        assert_int_equal(keys != NULL, modes[i].fine);
        assert_true(keys || strstr(err.message, "mode"));
        di_keys_close(keys);
    }
    assert_null(di_keys_open(files_path(folder, "none"), NULL));
    assert_null(di_keys_open(folder, NULL));
    files_remove(folder);
}

/* ---- reloading --------------------------------------------------------------------------------*/

static void test_a_request_keeps_its_record_through_reloads(void **state) {
    (void)state;
    char *folder = files_folder(), text[512];
    made_key a = make("alice"), b = make("alice");
    snprintf(text, sizeof text, "{\"id\": \"alice\", \"hash\": \"%s\", \"priority\": 1}\n", a.hash);
    di_keys *keys = open_keys(write_keys(folder, text));
    const di_key *before, *after;
    assert_int_equal(di_keys_admit(keys, di_str_of(a.token), &before), DI_KEY_FINE);

    snprintf(text, sizeof text, "{\"id\": \"alice\", \"hash\": \"%s\", \"priority\": 2}\n", b.hash);
    write_keys(folder, text);
    size_t count = 0;
    assert_true(di_keys_reload(keys, &count, NULL));
    assert_int_equal(count, 1);
    assert_int_equal(verdict_of(keys, a.token), DI_KEY_UNKNOWN);
    assert_int_equal(di_keys_admit(keys, di_str_of(b.token), &after), DI_KEY_FINE);
    assert_int_equal(before->priority, 1);
    assert_int_equal(after->priority, 2);
    di_key_keep(keys, before);
    di_key_release(keys, before);
    di_key_release(keys, after);

    di_error err = {0};
    write_keys(folder, "{\"id\": \"alice\"\n");
    assert_false(di_keys_reload(keys, NULL, &err));
    assert_non_null(strstr(err.message, "keys.jsonl, line 1"));
    assert_int_equal(verdict_of(keys, b.token), DI_KEY_FINE); /* the old set goes on */
    assert_int_equal(before->priority, 1);
    di_key_release(keys, before);
    di_keys_close(keys);
    files_remove(folder);
}

typedef struct crowd {
    di_keys *keys;
    const char *token;
    atomic_bool stop;
    atomic_long admitted;
} crowd;

static void *ask_again_and_again(void *arg) {
    crowd *c = arg;
    while (!atomic_load(&c->stop)) {
        const di_key *key;
        if (di_keys_admit(c->keys, di_str_of(c->token), &key) == DI_KEY_FINE) {
            /* A record is whole: its priority names the version that its note was made for. */
            if (strcmp(key->id, "alice") != 0 || key->limits.concurrency != key->priority + 1) {
                abort();
            }
            atomic_fetch_add(&c->admitted, 1);
            di_key_release(c->keys, key);
        } else {
            abort();
        }
    }
    return NULL;
}

static void test_reloading_under_load_loses_nobody(void **state) {
    (void)state;
    enum { THREADS = 4, RELOADS = 200 };
    char *folder = files_folder(), text[512];
    made_key a = make("alice");
    crowd c = {.token = a.token};
    pthread_t threads[THREADS];
    for (int i = 0; i <= RELOADS; i++) {
        snprintf(text, sizeof text,
                 "{\"id\": \"alice\", \"hash\": \"%s\", \"priority\": %d, \"concurrency\": %d}\n",
                 a.hash, i, i + 1);
        const char *path = write_keys(folder, text);
        if (i == 0) {
            c.keys = open_keys(path);
            for (int t = 0; t < THREADS; t++) {
                assert_int_equal(pthread_create(&threads[t], NULL, ask_again_and_again, &c), 0);
            }
        }
        assert_true(di_keys_reload(c.keys, NULL, NULL));
    }
    while (atomic_load(&c.admitted) < 1000) {
        usleep(1000);
    }
    atomic_store(&c.stop, true);
    for (int t = 0; t < THREADS; t++) {
        pthread_join(threads[t], NULL);
    }
    di_keys_close(c.keys);
    files_remove(folder);
}

/* ---- adding -----------------------------------------------------------------------------------*/

static void test_appending_makes_a_private_file_and_keeps_what_is_there(void **state) {
    (void)state;
    char *folder = files_folder(), line[512];
    const char *path = files_path(folder, "keys.jsonl");
    made_key a = make("alice"), b = make("bob");
    snprintf(line, sizeof line, "{\"id\": \"alice\", \"hash\": \"%s\"}", a.hash);
    assert_true(di_keys_append(path, line, NULL));
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    assert_int_equal(s.st_mode & 0777, 0600);

    di_error err = {0};
    assert_false(di_keys_append(path, line, &err)); /* the same id */
    assert_non_null(strstr(err.message, "stands on line 1 too"));
    assert_int_equal(truncate(path, s.st_size - 1), 0); /* no newline at its end */
    snprintf(line, sizeof line, "{\"id\": \"bob\", \"hash\": \"%s\"}", b.hash);
    assert_true(di_keys_append(path, line, NULL));
    di_keys *keys = open_keys(path);
    assert_int_equal(verdict_of(keys, a.token), DI_KEY_FINE);
    assert_int_equal(verdict_of(keys, b.token), DI_KEY_FINE);
    const di_key *second = di_keys_at(keys, 1);
    assert_string_equal(second->id, "bob");
    di_key_release(keys, second);
    assert_null(di_keys_at(keys, 2));
    di_keys_close(keys);
    files_remove(folder);
}

/* ---- salts ------------------------------------------------------------------------------------*/

static void test_no_two_keys_share_a_prefix_unless_both_say_so(void **state) {
    (void)state;
    enum { KEYS = 4, SALTS = 8, BYTES = DI_KEY_CACHE_SALT_BYTES };
    const di_key keys[KEYS] = {{.id = "a"}, {.id = "ab"}, {.id = "a.b"}, {.id = "s"}};
    char with_nul[] = "x\0y", long_one[200];
    memset(long_one, 'z', sizeof long_one);
    const di_str salts[SALTS] = {{0},
                                 DI_STR("b"),
                                 DI_STR(":"),
                                 DI_STR("a:b"),
                                 {with_nul, 3},
                                 {with_nul, 1},
                                 {long_one, sizeof long_one},
                                 DI_STR("#00")};
    static char made[KEYS * SALTS][BYTES];
    for (int k = 0; k < KEYS; k++) {
        for (int s = 0; s < SALTS; s++) {
            assert_non_null(di_key_cache_salt(&keys[k], salts[s], made[k * SALTS + s]));
        }
    }
    for (int i = 0; i < KEYS * SALTS; i++) {
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(made[i], made[j]);
        }
    }
    const di_key common[2] = {{.id = "c", .shared_cache = true}, {.id = "d", .shared_cache = true}};
    for (int s = 0; s < SALTS; s++) {
        char x[BYTES], y[BYTES];
        const char *a = di_key_cache_salt(&common[0], salts[s], x);
        const char *b = di_key_cache_salt(&common[1], salts[s], y);
        assert_int_equal(a == NULL, s == 0);
        assert_true(a == NULL ? b == NULL : strcmp(a, b) == 0);
        for (int i = 0; a && i < KEYS * SALTS; i++) {
            assert_string_not_equal(a, made[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_made_key_is_let_in_as_its_record),
        cmocka_unit_test(test_another_secret_is_refused_wherever_it_differs),
        cmocka_unit_test(test_disabled_and_expired_keys_are_refused_for_who_has_them),
        cmocka_unit_test(test_without_a_file_everybody_is_anonymous),
        cmocka_unit_test(test_secrets_are_drawn_anew_and_never_kept),
        cmocka_unit_test(test_time_tells_neither_place_of_difference_nor_id),
        cmocka_unit_test(test_each_fault_is_named_with_its_line),
        cmocka_unit_test(test_a_file_that_others_may_read_is_refused),
        cmocka_unit_test(test_a_request_keeps_its_record_through_reloads),
        cmocka_unit_test(test_reloading_under_load_loses_nobody),
        cmocka_unit_test(test_appending_makes_a_private_file_and_keeps_what_is_there),
        cmocka_unit_test(test_no_two_keys_share_a_prefix_unless_both_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
