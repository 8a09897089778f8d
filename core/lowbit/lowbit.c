/* The rows, and everything that all formats share. */
#include "core/lowbit/lowbit.h"

#include "core/lowbit/private.h"

static const RpLowbitFormat *const formats[RP_N_LOWBITS] = {
    [RP_LOWBIT_NF4] = &rp_lowbit_nf4,
    [RP_LOWBIT_NF4_SINGLE] = &rp_lowbit_nf4_single,
    [RP_LOWBIT_MXFP4] = &rp_lowbit_mxfp4,
    [RP_LOWBIT_FP8] = &rp_lowbit_fp8,
};

const char *
rp_lowbit_name(RpLowbit format)
{
    return formats[format]->name;
}

bool
rp_lowbit_from_name(const char *name, RpLowbit *format)
{
    for (int i = 0; i < RP_N_LOWBITS; i++) {
        if (strcmp(name, formats[i]->name) == 0) {
            *format = (RpLowbit)i;
            return true;
        }
    }
    return false;
}

/* As the format sees it. */
static RpLowbitShape
seen(const RpLowbitFormat *format, RpLowbitShape shape)
{
    return format->flat ? (RpLowbitShape){1, 1, rp_lowbit_elements(shape)} : shape;
}

RpLowbitLayout
rp_lowbit_layout(RpLowbit format, RpLowbitShape shape)
{
    RpLowbitLayout layout = {0};

    formats[format]->sizes(seen(formats[format], shape), layout.bytes);
    for (int i = 0; i < RP_N_LOWBIT_PARTS; i++) {
        layout.at[i] = layout.total;
        layout.total +=
            rp_lowbit_blocks(layout.bytes[i], RP_LOWBIT_ALIGNMENT) * RP_LOWBIT_ALIGNMENT;
    }
    return layout;
}

static RpLowbitTensor
parts(RpLowbit format, RpLowbitShape shape, const void *packed)
{
    const RpLowbitLayout layout = rp_lowbit_layout(format, shape);
    RpLowbitTensor tensor;

    for (int i = 0; i < RP_N_LOWBIT_PARTS; i++)
        tensor.part[i] = (unsigned char *)(uintptr_t)packed + layout.at[i];
    return tensor;
}

/* One tile at a time, from the last beginning of a tile of its row on. */
typedef struct {
    float values[RP_LOWBIT_TILE];
    const float *from; /* source of these values */
    size_t n;
} Tile;

static void
expand_tile(const RpLowbitFormat *format, RpLowbitShape shape, const RpLowbitTensor *tensor,
            size_t at, size_t end, Tile *tile)
{
    const size_t row = at / shape.columns;
    const size_t column = at % shape.columns;
    const size_t skip = column % RP_LOWBIT_TILE;
    const size_t in_row = shape.columns - column;
    size_t n = RP_LOWBIT_TILE - skip;

    n = in_row < n ? in_row : n;
    n = end - at < n ? end - at : n;
    format->expand(shape, tensor, row, column - skip, skip + n, tile->values);
    tile->from = tile->values + skip;
    tile->n = n;
}

void
rp_lowbit_expand(RpLowbit format, RpLowbitShape shape, const void *packed, RpDtype dtype,
                 size_t first, size_t n, void *target)
{
    const RpLowbitTensor tensor = parts(format, shape, packed);
    char *to = target;
    Tile tile;

    shape = seen(formats[format], shape);
    for (size_t at = first; at < first + n; at += tile.n) {
        expand_tile(formats[format], shape, &tensor, at, first + n, &tile);
        rp_dtype_from_float(dtype, tile.from, to, tile.n);
        to += tile.n * rp_dtype_size(dtype);
    }
}

size_t
rp_lowbit_find_broken(RpLowbit format, RpLowbitShape shape, const void *packed, RpDtype dtype,
                      size_t first, size_t n)
{
    const RpLowbitTensor tensor = parts(format, shape, packed);
    unsigned char stored[RP_LOWBIT_TILE * sizeof(float)];
    float rounded[RP_LOWBIT_TILE];
    Tile tile;

    shape = seen(formats[format], shape);
    for (size_t at = first; at < first + n; at += tile.n) {
        expand_tile(formats[format], shape, &tensor, at, first + n, &tile);
        rp_dtype_from_float(dtype, tile.from, stored, tile.n);
        rp_dtype_to_float(dtype, stored, rounded, tile.n);
        const size_t broken = rp_lowbit_first_broken(rounded, tile.n);
        if (broken < tile.n)
            return at + broken;
    }
    return RP_LOWBIT_NONE;
}

size_t
rp_lowbit_strips(RpLowbit format, RpLowbitShape shape)
{
    const RpLowbitFormat *row = formats[format];

    shape = seen(row, shape);
    return row->strip_rows > 0 ? shape.matrices * rp_lowbit_blocks(shape.rows, row->strip_rows)
                               : rp_lowbit_blocks(shape.columns, row->strip_columns);
}

size_t
rp_lowbit_pack_scales(RpLowbit format, RpLowbitShape shape)
{
    return formats[format]->nested ? rp_lowbit_strips(format, shape) : 0;
}

size_t
rp_lowbit_pack(RpLowbit format, RpLowbitShape shape, RpDtype dtype, const void *source,
               size_t first, size_t n, void *packed, float *scales)
{
    const RpLowbitTensor tensor = parts(format, shape, packed);
    const RpLowbitFormat *row = formats[format];

    shape = seen(row, shape);
    for (size_t strip = first; strip < first + n; strip++) {
        const size_t broken = row->pack(shape, dtype, source, strip, &tensor, scales);

        if (broken != RP_LOWBIT_NONE)
            return broken;
    }
    return RP_LOWBIT_NONE;
}

void
rp_lowbit_pack_end(RpLowbit format, RpLowbitShape shape, float *scales, void *packed)
{
    const RpLowbitTensor tensor = parts(format, shape, packed);

    if (formats[format]->nested)
        rp_nf4_pack_scales(seen(formats[format], shape), scales, &tensor);
}
