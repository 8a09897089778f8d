/* The event file, read back by a reader of its own. */
#include "tests/rp-test.h"

#include <glib/gstdio.h>
#include <string.h>

#include "core/base/file.h"
#include "run/train/train.h"

typedef struct {
    const guint8 *at, *end;
} Bytes;

static guint64
take_little(Bytes *bytes, guint n)
{
    guint64 value = 0;

    assert_true(bytes->end - bytes->at >= n);
    for (guint i = 0; i < n; i++)
        value |= (guint64)*bytes->at++ << 8 * i;
    return value;
}

static guint64
take_varint(Bytes *bytes)
{
    guint64 value = 0;

    for (guint shift = 0;; shift += 7) {
        const guint64 byte = take_little(bytes, 1);

        value |= (byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
}

static Bytes
take_bytes(Bytes *bytes)
{
    const guint64 n = take_varint(bytes);
    const Bytes taken = {bytes->at, bytes->at + n};

    assert_true((guint64)(bytes->end - bytes->at) >= n);
    bytes->at += n;
    return taken;
}

static guint32
masked(const guint8 *bytes, gsize n)
{
    const guint32 crc = rp_tensorboard_crc(bytes, n);

    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* The data of the next record, whose checksums are right. */
static Bytes
take_record(Bytes *file)
{
    const guint8 *begin = file->at;
    const guint64 n = take_little(file, 8);

    assert_int_equal(take_little(file, 4), masked(begin, 8));
    const Bytes data = {file->at, file->at + n};
    assert_true((guint64)(file->end - file->at) >= n + 4);
    file->at += n;
    assert_int_equal(take_little(file, 4), masked(data.at, n));
    return data;
}

/* An event as text: `3 train/loss=1.5 train/grad_norm=2`, `0 brain.Event:2` or `5 start`. */
static char *
describe_event(Bytes event)
{
    GString *text = g_string_new(NULL);
    double wall_time = 0;
    guint64 bits;

    assert_int_equal(take_varint(&event), 1 << 3 | 1);
    bits = take_little(&event, 8);
    memcpy(&wall_time, &bits, sizeof bits);
    assert_true(wall_time > 1.6e9 && wall_time < 1e11);
    assert_int_equal(take_varint(&event), 2 << 3);
    g_string_append_printf(text, "%" G_GUINT64_FORMAT, take_varint(&event));
    const guint64 key = take_varint(&event);
    Bytes inner = take_bytes(&event);

    assert_true(event.at == event.end);
    if (key == (3 << 3 | 2)) {
        g_string_append_printf(text, " %.*s", (int)(inner.end - inner.at), (const char *)inner.at);
        return g_string_free(text, FALSE);
    }
    if (key == (7 << 3 | 2)) {
        assert_int_equal(take_varint(&inner), 1 << 3);
        assert_int_equal(take_varint(&inner), 1);
        g_string_append(text, " start");
        return g_string_free(text, FALSE);
    }
    assert_int_equal(key, 5 << 3 | 2);
    while (inner.at < inner.end) {
        assert_int_equal(take_varint(&inner), 1 << 3 | 2);
        Bytes value = take_bytes(&inner);
        float number;

        assert_int_equal(take_varint(&value), 1 << 3 | 2);
        const Bytes tag = take_bytes(&value);
        assert_int_equal(take_varint(&value), 2 << 3 | 5);
        const guint32 narrow = (guint32)take_little(&value, 4);
        memcpy(&number, &narrow, sizeof number);
        g_string_append_printf(text, " %.*s=%g", (int)(tag.end - tag.at), (const char *)tag.at,
                               (double)number);
        assert_true(value.at == value.end);
    }
    return g_string_free(text, FALSE);
}

/* All events of the one file in @directory, a line each. */
static char *
read_events(const char *directory)
{
    g_autoptr(GPtrArray) names = rp_file_list(directory, NULL);
    GString *text = g_string_new(NULL);
    g_autofree char *data = NULL;
    gsize n;

    assert_int_equal(names->len, 1);
    assert_true(g_str_has_prefix(g_ptr_array_index(names, 0), "events.out.tfevents."));
    g_autofree char *path = g_build_filename(directory, g_ptr_array_index(names, 0), NULL);
    assert_true(g_file_get_contents(path, &data, &n, NULL));
    Bytes file = {(const guint8 *)data, (const guint8 *)data + n};
    while (file.at < file.end) {
        g_autofree char *event = describe_event(take_record(&file));

        g_string_append_printf(text, "%s\n", event);
    }
    return g_string_free(text, FALSE);
}

static void
assert_events(guint64 next_step, const char *expected)
{
    g_autofree char *directory = g_dir_make_tmp("test-tensorboard-XXXXXX", NULL);
    GError *error = NULL;
    RpTensorboard *board = rp_tensorboard_new(directory, next_step, &error);
    const RpTensorboardValue values[] = {{"train/loss", 1.5}, {"train/grad_norm", 1e-3}};

    rp_assert_no_error(error);
    assert_true(rp_tensorboard_add(board, next_step, values, 2));
    assert_true(rp_tensorboard_add(board, 300000, values, 1));
    rp_tensorboard_free(board);
    g_autofree char *events = read_events(directory);
    assert_string_equal(events, expected);
    rp_file_remove_directory(directory);
}

RP_TEST(events_come_back)
{
    assert_events(1, "0 brain.Event:2\n1 train/loss=1.5 train/grad_norm=0.001\n"
                     "300000 train/loss=1.5\n");
}

RP_TEST(a_resumed_run_forgets_what_it_does_again)
{
    assert_events(41, "0 brain.Event:2\n41 start\n41 train/loss=1.5 train/grad_norm=0.001\n"
                      "300000 train/loss=1.5\n");
}

/* RFC 3720, B.4 */
RP_TEST(checksums_are_those_of_the_standard)
{
    guint8 bytes[32];

    memset(bytes, 0, sizeof bytes);
    assert_int_equal(rp_tensorboard_crc(bytes, sizeof bytes), 0x8a9136aau);
    memset(bytes, 0xff, sizeof bytes);
    assert_int_equal(rp_tensorboard_crc(bytes, sizeof bytes), 0x62a8ab43u);
    for (guint i = 0; i < sizeof bytes; i++)
        bytes[i] = (guint8)i;
    assert_int_equal(rp_tensorboard_crc(bytes, sizeof bytes), 0x46dd794eu);
    assert_int_equal(rp_tensorboard_crc("123456789", 9), 0xe3069283u);
}

RP_TEST(a_directory_that_is_not_there_is_told)
{
    GError *error = NULL;

    assert_null(rp_tensorboard_new("/nowhere/at/all", 1, &error));
    assert_non_null(strstr(error->message, "/nowhere/at/all/events.out.tfevents."));
    g_error_free(error);
}
