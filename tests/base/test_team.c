/* Teams of threads: every pass of every loop is done exactly once, by one member at a time, whether
 * the members are awake, asleep, late, or more than there are processors. */
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/team.h"
#include "support/cmocka.h"

enum { MOST = 5000, MEMBERS = 7 };

typedef struct tally {
    int64_t n, grain;
    int members;
    _Atomic int done[MOST];
    _Atomic int inside[MEMBERS]; /* threads that act as this member */
    _Atomic int faults;
    int plain[MOST]; /* written without care by whoever does the pass: for ThreadSanitizer */
} tally;

static void count(void *arg, int64_t begin, int64_t end, int member) {
    tally *t = arg;
    bool fits = member >= 0 && member < t->members && begin >= 0 && begin < end && end <= t->n;
    if (!fits || atomic_fetch_add(&t->inside[member], 1) != 0) {
        atomic_fetch_add(&t->faults, 1);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        atomic_fetch_add(&t->done[i], 1);
        t->plain[i]++;
    }
    atomic_fetch_sub(&t->inside[member], 1);
}

static di_team *team_of(int members) {
    di_error err = {0};
    di_team *team = di_team_create(members, &err);
    if (!team) {
        fail_msg("%s", err.message);
    }
    return team;
}

/* One loop; plain[] is read here as the ops read what the members wrote. */
static void run_and_check(di_team *team, tally *t, int members, int64_t n, int64_t grain) {
    memset(t, 0, sizeof *t);
    t->n = n;
    t->grain = grain;
    t->members = members > 1 ? members : 1;
    di_team_run(team, members, n, grain, count, t);
    assert_int_equal(t->faults, 0);
    for (int64_t i = 0; i < MOST; i++) {
        assert_int_equal(t->done[i], i < n);
        assert_int_equal(t->plain[i], i < n);
    }
}

static void pause_for(long microseconds) {
    nanosleep(&(struct timespec){0, microseconds * 1000}, NULL);
}

static void test_every_pass_is_done_once_whatever_the_cut(void **state) {
    (void)state;
    static tally t;
    static const int64_t sizes[] = {0, 1, 2, 3, 7, 64, 1000, MOST};
    for (int size = 1; size <= MEMBERS; size += 2) {
        di_team *team = team_of(size);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            for (int64_t grain = 0; grain <= sizes[i] + 1; grain = grain * 3 + 1) {
                for (int members = 0; members <= size; members++) {
                    run_and_check(team, &t, members, sizes[i], grain);
                }
            }
        }
        di_team_destroy(team);
    }
}

/* Short loops close together meet workers that are still about the last one; pauses around the
 * length of the spin meet them on their way to sleep and back. */
static void test_loops_in_any_rhythm_lose_no_pass(void **state) {
    (void)state;
    static tally t;
    di_team *team = team_of(4);
    for (int i = 0; i < 3000; i++) {
        t.n = t.members = 4;
        memset(t.done, 0, 4 * sizeof *t.done);
        di_team_run(team, 4, 4, 1, count, &t);
        assert_int_equal(t.done[0] + t.done[1] + t.done[2] + t.done[3], 4);
        if (i % 10 == 0) {
            pause_for(i % 150);
        }
    }
    assert_int_equal(t.faults, 0);
    di_team_destroy(team);
}

/* The caller waits for who holds a part longer than it spins. */
static void dawdle(void *arg, int64_t begin, int64_t end, int member) {
    (void)end;
    pause_for(member == 0 ? 100 : 3000);
    ((int *)arg)[begin] = 1;
}

static void test_a_slow_member_is_waited_for(void **state) {
    (void)state;
    di_team *team = team_of(3);
    for (int round = 0; round < 5; round++) {
        int done[8] = {0};
        di_team_run(team, 3, 8, 1, dawdle, done);
        for (int i = 0; i < 8; i++) {
            assert_int_equal(done[i], 1);
        }
    }
    di_team_destroy(team);
}

/* Nobody else is started or asked for it. */
static void test_a_loop_for_one_member_is_the_callers(void **state) {
    (void)state;
    static tally t;
    di_team *team = team_of(MEMBERS);
    run_and_check(team, &t, 1, MOST, 1);
    di_team_destroy(team);
}

static void run_other(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    static tally inner[2];
    for (int64_t i = begin; i < end; i++) {
        run_and_check(((di_team **)arg)[i], &inner[i], 2, 500, 7);
    }
}

static void test_teams_do_not_disturb_each_other(void **state) {
    (void)state;
    di_team *outer = team_of(2), *inner[2] = {team_of(2), team_of(2)};
    for (int i = 0; i < 200; i++) {
        di_team_run(outer, 2, 2, 1, run_other, inner);
    }
    di_team_destroy(outer);
    di_team_destroy(inner[0]);
    di_team_destroy(inner[1]);
}

static void test_destroying_needs_no_loop(void **state) {
    (void)state;
    di_team_destroy(team_of(MEMBERS));
    di_team_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pass_is_done_once_whatever_the_cut),
        cmocka_unit_test(test_loops_in_any_rhythm_lose_no_pass),
        cmocka_unit_test(test_a_slow_member_is_waited_for),
        cmocka_unit_test(test_a_loop_for_one_member_is_the_callers),
        cmocka_unit_test(test_teams_do_not_disturb_each_other),
        cmocka_unit_test(test_destroying_needs_no_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
