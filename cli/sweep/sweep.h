/**
 * `roundpipe sweep`: one simulation for each combination of what options are given (rows.c), as many at
 * once as there are processors (expert/sweep.c), a row of a CSV file each (rows.c).
 */
#pragma once

#include "cli/cli.h"

#define RP_SWEEP_MOST_ROWS 100000

/* ---- combinations ---- */

/* An option that is given, or the models. */
typedef struct {
    const RpOption *option; /* %NULL: models and timing files */
    char **values;          /* of which each row has one */
    guint n;
} RpSweepAxis;

typedef struct {
    GArray *axes; /* RpSweepAxis: the models first, then in the order of the table */
    guint n;      /* combinations */
} RpSweepGrid;

void rp_sweep_grid_clear(RpSweepGrid *grid);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC(RpSweepGrid, rp_sweep_grid_clear)

/**
 * rp_sweep_grid_make:
 * @models: (nullable) (array zero-terminated=1): %NULL or none: the usual one
 * @texts: of each of rp_schedule_options(), %NULL: not given.
 *   A list has commas between, or where values have those semicolons; `2k..64k` doubles, `4..12+4` adds;
 *   `--schedule all`; a flag is given alone, or as no, yes
 *
 * Errors: RP_CLI_ERROR_USAGE: a value that is none of the option's, too many combinations
 */
gboolean rp_sweep_grid_make(RpSweepGrid *grid, char *const *models, char *const *texts,
                            GError **error) G_GNUC_WARN_UNUSED_RESULT;

/* "model", "gpus". */
const char *rp_sweep_axis_name(const RpSweepAxis *axis);
/* Index of the value that row @i has; the last axis changes fastest. */
guint rp_sweep_grid_place(const RpSweepGrid *grid, guint i, guint axis);
/* The options of row @i; texts are the grid's. */
void rp_sweep_grid_args(const RpSweepGrid *grid, guint i, RpArgs *args);

/* ---- their rows ---- */

/* The columns of a row behind the grid's. */
typedef enum {
    RP_SWEEP_DEVICE,
    RP_SWEEP_ITERATION_MS,
    RP_SWEEP_BUBBLE_PCT,
    RP_SWEEP_FILL_PCT,
    RP_SWEEP_SWITCH_PCT,
    RP_SWEEP_DRAIN_PCT,
    RP_SWEEP_INTRA_PCT,
    RP_SWEEP_TOKENS_PER_S,
    RP_SWEEP_GPU_GIB,
    RP_SWEEP_HOST_GIB,
    RP_SWEEP_FITS,
    RP_SWEEP_DOLLARS, /* a billion tokens */
    RP_SWEEP_ERROR,
    RP_SWEEP_N_RESULTS
} RpSweepResult;

/* A row of each. */
typedef struct {
    const char *name;
    const char *title; /* on an axis; %NULL: it is no number */
    gboolean more;     /* is better */
    gboolean shown;    /* to people */
} RpSweepColumn;
extern const RpSweepColumn rp_sweep_columns[RP_SWEEP_N_RESULTS];

/* A CSV file that grows row by row, and its rows in memory. */
typedef struct {
    const RpSweepGrid *grid;
    char *path;
    const char **columns; /* names: of the grid's axes, then of results; a last one is %NULL */
    guint n_columns;
    char ***cells;     /* by row of the grid; %NULL: not there yet */
    GPtrArray *others; /* (element-type GStrv): of another grid */
    GMutex lock;
    int fd;
    int problem; /* errno of the first write that failed, or 0 */
} RpSweepRows;

/**
 * rp_sweep_rows_open:
 *
 * Takes rows that @path has from an earlier sweep of the same options; a last one that is torn is
 * dropped. Rows that are not of @grid stay behind the others.
 * Errors: RP_CLI_ERROR_USAGE: a file of other columns; G_FILE_ERROR, also of one that another process
 *   writes
 */
RpSweepRows *rp_sweep_rows_open(const char *path, const RpSweepGrid *grid,
                                GError **error) G_GNUC_WARN_UNUSED_RESULT;
void rp_sweep_rows_free(RpSweepRows *rows);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(RpSweepRows, rp_sweep_rows_free)

/* The result that @column has. Returns: (nullable): %NULL: it is an axis of the grid */
const RpSweepColumn *rp_sweep_rows_result(const RpSweepRows *rows, guint column);

/* Appends row @i to the file. @results: texts, %NULL: empty. From any thread. */
void rp_sweep_rows_add(RpSweepRows *rows, guint i, const char *const *results);
/* Puts the file in the order of the grid. Errors: G_FILE_ERROR, also those of rp_sweep_rows_add() */
gboolean rp_sweep_rows_finish(RpSweepRows *rows, GError **error) G_GNUC_WARN_UNUSED_RESULT;
