/* Shares of layers: sums, squares, weights and state of several servers against those of one. */
#include "tests/rp-test.h"

#include "exec/shares/shares.h"
#include "tests/exec-servers/threads-transport.h"

#define LAYERS 3
#define ROUNDS 2
#define MOST_SERVERS 5

/* Several blocks; less than one; none of its own but a tied matrix. */
static const RpShareLayer layers[LAYERS] = {
    {.own = 5 * RP_SHARD_BLOCK + 17}, {.own = 1000}, {.own = 64, .tied = 5 * RP_SHARD_BLOCK + 17}};

typedef struct {
    RpDtype gradient_dtype;
    guint n_rounds;
    gsize room_bytes;
    guint servers;
    guint8 *gradients[MOST_SERVERS][LAYERS][ROUNDS];
    float *sums[LAYERS]; /* sums of one server */
    double squares[LAYERS];
} Case;

static guint64
elements(guint layer)
{
    return layers[layer].own + layers[layer].tied;
}

static void
fill(Case *c)
{
    g_autoptr(GRand) rand = g_rand_new_with_seed(11);
    const RpAdamwOps *ops = rp_adamw_best();

    for (guint l = 0; l < LAYERS; l++) {
        const gsize n = elements(l);
        g_autofree float *wide = g_new(float, n);
        guint8 *sent[MOST_SERVERS * ROUNDS];
        guint k = 0;

        c->sums[l] = g_new0(float, n);
        for (guint r = 0; r < c->servers; r++)
            for (guint round = 0; round < c->n_rounds; round++, k++) {
                for (gsize i = 0; i < n; i++)
                    wide[i] = (float)g_rand_double_range(rand, -1, 1);
                c->gradients[r][l][round] = g_malloc(n * rp_dtype_size(c->gradient_dtype));
                rp_dtype_from_float(c->gradient_dtype, wide, c->gradients[r][l][round], n);
                sent[k] = g_malloc(n * 2);
                rp_dtype_from_float(RP_DTYPE_BF16, wide, sent[k], n);
            }
        rp_sums_accumulate(NULL, ops, c->sums[l], (const void *const *)sent, k, RP_DTYPE_BF16, TRUE,
                           n);
        while (k > 0)
            g_free(sent[--k]);
    }
}

static void
check_layer(const Case *c, const RpShares *shares, guint l)
{
    const RpShard own = rp_shares_own(shares, l);

    g_assert(memcmp(rp_shares_sum(shares, l, FALSE), c->sums[l] + own.first,
                    own.n * sizeof(float)) == 0);
    if (layers[l].tied > 0) {
        const RpShard tied = rp_shares_own(shares, layers[l].tied_to);

        g_assert(memcmp(rp_shares_sum(shares, l, TRUE), c->sums[l] + layers[l].own + tied.first,
                        tied.n * sizeof(float)) == 0);
    }
}

/* Number @i of the values that all servers have in the end; each begins with its share alone. */
static void
check_weights(RpShares *shares, guint l)
{
    const RpShard own = rp_shares_own(shares, l);
    g_autofree guint16 *weights = g_new0(guint16, layers[l].own + 1);

    for (guint64 i = own.first; i < own.first + own.n; i++)
        weights[i] = (guint16)(i * 7);
    g_assert(rp_shares_gather_weights(shares, l, weights, RP_SERVERS_NETWORK, NULL));
    for (guint64 i = 0; i < layers[l].own; i++)
        g_assert(weights[i] == (guint16)(i * 7));
}

/* Shares of a whole layer; 8-bit moments, whose scales are of blocks. */
static void
check_state(const RpShares *shares)
{
    const RpStateFormat form = {.moments = RP_MOMENTS_INT8, .master = RP_MOMENTS_BF16};
    const guint16 weight[1] = {0};
    const guint8 moments[2] = {0};
    const float scales[2] = {0};

    for (guint l = 0; l < LAYERS; l++) {
        const RpOptimizerState whole = {.n_steps = 5,
                                        .n_parameters = layers[l].own,
                                        .weight = weight,
                                        .moment1 = &moments[0],
                                        .moment2 = &moments[1],
                                        .scale1 = &scales[0],
                                        .scale2 = &scales[1],
                                        .form = form};
        const RpShard own = rp_shares_own(shares, l);
        const RpOptimizerState cut = rp_shares_cut(shares, l, &whole);

        g_assert(own.first % RP_MOMENT_BLOCK == 0 || own.n == 0);
        g_assert(cut.n_parameters == own.n && cut.n_steps == 5);
        g_assert((const guint8 *)cut.weight - (const guint8 *)(const void *)weight ==
                 (gssize)(2 * own.first));
        g_assert((const guint8 *)cut.moment1 - &moments[0] == (gssize)own.first);
        g_assert((const guint8 *)cut.moment2 - &moments[1] == (gssize)own.first);
        g_assert(cut.scale1 - &scales[0] == (gssize)rp_moment_scales(form.moments, 0, own.first));
        g_assert(cut.scale2 - &scales[1] == cut.scale1 - &scales[0]);
    }
}

/* Checks each server's view of all shares. */
static void
check_owners(const RpShares *shares, guint rank, guint count)
{
    for (guint l = 0; l < LAYERS; l++) {
        const RpShard own = rp_shares_own(shares, l), same = rp_shares_of(shares, l, rank);
        guint64 n = 0;

        g_assert(own.first == same.first && own.n == same.n);
        for (guint r = 0; r < count; r++) {
            g_assert(rp_shares_of(shares, l, r).n == 0 || rp_shares_of(shares, l, r).first == n);
            n += rp_shares_of(shares, l, r).n;
        }
        g_assert(n == layers[l].own);
    }
}

static void
share(RpServers *servers, gpointer user_data)
{
    const Case *c = user_data;
    const guint rank = rp_servers_rank(servers);
    const RpSharesOptions options = {.servers = servers,
                                     .n_layers = LAYERS,
                                     .layers = layers,
                                     .n_rounds = c->n_rounds,
                                     .gradient_dtype = c->gradient_dtype,
                                     .dtype = RP_DTYPE_BF16,
                                     .n_numbers = 2};
    g_autoptr(RpShares) shares = rp_shares_new(&options);
    const RpAdamwOptions adamw = RP_ADAMW_OPTIONS_INIT;
    g_autoptr(RpOptimizer) optimizer = rp_optimizer_new(&adamw, NULL, NULL, NULL);
    g_autofree guint8 *room = g_malloc(c->room_bytes);
    g_autofree double *squares = g_new0(double, 100);
    const double numbers[] = {rank, 10 + rank};
    double sums[LAYERS], all[2 * MOST_SERVERS];
    float *reduced[LAYERS];

    for (guint l = 0; l < LAYERS; l++)
        reduced[l] = g_new0(float, rp_shares_reduced(shares, l));
    rp_shares_attach(shares, reduced, squares, room, c->room_bytes);
    for (guint l = 0; l < LAYERS; l++) {
        g_assert(rp_shares_reduce(shares, optimizer, NULL, l,
                                  (const void *const *)c->gradients[rank][l], RP_SERVERS_NETWORK,
                                  NULL));
        check_layer(c, shares, l);
    }
    for (guint l = 0; l < LAYERS; l++)
        rp_shares_square(shares, optimizer, l);
    g_assert(rp_shares_agree(shares, numbers, RP_SERVERS_NETWORK, sums, all, NULL));
    for (guint l = 0; l < LAYERS; l++)
        g_assert(sums[l] == c->squares[l]);
    for (guint r = 0; r < c->servers; r++)
        g_assert(all[2 * r] == r && all[2 * r + 1] == 10 + r);
    for (guint l = 0; l < LAYERS; l++)
        check_weights(shares, l);
    check_state(shares);
    check_owners(shares, rank, c->servers);
    for (guint l = 0; l < LAYERS; l++)
        g_free(reduced[l]);
}

static void
run_case(Case *c)
{
    ThreadsNet *net = threads_net_new(c->servers);
    const RpAdamwOptions adamw = RP_ADAMW_OPTIONS_INIT;
    g_autoptr(RpOptimizer) optimizer = rp_optimizer_new(&adamw, NULL, NULL, NULL);

    fill(c);
    for (guint l = 0; l < LAYERS; l++) {
        const RpGradient gradient = {{c->sums[l]}};
        const RpGradient tied = {{l == 0 ? c->sums[2] + layers[2].own : NULL}};

        c->squares[l] = rp_optimizer_sum_squares_of_sum(optimizer, gradient, tied, RP_DTYPE_FP32,
                                                        layers[l].own);
    }
    threads_run(net, c->servers, NULL, share, c);
    threads_net_free(net);
    for (guint l = 0; l < LAYERS; l++) {
        g_free(c->sums[l]);
        for (guint r = 0; r < c->servers; r++)
            for (guint k = 0; k < c->n_rounds; k++)
                g_free(c->gradients[r][l][k]);
    }
}

/* Also where a layer takes many parts. */
RP_TEST(are_those_of_one_server)
{
    for (guint n = 2; n <= MOST_SERVERS; n++) {
        Case c = {.gradient_dtype = RP_DTYPE_BF16,
                  .n_rounds = 1 + n % 2,
                  .room_bytes = n % 2 == 0 ? 4000000 : 300000,
                  .servers = n};

        run_case(&c);
    }
}

/* fp32 on the host: each server rounds its own once. */
RP_TEST(of_wide_gradients)
{
    Case c = {.gradient_dtype = RP_DTYPE_FP32, .n_rounds = 1, .room_bytes = 300000, .servers = 3};

    run_case(&c);
}
