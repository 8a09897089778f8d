/* roundpipe generate --serve: answers programs until a signal comes. */
#include "cli/generate/generate.h"

#include <stdio.h>
#include <string.h>

#include "cli/train/train.h"
#include "core/base/file.h"
#include "core/base/quote.h"
#include "run/devices.h"
#include "run/serve/service.h"

#define DEFAULT_REQUESTS 64
#define MAX_REQUESTS 4096
#define CLIENT_MS 30000
#define GRACE_MS 30000
#define LOOK_US (G_USEC_PER_SEC / 20)
#define LEAST_TOKEN 16
#define MOST_TOKEN 4096

typedef struct {
    gboolean quiet;
    guint n_answered, n_refused, n_left;
    guint64 n_prompt, n_answer; /* tokens */
} Served;

/* A line a request. */
static void
log_request(gpointer user_data, const RpServiceRecord *record)
{
    Served *served = user_data;

    served->n_left += record->left;
    served->n_answered += !record->left && record->status < 400;
    served->n_refused += !record->left && record->status >= 400;
    served->n_prompt += record->n_prompt;
    served->n_answer += record->n_answer;
    if (served->quiet)
        return;
    g_autofree char *path = rp_display_name(record->path);

    fprintf(stderr, "%s %s %s %u: %u + %u tokens, %.3f s%s\n", record->client, record->method, path,
            record->status, record->n_prompt, record->n_answer, record->seconds,
            record->left ? ", client left" : "");
}

static gboolean
read_port(const RpArgs *args, guint16 *port, GError **error)
{
    guint64 number;

    if (!g_ascii_string_to_unsigned(args->serve, 10, 0, G_MAXUINT16, &number, NULL))
        return rp_cli_refuse(error, "--serve: expected a port from 0 to 65535, found %s",
                             args->serve);
    *port = (guint16)number;
    return TRUE;
}

/* @token: (out) (transfer full): %NULL: none is needed */
static gboolean
read_token(const RpArgs *args, char **token, GError **error)
{
    gsize length;

    *token = NULL;
    if (args->bind != NULL && args->token_file == NULL)
        return rp_cli_refuse(
            error, "--bind: expected --token-file beside it: who knows its token may ask");
    if (args->token_file == NULL)
        return TRUE;
    g_autofree char *text = rp_file_read(args->token_file, MOST_TOKEN, &length, error);

    if (text == NULL)
        return FALSE;
    g_strchomp(text);
    for (length = 0; g_ascii_isgraph(text[length]); length++)
        continue;
    if (length < LEAST_TOKEN || text[length] != '\0')
        return rp_cli_refuse(error,
                             "--token-file: %s: expected a line of %d letters or more, without "
                             "spaces, found another text",
                             args->token_file, LEAST_TOKEN);
    *token = g_steal_pointer(&text);
    return TRUE;
}

/* Tokens of a prompt and its answer at most. */
static gboolean
choose_positions(const RpArgs *args, const RpModel *config, guint *positions, GError **error)
{
    const guint most = rp_model_positions(config);
    const guint asked = (guint)args->box.sequence;

    if (asked > most)
        return rp_cli_refuse(
            error, "--sequence: expected at most the model's %u positions, found %u", most, asked);
    *positions = asked > 0 ? asked : MIN(most, RP_TALK_CONVERSATION);
    if (args->new_tokens < (int)*positions)
        return TRUE;
    return rp_cli_refuse(error,
                         "--max-new-tokens: expected less than the %u tokens of --sequence, "
                         "found %d",
                         *positions, args->new_tokens);
}

static void
report_served(RpReport *report, const Served *served, double seconds)
{
    rp_report_count(report, "answered", served->n_answered, NULL);
    rp_report_count(report, "refused", served->n_refused, NULL);
    rp_report_count(report, "left", served->n_left, NULL);
    rp_report_count(report, "prompt_tokens", served->n_prompt, NULL);
    rp_report_count(report, "answer_tokens", served->n_answer, NULL);
    rp_report_real(report, "seconds", seconds, 3, NULL);
    rp_report_say(report, "%u requests answered, %u refused; clients of %u left before (%.0f s)",
                  served->n_answered, served->n_refused, served->n_left, seconds);
}

/* Answers until a signal comes. */
static gboolean
serve_with(const RpServiceOptions *options, Served *served, RpReport *report, GError **error)
{
    const char *address = options->address != NULL ? options->address : RP_SERVICE_ADDRESS;
    const gint64 begin_us = g_get_monotonic_time();
    RpService *service = rp_service_new(options, error);

    if (service == NULL)
        return FALSE;
    const char *open = strchr(address, ':') != NULL ? "[" : "";

    rp_train_catch_stop(FALSE);
    rp_cli_note("note", "%s listens at http://%s%s%s:%u/v1; Ctrl-C ends it", options->model, open,
                address, *open != '\0' ? "]" : "", rp_service_port(service));
    while (rp_train_stop_signal() == 0 && !rp_service_has_failed(service))
        g_usleep(LOOK_US);
    const gboolean good = rp_service_stop(service, error);

    rp_train_release_stop();
    if (good)
        report_served(report, served, (double)(g_get_monotonic_time() - begin_us) / G_USEC_PER_SEC);
    return good;
}

gboolean
rp_generate_serve(const RpArgs *args, const char *word, RpReport *report, GError **error)
{
    Served served = {.quiet = report->form == RP_REPORT_JSON};
    g_auto(RpTrained)
        model = {.any_base = args->run.lora.any_base, .most_devices = RP_RUN_MAX_DEVICES};
    g_auto(RpModelText) text = {0};
    g_autoptr(GPtrArray) generators =
        g_ptr_array_new_with_free_func((GDestroyNotify)rp_generator_free);
    g_autofree char *token = NULL;
    g_autofree char *full = g_canonicalize_filename(word, NULL);
    g_autofree char *name = g_path_get_basename(full);
    RpServiceOptions options = {.model = name,
                                .text = &text,
                                .most_tokens = (guint)args->new_tokens,
                                .sampling = rp_generate_sampling(args),
                                .address = args->bind,
                                .requests =
                                    args->requests > 0 ? (guint)args->requests : DEFAULT_REQUESTS,
                                .client_ms = CLIENT_MS,
                                .grace_ms = GRACE_MS,
                                .log = log_request,
                                .user_data = &served};

    if (options.requests > MAX_REQUESTS)
        return rp_cli_refuse(error, "--requests: expected at most %d, found %u", MAX_REQUESTS,
                             options.requests);
    if (!read_port(args, &options.port, error) || !read_token(args, &token, error) ||
        !rp_trained_open(&model, word, args->adapter, args->run.devices, error) ||
        !rp_trained_text(&model, TRUE, &text, error) ||
        !choose_positions(args, &model.config, &options.positions, error) ||
        !rp_generate_open(&model, args, options.requests, options.positions, generators, error))
        return FALSE;
    options.generators = (RpGenerator *const *)generators->pdata;
    options.n_generators = generators->len;
    options.token = token;
    return serve_with(&options, &served, report, error);
}
