/**
 * Colours, the same in every figure: of task kinds, models and parts of a bubble ratio.
 * All from Okabe and Ito's set, which is safe for any colour vision.
 */
#pragma once

#include "core/plan/plan.h"

/* 0xRRGGBB */
typedef guint32 RpColour;

#define RP_COLOUR_BLACK 0x000000
#define RP_COLOUR_GREY 0x8c8c8c
#define RP_COLOUR_ORANGE 0xe69f00
#define RP_COLOUR_SKY 0x56b4e9
#define RP_COLOUR_GREEN 0x009e73
#define RP_COLOUR_YELLOW 0xf0e442
#define RP_COLOUR_BLUE 0x0072b2
#define RP_COLOUR_VERMILLION 0xd55e00
#define RP_COLOUR_PURPLE 0xcc79a7

RpColour rp_colour_of_task(RpTaskKind kind);
/* Name of the kind in legends: tasks that look the same share one. */
const char *rp_colour_task_title(RpTaskKind kind);
RpColour rp_colour_of_model(const char *name);
/* A series without a meaning of its own. */
RpColour rp_colour_of_series(guint index);

/* Mixed with white; 0 = as it is, 1 = white. */
RpColour rp_colour_lighten(RpColour colour, double share);
/* Text that can be read on it: black or white. */
RpColour rp_colour_of_text_on(RpColour colour);
