#include "run/error.h"

G_DEFINE_QUARK(rp_run_error, rp_run_error)
