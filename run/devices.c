#include "run/devices.h"

#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "core/base/quote.h"
#include "exec/cuda/backend.h"
#include "exec/cuda/runtime/device.h"
#include "exec/host/kernels.h"
#include "exec/measure/profile.h"
#include "run/settings.h"

#define LINK "link" /* of a GPU, not its actions */
#define ELSEWHERE                                                                                  \
    "`train --dry-run --set profile=CARD` predicts for a card of `roundpipe gpus` that is not "    \
    "here"

static gboolean
usage_error(GError **error, const char *text)
{
    g_autofree char *quoted = rp_quote(text);

    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                   "expected host:N (devices on processor threads) or cuda:N (GPUs) with N from 1 "
                   "to " G_STRINGIFY(RP_RUN_MAX_DEVICES) ", found %s",
                   quoted);
}

/* Whether @text is @word or "@word:N". @given: (out): N, 0 without one */
static gboolean
is_word(const char *text, const char *word, guint64 *given)
{
    const gsize length = strlen(word);

    *given = 0;
    if (strcmp(text, word) == 0)
        return TRUE;
    return strncmp(text, word, length) == 0 && text[length] == ':' &&
           g_ascii_string_to_unsigned(text + length + 1, 10, 1, RP_RUN_MAX_DEVICES, given, NULL);
}

/* @given: 0 = all. */
static gboolean
find_gpus(guint given, const RpDeviceOps **devices, guint *n, GError **error)
{
    const RpDeviceOps *cuda = rp_cuda_devices();
    const guint count = rp_cuda_device_count();

    if (cuda == NULL && !rp_cuda_built())
        return rp_fail(
            error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
            "expected host:N, devices on processor threads, for GPU code is %s; " ELSEWHERE,
            rp_cuda_built_text());
    if (cuda == NULL)
        return rp_fail(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_FAILED, "GPU code is missing: %s",
                       rp_cuda_missing_text());
    if (count == 0 || given > count) {
        const char *problem = rp_cuda_no_device_text();

        return rp_fail(error, RP_BACKEND_ERROR, RP_BACKEND_ERROR_FAILED,
                       "expected %u GPU%s, CUDA finds %u%s%s: see nvidia-smi and "
                       "CUDA_VISIBLE_DEVICES; " ELSEWHERE,
                       MAX(given, 1), given > 1 ? "s" : "", count, problem != NULL ? ", " : "",
                       problem != NULL ? problem : "");
    }
    *devices = cuda;
    *n = given > 0 ? given : count;
    return TRUE;
}

/* The number that a launcher of several servers gives its processes in one of @names. Slurm's may have more behind it. */
static guint
number_of_launcher(const char *const *names, guint otherwise)
{
    for (; *names != NULL; names++) {
        const char *text = g_getenv(*names);

        if (text != NULL && g_ascii_isdigit(*text))
            return (guint)MIN(g_ascii_strtoull(text, NULL, 10), G_MAXUINT16);
    }
    return otherwise;
}

static guint
server_of_machine(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "SLURM_LOCALID", NULL};

    return number_of_launcher(names, 0);
}

guint
rp_run_servers_of_machine(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "SLURM_TASKS_PER_NODE", NULL};

    return MAX(number_of_launcher(names, 1), 1);
}

void
rp_run_share_processors(void)
{
    const guint servers = rp_run_servers_of_machine(), server = server_of_machine();
    const gboolean bound = g_getenv("OMPI_MCA_hwloc_base_binding_policy") != NULL;
    const gboolean by_mpirun =
        g_getenv("OMPI_COMM_WORLD_LOCAL_RANK") != NULL || g_getenv("MPI_LOCALRANKID") != NULL;
    cpu_set_t all, mine;

    if (bound || !by_mpirun || server >= servers ||
        sched_getaffinity(getppid(), sizeof all, &all) != 0)
        return;
    const guint n = (guint)CPU_COUNT(&all);
    guint i = 0;

    CPU_ZERO(&mine);
    for (guint cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && (n < 2 * servers || i++ * servers / n == server))
            CPU_SET(cpu, &mine);
    (void)sched_setaffinity(0, sizeof mine, &mine);
}

/* Parts of GPUs instead of GPUs, where @split asks for them. */
static gboolean
split_gpus(const char *text, const char *split, guint given, GError **error)
{
    if (split == NULL)
        return TRUE;
    if (given > 0)
        return rp_cuda_split_devices(split, server_of_machine(), given, error);
    return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                   "expected cuda:N, how many devices GPUs are split into, found %s", text);
}

gboolean
rp_run_parse_devices(const char *text, const char *split, const RpDeviceOps **devices, guint *n,
                     GError **error)
{
    guint64 given;

    if (is_word(text, "cuda", &given))
        return split_gpus(text, split, (guint)given, error) &&
               find_gpus((guint)given, devices, n, error);
    if (!is_word(text, "host", &given))
        return usage_error(error, text);
    if (split != NULL)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                       "%s are processor threads: only GPUs (cuda:N) are split into parts", text);
    *devices = rp_host_devices();
    *n = MAX((guint)given, 1);
    return TRUE;
}

/* Without GPU code, sizes are those of the host's kernels, as for `plan`. */
gboolean
rp_run_predicted_devices(const char *text, const RpDeviceOps **devices, guint *n, GError **error)
{
    static const RpDeviceOps sizes = {.name = "cuda", .kernels = rp_host_kernels};
    const RpDeviceOps *cuda = rp_cuda_devices();
    guint64 given;

    if (!is_word(text, "cuda", &given) || given == 0)
        return rp_fail(error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
                       "expected cuda:N, the number of cards that is predicted for, found %s",
                       text);
    *devices = cuda != NULL ? cuda : &sizes;
    *n = (guint)given;
    return TRUE;
}

guint
rp_run_optimizer_threads(const RpDeviceOps *devices, guint n)
{
    const guint processors = rp_usable_processors();

    if (devices->host_memory)
        return 1;
    return processors > n ? processors - n : processors;
}

char *
rp_run_device_processors(guint n)
{
    cpu_set_t usable;
    guint first = 0;

    if (rp_usable_processors() <= n)
        return NULL;
    if (sched_getaffinity(0, sizeof usable, &usable) == 0)
        while (first + n < CPU_SETSIZE && !CPU_ISSET(first, &usable))
            first++;
    return g_strdup_printf("%u-%u", first, first + n - 1);
}

char *
rp_run_device_kind(const RpDeviceOps *devices, guint device, GError **error)
{
    RpCudaDeviceInfo info;

    if (devices->host_memory)
        return g_strdup(devices->name);
    return rp_cuda_device_info(device, &info, error) ? g_strdup(info.name) : NULL;
}

/* ---- slower than their profile ---- */

/* One "GPU=FACTOR" or "linkGPU=FACTOR". */
static gboolean
read_one(const char *word, guint gpus, RpSlow *slow, GError **error)
{
    const gboolean link = g_str_has_prefix(word, LINK);
    const char *number = link ? word + strlen(LINK) : word;
    const char *equals = strchr(number, '=');
    char *end = NULL;
    guint64 gpu = 0;

    if (equals != NULL) {
        g_autofree char *digits = g_strndup(number, (gsize)(equals - number));
        const double factor = g_ascii_strtod(equals + 1, &end);

        if (g_ascii_string_to_unsigned(digits, 10, 0, gpus - 1, &gpu, NULL) && end != equals + 1 &&
            *end == '\0' && factor >= 1 && factor <= RP_RUN_MOST_SLOW) {
            *(link ? &slow[gpu].link : &slow[gpu].actions) = factor;
            return TRUE;
        }
    }
    return rp_fail(
        error, RP_RUN_ERROR, RP_RUN_ERROR_USAGE,
        "expected GPU=FACTOR, or linkGPU=FACTOR of its link, a GPU of 0 to %u and a factor "
        "of 1 to %.0f, found \"%s\"",
        gpus - 1, RP_RUN_MOST_SLOW, word);
}

RpSlow *
rp_run_parse_slow(const char *text, guint gpus, GError **error)
{
    g_auto(GStrv) words = g_strsplit(text, ",", -1);
    g_autofree RpSlow *slow = g_new(RpSlow, gpus);

    for (guint g = 0; g < gpus; g++)
        slow[g] = (RpSlow){.actions = 1, .link = 1};
    for (char **word = words; *word != NULL; word++)
        if (!read_one(*word, gpus, slow, error))
            return NULL;
    if (*words == NULL && !read_one("", gpus, slow, error))
        return NULL;
    return g_steal_pointer(&slow);
}

char *
rp_run_describe_slow(const RpSlow *slow, guint gpus)
{
    GString *text = g_string_new(NULL);

    for (guint g = 0; g < gpus; g++) {
        if (slow[g].actions != 1)
            g_string_append_printf(text, "%sgpu %u x %g", text->len > 0 ? ", " : "", g,
                                   slow[g].actions);
        if (slow[g].link != 1)
            g_string_append_printf(text, "%slink of gpu %u x %g", text->len > 0 ? ", " : "", g,
                                   slow[g].link);
    }
    return g_string_free(text, FALSE);
}
