#include "run/tensorboard.h"

#include <errno.h>
#include <glib/gstdio.h>
#include <stdio.h>
#include <string.h>

#include "core/base/quote.h"

#define POLYNOMIAL 0x82f63b78u /* reflected */
#define MASK 0xa282ead8u

/* Keys of fields: number << 3 | wire type (0: varint, 1: 8 bytes, 2: length and bytes, 5: 4 bytes). */
enum {
    EVENT_WALL_TIME = 1 << 3 | 1,
    EVENT_STEP = 2 << 3,
    EVENT_FILE_VERSION = 3 << 3 | 2,
    EVENT_SUMMARY = 5 << 3 | 2,
    EVENT_SESSION_LOG = 7 << 3 | 2,
    SUMMARY_VALUE = 1 << 3 | 2,
    VALUE_TAG = 1 << 3 | 2,
    VALUE_SIMPLE = 2 << 3 | 5,
    SESSION_STATUS = 1 << 3
};
#define SESSION_START 1

struct _RpTensorboard {
    FILE *file;
};

guint32
rp_tensorboard_crc(const void *bytes, gsize n)
{
    const guint8 *at = bytes;
    guint32 crc = 0xffffffffu;

    for (gsize i = 0; i < n; i++) {
        crc ^= at[i];
        for (guint bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
    }
    return ~crc;
}

static guint32
masked_crc(const void *bytes, gsize n)
{
    const guint32 crc = rp_tensorboard_crc(bytes, n);

    return (crc >> 15 | crc << 17) + MASK;
}

/* ---- protocol buffers ---- */

static void
append_varint(GByteArray *bytes, guint64 value)
{
    do {
        const guint8 byte = (guint8)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));

        g_byte_array_append(bytes, &byte, 1);
        value >>= 7;
    } while (value > 0);
}

static void
append_bytes(GByteArray *bytes, guint key, const void *data, gsize n)
{
    append_varint(bytes, key);
    append_varint(bytes, n);
    g_byte_array_append(bytes, data, (guint)n);
}

static GByteArray *
new_event(guint64 step)
{
    GByteArray *event = g_byte_array_new();
    const double wall_time = (double)g_get_real_time() / G_USEC_PER_SEC;
    guint64 bits;

    memcpy(&bits, &wall_time, sizeof bits);
    bits = GUINT64_TO_LE(bits);
    append_varint(event, EVENT_WALL_TIME);
    g_byte_array_append(event, (const guint8 *)&bits, sizeof bits);
    append_varint(event, EVENT_STEP);
    append_varint(event, step);
    return event;
}

static void
append_value(GByteArray *summary, const RpTensorboardValue *value)
{
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    const float narrow = (float)value->value;
    guint32 bits;

    memcpy(&bits, &narrow, sizeof bits);
    bits = GUINT32_TO_LE(bits);
    append_bytes(bytes, VALUE_TAG, value->tag, strlen(value->tag));
    append_varint(bytes, VALUE_SIMPLE);
    g_byte_array_append(bytes, (const guint8 *)&bits, sizeof bits);
    append_bytes(summary, SUMMARY_VALUE, bytes->data, bytes->len);
}

/* ---- records ---- */

/* Takes @event over. */
static gboolean
write_event(RpTensorboard *board, GByteArray *event)
{
    g_autoptr(GByteArray) data = event;
    const guint64 length = GUINT64_TO_LE((guint64)data->len);
    const guint32 head = GUINT32_TO_LE(masked_crc(&length, sizeof length));
    const guint32 tail = GUINT32_TO_LE(masked_crc(data->data, data->len));

    return fwrite(&length, sizeof length, 1, board->file) == 1 &&
           fwrite(&head, sizeof head, 1, board->file) == 1 &&
           fwrite(data->data, data->len, 1, board->file) == 1 &&
           fwrite(&tail, sizeof tail, 1, board->file) == 1 && fflush(board->file) == 0;
}

static gboolean
write_start(RpTensorboard *board, guint64 next_step)
{
    static const char version[] = "brain.Event:2";
    static const guint8 start[] = {SESSION_STATUS, SESSION_START};
    GByteArray *event = new_event(0);

    append_bytes(event, EVENT_FILE_VERSION, version, strlen(version));
    if (!write_event(board, event) || next_step <= 1)
        return next_step <= 1;
    event = new_event(next_step);
    append_bytes(event, EVENT_SESSION_LOG, start, sizeof start);
    return write_event(board, event);
}

RpTensorboard *
rp_tensorboard_new(const char *directory, guint64 next_step, GError **error)
{
    const gint64 seconds = g_get_real_time() / G_USEC_PER_SEC;
    g_autofree char *name = g_strdup_printf("events.out.tfevents.%010" G_GINT64_FORMAT ".%s",
                                            seconds, g_get_host_name());
    g_autofree char *path = g_build_filename(directory, name, NULL);
    g_autoptr(RpTensorboard) board = g_new0(RpTensorboard, 1);

    board->file = g_fopen(path, "abe");
    if (board->file != NULL && write_start(board, next_step))
        return g_steal_pointer(&board);
    (void)rp_file_fail(error, errno, "cannot write \"%s\"", path);
    return NULL;
}

void
rp_tensorboard_free(RpTensorboard *board)
{
    if (board == NULL)
        return;
    if (board->file != NULL)
        (void)fclose(board->file);
    g_free(board);
}

gboolean
rp_tensorboard_add(RpTensorboard *board, guint64 step, const RpTensorboardValue *values, guint n)
{
    g_autoptr(GByteArray) summary = g_byte_array_new();
    GByteArray *event = new_event(step);

    for (guint i = 0; i < n; i++)
        append_value(summary, &values[i]);
    append_bytes(event, EVENT_SUMMARY, summary->data, summary->len);
    return write_event(board, event);
}
