/*
 * Rule 4: the order of two tasks of a slot.
 */
#include "core/verify/rules/slots.h"

gboolean
rp_verify_slot_order(RpVerifier *verifier, guint32 first, guint32 second, const char *what)
{
    guint32 device = rp_verifier_device(verifier, second);

    if (device != RP_NONE && rp_verifier_device(verifier, first) != device)
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, first, second,
                                "%s and the action are on two gpus", what);
    if (!rp_verifier_before(verifier, first, second))
        return rp_verifier_fail(verifier, RP_RULE_TRANSFERS, first, second,
                                "%s: the second task may start before the first has ended", what);
    return TRUE;
}
