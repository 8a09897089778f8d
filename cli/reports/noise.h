/**
 * Times as they are on real machines: drawn from distributions, and a card that is slower than the
 * others: options of `simulate` and `compare`.
 */
#pragma once

#include "cli/cli.h"
#include "sim/draws.h"

/* Before long work. Errors: what an option says wrong, and options that
 * miss another */
gboolean rp_cli_noise_check(const RpArgs *args, guint gpus,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* To a request that is resolved. */
void rp_cli_noise_apply(const RpArgs *args, RpRequest *request);

/* Reports figures over draws of the times, if they are requested and the times have a
 * distribution. @drawn: (out): draws = 0: they are not; @distributed: (out): whether they have */
gboolean rp_cli_noise_draw(const RpArgs *args, const RpRequest *request, const RpProfile *profile,
                           RpRequestDrawn *drawn, gboolean *distributed,
                           GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* noise, slow {gpu: factor}, drawn {draws, seed, makespan_ms, iteration_ms, bubble_ratio}, as far as
 * they are asked for. @words: for people, too */
void rp_report_add_noise(RpReport *report, const RpArgs *args, const RpRequest *request,
                         const RpRequestDrawn *drawn, gboolean words);
