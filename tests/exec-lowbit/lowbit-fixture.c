#include "tests/exec-lowbit/lowbit-fixture.h"

RpSafetensors *
lowbit_open(const char *file)
{
    g_autofree char *path = g_strconcat(LOWBIT_FIXTURES, file, NULL);
    GError *error = NULL;
    RpSafetensors *tensors = rp_safetensors_open(path, &error);

    assert_null(error);
    return tensors;
}

const RpSafetensor *
lowbit_find(const RpSafetensors *tensors, const char *name, const char *suffix)
{
    g_autofree char *full = g_strconcat(name, suffix, NULL);
    const RpSafetensor *tensor = rp_safetensors_find(tensors, full);

    if (tensor == NULL)
        fail_msg("no tensor %s", full);
    return tensor;
}

RpLowbitShape
lowbit_shape(const RpSafetensor *tensor)
{
    RpLowbitShape shape = {1, 1, 1};

    for (guint i = 0; i < tensor->rank; i++)
        if (i + 1 == tensor->rank)
            shape.columns = tensor->shape[i];
        else if (i + 2 == tensor->rank)
            shape.rows = tensor->shape[i];
        else
            shape.matrices *= tensor->shape[i];
    return shape;
}

guint8 *
lowbit_scratch(RpLowbit format, RpLowbitShape shape)
{
    const gsize bytes = rp_lowbit_layout(format, shape).total;
    guint8 *scratch = g_malloc(bytes);

    memset(scratch, 0xa5, bytes);
    return scratch;
}

guint8 *
lowbit_pack(RpLowbit format, const RpSafetensor *source)
{
    const RpLowbitShape shape = lowbit_shape(source);
    guint8 *packed = lowbit_scratch(format, shape);
    g_autofree float *scales = g_new(float, rp_lowbit_pack_scales(format, shape));
    const gsize strips = rp_lowbit_strips(format, shape);

    for (gsize strip = strips; strip-- > 0;) /* any order */
        assert_true(rp_lowbit_pack(format, shape, source->dtype, source->data, strip, 1, packed,
                                   scales) == RP_LOWBIT_NONE);
    rp_lowbit_pack_end(format, shape, scales, packed);
    return packed;
}

void
lowbit_assert_part(RpLowbit format, RpLowbitShape shape, const guint8 *packed, RpLowbitPart part,
                   const RpSafetensor *want)
{
    const RpLowbitLayout layout = rp_lowbit_layout(format, shape);

    assert_int_equal(layout.bytes[part], want->bytes);
    if (memcmp(packed + layout.at[part], want->data, want->bytes) != 0)
        print_message("%s: part %d differs\n", want->name, part);
    assert_memory_equal(packed + layout.at[part], want->data, want->bytes);
}

GArray *
lowbit_column(const char *file, guint column)
{
    g_autofree char *path = g_strconcat(LOWBIT_FIXTURES, file, NULL);
    GArray *values = g_array_new(FALSE, FALSE, sizeof(double));
    g_autofree char *text = NULL;

    assert_true(g_file_get_contents(path, &text, NULL, NULL));
    g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
    for (guint i = 1; lines[i] != NULL && *lines[i]; i++) {
        g_auto(GStrv) cells = g_strsplit(lines[i], ",", -1);
        const double value = g_ascii_strtod(cells[column], NULL);

        g_array_append_val(values, value);
    }
    return values;
}

guint16
lowbit_noise(guint64 i)
{
    guint32 x = (guint32)(i * 2654435761u + 12345);

    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (guint16)((x & 0x8000) | (0x3b80 + (x >> 16) % 0x480));
}
