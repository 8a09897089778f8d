/* The file that `roundpipe profile` writes, beside the network whose layers it has timed. */
#include "tests/cli/run-cli.h"

#include "core/profile/profile.h"
#include "exec/host/kernels.h"
#include "exec/network/network.h"

#define CONFIG                                                                                     \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","                          \
    "\"hidden_size\":16,\"num_hidden_layers\":3,"                                                  \
    "\"num_attention_heads\":4,\"intermediate_size\":24,\"vocab_size\":33,"                        \
    "\"max_position_embeddings\":32,\"tie_word_embeddings\":true}"

#define QUICK "--seconds 0.01"

static void
make_config(void)
{
    g_autofree char *directory = rp_cli_temporary("shapes");
    g_autofree char *path = rp_cli_temporary("shapes/config.json");

    assert_int_equal(g_mkdir_with_parents(directory, 0777), 0);
    assert_true(g_file_set_contents(path, CONFIG, -1, NULL));
}

static RpProfile *
load(const char *name)
{
    g_autofree char *path = rp_cli_temporary(name);
    return rp_must(rp_profile_load, path);
}

/* Sizes as the network itself gives them. */
static void
assert_sizes(const RpProfile *profile, RpDtype dtype, guint sequences, guint tokens)
{
    g_autofree char *path = rp_cli_temporary("shapes/config.json");
    const RpNetworkOptions options = {.dtype = dtype, .sequences = sequences, .tokens = tokens};
    g_autoptr(GError) error = NULL;
    RpModel config;

    assert_true(rp_hf_config_load(path, &config, &error));
    g_autoptr(RpWeights) weights = rp_weights_new(&config);
    g_autoptr(RpNetwork) network = rp_network_new(weights, rp_host_kernels(), &options);
    g_autoptr(RpProfile) expected = rp_network_profile(network);

    assert_int_equal(profile->n_layers, expected->n_layers);
    assert_string_equal(profile->dtype, expected->dtype);
    assert_int_equal(profile->sequences, sequences);
    assert_int_equal(profile->tokens_per_sequence, tokens);
    for (guint l = 0; l < profile->n_layers; l++) {
        const RpLayer *a = &profile->layers[l], *b = &expected->layers[l];

        assert_int_equal(a->kind, b->kind);
        assert_int_equal(a->parameter_bytes, b->parameter_bytes);
        assert_int_equal(a->gradient_bytes, b->gradient_bytes);
        assert_int_equal(a->tied_bytes, b->tied_bytes);
        assert_int_equal(a->input_bytes, b->input_bytes);
        assert_int_equal(a->output_bytes, b->output_bytes);
        assert_int_equal(a->activation_bytes, b->activation_bytes);
        assert_int_equal(a->forward_workspace_bytes, b->forward_workspace_bytes);
        assert_int_equal(a->backward_workspace_bytes, b->backward_workspace_bytes);
        assert_int_equal(a->n_tensors, b->n_tensors);
    }
}

RP_TEST(writes_a_file_with_times_and_the_networks_sizes)
{
    make_config();
    g_auto(RpCliRun) run = rp_cli_run("profile --devices host:3 @T/shapes -o @T/p.json " QUICK
                                      " --micro-batch-size 2 --sequence-length 8 --dtype fp32");
    assert_int_equal(run.code, 0);
    assert_string_equal(run.err, ""); /* no progress into a pipe */
    assert_non_null(strstr(run.out, "random weights"));
    assert_non_null(strstr(run.out, "block          3"));
    assert_null(strstr(run.out, "both ways")); /* a thread's copies have no ways */

    g_autoptr(RpProfile) profile = load("p.json");
    g_autoptr(GError) error = NULL;
    assert_sizes(profile, RP_DTYPE_FP32, 2, 8);
    assert_true(rp_profile_check_full(profile, &error));
    assert_string_equal(profile->model, "shapes");
    assert_string_equal(profile->source, "measured");
    assert_non_null(strstr(profile->origin, "roundpipe profile --devices host:3"));
    assert_int_equal(profile->gpus, 3);
    assert_int_not_equal(profile->processors, 0);
    assert_true(profile->optimizer_parameters_per_s > 0);
    for (guint form = 0; form < RP_N_UPDATES * RP_N_MOMENTS * RP_N_MASTERS; form++)
        assert_true((&profile->cached_parameters_per_s[0][0][0])[form] > 1e6);
    assert_true(profile->links.host_bytes_per_s >= profile->links.h2d_bytes_per_s);
    for (guint l = 0; l < profile->n_layers; l++) {
        assert_true(profile->layers[l].forward_ns > 0);
        assert_true(profile->layers[l].backward_ns > 0);
        assert_true(profile->layers[l].recompute_ns > 0);
        assert_true(profile->layers[l].recompute_spread_ns >= 0);
        assert_true(profile->layers[l].recompute_last_ns <= profile->layers[l].recompute_ns);
    }
    assert_int_equal(profile->layers[0].recompute_last_ns, 0); /* a block's alone */
    assert_true(profile->links.d2h_bytes_per_s == profile->links.h2d_bytes_per_s);
    /* equal layers are measured once */
    assert_int_equal(profile->layers[1].forward_ns, profile->layers[3].forward_ns);
    assert_int_equal(profile->layers[1].backward_ns, profile->layers[3].backward_ns);
}

RP_TEST(takes_weights_and_their_type_from_a_directory)
{
    make_config();
    rp_cli_must_run("init @T/shapes/config.json -o @T/model --seed 1 --dtype fp16");
    g_autoptr(RpTree) root =
        rp_cli_run_json("profile --devices host:1 @T/model -o @T/w.json --json " QUICK);
    g_autoptr(RpProfile) profile = load("w.json");
    assert_string_equal(rp_cli_member(root, "weights")->text, "given");
    assert_sizes(profile, RP_DTYPE_FP16, 1, 32);
}

RP_TEST_GROUP(rp_cli_setup, rp_cli_teardown)
