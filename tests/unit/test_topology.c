/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* test_topology.c: what the machine is like: plausible, the same for everyone, and asked for without touching anything. */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "../../common/topology.h"
#include "../support/fixture.h"

START_TEST(plausible)
{
    const kiln_topology *t = kiln_topology_get();
    ck_assert(t->l1_bytes >= 4 << 10 && t->l1_bytes <= 16 << 20);
    ck_assert(t->l2_bytes >= 64 << 10 && t->l2_bytes <= INT64_C(1) << 32);
    ck_assert(t->l3_bytes == 0 || t->l3_bytes >= 64 << 10);
    ck_assert(t->memory_bytes == 0 || t->memory_bytes >= 64 << 20);
    ck_assert_int_ge(t->numa_nodes, 0);
    ck_assert_int_ge(t->processors, 1);
    ck_assert_int_le(t->processors, (int)sysconf(_SC_NPROCESSORS_CONF));
    ck_assert(t->cpu_name[0] && !strchr(t->cpu_name, '\n'));
    ck_assert_str_ne(t->source, "");
}
END_TEST

/* The processors are those this process may use, and reading them binds nobody. */
START_TEST(affinity)
{
    cpu_set_t before, after;
    ck_assert_int_eq(sched_getaffinity(0, sizeof before, &before), 0);
    const kiln_topology *t = kiln_topology_get();
    ck_assert_int_eq(sched_getaffinity(0, sizeof after, &after), 0);
    ck_assert(CPU_EQUAL(&before, &after));
    ck_assert_int_eq(t->processors, CPU_COUNT(&before));
}
END_TEST

START_TEST(one_processor)
{
    cpu_set_t all, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &all))
            CPU_SET(i, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    ck_assert_int_eq(kiln_topology_get()->processors, 1);
}
END_TEST

static void *get(void *user)
{
    (void)user;
    return (void *)(uintptr_t)kiln_topology_get();
}
START_TEST(once_for_all_threads)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, get, NULL), 0);
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(threads[i], &result);
        ck_assert_ptr_eq(result, kiln_topology_get());
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("topology");
    TCase *t = test_tcase(s, "topology");
    tcase_add_test(t, plausible);
    tcase_add_test(t, affinity);
    tcase_add_test(t, one_processor);
    tcase_add_test(t, once_for_all_threads);
    return test_main(s);
}
