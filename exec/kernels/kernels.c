#include "exec/kernels/kernels.h"

#include <string.h>

G_DEFINE_QUARK(rp_kernels_error, rp_kernels_error)

static const char *const attentions[RP_N_ATTENTIONS] = {
    [RP_ATTENTION_BUILTIN] = "builtin",
    [RP_ATTENTION_CUDNN] = "cudnn",
};

const char *
rp_attention_name(RpAttentionChoice choice)
{
    g_return_val_if_fail((guint)choice < RP_N_ATTENTIONS, NULL);
    return attentions[choice];
}

gboolean
rp_attention_from_name(const char *name, RpAttentionChoice *choice)
{
    g_return_val_if_fail(name && choice, FALSE);

    /* Profiles had two choices with cuDNN before its backward went. */
    if (strcmp(name, "cudnn-forward") == 0)
        name = attentions[RP_ATTENTION_CUDNN];
    for (guint i = 0; i < RP_N_ATTENTIONS; i++) {
        if (strcmp(name, attentions[i]) == 0) {
            *choice = (RpAttentionChoice)i;
            return TRUE;
        }
    }
    return FALSE;
}
