/* Tests memory nodes: machines as the kernel describes them, threads spread over nodes, and
 * NUMA-local memory, read back from the system. */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <linux/mempolicy.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "exec/system/pool.h"

#define NOWHERE 1000 /* a node that no machine has */
#define SCRATCH ((gsize)64 << 20)

typedef struct {
    char *directory;
    RpNodes *nodes;
    RpPool *pool;
    guint8 *memory;
    char *problem;
} Fixture;

static int
set_up(void **state)
{
    Fixture *f = g_new0(Fixture, 1);

    f->directory = g_dir_make_tmp("test-nodes-XXXXXX", NULL);
    f->memory = mmap(NULL, SCRATCH, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *state = f;
    return f->directory == NULL || f->memory == MAP_FAILED;
}

static int
tear_down(void **state)
{
    Fixture *f = *state;
    g_autofree char *remove = g_strdup_printf("rm -r '%s'", f->directory);
    const int failed = system(remove);

    rp_pool_free(f->pool);
    rp_nodes_free(f->nodes);
    munmap(f->memory, SCRATCH);
    g_free(f->problem);
    g_free(f->directory);
    g_free(f);
    return failed;
}

static void
write_file(const Fixture *f, const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(f->directory, name, NULL);
    g_autofree char *folder = g_path_get_dirname(path);

    assert_int_equal(g_mkdir_with_parents(folder, 0700), 0);
    assert_true(g_file_set_contents(path, text, -1, NULL));
}

/* A machine whose nodes @online have the processors @lists, in order. */
static void
read_machine(Fixture *f, const char *online, const guint *numbers, const char *const *lists)
{
    write_file(f, "online", online);
    for (guint i = 0; lists[i] != NULL; i++) {
        g_autofree char *name = g_strdup_printf("node%u/cpulist", numbers[i]);

        write_file(f, name, lists[i]);
    }
    g_clear_pointer(&f->nodes, rp_nodes_free);
    f->nodes = rp_nodes_read(f->directory);
}

static void
two_sockets(Fixture *f)
{
    read_machine(f, "0-1\n", (guint[]){0, 1},
                 (const char *const[]){"0-15,32-47\n", "16-31,48-63\n", NULL});
}

RP_TEST_OF(reads_the_nodes_of_processors, Fixture *f)
{
    two_sockets(f);
    assert_int_equal(rp_nodes_count(f->nodes), 2);
    for (guint cpu = 0; cpu < 64; cpu++)
        assert_int_equal(rp_nodes_of_cpu(f->nodes, cpu), cpu / 16 % 2);
    assert_int_equal(rp_nodes_of_cpu(f->nodes, 64), 0);
    assert_int_equal(rp_nodes_of_cpu(f->nodes, G_MAXUINT), 0);
    /* numbers with a gap, and a node that has memory alone */
    read_machine(f, "0,2,5", (guint[]){0, 2, 5}, (const char *const[]){"0", "1-3", "\n", NULL});
    assert_int_equal(rp_nodes_count(f->nodes), 2);
    assert_int_equal(rp_nodes_of_cpu(f->nodes, 3), 2);
}

RP_TEST_OF(is_one_node_where_the_kernel_says_nothing, Fixture *f)
{
    f->nodes = rp_nodes_read("/nowhere");
    assert_int_equal(rp_nodes_count(f->nodes), 1);
    assert_int_equal(rp_nodes_of_cpu(f->nodes, 5), 0);
    read_machine(f, "nodes 0 and 1", (guint[]){0, 1}, (const char *const[]){"0", "1", NULL});
    assert_int_equal(rp_nodes_count(f->nodes), 1);
    read_machine(f, "0-1", (guint[]){0, 1}, (const char *const[]){"0-99999999999", "1", NULL});
    assert_int_equal(rp_nodes_count(f->nodes), 1);
}

RP_TEST_OF(chooses_the_first_processors_of_one_node, Fixture *f)
{
    const guint cpus[] = {1, 4, 5};
    guint chosen[7];

    f->nodes = rp_nodes_read("/nowhere");
    for (guint k = 0; k < 2; k++) {
        rp_nodes_choose(k == 0 ? NULL : f->nodes, cpus, 3, chosen, 7);
        for (guint i = 0; i < 7; i++)
            assert_int_equal(chosen[i], cpus[i % 3]);
    }
}

/* For any number of threads on any of the processors, each node has its part, to within one thread,
 * and its first processors, and its threads follow each other. */
RP_TEST_OF(spreads_threads_over_nodes, Fixture *f)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(1);

    two_sockets(f);
    for (guint i = 0; i < 500; i++) {
        guint cpus[64], chosen[150], n_cpus = 0, of_node[2] = {0}, found[2] = {0};
        const guint n = (guint)g_rand_int_range(rand, 1, 150);

        for (guint cpu = 0; cpu < 64; cpu++)
            if (g_rand_int_range(rand, 0, 4) > 0)
                cpus[n_cpus++] = cpu;
        for (guint k = 0; k < n_cpus; k++)
            of_node[rp_nodes_of_cpu(f->nodes, cpus[k])]++;
        rp_nodes_choose(f->nodes, cpus, n_cpus, chosen, n);
        for (guint k = 0; k < n; k++) {
            const guint node = rp_nodes_of_cpu(f->nodes, chosen[k]);
            guint place = 0; /* place of the processor among those of its node */

            for (guint c = 0; cpus[c] != chosen[k]; c++)
                place += rp_nodes_of_cpu(f->nodes, cpus[c]) == node;
            assert_int_equal(place, found[node] % of_node[node]);
            assert_true(k == 0 || node >= rp_nodes_of_cpu(f->nodes, chosen[k - 1]));
            found[node]++;
        }
        for (guint node = 0; node < 2; node++)
            assert_true(fabs(found[node] - (double)n * of_node[node] / n_cpus) < 1);
    }
}

RP_TEST_OF(shares_are_those_of_runs, Fixture *f)
{
    for (guint threads = 1; threads <= 5; threads++) {
        f->pool = rp_must(rp_pool_new, &(RpPoolOptions){.n_threads = threads});
        for (gsize n = 1; n < 200; n += 7) {
            gsize begin, end, before = 3;

            for (guint i = 0; i < threads; i++) {
                rp_pool_share(f->pool, i, 3, n, 10, &begin, &end);
                assert_int_equal(begin, before);
                assert_true(end >= begin && (end % 10 == 0 || end == 3 + n));
                before = end;
            }
            assert_int_equal(before, 3 + n);
        }
        g_clear_pointer(&f->pool, rp_pool_free);
    }
}

/* The node that was requested of the system for @address; -1: none was. */
static int
asked(const guint8 *address)
{
    unsigned long mask[CPU_SETSIZE / 8 / sizeof(unsigned long)] = {0};
    int mode = -1;

    assert_int_equal(syscall(SYS_get_mempolicy, &mode, mask, CPU_SETSIZE + 1ul, address,
                             (unsigned long)MPOL_F_ADDR),
                     0);
    for (int node = 0; mode == MPOL_PREFERRED && node < 64; node++)
        if ((mask[0] >> node & 1) != 0)
            return node;
    return -1;
}

/* The policy is the system's to refuse, as in a container without the right to it. */
static gboolean
may_ask(Fixture *f)
{
    const gboolean may =
        rp_nodes_prefer(f->memory + SCRATCH / 2, f->memory + SCRATCH, 0, &f->problem) > 0;

    if (!may)
        print_message("skipped: %s\n", f->problem);
    return may;
}

RP_TEST_OF(memory_lies_on_the_node_that_was_asked_for, Fixture *f)
{
    const gsize granule = RP_NODES_GRANULE;
    const guint8 *whole = f->memory + (granule - (guintptr)f->memory % granule) % granule;

    if (!may_ask(f))
        return;
    assert_int_equal(rp_nodes_prefer(whole + granule / 2, whole + 3 * granule - 1, 0, &f->problem),
                     2 * granule);
    assert_null(f->problem);
    assert_int_equal(asked(whole + granule - 1), -1);
    assert_int_equal(asked(whole + granule), 0);
    assert_int_equal(asked(whole + 3 * granule - 1), 0);
    assert_int_equal(asked(whole + 3 * granule), -1);
    /* nothing whole */
    assert_int_equal(rp_nodes_prefer(whole + 5, whole + granule / 2 - 1, 0, &f->problem), 0);
    assert_int_equal(rp_nodes_prefer(whole, whole, 0, &f->problem), 0);
    assert_null(f->problem);
    /* there is no such node */
    assert_int_equal(rp_nodes_prefer(whole, whole + granule, NOWHERE, &f->problem), 0);
    assert_non_null(f->problem);
}

/* Threads of node 0 and of one that is not there: the first part is granted, the second refused. */
RP_TEST_OF(arrays_lie_near_the_threads_that_share_them, Fixture *f)
{
    const gsize n = 7 << 20, each = 4, granule = 16384;
    gsize begin, end;

    if (!may_ask(f))
        return;
    read_machine(f, "0,1000", (guint[]){0, NOWHERE}, (const char *const[]){"0", "1-999", NULL});
    f->pool = rp_must(rp_pool_new, &(RpPoolOptions){.n_threads = 4, .nodes = f->nodes});
    if (rp_numa_nodes(f->pool, f->nodes) == 1) { /* one processor, or others than 0 */
        print_message("skipped: one node\n");
        return;
    }
    assert_int_equal(rp_numa_nodes(f->pool, f->nodes), 2);
    const guint first = rp_nodes_of_cpu(f->nodes, rp_pool_cpu(f->pool, 1)) == 0 ? 1 : 0;
    const gsize bytes = rp_numa_bind(f->pool, f->nodes, f->memory, n, each, granule, &f->problem);

    rp_pool_share(f->pool, first, 0, n, granule, &begin, &end);
    assert_true(bytes > 0 && bytes % RP_NODES_GRANULE == 0);
    assert_true(fabs((double)bytes - (double)(end * each)) <= (double)RP_NODES_GRANULE);
    assert_int_equal(asked(f->memory + end * each - RP_NODES_GRANULE), 0);
    assert_int_equal(asked(f->memory + end * each + RP_NODES_GRANULE), -1);
    assert_non_null(f->problem);
    /* once refused, nothing more is requested */
    assert_int_equal(rp_numa_bind(f->pool, f->nodes, f->memory, n, each, granule, &f->problem), 0);
}

RP_TEST_FIXTURE(set_up, tear_down)
