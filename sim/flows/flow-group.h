/**
 * Classes of flows that have the same rate, whatever it is: one clock counts the bytes that each of
 * their flows is served, and a heap knows whose flow is over next.
 *
 *   clock     0-----------1000-------1500----->
 *   class A   |--1000------|                         joins at 0
 *   class B            |--700--------|               joins at 800
 *
 * A change of the rate moves the clock, however many classes there are.
 */
#pragma once

#include <glib.h>

/* The sum of two numbers, so that a clock that has counted for hours still tells the bytes of a
 * flow apart: |low| is at most half of what high could not hold. */
typedef struct {
    double high;
    double low;
} RpBytes;

/* Source: Knuth, The Art of Computer Programming 2, §4.2.2, theorem B */
static inline RpBytes
rp_bytes_add(RpBytes a, double bytes)
{
    const double sum = a.high + bytes;
    const double part = sum - a.high;
    const double low = a.low + ((a.high - (sum - part)) + (bytes - part));
    const double high = sum + low;

    return (RpBytes){.high = high, .low = low - (high - sum)};
}

static inline double
rp_bytes_minus(RpBytes a, RpBytes b)
{
    return (a.high - b.high) + (a.low - b.low);
}

typedef struct {
    RpBytes end; /* over when the group's clock says so */
    guint32 class_id;
} RpGroupMember;

typedef struct {
    double bytes_per_ns; /* of each flow */
    RpBytes served;      /* the clock at served_at_ns */
    gint64 served_at_ns;
    RpGroupMember *members; /* heap; [0] is over next; ties go to the lower class */
    guint32 *places;        /* per class: 1 + index into the members of its group; 0 = none */
    guint32 n;
    guint32 n_flows; /* of all members */
    gboolean listed; /* among the groups that have members or an event */
    gboolean changed;
} RpFlowGroup;

/* The group's clock at @now_ns. */
static inline RpBytes
rp_flow_group_served(const RpFlowGroup *group, gint64 now_ns)
{
    return rp_bytes_add(group->served,
                        group->bytes_per_ns * (double)(now_ns - group->served_at_ns));
}

/* Changes the rate from @now_ns on. */
void rp_flow_group_set_rate(RpFlowGroup *group, double bytes_per_ns, gint64 now_ns);

/**
 * rp_flow_group_add:
 * @n_flows: of the class
 * @left_bytes: until the first of them is over
 */
void rp_flow_group_add(RpFlowGroup *group, guint32 class_id, guint32 n_flows, double left_bytes,
                       gint64 now_ns);
void rp_flow_group_remove(RpFlowGroup *group, guint32 class_id, guint32 n_flows);
