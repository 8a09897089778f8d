/**
 * Reading a request to the server neither crashes nor leaks, whatever the bytes; a refusal is one line that names the
 * body, and JSON as clients get it. Of an accepted one all numbers are those that the queue may have.
 */
#include "fuzz/harness.h"

#include "run/serve/private.h"

static void
check_refusal(const GError *error, const char *param)
{
    g_autofree char *json = rp_serve_error_json(error, param);

    g_assert(error->domain == RP_SERVE_ERROR && error->code == 400);
    g_assert(g_str_has_prefix(error->message, "body: "));
    g_assert(g_utf8_validate(json, -1, NULL));
}

static void
check_request(const RpServeRequest *request)
{
    const RpSampling *sampling = &request->sampling;
    gsize longest = 0;

    g_assert(request->n >= 1 && request->n <= RP_SERVICE_MAX_CHOICES);
    g_assert(request->max_tokens <= G_MAXINT32 && request->max_completion_tokens <= G_MAXINT32);
    g_assert(sampling->temperature >= 0 && sampling->temperature <= 100);
    g_assert(sampling->top_p > 0 && sampling->top_p <= 1);
    g_assert(sampling->temperature > 0 || (sampling->top_p == 1 && sampling->top_k == 0));
    for (guint i = 0; i < request->stops->len; i++) {
        const char *stop = g_ptr_array_index(request->stops, i);

        g_assert(*stop != '\0');
        longest = MAX(longest, strlen(stop));
    }
    g_assert(longest == request->longest_stop);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const RpSampling sampling = {.top_p = 1};

    for (int chat = 0; chat < 2; chat++) {
        g_auto(RpServeRequest) request = {0};
        g_autoptr(GError) error = NULL;
        g_autofree char *param = NULL;

        const gboolean taken = rp_serve_request_read((const char *)data, size, chat, &sampling,
                                                     &request, &param, &error);

        if (was_taken(taken, error))
            check_request(&request);
        else
            check_refusal(error, param);
    }
    return 0;
}
