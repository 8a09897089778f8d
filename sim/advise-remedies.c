/* Changes that make a query fit; each is planned. */
#include "sim/advise-private.h"

#include "core/units.h"

static void
free_remedy(gpointer data)
{
    RpAdviseRemedy *remedy = data;

    g_free(remedy->change);
    g_free(remedy);
}

/* Adds the change if the query fits with it. */
static gboolean
try_remedy(const RpAdviseQuery *changed, char *change, GPtrArray *remedies)
{
    g_autoptr(RpAdviseRun) run = NULL;
    RpAdviseQuery query = *changed;

    if (rp_advise_resolve(&query, NULL))
        run = rp_advise_least(&query, NULL, NULL);
    if (run == NULL || run->problem != NULL) {
        g_free(change);
        return FALSE;
    }
    RpAdviseRemedy *remedy = g_new0(RpAdviseRemedy, 1);

    remedy->change = change;
    remedy->gpu_total = run->gpu.total;
    remedy->host_total = run->host.total;
    g_ptr_array_add(remedies, remedy);
    return TRUE;
}

/* The longest sequence at the query's own micro-batch, halving down from what does not fit. */
static guint
shorter_sequence(const RpAdviseQuery *query)
{
    RpAdviseQuery shorter = *query;
    guint low = 0, high = query->tokens_per_sequence / RP_ADVISE_SEQUENCE_STEP + 1;

    if (!rp_advise_resolve(&shorter, NULL))
        return 0;
    while (low + 1 < high) {
        guint middle = low + (high - low) / 2;

        shorter.tokens_per_sequence = middle * RP_ADVISE_SEQUENCE_STEP;
        g_autoptr(RpAdviseRun) run = rp_advise_least(&shorter, NULL, NULL);

        if (run != NULL && run->problem == NULL)
            low = middle;
        else
            high = middle;
    }
    return low * RP_ADVISE_SEQUENCE_STEP;
}

static void
try_shorter(const RpAdviseQuery *query, const char *with, GPtrArray *remedies)
{
    RpAdviseQuery shorter = *query;

    shorter.tokens_per_sequence = shorter_sequence(query);
    if (shorter.tokens_per_sequence > 0)
        try_remedy(&shorter, g_strdup_printf("%s--sequence %u", with, shorter.tokens_per_sequence),
                   remedies);
}

/* Adds what is missing, in whole GiB, after the options in @with. */
static void
try_more_host_memory(const RpAdviseQuery *query, const char *with, GPtrArray *remedies)
{
    RpAdviseQuery more = *query;

    if (!rp_advise_resolve(&more, NULL))
        return;
    g_autoptr(RpAdviseRun) run = rp_advise_least(&more, NULL, NULL);
    if (run == NULL || run->gpu_over_bytes > 0 || run->host_over_bytes == 0)
        return;
    more = *query;
    more.host_bytes = rp_align_up(run->host.total, RP_GIB);
    try_remedy(
        &more,
        g_strdup_printf("%s--host-memory %" G_GUINT64_FORMAT "GiB", with, more.host_bytes / RP_GIB),
        remedies);
}

static void
try_larger_gpu(const RpAdviseQuery *query, const char *with, GPtrArray *remedies)
{
    guint n_gpus;
    const RpGpu *gpus = rp_gpu_list(&n_gpus);
    const RpGpu *next = NULL;
    RpAdviseQuery larger = *query;

    for (guint i = 0; i < n_gpus; i++) {
        if (gpus[i].memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES <= query->gpu_bytes)
            continue;
        larger.gpu = &gpus[i];
        larger.gpu_bytes = gpus[i].memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES;
        g_autoptr(RpAdviseRun) run = NULL;
        RpAdviseQuery resolved = larger;

        if (rp_advise_resolve(&resolved, NULL))
            run = rp_advise_least(&resolved, NULL, NULL);
        if (run != NULL && run->problem == NULL &&
            (next == NULL || gpus[i].memory_bytes < next->memory_bytes))
            next = &gpus[i];
    }
    if (next == NULL)
        return;
    larger.gpu = next;
    larger.gpu_bytes = next->memory_bytes - RP_ADVISE_GPU_RESERVE_BYTES;
    try_remedy(&larger, g_strdup_printf("%s--gpu %s", with, next->name), remedies);
}

/* Options that cost no hardware, alone. Micro-batch and round only where they were asked for. */
static void
try_options(const RpAdviseQuery *query, GPtrArray *remedies)
{
    RpAdviseQuery changed = *query;

    if (query->round > query->gpus) {
        changed.round = 0;
        try_remedy(&changed, g_strdup("leave --round out"), remedies);
    }
    changed = *query;
    if (query->profile == NULL && (query->micro_batch > 1 || query->micro_batches > 0)) {
        changed.micro_batch = 1;
        changed.micro_batches = 0;
        try_remedy(&changed, g_strdup("--micro-batch 1"), remedies);
    }
    changed = *query;
    if (query->optimizer == RP_OPTIMIZER_FUSED) {
        changed.optimizer = RP_OPTIMIZER_LEAN;
        try_remedy(&changed, g_strdup("--optimizer lean"), remedies);
    }
    changed = *query;
    if (!query->sync) {
        changed.sync = TRUE;
        try_remedy(&changed, g_strdup("--sync"), remedies);
    }
    if (query->profile != NULL)
        return;
    changed = *query;
    if (query->lora_rank == 0) {
        changed.lora_rank = RP_ADVISE_LORA_RANK;
        try_remedy(&changed, g_strdup_printf("--lora-rank %u", changed.lora_rank), remedies);
    }
    try_shorter(query, "", remedies);
}

static void
try_hardware(const RpAdviseQuery *query, const char *with, GPtrArray *remedies)
{
    try_more_host_memory(query, with, remedies);
    if (query->profile == NULL && query->gpu_bytes != 0)
        try_larger_gpu(query, with, remedies);
}

GPtrArray *
rp_advise_find_remedies(const RpAdviseQuery *query)
{
    GPtrArray *remedies = g_ptr_array_new_with_free_func(free_remedy);
    RpAdviseQuery lora = *query;

    try_options(query, remedies);
    guint n = remedies->len;

    lora.lora_rank = RP_ADVISE_LORA_RANK;
    if (n == 0 && query->profile == NULL && query->lora_rank == 0) {
        g_autofree char *with = g_strdup_printf("--lora-rank %u ", lora.lora_rank);

        try_shorter(&lora, with, remedies);
        try_hardware(&lora, with, remedies);
    }
    try_hardware(query, "", remedies);
    return remedies;
}
