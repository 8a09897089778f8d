/* Tiny plans with times worked out by hand, one for each section of timelines.txt, which explains its lines. */
#include "tests/sim/plan-fixture.h"

#include "sim/simulate-private.h"

#define MOST_TASKS 32

/* A section: its lines, of a copy of the file. */
typedef struct {
    char **lines;
    guint n;
} Section;

/* A plan's lines as they are read. */
typedef struct {
    Fixture *f;
    gboolean compute; /* and neither machine nor deadlock: both engines simulate it */
    gboolean begun;
    const char *deadlock;
    guint n;
    char *names[MOST_TASKS];
    char **words[MOST_TASKS]; /* the name first */
} Timeline;

static double *
machine_rate(RpMachine *machine, const char *key)
{
    const struct {
        const char *key;
        double *rate;
    } rates[] = {
        {"h2d", &machine->links.h2d_bytes_per_s},
        {"d2h", &machine->links.d2h_bytes_per_s},
        {"root", &machine->links.root_bytes_per_s},
        {"host", &machine->links.host_bytes_per_s},
        {"network", &machine->links.network_bytes_per_s},
        {"optimizer", &machine->optimizer_bytes_per_s},
        {"beside-optimizer", &machine->beside_optimizer_bytes_per_s},
    };

    for (guint i = 0; i < G_N_ELEMENTS(rates); i++)
        if (g_str_equal(rates[i].key, key))
            return rates[i].rate;
    return NULL;
}

static void
set_machine(RpMachine *machine, const char *key, const char *value)
{
    double *rate = machine_rate(machine, key);
    const double number = value != NULL ? g_ascii_strtod(value, NULL) : 0;

    if (rate != NULL)
        *rate = number * BYTE_PER_NS;
    else if (g_str_equal(key, "none"))
        *machine = (RpMachine){0};
    else if (g_str_equal(key, "copy-latency"))
        machine->links.copy_latency_ns = (gint64)number;
    else if (g_str_equal(key, "network-latency"))
        machine->links.network_latency_ns = (gint64)number;
    else if (g_str_equal(key, "gpus-per-root"))
        machine->links.gpus_per_root = (guint)number;
    else if (g_str_equal(key, "optimizer-weight"))
        machine->optimizer_weight = number;
    else if (g_str_equal(key, "alone-speed"))
        machine->alone_speed = number;
    else if (g_str_equal(key, "processors"))
        machine->processors = (guint)number;
    else
        fail_msg("no machine has %s", key);
}

static gint64
integer(const char *word)
{
    return word != NULL ? g_ascii_strtoll(word, NULL, 10) : 0;
}

/* Reads "A+5~". */
static RpDependency
read_dependency(const Timeline *timeline, const char *word)
{
    RpDependency dependency = {.phase = g_str_has_suffix(word, "~")};
    const char *hop = strchr(word, '+');
    g_autofree char *name = g_strndup(word, strcspn(word, "+~"));

    dependency.hop_ns = (guint32)integer(hop != NULL ? hop + 1 : NULL);
    if (name[0] == '#') {
        dependency.task = (RpTaskId)integer(name + 1);
        return dependency;
    }
    for (guint i = 0; i < timeline->n; i++)
        if (g_str_equal(timeline->names[i], name)) {
            dependency.task = (RpTaskId)i;
            return dependency;
        }
    fail_msg("no task is called %s", name);
    return dependency;
}

/* The number of @word among @words. */
static guint
find_word(const char *word, const char *const *words, guint n)
{
    guint i = 0;

    while (i < n && !g_str_equal(words[i], word))
        i++;
    return i;
}

static void
append_task(Timeline *timeline, char **words)
{
    static const char *const lanes[] = {
        [RP_LANE_COMPUTE] = "compute",
        [RP_LANE_ACTIVATION_UP] = "activation-up",
        [RP_LANE_ACTIVATION_DOWN] = "activation-down",
        [RP_LANE_PARAMETER_UP] = "parameter-up",
        [RP_LANE_GRADIENT_DOWN] = "gradient-down",
    };
    static const struct {
        const char *name;
        RpTaskKind kind;
    } kinds[] = {
        {"step", RP_TASK_OPTIMIZER_STEP}, {"sum", RP_TASK_GRADIENT_ACCUMULATE},
        {"barrier", RP_TASK_BARRIER},     {"reduce", RP_TASK_REDUCE},
        {"gather", RP_TASK_GATHER},       {"agree", RP_TASK_AGREE},
    };
    const guint lane = find_word(words[0], lanes, G_N_ELEMENTS(lanes));
    RpDependency after[4];
    gsize n = 0;
    char **word = words;

    while (*word != NULL && !g_str_equal(*word, "after") && !g_str_equal(*word, "|"))
        word++;
    if (g_strcmp0(*word, "after") == 0)
        for (word++; *word != NULL && !g_str_equal(*word, "|"); word++)
            after[n++] = read_dependency(timeline, *word);
    if (g_str_equal(words[0], "backward")) {
        backward(timeline->f, (guint)integer(words[1]), integer(words[2]), integer(words[4]), after,
                 n);
    } else if (lane == RP_LANE_COMPUTE) {
        compute(timeline->f, (guint)integer(words[1]), integer(words[2]), after, n);
    } else if (lane < G_N_ELEMENTS(lanes)) {
        copy(timeline->f, (guint)integer(words[1]), (RpLaneKind)lane, (guint64)integer(words[2]),
             after, n);
    } else {
        for (guint i = 0; i < G_N_ELEMENTS(kinds); i++)
            if (g_str_equal(kinds[i].name, words[0])) {
                host(timeline->f, kinds[i].kind, (guint64)integer(words[1]), after, n);
                return;
            }
        fail_msg("no task is a %s", words[0]);
    }
}

static void
check_task(const Timeline *timeline, guint task)
{
    const RpTraceRecord *record = record_of(timeline->f, task);
    char **word = timeline->words[task];

    while (*word != NULL && !g_str_equal(*word, "|"))
        word++;
    if (*word == NULL)
        return;
    if (record->start_ns != integer(word[1]) || record->end_ns != integer(word[2]))
        fail_msg("%s: %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT ", expected %s to %s",
                 timeline->names[task], record->start_ns, record->end_ns, word[1], word[2]);
    if (word[3] != NULL)
        assert_int_equal(record->transfer_ns, integer(word[4]));
}

static void
simulate_both(Fixture *f)
{
    g_autoptr(RpTrace) other = rp_must(rp_simulate_event_loop, f->plan, NULL);

    assert_same_records(f->trace, other);
}

/* Simulates the plan that was read, checks its times, and forgets it. */
static void
finish(Timeline *timeline)
{
    for (guint i = 0; i < timeline->n; i++)
        append_task(timeline, timeline->words[i] + 1);
    if (timeline->deadlock != NULL) {
        assert_deadlock(timeline->f, timeline->deadlock);
    } else if (timeline->begun) {
        simulate(timeline->f);
        for (guint i = 0; i < timeline->n; i++)
            check_task(timeline, i);
        if (timeline->compute)
            simulate_both(timeline->f);
    }
    for (guint i = 0; i < timeline->n; i++)
        g_strfreev(timeline->words[i]);
    *timeline = (Timeline){.f = timeline->f};
}

static void
read_line(Timeline *timeline, const char *line)
{
    char **words = g_strsplit(line, " ", -1);

    if (g_str_equal(words[0], "full") || g_str_equal(words[0], "compute")) {
        finish(timeline);
        timeline->begun = TRUE;
        timeline->compute = words[0][0] == 'c';
        begin_full(timeline->f, (guint)integer(words[1]));
        if (timeline->compute)
            begin(timeline->f, (guint)integer(words[1]), RP_FIDELITY_COMPUTE);
    } else if (g_str_equal(words[0], "machine")) {
        timeline->compute = FALSE;
        set_machine(&timeline->f->machine, words[1], words[2]);
    } else if (g_str_equal(words[0], "deadlock")) {
        timeline->deadlock = line + strlen("deadlock ");
    } else {
        assert_true(timeline->begun && timeline->n < MOST_TASKS);
        timeline->names[timeline->n] = words[0];
        timeline->words[timeline->n++] = words;
        return; /* keeps them */
    }
    g_strfreev(words);
}

static void
run_section(void **state)
{
    const Section *section = *state;
    Timeline timeline = {0};

    set_up((void **)&timeline.f);
    for (guint i = 0; i < section->n; i++)
        if (section->lines[i][0] != '\0' && section->lines[i][0] != '#')
            read_line(&timeline, section->lines[i]);
    finish(&timeline);
    tear_down((void **)&timeline.f);
}

RP_TEST_AT_START(add_sections)
{
    g_autofree char *path = rp_test_source_path("tests/sim/timelines.txt");
    g_autofree char *text = NULL;
    static char **lines; /* which sections point into */
    Section *section = NULL;

    if (!g_file_get_contents(path, &text, NULL, NULL))
        g_error("cannot read %s", path);
    lines = g_strsplit(text, "\n", -1);
    for (char **line = lines; *line != NULL; line++) {
        if (!g_str_has_prefix(*line, "## ")) {
            if (section != NULL)
                section->n++;
            continue;
        }
        section = g_new0(Section, 1);
        section->lines = line + 1;
        rp_test_add(g_strdelimit(g_strdup(*line + strlen("## ")), " ", '_'), run_section, NULL,
                    NULL, section);
    }
}
