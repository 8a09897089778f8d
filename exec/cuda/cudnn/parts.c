#include "exec/cuda/cudnn/parts.h"

#define TILE 128 /* rows and columns that cuDNN's kernels take at a time */

size_t
rp_attention_head_ds(size_t length)
{
    const size_t side = (length + TILE - 1) / TILE * TILE;

    return 2 * side * side;
}

static size_t
largest_divisor(size_t n, size_t most)
{
    size_t divisor = MIN(n, most);

    while (n % divisor != 0)
        divisor--;
    return divisor;
}

/* Chooses a part that consists of whole groups. @most: groups of a part at most, at least 1 */
static RpAttentionSize
choose_groups(const RpAttentionSize *whole, size_t most)
{
    const size_t group = whole->heads / whole->kv_heads;
    RpAttentionSize best = {0, 0, 0};

    if (most / whole->sequences >= whole->kv_heads)
        return *whole;
    for (size_t n = 1; n <= MIN(whole->sequences, most); n++) {
        if (whole->sequences % n == 0) {
            const size_t kv_heads = largest_divisor(whole->kv_heads, most / n);

            if (n * kv_heads > best.sequences * best.kv_heads)
                best = (RpAttentionSize){n, kv_heads * group, kv_heads};
        }
    }
    return best;
}

gboolean
rp_attention_parts_choose(const RpAttentionSize *whole, size_t most_heads, RpAttentionParts *parts)
{
    const size_t group = whole->heads / whole->kv_heads;
    RpAttentionSize part = {1, 1, 1};

    if (most_heads == 0)
        return FALSE;
    if (most_heads >= group)
        part = choose_groups(whole, most_heads / group);
    else
        part.heads = largest_divisor(group, most_heads);
    parts->whole = *whole;
    parts->part = part;
    parts->count = whole->sequences / part.sequences * (whole->heads / part.heads);
    parts->slices = part.heads < group ? group / part.heads : 1;
    return TRUE;
}

RpAttentionPlace
rp_attention_parts_place(const RpAttentionParts *parts, size_t i)
{
    const size_t group = parts->whole.heads / parts->whole.kv_heads;
    const size_t across = parts->whole.heads / parts->part.heads;
    const size_t head = i % across * parts->part.heads;

    return (RpAttentionPlace){.sequence = i / across * parts->part.sequences,
                              .head = head,
                              .kv_head = head / group,
                              .slice = head % group / parts->part.heads};
}
