#include "core/catalogue/cost/decode.h"

#include <math.h>

#include "core/catalogue/cost/cost-parts.h"

#define BYTES_16BIT 2
#define BYTES_FP32 4
/* Kernels of a block's attention or DeltaNet, of a dense MLP and one of experts, each with its norm; and of all else. */
#define ATTENTION_KERNELS 6
#define DELTA_KERNELS 7
#define MLP_KERNELS 4
#define EXPERT_KERNELS 9
#define OTHER_KERNELS 4
/* Many rows reach more of the rate of few. */
#define FULL_ROWS 256.0
#define MANY_ROWS_GAIN 0.6

/* Work of a call. */
typedef struct {
    double weight_bytes;
    double row_flops;    /* of a token, without the head */
    double cache_bytes;  /* of a token, which all later ones read */
    double window_bytes; /* the same of blocks that slide */
    double state_bytes;  /* that a sequence reads and writes for a token */
    double kernels;
} Work;

static void
add_block(const RpModel *model, guint block, double rows, Work *work)
{
    const RpCostMixer mixer = rp_cost_mixer(model, block);
    const gboolean delta = rp_model_block_is_delta(model, block);
    const double h = model->hidden, mlp = 3 * h * model->intermediate;
    const double E = model->experts, active = MAX(1, model->active_experts);
    /* experts that any row goes to, if routers spread rows evenly */
    const double touched = E > 1 ? E * (1 - pow(1 - active / E, rows)) : 1;
    const double rest = h * (mixer.qkv + mixer.out + 3.0 * model->shared_intermediate + E);
    const double kv = 2.0 * BYTES_16BIT * model->kv_heads * model->head_dim;

    work->weight_bytes += BYTES_16BIT * (rest + touched * mlp);
    work->row_flops += 2 * (rest + active * mlp);
    work->kernels +=
        (delta ? DELTA_KERNELS : ATTENTION_KERNELS) + (E > 1 ? EXPERT_KERNELS : MLP_KERNELS);
    if (delta)
        work->state_bytes += 2.0 * BYTES_FP32 * model->delta_value_heads * model->delta_key_dim *
                             model->delta_value_dim;
    else
        *(rp_model_block_slides(model, block) ? &work->window_bytes : &work->cache_bytes) += kv;
}

/* A call of @rows tokens, @n of which get logits. @bytes: of caches that it reads */
static double
call_ns(const RpDecodeQuery *query, const Work *work, double rows, double n, double bytes)
{
    const RpCostRates rates =
        rp_cost_rates(query->gpu, RP_COST_KERNELS_OWN, FALSE, FALSE, RP_COST_EXPECTED);
    const double head = (double)query->model->hidden * query->model->vocab;
    /* rows are sampled beside each other */
    const double waves = query->samples ? ceil(n / MAX(1, query->gpu->processors)) : 0;

    const double rate =
        rates.few_rows * (1 + MANY_ROWS_GAIN * fmax(0, 1 - FULL_ROWS / fmax(rows, 1)));
    const double computed =
        1e9 * ((work->weight_bytes + BYTES_16BIT * head + bytes) / rates.bandwidth +
               (rows * work->row_flops + n * 2 * head) / rate) +
        (work->kernels + OTHER_KERNELS) *
            (rows > 1 ? RP_COST_ROWS_KERNEL_NS : RP_COST_ROW_KERNEL_NS) +
        waves * query->model->vocab * RP_COST_SAMPLED_NS;

    return fmax(computed, (double)query->streamed_bytes / query->gpu->h2d_gb_per_s);
}

static Work
count_work(const RpModel *model, double rows)
{
    Work work = {0};

    for (guint b = 0; b < model->blocks; b++)
        add_block(model, b, rows, &work);
    return work;
}

/* Rows are a power of two, or all slots. @length: mean of the sequences */
static double
step_ns(const RpDecodeQuery *query, guint n, double length)
{
    const double rows = MIN(exp2(ceil(log2(n))), query->slots);
    const Work work = count_work(query->model, rows);
    const double window = MIN(length, query->model->sliding_window);

    return call_ns(query, &work, rows, rows,
                   n * (work.cache_bytes * length + work.window_bytes * window + work.state_bytes));
}

static double
prefill_ns(const RpDecodeQuery *query, guint n, double tokens)
{
    const Work work = count_work(query->model, tokens);

    return n > 0 ? call_ns(query, &work, tokens, n, tokens * work.state_bytes) : 0;
}

RpDecodePrediction
rp_decode_predict(const RpDecodeQuery *query, const RpDecodeLengths *lengths, guint n)
{
    g_autofree guint *left = g_new(guint, query->slots);  /* tokens that an answer still gets */
    g_autofree guint *index = g_new(guint, query->slots); /* its prompt */
    guint next = 0, there = 0;
    double prefills = 0, steps = 0, steps_ns = 0;
    guint64 held = 0, length = 0; /* tokens that answers will have, and have so far */

    while (next < n || there > 0) {
        double tokens = 0;
        guint begun = 0, some = G_MAXUINT, kept = 0;

        for (; next < n && there < query->slots; next++, begun++) {
            const guint64 more = (guint64)lengths[next].n_prompt + lengths[next].n_answer;

            if ((begun > 0 && tokens + lengths[next].n_prompt > query->begin_tokens) ||
                (there > 0 && held + more > query->tokens))
                break;
            held += more;
            length += lengths[next].n_prompt + 1;
            tokens += lengths[next].n_prompt;
            index[there] = next;
            left[there++] = lengths[next].n_answer - 1; /* its first comes with the prompt */
        }
        prefills += prefill_ns(query, begun, tokens);
        /* until an answer ends; prompts that wait for the next call enter before */
        for (guint i = 0; i < there; i++)
            some = MIN(some, left[i]);
        some = begun > 0 && next < n ? MIN(some, 1) : some;
        if (some > 0)
            steps_ns += some * step_ns(query, there, (double)length / there + (some - 1) / 2.0);
        steps += some;
        length += (guint64)there * some;
        for (guint i = 0; i < there; i++) {
            const guint64 all = (guint64)lengths[index[i]].n_prompt + lengths[index[i]].n_answer;

            index[kept] = index[i];
            left[kept] = left[i] - some;
            held -= left[kept] == 0 ? all : 0;
            length -= left[kept] == 0 ? all : 0;
            kept += left[kept] > 0;
        }
        there = kept;
    }
    return (RpDecodePrediction){.seconds = (prefills + steps_ns) / 1e9,
                                .prefill_seconds = prefills / 1e9,
                                .step_ms = steps > 0 ? steps_ns / steps / 1e6 : 0};
}
