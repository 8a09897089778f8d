/**
 * Counts the disk space that a checkpoint needs, and removes older ones to make space for it.
 *
 *   disk    | checkpoint-10 | checkpoint-20 | checkpoint-30 | free |      30 is needed
 *   becomes |        free            | checkpoint-30 |      free   |      oldest first, never the
 * last
 */
#include "exec/checkpoint/private.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/base/file.h"
#include "core/base/new-file.h"
#include "core/base/quote.h"

/* A tensor's entry in a header or an index takes at most this beside its name. */
#define ENTRY_BYTES 128
/* The small files (config, state, manifest) take at most this. */
#define SMALL_FILES_BYTES 65536

const char *const rp_checkpoint_copied_files[] = {
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.model",
    "generation_config.json",
    "chat_template.jinja",
    NULL,
};

guint64
rp_checkpoint_bytes(const RpWeights *weights, RpDtype dtype, RpStateFormat form, gboolean async,
                    gboolean weights_only, const char *model_dir)
{
    const guint64 size = rp_dtype_size(dtype);
    const guint64 model = rp_weights_lora(weights) != NULL ? sizeof(float) : size;
    const guint64 next = !weights_only && async ? size : 0;
    guint copies = next > 0 ? 2 : 1;
    guint states = weights_only ? 0 : rp_checkpoint_n_state_tensors(form);
    guint64 sum = SMALL_FILES_BYTES;

    for (guint i = 0; i < rp_weights_count(weights); i++) {
        const RpWeight *weight = rp_weights_nth(weights, i);
        if (!rp_checkpoint_has_weight(weights, weight))
            continue;
        sum += weight->elements * model;
        if (rp_weight_has_state(weight))
            sum += weight->elements * next;
        for (guint k = 0; rp_weight_has_state(weight) && k < states; k++)
            sum += rp_checkpoint_state_bytes(weight, form, k);
        sum += (copies + states) * 2 * (ENTRY_BYTES + strlen(weight->name));
    }
    for (gsize i = 0; model_dir != NULL && rp_checkpoint_copied_files[i] != NULL; i++) {
        g_autofree char *from = g_build_filename(model_dir, rp_checkpoint_copied_files[i], NULL);
        struct stat status;
        if (stat(from, &status) == 0 && S_ISREG(status.st_mode))
            sum += (guint64)status.st_size;
    }
    return sum;
}

guint64
rp_checkpoint_needed_bytes(const RpCheckpointOptions *options, const RpCheckpointImage *image,
                           gboolean weights_only)
{
    return rp_checkpoint_bytes(image->weights, image->dtype, image->state.form, image->state.async,
                               weights_only, options->model_dir);
}

/* Sums the sizes of all files in the directory. */
static guint64
directory_bytes(const char *path)
{
    g_autoptr(GPtrArray) names = rp_file_list(path, NULL);
    guint64 sum = 0;

    for (guint i = 0; names != NULL && i < names->len; i++) {
        g_autofree char *inner = g_build_filename(path, g_ptr_array_index(names, i), NULL);
        struct stat status;
        if (lstat(inner, &status) == 0 && S_ISREG(status.st_mode) && status.st_nlink == 1)
            sum += (guint64)status.st_blocks * 512;
    }
    return sum;
}

/* Paths of complete checkpoints that may go, the oldest first: all but the last, the best, and none
 * of the step that is to be saved. (transfer full) */
static GPtrArray *
list_removable(const char *output, guint64 step)
{
    g_autoptr(GArray) steps = rp_checkpoint_list(output, NULL);
    GPtrArray *paths = g_ptr_array_new_with_free_func(g_free);
    const guint64 best = rp_checkpoint_best_step(output);
    gboolean last = TRUE;

    for (guint i = 0; steps != NULL && i < steps->len; i++) {
        guint64 of = g_array_index(steps, guint64, i);
        g_autofree char *path = rp_checkpoint_path(output, of);
        if (!rp_checkpoint_is_complete(path, NULL)) /* incomplete ones are left alone */
            continue;
        if (!last && of != step && of != best)
            g_ptr_array_insert(paths, 0, g_steal_pointer(&path));
        last = FALSE;
    }
    return paths;
}

gboolean
rp_checkpoint_make_space(const RpCheckpointOptions *options, const RpCheckpointImage *image,
                         GString *gone)
{
    guint64 needed = rp_checkpoint_needed_bytes(options, image, FALSE);
    guint64 left;

    if (options->keep == 0 || !rp_new_file_free_bytes(options->output, &left))
        return FALSE;
    g_autoptr(GPtrArray) paths = list_removable(options->output, image->state.step);
    for (guint i = 0; i < paths->len; i++)
        left += directory_bytes(g_ptr_array_index(paths, i));
    if (paths->len == 0 || left < needed) /* nothing goes in vain */
        return FALSE;
    const char *oldest = g_ptr_array_index(paths, 0);
    if (!rp_checkpoint_discard(options->output, oldest))
        return FALSE;
    g_string_append_printf(gone, "%s%s", gone->len > 0 ? ", " : "", strrchr(oldest, '/') + 1);
    return TRUE;
}

/* ---- of a save ---- */

/* @cause: of a failure although the bytes are there: inodes, a quota */
static gboolean
fail_no_space(const RpCheckpointSave *save, guint64 left, const char *cause, GError **error)
{
    g_autofree char *shown = rp_display_name(save->path);
    gboolean enough = cause != NULL && left >= save->needed_bytes;

    return rp_fail(error, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_NO_SPACE,
                   "cannot write \"%s\": no space left: expected %" G_GUINT64_FORMAT
                   " bytes of free disk space, found %" G_GUINT64_FORMAT "%s%s",
                   shown, save->needed_bytes, left, enough ? ": " : "", enough ? cause : "");
}

static gboolean
check_space(RpCheckpointSave *save, GError **error)
{
    guint64 left;

    save->needed_bytes = rp_checkpoint_needed_bytes(save->options, save->image, save->weights_only);
    if (!rp_new_file_free_bytes(save->options->output, &left))
        return rp_checkpoint_fail_errno(error, "write", save->options->output, errno);
    return save->needed_bytes <= left || fail_no_space(save, left, NULL, error);
}

gboolean
rp_checkpoint_save_begin(RpCheckpointSave *save, GError **error)
{
    if (!check_space(save, error))
        return FALSE;
    return g_mkdir(save->temporary, 0777) == 0 ||
           rp_checkpoint_fail_errno(error, "make", save->temporary, errno);
}

void
rp_checkpoint_save_explain(const RpCheckpointSave *save, const GError *cause, GError **error)
{
    guint64 left;
    gboolean full = g_error_matches(cause, G_FILE_ERROR, G_FILE_ERROR_NOSPC) ||
                    g_error_matches(cause, RP_CHECKPOINT_ERROR, RP_CHECKPOINT_ERROR_NO_SPACE);

    if (full && save->needed_bytes > 0 && rp_new_file_free_bytes(save->options->output, &left))
        fail_no_space(save, left, cause->message, error);
    else
        g_set_error_literal(error, RP_CHECKPOINT_ERROR,
                            full ? RP_CHECKPOINT_ERROR_NO_SPACE : RP_CHECKPOINT_ERROR_WRITE,
                            cause->message);
}
