/**
 * Times as they are on real machines: drawn from distributions, and a card that is slower than the
 * others: options of `simulate` and `compare`.
 */
#pragma once

#include "cli/cli.h"
#include "sim/draws.h"

typedef struct {
    double noise; /* sigma; 0: none */
    int draws;    /* 0: none */
    gint64 seed;
} RpCliNoise;

/* Rows of an options table; @type: of a command's arguments, with an RpCliNoise noise and an
 * RpScheduleArgs request. */
#define RP_CLI_NOISE(type)                                                                         \
    {"draws", 0, RP_COUNT(type, noise.draws),                                                      \
     "simulate N times more, with times drawn from the profile's spreads: mean, deviation, "       \
     "percentiles",                                                                                \
     "N"},                                                                                         \
        {"seed", 0, 0, G_OPTION_ARG_INT64, RP_ARG(type, noise.seed), "of --draws (default: 0)",    \
         "S"},                                                                                     \
        {"noise", 0, RP_NUMBER(type, noise.noise),                                                 \
         "--draws: log-normal times of each layer and micro-batch in place of the profile's "      \
         "spreads",                                                                                \
         "SIGMA"},                                                                                 \
    {                                                                                              \
        "slow", 0, RP_WORD(type, request.slow),                                                    \
            "GPUs whose actions, and links (link3=2) whose copies take so many times as long; "    \
            "the "                                                                                 \
            "plan does not know of it without --dispatch free",                                    \
            "GPU=FACTOR,..."                                                                       \
    }

/* Before long work; @slow: (nullable): as written. Errors: what an option says wrong, and options that
 * miss another */
gboolean rp_cli_noise_check(const RpCliNoise *noise, const char *slow, guint gpus,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* To a request that is resolved. */
void rp_cli_noise_apply(const RpCliNoise *noise, RpRequest *request);

/* Reports figures over draws of the times, if they are requested and the times have a
 * distribution. @drawn: (out): draws = 0: they are not; @distributed: (out): whether they have */
gboolean rp_cli_noise_draw(const RpCliNoise *noise, const RpRequest *request,
                           const RpProfile *profile, RpRequestDrawn *drawn, gboolean *distributed,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* noise, slow {gpu: factor}, drawn {draws, seed, makespan_ms, iteration_ms, bubble_ratio}, as far as
 * they are asked for. @words: for people, too */
void rp_report_add_noise(RpReport *report, const RpCliNoise *noise, const RpRequest *request,
                         const RpRequestDrawn *drawn, gboolean words);
