/* The frozen base of a run: in how many bits it is held, and the file where it is. */
#include "run/train/private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <glib/gstdio.h>

#include "core/base/file.h"
#include "core/base/quote.h"
#include "exec/quantise/quantise.h"
#include "run/model.h"

static gboolean
show(guint64 done, guint64 total, gpointer user_data)
{
    const RpRunEvents *events = user_data;

    RP_RUN_TELL(events, progress, "packing the base", done, total);
    return rp_run_stop(events) == 0;
}

/* Makes @path; not here while another run does, which may have made it then. */
static gboolean
make_packed(RpTrainJob *job, RpLowbit format, const char *path, GError **error)
{
    const RpQuantiseOptions options = {.progress = show, .user_data = (gpointer)job->events};
    const int lock = open(rp_safetensors_path(job->checkpoint), O_RDONLY | O_CLOEXEC);
    gboolean made;

    if (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        rp_run_say(job->events, "note", "another run packs the base: waiting for it");
        while (flock(lock, LOCK_EX) != 0 && errno == EINTR)
            ;
    }
    made = g_file_test(path, G_FILE_TEST_EXISTS);
    if (!made) {
        g_autofree char *shown = rp_display_name(path);

        rp_file_remove_leftovers(path);
        made = rp_quantise(&job->config, job->checkpoint, format, path, &options, error);
        RP_RUN_TELL(job->events, progress, "packing the base", 0, 0);
        if (made)
            rp_run_say(job->events, "note", "the base in %s is kept in %s", rp_lowbit_name(format),
                       shown);
    }
    if (lock >= 0)
        close(lock);
    return made;
}

/* Adapters of the one are adapters of the other: the hash is that of the model's own file. It takes a
 * pass over all of it, and so is kept beside the packed form: the hash, and those of each layer's values,
 * behind a line that says so. */
#define VALUES "values\n"

static gboolean
take_hash(RpTrainJob *job, const char *packed, GError **error)
{
    g_autofree char *path = g_strconcat(packed, ".base", NULL);
    g_autofree char *text = NULL;

    if (g_file_get_contents(path, &text, NULL, NULL) && g_str_has_prefix(text, VALUES)) {
        g_auto(GStrv) lines = g_strsplit(text + strlen(VALUES), "\n", 3);

        if (g_strv_length(lines) == 3 && strlen(lines[0]) == RP_WEIGHTS_HASH_DIGITS) {
            rp_weights_set_base_hash(job->weights, lines[0], lines[1]);
            return TRUE;
        }
    }
    g_autoptr(RpWeights) plain =
        rp_weights_new_adapted(&job->config, rp_weights_lora(job->weights));
    if (!rp_weights_bind(plain, job->checkpoint, error))
        return FALSE;
    const char *hash = rp_weights_base_hash(plain), *values = rp_weights_base_values(plain);
    g_autofree char *lines = g_strdup_printf(VALUES "%s\n%s\n", hash, values);

    rp_weights_set_base_hash(job->weights, hash, values);
    if (!job->dry)
        (void)g_file_set_contents(path, lines, -1, NULL); /* else it is made again */
    return TRUE;
}

/* Whether files may be put beside the model: not where the folder is another user's, nor where its file is a
 * link, as in the cache of a hub, which has its own files in it. */
static gboolean
is_own_folder(const RpSafetensors *checkpoint)
{
    const char *path = rp_safetensors_path(checkpoint);
    g_autofree char *directory = g_path_get_dirname(path);
    GStatBuf folder;

    return !g_file_test(path, G_FILE_TEST_IS_SYMLINK) && g_stat(directory, &folder) == 0 &&
           folder.st_uid == geteuid() && access(directory, W_OK) == 0;
}

/* Beside the model, or in the user's cache; both names have the hash of the model's file. (transfer full) */
static char *
packed_path(const RpSafetensors *checkpoint, RpLowbit format)
{
    g_autofree char *beside = rp_quantise_path(checkpoint, format);
    g_autofree char *name = g_path_get_basename(beside);

    if (g_file_test(beside, G_FILE_TEST_EXISTS) || is_own_folder(checkpoint))
        return g_steal_pointer(&beside);
    return g_build_filename(g_get_user_cache_dir(), "roundpipe", "bases", name, NULL);
}

/* A dry run writes nothing: it is planned from the sizes, as without weights. */
static gboolean
plan_packed(RpTrainJob *job, RpLowbit format, GError **error)
{
    if (!rp_weights_bind(job->weights, job->checkpoint, error))
        return FALSE;
    job->config.dtype = rp_weights_dtype(job->weights);
    job->config.has_dtype = TRUE;
    const RpLora *lora = rp_weights_lora(job->weights);
    RpWeights *unbound = rp_weights_new_adapted(&job->config, lora);

    rp_weights_free(job->weights);
    job->weights = unbound;
    rp_weights_pack_base(job->weights, format);
    g_clear_pointer(&job->checkpoint, rp_safetensors_free);
    rp_run_say(job->events, "note", "the base is not packed in %s yet: planned from its sizes",
               rp_lowbit_name(format));
    return TRUE;
}

/* Opens a packed copy, which is ours: one that is broken may go. */
static RpSafetensors *
open_packed(const char *path, GError **error)
{
    g_autoptr(GError) problem = NULL;
    RpSafetensors *packed = rp_safetensors_open(path, &problem);

    if (packed == NULL)
        g_set_error(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                    "%s; remove the file, and it is packed again", problem->message);
    return packed;
}

/* The packed form of the checkpoint, made once and kept. Takes the checkpoint's place. */
static gboolean
quantise(RpTrainJob *job, RpLowbit format, GError **error)
{
    g_autofree char *path = packed_path(job->checkpoint, format);
    g_autofree char *directory = g_path_get_dirname(path);
    RpSafetensors *packed = NULL;

    if (job->dry && !g_file_test(path, G_FILE_TEST_EXISTS))
        return plan_packed(job, format, error);
    (void)g_mkdir_with_parents(directory, 0700); /* what fails is told of the file */
    if (g_file_test(path, G_FILE_TEST_EXISTS) || make_packed(job, format, path, error))
        packed = open_packed(path, error);
    if (packed == NULL)
        return FALSE;
    rp_weights_pack_base(job->weights, format);
    const gboolean taken = take_hash(job, path, error);

    rp_safetensors_free(job->checkpoint);
    job->checkpoint = packed;
    return taken;
}

gboolean
rp_train_open_base(RpTrainJob *job, GError **error)
{
    const int choice = job->run->base_choice;
    const gboolean adapted = rp_weights_lora(job->weights) != NULL;
    const char *format;

    if (!adapted && choice > RP_RUN_BASE_16_BITS)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "base: expected bf16 without lora.rank, found %s: a packed base is frozen",
                       rp_lowbit_name((RpLowbit)(choice - RP_RUN_BASE_PACKED)));
    if (!adapted || choice == RP_RUN_BASE_16_BITS)
        return TRUE; /* packed weights are expanded as they are read, or refused */
    if (job->random && choice != RP_RUN_BASE_OF_THE_FILE)
        return rp_fail(
            error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
            "base: expected bf16 for %s, found %s: `roundpipe init --base` writes a random "
            "model whose base is packed",
            job->run->model, rp_lowbit_name((RpLowbit)(choice - RP_RUN_BASE_PACKED)));
    if (job->checkpoint == NULL) {
        if (choice != RP_RUN_BASE_OF_THE_FILE)
            rp_weights_pack_base(job->weights, (RpLowbit)(choice - RP_RUN_BASE_PACKED));
        return TRUE;
    }
    if (!rp_weights_adopt(job->weights, job->checkpoint, error)) {
        g_prefix_error(error, "model: ");
        return FALSE;
    }
    format = rp_run_base_format(job->weights);
    if (choice == RP_RUN_BASE_OF_THE_FILE)
        return TRUE;
    const RpLowbit wanted = (RpLowbit)(choice - RP_RUN_BASE_PACKED);

    if (format != NULL && strcmp(format, rp_lowbit_name(wanted)) != 0)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_VALUE,
                       "base: expected %s, as the model's file has it, found %s", format,
                       rp_lowbit_name(wanted));
    if (format != NULL || quantise(job, wanted, error))
        return TRUE;
    g_prefix_error(error, "base: ");
    return FALSE;
}
