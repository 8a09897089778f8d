#include "plots/palette.h"

#include <string.h>

RpColour
rp_colour_of_task(RpTaskKind kind)
{
    g_return_val_if_fail(kind < RP_N_TASK_KINDS, RP_COLOUR_GREY);
    return rp_task_kind(kind)->colour;
}

const char *
rp_colour_task_title(RpTaskKind kind)
{
    g_return_val_if_fail(kind < RP_N_TASK_KINDS, "");
    return rp_task_kind(kind)->title;
}

typedef struct {
    const char *name;
    RpColour colour;
} Named;

static RpColour
find_colour(const Named *table, guint n, const char *name)
{
    for (guint i = 0; i < n; i++)
        if (strcmp(table[i].name, name) == 0)
            return table[i].colour;
    return rp_colour_of_series(g_str_hash(name));
}

RpColour
rp_colour_of_model(const char *name)
{
    static const Named table[] = {
        {"qwen3-1.7b", RP_COLOUR_SKY},         {"llama-3.1-8b", RP_COLOUR_ORANGE},
        {"gpt-oss-20b", RP_COLOUR_GREEN},      {"qwen3-32b", RP_COLOUR_BLUE},
        {"qwen3-235b-a22b", RP_COLOUR_PURPLE},
    };

    return find_colour(table, G_N_ELEMENTS(table), name);
}

RpColour
rp_colour_of_series(guint index)
{
    static const RpColour cycle[] = {
        RP_COLOUR_BLUE, RP_COLOUR_VERMILLION, RP_COLOUR_GREEN, RP_COLOUR_PURPLE,
        RP_COLOUR_SKY,  RP_COLOUR_ORANGE,     RP_COLOUR_GREY,  RP_COLOUR_BLACK,
    };

    return cycle[index % G_N_ELEMENTS(cycle)];
}

RpColour
rp_colour_lighten(RpColour colour, double share)
{
    RpColour mixed = 0;

    for (guint shift = 0; shift <= 16; shift += 8) {
        double channel = (double)((colour >> shift) & 0xff);

        mixed |= (RpColour)(channel + (255.0 - channel) * share + 0.5) << shift;
    }
    return mixed;
}

RpColour
rp_colour_of_text_on(RpColour colour)
{
    double red = (double)((colour >> 16) & 0xff);
    double green = (double)((colour >> 8) & 0xff);
    double blue = (double)(colour & 0xff);

    return 0.299 * red + 0.587 * green + 0.114 * blue > 128 ? RP_COLOUR_BLACK : 0xffffff;
}
