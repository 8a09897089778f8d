/* The table of options that are no settings of runs. A new one is a member of RpArgs, a row here, and a
 * name in the list of each command that takes it. */
#include "cli/args.h"

#include <stddef.h>
#include <string.h>

#include "cli/cli.h"
#include "core/base/quote.h"
#include "core/schedules/schedule.h"

#define WORD(member) RP_OPTION_WORD, offsetof(RpArgs, member)
#define FILE_(member) RP_OPTION_FILE, offsetof(RpArgs, member)
#define COUNT(member) RP_OPTION_COUNT, offsetof(RpArgs, member)
#define INTEGER(member) RP_OPTION_INTEGER, offsetof(RpArgs, member)
#define NUMBER(member) RP_OPTION_NUMBER, offsetof(RpArgs, member)
#define FLAG(member) RP_OPTION_FLAG, offsetof(RpArgs, member)

static const RpOption options[] = {
    /* schedules and their plans */
    {"schedule", 's', WORD(schedule), .value = "NAME"},
    {"gpus", 'n', COUNT(run.plan.gpus), "number of GPUs", "N"},
    {"micro-batches", 'm', COUNT(run.plan.micro_batches), "micro-batches of an iteration", "M"},
    {"round", 0, COUNT(run.plan.round),
     "roundpipe: micro-batches of a round (default: with the partition)", "M_R"},
    {"slices", 0, COUNT(run.plan.slices),
     "slices of a sequence (default: roundpipe 1, seq-1f1b 4, slimpipe N)", "K"},
    {"even-slices", 0, FLAG(run.plan.even_slices),
     "slices of equal time, as if attention were shared out without cost"},
    {"fidelity", 0, WORD(fidelity),
     "compute (default) or full: with every transfer and the optimizer", "NAME"},
    {"async", 0, FLAG(run.plan.async),
     "asynchronous optimizer (staleness 1): iterations without a flush"},
    {"iterations", 0, COUNT(run.iterations),
     "iterations to simulate (default: until steady; synchronous without transfers: 1)", "K"},
    {"stage-count", 0, COUNT(run.n_stages),
     "bound schedules: number of stages (default: as many as fit)", "S"},
    {"published", 0, FLAG(published),
     "the paper's rule: only roundpipe recomputes early, and in compute fidelity its fused stage's "
     "forward does not wait for its input"},
    {"no-clip", 0, FLAG(run.plan.step_at_once),
     "full fidelity: a layer steps as soon as its gradient is on the host, without a global norm"},
    {"group", 0, COUNT(run.plan.group),
     "interleaved schedules: micro-batches of a group (default: N)", "G"},
    {"live", 0, COUNT(run.plan.live),
     "zb-2p: activations of a stage that a GPU may hold (default: 2N-1)", "L"},
    {"reverse-backward", 0, FLAG(run.plan.reverse_backward)},
    {"draws", 0, COUNT(draws),
     "simulate N times more, with times drawn from the profile's spreads: mean, deviation, "
     "percentiles",
     "N"},
    {"seed", 0, INTEGER(seed), "of --draws (default: 0)", "S"},
    {"noise", 0, NUMBER(noise),
     "--draws: log-normal times of each layer and micro-batch in place of the profile's spreads",
     "SIGMA"},
    {"slow", 0, RP_OPTION_SETTING, .value = "GPU=FACTOR,...",
     .help = "GPUs whose actions, and links (link3=2) whose copies take so many times as long; the "
             "plan does not know of it without --dispatch free"},
    {"schedules", 's', WORD(schedules),
     "schedules to compare (default: all that have `full` plans of their own)", "LIST"},
    {"sync", 0, FLAG(sync), "synchronous optimizer step"},

    /* boxes */
    {"gpu", 0, WORD(box.gpu),
     "times of the cost model for this card: a name (see `roundpipe gpus`) or a card's FILE.json; "
     "several: rtx4090:2,rtx3090:2",
     "CARD"},
    {"sequence", 0, COUNT(box.sequence),
     "tokens of a sequence, of times of the cost model (default: 2048)", "T"},
    {"micro-batch", 0, COUNT(box.micro_batch),
     "sequences of a micro-batch, of times of the cost model (default: 4)", "B"},
    {"pcie", 0, WORD(box.pcie),
     "each card's link: generation x lanes, as 3x16 or 4x8, or what copies reach in GB/s", "LINK"},
    {"host-bandwidth", 0, WORD(box.host_bandwidth),
     "of host memory, all copies and the optimizer together", "GB/S"},
    {"box", 0, FILE_(box.file),
     "links, host memory and optimizer of the machine, as `roundpipe doctor --box FILE` measured "
     "them there",
     "FILE.json"},
    {"servers", 0, COUNT(run.plan.servers),
     "full fidelity: one of so many, which have a share of each layer's optimizer (default: 1)",
     "R"},
    {"network", 0, WORD(box.network),
     "between servers: 10GbE, 25GbE, 100GbE, IB400 or a network's FILE.json (default: as the "
     "profile says; else it takes no time)",
     "NETWORK"},
    {"gpu-memory", 0, WORD(gpu_memory),
     "for a plan on each GPU (default: the card's, less 0.9 GiB for the CUDA context)", "SIZE"},
    {"host-memory", 0, WORD(host_memory),
     "for a plan on the host; a number alone is in GiB (default: not checked)", "SIZE"},

    /* models and data */
    {"model", 0, FILE_(model),
     "model: a name (see `roundpipe models`), a config.json or a model's directory", "MODEL"},
    {"from-model", 0, WORD(model), "take the shapes of a model of the catalogue", "MODEL"},
    {"profile", 0, FILE_(profile),
     "timing file instead of --gpu and --model; the micro-batch is one that it has",
     "PROFILE.json"},
    {"profile:model", 'p', WORD(model),
     "write the profile of a model: its name, config.json or directory", "MODEL"},
    {"sequences", 0, COUNT(sequences), "with --profile: sequences of a micro-batch (default: 4)",
     "B"},
    {"tokens:sequence", 0, COUNT(tokens_per_sequence),
     "with --profile: tokens of a sequence (default: 2048)", "T"},
    {"tokens", 0, WORD(tokens), "to train on, as 300M or 1.5B: tells the hours", "NUMBER"},
    {"packed", 0, COUNT(packed),
     "samples share sequences, and attention stays within one: tokens of a typical sample, as "
     "inspect tells (default: a sequence each)",
     "TOKENS"},
    {"batch", 0, COUNT(batch),
     "sequences of a step, all GPUs and servers together (default: 16 a GPU)", "SEQUENCES"},
    {"lora", 0, FLAG(lora), "train adapters beside the frozen model"},
    {"adapter", 0, FILE_(adapter),
     "adapters of the model: a checkpoint of them, or a directory of peft's", "DIR", "lora.start"},
    {"max-sequence", 0, FLAG(max_sequence),
     "tell the longest sequence that `train` takes at micro-batch 1, nothing else"},
    {"shard-size", 0, WORD(shard_size), "largest file, as 5GB (the default); 0 = one file", "SIZE"},
    {"routing", 0, WORD(routing),
     "experts: balanced; the fullest gets SKEW times the mean; or as the model's first router has "
     "a data file's tokens (default: as a router takes random states)",
     "SKEW|FILE"},
    {"drop", 0, FLAG(drop), "longer samples are left out, not cut (excess_length_strategy: drop)"},
    {"samples", 0, COUNT(samples), "how many are shown (default: 3)", "N"},

    /* systems, prices */
    {"systems", 0, WORD(systems),
     "instead of schedules: names of systems separated by commas, or all", "LIST"},
    {"price", 0, WORD(price),
     "--systems: dollars an hour of all GPUs: adds what a billion tokens cost", "DOLLARS"},
    {"chunked-head", 0, FLAG(chunked_head),
     "--systems: baselines as one would run them today: logits in chunks, fused loss"},
    {"gpu-price", 0, WORD(gpu_price),
     "dollars an hour of a GPU and its share of the server; or one for each of --gpu", "DOLLARS"},

    /* what is written and drawn */
    {"output", 'o', FILE_(output), "where to put the model; made if it is missing", "DIR"},
    {"force", 0, FLAG(force), "replace a model that is there"},
    {"trace", 0, FILE_(trace), "write the trace for ui.perfetto.dev or chrome://tracing",
     "FILE.json"},
    {"chrome", 0, FILE_(chrome), "write the trace for ui.perfetto.dev or chrome://tracing",
     "FILE.json"},
    {"kinds", 0, FILE_(kinds),
     "lines PATTERN KIND: which kernels compute, collective, copy, or ignore", "FILE"},
    {"csv", 0, FILE_(csv), "write a line for each task", "FILE.csv"},
    {"pytorch-csv", 0, FILE_(pytorch_csv), "write the order of actions as a PyTorch pipeline CSV",
     "FILE.csv"},
    {"timed", 0, FLAG(timed), "PyTorch CSV with a column a step of time and idle cells"},
    {"old-names", 0, FLAG(old_names),
     "the CSV is of older PyTorch: B is the input gradient, BW the full backward"},
    {"write-schedule", 0, FILE_(order), "write the order of actions as --schedule-file reads it",
     "FILE"},
    {"gguf", 0, FILE_(gguf), "write a model, or its adapters, for llama.cpp and its kin",
     "FILE.gguf"},
    {"quantize", 0, WORD(quantize),
     "with --gguf: f32, f16, bf16, q8_0, q4_0 or mxfp4; adapters the first three (default: as they "
     "are)",
     "TYPE"},
    {"picture", 0, FILE_(picture), "draw the timeline: .png, .svg, .pdf or .tex", "FILE"},
    {"memory-picture", 0, FILE_(memory_picture),
     "full fidelity: draw the memory of each GPU over time", "FILE"},
    {"window", 0, WORD(window), "draw iterations A to B - 1 (default: the steady state, else all)",
     "A:B"},
    {"iterations:range", 0, WORD(range),
     "only iterations A to B - 1 (default: those that both have)", "A:B"},
    {"width", 0, WORD(width),
     "of the picture on paper, as 84mm, 8.4cm or 3.3in: its text then has six points", "WIDTH"},
    {"no-title", 0, FLAG(no_title), "draw without title"},
    {"axes", 0, WORD(axes), "of the picture (default: tokens_per_s:host_gib)", "Y:X"},
    {"series", 0, WORD(series),
     "the column whose values have a colour each (default: all options of several values that are "
     "no axis)",
     "COLUMN"},
    {"log", 0, FLAG(logarithmic), "losses and the norm of the gradient on logarithmic axes"},
    {"format", 'f', WORD(formats), "png, svg, pdf, tex, separated by commas (default: all but tex)",
     "LIST"},
    {"profiles", 0, FILE_(profiles_dir), "the project's directory of profiles", "DIR"},
    {"measured", 0, FILE_(measured_dir),
     "where figure-13.csv and others are (default: those built in)", "DIR"},
    {"list", 0, FLAG(list), "list the names of the figures"},
    {"cards", 0, FLAG(cards),
     "tell for each the least card and host memory of a step of 16 sequences of 2,048 tokens"},
    {"late", 0, FLAG(late), "list the tasks of two traces that took longest and started latest"},
    {"top", 0, COUNT(top), "with --late: tasks of each list (default: 10)", "N"},

    /* how it is run */
    {"scale", 0, NUMBER(scale), "let everything take X times its time", "X"},
    {"scale:auto", 0, WORD(scale_word),
     "divide the second's times by X, as given to replay --scale; auto: by how much longer its "
     "actions take in all",
     "X|auto"},
    {"seconds", 0, NUMBER(seconds), "take about S seconds (default: 600)", "S"},
    {"set", 0, RP_OPTION_WORDS, offsetof(RpArgs, sets),
     "set a key of the run file, as optimizer.learning_rate=3e-4; any number of times",
     "KEY=VALUE"},
    {"keys", 0, FLAG(keys), "list the keys of a run file, with their defaults, and stop"},
    {"resume", 0, FILE_(resume),
     "go on from a checkpoint; --resume alone: from the last one of the output directory", "DIR"},
    {"dry-run", 0, FLAG(dry_run), "stop when the plan is printed"},
    {"save-gradients", 0, FILE_(save_gradients),
     "write the first step's gradients instead of training", "FILE.safetensors"},
    {"progress", 0, NUMBER(progress_s),
     "in a log file: a line of progress every S seconds (default: 30; 0 = none)", "S"},
    {"append", 0, FLAG(append),
     "add to the times that FILE has of other micro-batches: plan chooses among them"},
    {"servers:measure", 0, FLAG(measure_servers),
     "started as several by mpirun or srun: measure the network between them, for --network"},
    {"quick", 0, FLAG(quick), "measure no links"},

    /* tokens and answers */
    {"decode", 0, FLAG(decode), "the other direction: the text of ids"},
    {"lines", 0, FLAG(lines), "each line is a text of its own, without its end"},
    {"text", 0, FLAG(text),
     "a line each token: id, first byte, byte behind it, as the file writes it"},
    {"count", 0, FLAG(count), "only how many tokens there are"},
    {"no-special", 0, FLAG(no_special),
     "words of special tokens are text like any other; with --decode, leave special tokens out"},
    {"no-template", 0, FLAG(no_template),
     "without the tokens that the file puts around a text, such as bos"},
    {"chat", 0, FLAG(chat),
     "PROMPT is a user's message, in the model's chat template; without it each line of standard "
     "input is one"},
    {"system", 0, WORD(system), "the system's message of the chat", "TEXT"},
    {"max-new-tokens", 0, COUNT(new_tokens),
     "tokens of an answer at most (default: 256; of --prompts those of the longest expected "
     "answer, else 64)",
     "N", "max_new_tokens"},
    {"temperature", 0, NUMBER(temperature),
     "sampling temperature (default: 0, which takes the likeliest token)", "T"},
    {"top-p", 0, NUMBER(top_p),
     "of the likeliest tokens that have P of the probability (default: 1)", "P"},
    {"top-k", 0, COUNT(top_k), "of the likeliest K tokens (default: all)", "K"},
    {"prompts", 0, FILE_(prompts),
     "prompts of ids as training data; where labels tell an answer, it is compared", "FILE.jsonl"},
    {"serve", 0, WORD(serve),
     "answer programs over HTTP at this port of 127.0.0.1, in OpenAI's protocol; 0: a free port",
     "PORT", "port"},
    {"bind", 0, WORD(bind), "--serve: listen at this IP address; needs --token-file", "ADDRESS",
     "bind"},
    {"token-file", 0, FILE_(token_file),
     "--serve: a file with the token, of 16 letters or more, that clients must send", "FILE"},
    {"requests", 0, COUNT(requests),
     "--serve: answers at once, at most; others are refused with 429 (default: 64)", "N"},

    /* every command's */
    {"json", 0, FLAG(json), "print JSON, with every figure"},
    {"wide", 0, FLAG(wide), "print all columns, however narrow the terminal"},
};

const RpUse rp_schedule_uses[] = {
    {"schedule"},
    {"schedule-file",
     "the schedule of a file: a line a GPU, as `F0.0 B0.0`, or a PyTorch pipeline CSV"},
    {"gpus gpu sequence micro-batch micro-batches round slices even-slices replicas stages "
     "forward-stages backward-stages partition fidelity async iterations"},
    RP_FOR_EXPERTS,
    {"stage-count recompute published dispatch"},
    {"transfers consistency optimizer early-steps optimizer-name optimizer-state optimizer-master "
     "resident",
     "full fidelity: "},
    {"no-clip group live " RP_USE_LINKS " servers network reverse-backward"},
    {0},
};

/* ---- look-ups ---- */

static RpOption
option_of_setting(const RpSetting *setting, const char *name)
{
    static const char *const values[] = {
        [RP_SETTING_TEXT] = "FILE",     [RP_SETTING_STAGES] = "LIST", [RP_SETTING_WHOLE] = "N",
        [RP_SETTING_NUMBER] = "X",      [RP_SETTING_BYTES] = "SIZE",  [RP_SETTING_CHOICE] = "NAME",
        [RP_SETTING_SCHEDULE] = "NAME",
    };

    return (RpOption){
        .name = g_intern_string(name),
        .kind = RP_OPTION_SETTING,
        .offset = offsetof(RpArgs, run) + setting->offset,
        .value = rp_setting_is_flag(setting) ? NULL : values[setting->type],
        .setting = setting,
    };
}

RpOption
rp_option_find(const char *name)
{
    const RpSetting *setting = rp_setting_of_option(name);

    for (gsize i = 0; i < G_N_ELEMENTS(options); i++) {
        RpOption option = options[i];

        if (strcmp(option.name, name) != 0)
            continue;
        if (option.kind == RP_OPTION_SETTING) {
            option.setting = setting;
            option.offset = offsetof(RpArgs, run) + setting->offset;
        }
        return option;
    }
    g_assert(setting != NULL);
    return option_of_setting(setting, name);
}

const RpOption *
rp_schedule_options(void)
{
    static RpOption all[RP_MOST_SCHEDULE_OPTIONS];
    static gsize once;

    if (g_once_init_enter(&once)) {
        guint n = 0;

        for (const RpUse *use = rp_schedule_uses; use->names != NULL; use++) {
            g_auto(GStrv) names = g_strsplit(use->names, " ", -1);

            for (char **name = names; *name != NULL; name++) {
                g_assert(n + 1 < RP_MOST_SCHEDULE_OPTIONS);
                all[n++] = rp_option_find(*name);
            }
        }
        g_once_init_leave(&once, 1);
    }
    return all;
}

/* Schedules, or a setting's meaning and default. */
static char *
usual_help(const RpOption *option)
{
    const gboolean reversible = strcmp(option->name, "reverse-backward") == 0;
    const RpSetting *setting = rp_setting_of_option(option->name);

    if (option->help != NULL)
        return g_strdup(option->help);
    if (strcmp(option->name, "schedule") == 0 || reversible) {
        g_autofree char *names = rp_schedule_names(reversible ? rp_schedule_is_reversible : NULL);

        return g_strconcat(
            names, reversible ? ": backward from the last micro-batch on, as PyTorch" : NULL, NULL);
    }
    const char *initial = rp_setting_default(setting);
    g_autofree char *meaning =
        rp_setting_is_flag(setting) ? g_strdup(setting->help) : rp_setting_meaning(setting);
    const gboolean has_default = *initial != '-' && !setting->required && option->value != NULL;

    return g_strconcat(meaning, has_default ? "; default: " : NULL, initial, NULL);
}

char *
rp_option_help(const RpOption *option, const RpUse *use)
{
    const char *own = use->help != NULL ? use->help : "";
    g_autofree char *usual =
        use->help == NULL || g_str_has_suffix(own, ": ") ? usual_help(option) : g_strdup("");

    return g_strconcat(own, usual, NULL);
}

/* ---- values ---- */

/* No name of @setting, or a list with one that is none of its parts. */
static gboolean
refuse_choice(const char *option, const RpSetting *setting, const char *text, GError **error)
{
    g_autofree const char **names = rp_setting_names(setting);
    const char *const *known = names;

    if (setting->parts == NULL || strchr(text, ',') == NULL)
        return rp_cli_choice(option, text, known, error) >= 0;
    g_auto(GStrv) words = g_strsplit(text, ",", -1);
    char **word = words;

    while (*known != setting->parts->name) /* others stand alone */
        known++;
    while (rp_cli_choice(option, g_strstrip(*word), known, error) >= 0)
        word++; /* one of them is wrong */
    return FALSE;
}

/* The value of a count, 1 or more. */
static gboolean
take_count(const char *option, const char *text, int *count, GError **error)
{
    gint64 number = 0;
    const gboolean is_number =
        g_ascii_string_to_signed(text, 10, G_MININT64, G_MAXINT64, &number, NULL);

    if (is_number && number >= 1 && number <= G_MAXINT) {
        *count = (int)number;
        return TRUE;
    }
    g_autofree char *found =
        is_number ? g_strdup_printf("%" G_GINT64_FORMAT, number) : rp_quote(text);

    return rp_cli_refuse(error, "--%s: expected a number of 1 or more, found %s%s", option, found,
                         number > G_MAXINT ? ", which is out of range" : "");
}

static gboolean
store_setting(const RpOption *option, const char *text, RpArgs *args, GError **error)
{
    const RpSetting *setting = option->setting;
    int value = 0;

    if (setting->type == RP_SETTING_WHOLE && !take_count(option->name, text, &value, error))
        return FALSE;
    if (setting->type == RP_SETTING_CHOICE && !rp_setting_choose(setting, text, &value))
        return refuse_choice(option->name, setting, text, error);
    if (rp_run_spec_set(&args->run, setting, text))
        return TRUE;
    g_autofree char *expected = rp_setting_expects(setting);

    return rp_cli_refuse(error, "--%s: expected %s, found \"%s\"", option->name, expected, text);
}

/* Sweeps give flags a text; a command line has them or not. */
static gboolean
store_flag(const RpOption *option, const char *text, gboolean *flag, GError **error)
{
    *flag = g_str_equal(text, "yes");
    if (*flag || g_str_equal(text, "no"))
        return TRUE;
    g_autofree char *shown = rp_quote(text);

    return rp_cli_refuse(error, "--%s: expected no or yes, found %s", option->name, shown);
}

gboolean
rp_option_store(const RpOption *option, const char *text, RpArgs *args, GError **error)
{
    gpointer member = (char *)args + option->offset;

    switch (option->kind) {
    case RP_OPTION_COUNT:
        return take_count(option->name, text, member, error);
    case RP_OPTION_FLAG:
        return store_flag(option, text, member, error);
    case RP_OPTION_SETTING:
        return store_setting(option, text, args, error);
    case RP_OPTION_WORD:
    case RP_OPTION_FILE:
    case RP_OPTION_INTEGER: /* GLib reads these three itself */
    case RP_OPTION_NUMBER:
    case RP_OPTION_WORDS:
        break;
    }
    *(const char **)member = g_intern_string(text);
    return TRUE;
}

static gsize
size_of(const RpOption *option)
{
    return option->kind == RP_OPTION_INTEGER                                   ? sizeof(gint64)
           : option->kind == RP_OPTION_NUMBER                                  ? sizeof(double)
           : option->kind == RP_OPTION_COUNT || option->kind == RP_OPTION_FLAG ? sizeof(int)
                                                                               : sizeof(char *);
}

void
rp_args_set(RpArgs *args, const char *name, const char *text)
{
    const RpOption option = rp_option_find(name);

    if (text != NULL && !rp_option_store(&option, text, args, NULL))
        g_assert_not_reached();
    if (text == NULL && option.setting != NULL)
        rp_run_spec_forget(&args->run, option.setting->key);
    else if (text == NULL)
        memset((char *)args + option.offset, 0, size_of(&option));
}

gboolean
rp_args_has(const RpArgs *args, const char *name)
{
    static const char none[sizeof(gint64)] = {0};
    const RpOption option = rp_option_find(name);

    return option.setting != NULL
               ? rp_run_spec_given(&args->run, option.setting->key) != NULL
               : memcmp((const char *)args + option.offset, none, size_of(&option)) != 0;
}
