#include "tests/exec-checkpoint/checkpoint-fixture.h"

#include <glib/gstdio.h>
#include <unistd.h>

struct _RpNetwork {
    RpModel config;
    RpNetworkOptions options;
    RpWeights *weights;
};

struct _RpHostState {
    RpUpdateState update;
};

typedef struct {
    float *master;
    float *moment1;
    float *moment2;
    guint8 *next; /* in the network's dtype */
    guint64 n_steps;
    guint64 n_restored; /* elements */
} Numbers;

struct _RpTrainer {
    RpNetwork network;
    RpHostState host_state;
    gboolean async;
    gboolean refuse;
    guint server, n_servers;
    guint rounds;
    guint n_restored; /* calls of rp_trainer_restore() */
    Numbers *numbers; /* one for each weight */
};

/* ---- functions that the library calls ---- */

G_DEFINE_QUARK(rp - trainer - error - quark, rp_trainer_error)

const RpNetworkOptions *
rp_network_options(const RpNetwork *network)
{
    return &network->options;
}

const RpModel *
rp_network_model(const RpNetwork *network)
{
    return &network->config;
}

const RpWeights *
rp_network_weights(const RpNetwork *network)
{
    return network->weights;
}

RpUpdateState
rp_host_state_updates(const RpHostState *host_state)
{
    return host_state->update;
}

const RpNetwork *
rp_trainer_network(const RpTrainer *trainer)
{
    return &trainer->network;
}

gboolean
rp_trainer_is_async(const RpTrainer *trainer)
{
    return trainer->async;
}

guint64
rp_trainer_n_steps(const RpTrainer *trainer)
{
    return trainer->host_state.update.n_iterations;
}

guint
rp_trainer_rounds(const RpTrainer *trainer)
{
    return trainer->rounds;
}

RpHostState *
rp_trainer_host_state(RpTrainer *trainer)
{
    return &trainer->host_state;
}

const float *
rp_trainer_weight(const RpTrainer *trainer, guint weight)
{
    g_assert(!rp_weights_nth(trainer->network.weights, weight)->tied);
    return trainer->numbers[weight].master;
}

/* Never called, as all weights are trained, or there are adapters. */
const void *
rp_trainer_frozen_weight(const RpTrainer *trainer, guint weight)
{
    g_assert_not_reached();
}

const void *
rp_trainer_next_weight(const RpTrainer *trainer, guint weight)
{
    g_assert(!rp_weights_nth(trainer->network.weights, weight)->tied);
    return trainer->numbers[weight].next;
}

RpStateFormat
rp_trainer_form(const RpTrainer *trainer)
{
    return RP_STATE_FORMAT_FP32;
}

/* The last servers have something of large weights alone. */
RpShard
rp_trainer_weight_part(const RpTrainer *trainer, guint weight, guint server)
{
    const guint64 n = rp_weights_nth(trainer->network.weights, weight)->elements;
    const guint64 each = MAX(20, n / trainer->n_servers + 1);
    const guint64 first = MIN(n, server * each);

    return (RpShard){first, server + 1 < trainer->n_servers ? MIN(n - first, each) : n - first};
}

guint64
rp_trainer_weight_first(const RpTrainer *trainer, guint weight)
{
    return 1000 * (guint64)weight;
}

RpOptimizerState
rp_trainer_weight_state(const RpTrainer *trainer, guint weight)
{
    const Numbers *numbers = &trainer->numbers[weight];
    const RpShard part = rp_trainer_weight_part(trainer, weight, trainer->server);

    g_assert(!rp_weights_nth(trainer->network.weights, weight)->tied);
    return (RpOptimizerState){.n_steps = numbers->n_steps,
                              .n_parameters = part.n,
                              .weight = numbers->master + part.first,
                              .moment1 = numbers->moment1 + part.first,
                              .moment2 = numbers->moment2 + part.first,
                              .first = rp_trainer_weight_first(trainer, weight) + part.first};
}

gboolean
rp_trainer_restore_weight(RpTrainer *trainer, guint weight, const RpOptimizerState *state,
                          const void *next, GError **error)
{
    const RpWeight *of = rp_weights_nth(trainer->network.weights, weight);
    Numbers *numbers = &trainer->numbers[weight];
    const gsize size = rp_dtype_size(trainer->network.options.dtype);
    const guint64 at = state->first - rp_trainer_weight_first(trainer, weight);
    gsize bytes = state->n_parameters * sizeof(float);

    g_assert(!of->tied && at + state->n_parameters <= of->elements && trainer->n_restored == 0);
    g_assert((next != NULL) == trainer->async);
    if (trainer->refuse) {
        g_set_error(error, RP_TRAINER_ERROR, RP_TRAINER_ERROR_STATE, "%s: refused", of->name);
        return FALSE;
    }
    memcpy(numbers->master + at, state->weight, bytes);
    memcpy(numbers->moment1 + at, state->moment1, bytes);
    memcpy(numbers->moment2 + at, state->moment2, bytes);
    if (next != NULL)
        memcpy(numbers->next + at * size, next, state->n_parameters * size);
    numbers->n_steps = state->n_steps;
    numbers->n_restored += state->n_parameters;
    return TRUE;
}

void
rp_trainer_restore(RpTrainer *trainer, const RpUpdateState *state)
{
    for (guint i = 0; i < rp_weights_count(trainer->network.weights); i++) {
        const RpWeight *weight = rp_weights_nth(trainer->network.weights, i);

        g_assert(weight->tied || trainer->numbers[i].n_restored == weight->elements);
    }
    trainer->host_state.update = *state;
    trainer->n_restored++;
}

/* ---- the fake ---- */

RpModel
checkpoint_config(gboolean tied)
{
    return (RpModel){.architecture = RP_ARCHITECTURE_QWEN3,
                     .hidden = 16,
                     .blocks = 2,
                     .heads = 2,
                     .kv_heads = 1,
                     .head_dim = 8,
                     .intermediate = 24,
                     .vocab = 40,
                     .max_positions = 64,
                     .rms_norm_eps = 1e-6,
                     .initializer_range = 0.02,
                     .rope = {.theta = 1e6},
                     .tied = tied,
                     .bos_id = 1,
                     .pad_id = RP_MODEL_NO_TOKEN,
                     .eos_ids = {2},
                     .n_eos = 1};
}

RpTrainer *
fake_trainer_new(const RpModel *config, RpDtype dtype, gboolean async)
{
    RpTrainer *trainer = g_new0(RpTrainer, 1);

    trainer->async = async;
    trainer->n_servers = 1;
    trainer->rounds = 1;
    trainer->network.config = *config;
    trainer->network.options = (RpNetworkOptions){.dtype = dtype, .sequences = 1, .tokens = 8};
    trainer->network.weights = rp_weights_new(config);
    guint n = rp_weights_count(trainer->network.weights);
    trainer->numbers = g_new0(Numbers, n);
    for (guint i = 0; i < n; i++) {
        gsize elements = rp_weights_nth(trainer->network.weights, i)->elements;
        trainer->numbers[i].master = g_new0(float, elements);
        trainer->numbers[i].moment1 = g_new0(float, elements);
        trainer->numbers[i].moment2 = g_new0(float, elements);
        trainer->numbers[i].next = g_malloc0(elements * rp_dtype_size(dtype));
    }
    return trainer;
}

void
fake_trainer_free(RpTrainer *trainer)
{
    if (trainer == NULL)
        return;
    for (guint i = 0; i < rp_weights_count(trainer->network.weights); i++) {
        g_free(trainer->numbers[i].master);
        g_free(trainer->numbers[i].moment1);
        g_free(trainer->numbers[i].moment2);
        g_free(trainer->numbers[i].next);
    }
    g_free(trainer->numbers);
    rp_weights_free(trainer->network.weights);
    g_free(trainer);
}

/* Any bits of a number below 2, also when it is rounded. */
static float
any_float(guint32 seed)
{
    guint32 bits = seed * 2654435761u ^ (seed >> 7) * 40503u;
    float value;

    bits &= ~(1u << 30);
    memcpy(&value, &bits, sizeof value);
    return value;
}

void
fake_trainer_go_to(RpTrainer *trainer, guint64 step)
{
    guint32 at = (guint32)step * 1000003u;

    for (guint i = 0; i < rp_weights_count(trainer->network.weights); i++) {
        const RpWeight *weight = rp_weights_nth(trainer->network.weights, i);
        Numbers *numbers = &trainer->numbers[i];
        for (guint64 j = 0; j < weight->elements; j++) {
            numbers->master[j] = any_float(at++);
            numbers->moment1[j] = any_float(at++);
            numbers->moment2[j] = any_float(at++);
        }
        for (gsize j = 0; j < weight->elements * rp_dtype_size(trainer->network.options.dtype); j++)
            numbers->next[j] = (guint8)((at++ * 37u >> 3) & ~0x40u); /* finite in every storage */
        numbers->n_steps = step + weight->layer;
    }
    trainer->host_state.update =
        (RpUpdateState){.n_updates = step / 2,
                        .n_iterations = step,
                        .loss_scale = {1.1f * (float)(step + 1), (guint)step},
                        .next_scale = 0.1f / (float)(step + 1)};
}

static gboolean
numbers_equal(const RpTrainer *a, const RpTrainer *b, guint i)
{
    const RpWeight *weight = rp_weights_nth(a->network.weights, i);
    const Numbers *x = &a->numbers[i];
    const Numbers *y = &b->numbers[i];
    gsize bytes = weight->elements * sizeof(float);

    return memcmp(x->master, y->master, bytes) == 0 && memcmp(x->moment1, y->moment1, bytes) == 0 &&
           memcmp(x->moment2, y->moment2, bytes) == 0 && x->n_steps == y->n_steps &&
           (!a->async || memcmp(x->next, y->next,
                                weight->elements * rp_dtype_size(a->network.options.dtype)) == 0);
}

gboolean
fake_trainer_equal(const RpTrainer *a, const RpTrainer *b)
{
    const RpUpdateState *x = &a->host_state.update;
    const RpUpdateState *y = &b->host_state.update;

    for (guint i = 0; i < rp_weights_count(a->network.weights); i++)
        if (!rp_weights_nth(a->network.weights, i)->tied && !numbers_equal(a, b, i))
            return FALSE;
    return x->n_updates == y->n_updates && x->n_iterations == y->n_iterations &&
           memcmp(&x->loss_scale.scale, &y->loss_scale.scale, sizeof(float)) == 0 &&
           x->loss_scale.good_steps == y->loss_scale.good_steps &&
           memcmp(&x->next_scale, &y->next_scale, sizeof(float)) == 0;
}

gboolean
fake_trainer_is_new(const RpTrainer *trainer)
{
    for (guint i = 0; i < rp_weights_count(trainer->network.weights); i++)
        if (trainer->numbers[i].n_restored > 0)
            return FALSE;
    return trainer->n_restored == 0;
}

void
fake_trainer_refuse(RpTrainer *trainer)
{
    trainer->refuse = TRUE;
}

void
fake_trainer_set_server(RpTrainer *trainer, guint server, guint n_servers)
{
    trainer->server = server;
    trainer->n_servers = n_servers;
}

void
fake_trainer_set_rounds(RpTrainer *trainer, guint rounds)
{
    trainer->rounds = rounds;
}

RpUpdateState *
fake_trainer_update(RpTrainer *trainer)
{
    return &trainer->host_state.update;
}

/* ---- the fixture ---- */

RpDataState
checkpoint_data(guint64 step)
{
    return (RpDataState){.n_samples = G_MAXINT64,
                         .fingerprint = G_MAXUINT64 - step,
                         .seed = 7,
                         .shuffle = TRUE,
                         .epoch = 3,
                         .position = step * 8,
                         .n_iterations = step,
                         .n_tokens = step * 100,
                         .n_targets = step * 90};
}

int
checkpoint_setup(void **state)
{
    CheckpointFixture *f = g_new0(CheckpointFixture, 1);
    RpModel config = checkpoint_config(TRUE);

    *state = f;
    f->directory = g_dir_make_tmp("rp-checkpoint-XXXXXX", NULL);
    if (f->directory == NULL)
        return -1;
    f->output = g_build_filename(f->directory, "run", NULL);
    f->model_dir = g_build_filename(f->directory, "model", NULL);
    if (g_mkdir(f->model_dir, 0777) != 0)
        return -1;
    f->trainer = fake_trainer_new(&config, RP_DTYPE_BF16, TRUE);
    f->options = (RpCheckpointOptions){.output = f->output, .model_dir = f->model_dir};
    return 0;
}

void
checkpoint_remove_tree(const char *path)
{
    g_autoptr(GDir) dir =
        g_file_test(path, G_FILE_TEST_IS_SYMLINK) ? NULL : g_dir_open(path, 0, NULL);
    const char *name;

    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL) {
        g_autofree char *inner = g_build_filename(path, name, NULL);
        checkpoint_remove_tree(inner);
    }
    g_remove(path);
}

int
checkpoint_teardown(void **state)
{
    CheckpointFixture *f = *state;

    checkpoint_remove_tree(f->directory);
    fake_trainer_free(f->trainer);
    fake_trainer_free(f->other);
    g_clear_pointer(&f->files, g_hash_table_unref);
    g_clear_error(&f->error);
    g_free(f->path);
    g_free(f->text);
    g_free(f->model_dir);
    g_free(f->output);
    g_free(f->directory);
    g_free(f);
    return 0;
}

gboolean
checkpoint_try_save(CheckpointFixture *f, guint64 step, GError **error)
{
    fake_trainer_go_to(f->trainer, step);
    f->data = checkpoint_data(step);
    g_autofree char *path = rp_checkpoint_save(&f->options, f->trainer, &f->data, NULL, error);
    return path != NULL;
}

gboolean
checkpoint_save_step(CheckpointFixture *f, guint64 step)
{
    g_clear_error(&f->error);
    g_clear_pointer(&f->path, g_free);
    fake_trainer_go_to(f->trainer, step);
    f->data = checkpoint_data(step);
    f->path = rp_checkpoint_save(&f->options, f->trainer, &f->data, NULL, &f->error);
    assert_true((f->path == NULL) == (f->error != NULL));
    if (f->error != NULL)
        assert_null(strchr(f->error->message, '\n'));
    return f->path != NULL;
}

gboolean
checkpoint_holds(CheckpointFixture *f, const char *path, guint64 step)
{
    const RpNetwork *network = rp_trainer_network(f->trainer);
    RpTrainer *restored =
        fake_trainer_new(rp_network_model(network), rp_network_options(network)->dtype,
                         rp_trainer_is_async(f->trainer));
    RpDataState expected = checkpoint_data(step);
    RpDataState data = {0};

    g_clear_error(&f->error);
    fake_trainer_go_to(f->trainer, step);
    gboolean good = rp_checkpoint_restore(path, restored, NULL, &data, NULL, &f->error) &&
                    fake_trainer_equal(f->trainer, restored) &&
                    memcmp(&data, &expected, sizeof data) == 0;
    fake_trainer_free(restored);
    return good;
}

static gint
compare_texts(gconstpointer a, gconstpointer b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

char *
checkpoint_list(const char *path)
{
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
    const char *name;

    while (dir != NULL && (name = g_dir_read_name(dir)) != NULL)
        g_ptr_array_add(names, g_strdup(name));
    g_ptr_array_sort(names, compare_texts);
    g_ptr_array_add(names, NULL);
    return g_strjoinv(" ", (char **)names->pdata);
}

void
checkpoint_load(CheckpointFixture *f, const char *path)
{
    g_autofree char *list = checkpoint_list(path);
    g_auto(GStrv) names = g_strsplit(list, " ", -1);

    g_clear_pointer(&f->files, g_hash_table_unref);
    f->files =
        g_hash_table_new_full(g_str_hash, g_str_equal, g_free, (GDestroyNotify)g_bytes_unref);
    for (guint i = 0; names[i] != NULL; i++) {
        g_autofree char *inner = g_build_filename(path, names[i], NULL);
        char *text;
        gsize length;
        assert_true(g_file_get_contents(inner, &text, &length, NULL));
        g_hash_table_insert(f->files, g_strdup(names[i]), g_bytes_new_take(text, length));
    }
}

void
checkpoint_write_text(const char *directory, const char *name, const char *text)
{
    g_autofree char *path = g_build_filename(directory, name, NULL);

    assert_true(g_file_set_contents(path, text, -1, NULL));
}
