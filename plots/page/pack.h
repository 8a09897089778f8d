/**
 * Numbers of a page's pictures as JSON, which decode.js reads. Tasks lie lane by lane, within a lane in the order of time:
 *
 *   lanes       [[lane, how many tasks], ...]
 *   columns     of all tasks a number each, as texts: differences as varints in base64, a byte or two a task. A varint
 *               has seven bits a byte, the lowest first, and is zigzag: 0, -1, 1, -2 ...
 *
 *   of a trace        gap, duration, kind, stage, micro_batch, iteration, round, layer, chunk, bytes, gate, pair; memory
 *   of a recording    gap, duration, work, label (of names), count; devices: their titles
 *
 * The other files of a page are page.c, with its words, tables and places of pictures; decode.js, which reads these
 * columns; timeline.js, which draws boxes; and words.js, which tells a task in words.
 *
 *   {"name": "recorded", "gpus": 2, "tasks": 310, "lanes": [[0, 122], [1, 9], ...], "gap": "AAAu...", ...,
 *    "names": ["nvjet_sm90_tst_128x256", ...], "devices": ["rank 0, gpu 0", "rank 1, gpu 1"]}
 *
 * A gap is the time from the end of the task before on the lane, or from the start of all. Kinds of a recording's work
 * are RpWorkKind, and each device has a lane of each.
 */
#pragma once

#include "core/recording/recording.h"
#include "plots/page/page.h"

/**
 * rp_pack_places:
 *
 * Returns: (transfer full) (array): by index of a record where it stands when they lie lane by lane
 */
guint32 *rp_pack_places(const RpTrace *trace);

/**
 * rp_pack_trace:
 * @trace: with what its page shows of it; its gates are found here
 * @places: (array): rp_pack_places()
 * @twins: (nullable) (array): by index of a record one more than the place of the same task in the
 *   other trace; 0: it has none
 *
 * Returns: (transfer full): an object of JSON
 */
char *rp_pack_trace(const RpPageTrace *trace, const guint32 *places, const guint32 *twins);

/**
 * rp_pack_recordings:
 * @recordings: (element-type RpRecording): joined
 * @titles: (array zero-terminated=1): of all devices, those of the first recording first; of UTF-8, as the table of the
 *   page has them
 * @window: work outside is left out; times are from its start on
 *
 * Work of one kind that overlaps on a device is one box, under the name of the longest. Names are those of the
 * recordings, each once.
 *
 *   rank 0, gpu 0 compute      |gemm|gemm|      |gemm |
 *                 collectives  |     send |           |
 *                 copies       |             HtoD     |
 *
 * Returns: (transfer full): an object of JSON
 */
char *rp_pack_recordings(const GPtrArray *recordings, const char *const *titles,
                         const RpRecordedWindow *window);
