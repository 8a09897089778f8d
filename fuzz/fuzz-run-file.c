/**
 * Reading a run file neither crashes nor leaks, whatever the bytes; a refusal is one line that
 * names the file; an accepted run, written as resolved, reads as the same run.
 */
#include "fuzz/harness.h"

#include "run/devices.h"
#include "run/run-file.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    g_autoptr(GError) error = NULL;
    g_autoptr(RpRunSpec) run = rp_run_file_parse("fuzz", (const char *)data, size, NULL, &error);

    if (!was_taken(run != NULL, error)) {
        g_assert(error->domain == RP_RUN_ERROR || error->domain == RP_SCHEDULE_ERROR);
        g_assert(g_str_has_prefix(error->message, "fuzz: "));
        return 0;
    }
    g_assert(run->n_devices >= 1 && run->n_devices <= RP_RUN_MAX_DEVICES);
    g_assert(run->steps >= 1 && run->sequence_length >= 2 && run->micro_batches >= 1);
    g_assert(run->optimizer.beta1 >= 0 && run->optimizer.beta1 < 1);

    g_autofree char *written = rp_run_file_of(run);
    g_autoptr(RpRunSpec) again = rp_run_file_parse("again", written, strlen(written), NULL, &error);

    g_assert_no_error(error);
    g_autofree char *anew = rp_run_file_of(again);
    g_assert_cmpstr(anew, ==, written);
    return 0;
}
