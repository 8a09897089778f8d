/**
 * Sizes as words: "24GiB".
 */
#pragma once

#include <glib.h>

/* A size such as 24GiB, 800GB, 1.5TiB or plain bytes, up to 10^18. @bytes: (out). Returns: whether
 * @text is one */
gboolean rp_bytes_parse(const char *text, guint64 *bytes) G_GNUC_WARN_UNUSED_RESULT;
