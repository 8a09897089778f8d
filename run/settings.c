/* The table of settings, lookups in it, and what options set. A new setting is a field of RpRunSpec and a row
 * here: docs/how-to.md. */
#include "run/settings.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "core/base/dtype.h"
#include "core/base/quote.h"
#include "core/base/units.h"
#include "core/catalogue/lora.h"
#include "core/catalogue/preference.h"
#include "core/lowbit/lowbit.h"
#include "core/schedules/schedule.h"
#include "run/model.h"
#include "run/spec.h"
#include "text/chat/chat.h"

/* Not every word that is no "true" is false. */
static const RpSettingChoice booleans[] = {{"false", 0}, {"true", 1}, {"no", 0}, {"yes", 1},
                                           {"off", 0},   {"on", 1},   {NULL}};
static const RpSettingChoice maybe[] = {{"auto", 0}, {"false", 1}, {"true", 2}, {"no", 1},
                                        {"yes", 2},  {"off", 1},   {"on", 2},   {NULL}};
static const RpSettingChoice dtypes[] = {
    {"fp32", RP_DTYPE_FP32 + 1}, {"bf16", RP_DTYPE_BF16 + 1}, {"fp16", RP_DTYPE_FP16 + 1}, {NULL}};
static const RpSettingChoice bases[] = {{"bf16", RP_RUN_BASE_16_BITS},
                                        {"fp8", RP_RUN_BASE_PACKED + RP_LOWBIT_FP8},
                                        {"nf4", RP_RUN_BASE_PACKED + RP_LOWBIT_NF4},
                                        {"nf4-single", RP_RUN_BASE_PACKED + RP_LOWBIT_NF4_SINGLE},
                                        {"mxfp4", RP_RUN_BASE_PACKED + RP_LOWBIT_MXFP4},
                                        {NULL}};
static const RpSettingChoice residents[] = {
    {"auto", RP_RESIDENT_AUTO}, {"off", RP_RESIDENT_OFF}, {"on", RP_RESIDENT_ON}, {NULL}};
static const RpSettingChoice rounds[] = {
    {"all", RP_RUN_ROUND_ALL}, {"auto", RP_RUN_ROUND_AUTO}, {NULL}};
static const RpSettingChoice partitions[] = {{"simulated", 0}, {"paper", 1}, {NULL}};
static const RpSettingChoice recomputes[] = {{"auto", RP_SETTING_RECOMPUTE(EARLY, AUTO)},
                                             {"full", RP_SETTING_RECOMPUTE(EARLY, NOTHING)},
                                             {"selective", RP_SETTING_RECOMPUTE(EARLY, ATTENTION)},
                                             {"none", RP_SETTING_RECOMPUTE(EARLY, ALL)},
                                             {"early", RP_SETTING_RECOMPUTE(EARLY, NOTHING)},
                                             {"gated", RP_SETTING_RECOMPUTE(GATED, NOTHING)},
                                             {NULL}};
static const RpSettingChoice saved_groups[] = {
    {"attention", RP_SETTING_RECOMPUTE(EARLY, ATTENTION)},
    {"qkv", RP_SETTING_RECOMPUTE(EARLY, QKV)},
    {"residual", RP_SETTING_RECOMPUTE(EARLY, RESIDUAL)},
    {"mlp", RP_SETTING_RECOMPUTE(EARLY, MLP)},
    {NULL}};
static const RpSettingChoice transfers[] = {
    {"windows", RP_TRANSFERS_WINDOWS}, {"naive", RP_TRANSFERS_NAIVE}, {NULL}};
static const RpSettingChoice dispatches[] = {
    {"rotation", RP_DISPATCH_ROTATION}, {"free", RP_DISPATCH_FREE}, {NULL}};
static const RpSettingChoice consistencies[] = {
    {"events", RP_CONSISTENCY_EVENTS}, {"blocking", RP_CONSISTENCY_BLOCKING}, {NULL}};
static const RpSettingChoice accumulates[] = {{"fp32", 0}, {"fp16", 1}, {NULL}};
static const RpSettingChoice matmuls[] = {
    {"fp8", RP_RUN_MATMUL_FP8},  {"fp8-head", RP_RUN_MATMUL_FP8_HEAD}, {"bf16", RP_DTYPE_BF16 + 1},
    {"fp16", RP_DTYPE_FP16 + 1}, {"fp32", RP_DTYPE_FP32 + 1},          {NULL}};
static const RpSettingChoice fp8_formats[] = {
    {"hybrid", RP_DTYPE_E5M2}, {"e4m3", RP_DTYPE_E4M3}, {NULL}};
static const RpSettingChoice attentions[] = {
    {"auto", 0}, {"builtin", RP_ATTENTION_BUILTIN + 1}, {"cudnn", RP_ATTENTION_CUDNN + 1}, {NULL}};
static const RpSettingChoice modes[] = {
    {"fused", RP_OPTIMIZER_FUSED}, {"lean", RP_OPTIMIZER_LEAN}, {NULL}};
static const RpSettingChoice earlies[] = {
    {"auto", RP_EARLY_AUTO}, {"off", RP_EARLY_OFF}, {"on", RP_EARLY_ON}, {NULL}};
static const RpSettingChoice rules[] = {
    {"adamw", RP_UPDATE_ADAMW}, {"lion", RP_UPDATE_LION}, {NULL}};
static const RpSettingChoice masters[] = {
    {"fp32", RP_MOMENTS_FP32}, {"bf16", RP_MOMENTS_BF16}, {NULL}};
static const RpSettingChoice moments[] = {
    {"fp32", RP_MOMENTS_FP32}, {"bf16", RP_MOMENTS_BF16}, {"int8", RP_MOMENTS_INT8}, {NULL}};
static const RpSettingChoice excesses[] = {{"truncate", RP_RUN_EXCESS_TRUNCATE},
                                           {"drop", RP_RUN_EXCESS_DROP},
                                           {"error", RP_RUN_EXCESS_ERROR},
                                           {NULL}};
static const RpSettingChoice learned[] = {{"assistant", RP_TRAIN_ON_ASSISTANT},
                                          {"last", RP_TRAIN_ON_LAST},
                                          {"all", RP_TRAIN_ON_ALL},
                                          {NULL}};
static const RpSettingChoice objectives[] = {{"sft", RP_OBJECTIVE_SFT},
                                             {"dpo", RP_OBJECTIVE_DPO},
                                             {"ipo", RP_OBJECTIVE_IPO},
                                             {"orpo", RP_OBJECTIVE_ORPO},
                                             {"simpo", RP_OBJECTIVE_SIMPO},
                                             {"kto", RP_OBJECTIVE_KTO},
                                             {NULL}};
static const RpSettingChoice references[] = {{"auto", RP_REFERENCE_NONE},
                                             {"adapters", RP_REFERENCE_ADAPTERS},
                                             {"copy", RP_REFERENCE_COPY},
                                             {"precomputed", RP_REFERENCE_PRECOMPUTED},
                                             {NULL}};
static const RpSettingChoice rates[] = {{"cosine", RP_LEARNING_RATE_COSINE},
                                        {"linear", RP_LEARNING_RATE_LINEAR},
                                        {"constant", RP_LEARNING_RATE_CONSTANT},
                                        {"warmup_stable_decay", RP_LEARNING_RATE_STABLE},
                                        {"wsd", RP_LEARNING_RATE_STABLE},
                                        {"wsd-linear", RP_RUN_STABLE(LINEAR)},
                                        {"wsd-1-sqrt", RP_RUN_STABLE(ROOT)},
                                        {"cosine_with_min_lr", RP_LEARNING_RATE_COSINE},
                                        {"constant_with_warmup", RP_LEARNING_RATE_CONSTANT},
                                        {NULL}};

#define TEXT(member) .type = RP_SETTING_TEXT, .offset = offsetof(RpRunSpec, member)
#define STAGES(member) .type = RP_SETTING_STAGES, .offset = offsetof(RpRunSpec, member)
#define BYTES(member) .type = RP_SETTING_BYTES, .offset = offsetof(RpRunSpec, member)
#define WHOLE(member, from, to)                                                                    \
    .type = RP_SETTING_WHOLE, .offset = offsetof(RpRunSpec, member), .least = (from), .most = (to)
#define NUMBER(member, from, to)                                                                   \
    .type = RP_SETTING_NUMBER, .offset = offsetof(RpRunSpec, member), .least = (from), .most = (to)
#define CHOICE(member, of)                                                                         \
    .type = RP_SETTING_CHOICE, .offset = offsetof(RpRunSpec, member), .choices = (of)

static const RpSetting settings[] = {
    {"model", TEXT(model), .required = TRUE, .others = "base_model model_name_or_path",
     .help =
         "directory with config.json and model.safetensors (or shards), or a name that the hub's "
         "cache has (`hf download`), as Qwen/Qwen3-8B or, of a branch, a tag or a commit, "
         "Qwen/Qwen3-8B@REVISION; random:NAME of the catalogue, or random:DIR with config.json: "
         "random weights, made in memory"},
    {"data", STAGES(data), .required = TRUE, .others = "dataset datasets train_file",
     .help = "samples: files, folders or patterns as [a.jsonl, b.json.gz, c/*.jsonl.zst]; or one "
             ".bin of ids"},
    {"data_weights", .expert = TRUE, STAGES(data_weights), .unset = "1 each",
     .others = "interleave_probs probabilities mix_probs",
     .help = "how often an epoch has the samples of each of data, as [1, 0.5, 3]"},
    {"data_cache", .expert = TRUE, TEXT(data_cache), .unset = ".roundpipe beside the first file",
     .others = "dataset_prepared_path tokenized_path cache_dir",
     .help = "directory of samples that were made of text; they are used again"},
    {"train_on", CHOICE(train_on, learned), .initial = "assistant",
     .others = "train_on_inputs assistant_only_loss completion_only_loss roles_to_train",
     .help = "what is learned of a chat: assistants' turns, the last of them, or all text"},
    {"chat_template", TEXT(chat_template), .unset = "the model's",
     .others = "chat_template_jinja template", .help = "a file with a template of chats"},
    {"skip_bad_samples", CHOICE(skip_bad_samples, booleans), .initial = "false",
     .others = "skip_invalid ignore_errors",
     .help = "leaves records out that no sample can be made of, and counts them"},
    {"objective", CHOICE(objective, objectives), .initial = "sft",
     .others = "rl rl_type loss_type pref_loss stage training_type rlhf_type",
     .help = "sft: answers are imitated; dpo, ipo, orpo, simpo: the chosen answer of a pair is "
             "preferred to the rejected one; kto: answers with a label (preference.md)"},
    {"beta", NUMBER(preference.beta, 1e-6, 1e6), .unset = "0.1",
     .others = "pref_beta rl_beta dpo_beta kto_beta simpo_beta orpo_alpha orpo_lambda",
     .help = "preferences: how near the model stays to the reference; orpo: weight of the odds "
             "ratio; ipo: 1 / (2 beta) is the margin"},
    {"reference", CHOICE(reference_choice, references), .unset = "auto",
     .others = "ref_model ref_model_name_or_path precompute_ref_log_probs reference_free",
     .help =
         "dpo, ipo, kto: adapters: the model without its adapters; copy: its first weights, "
         "held on the host; precomputed: log-probabilities of the first weights, kept beside "
         "the data; auto: adapters for LoRA; else precomputed, or copy where steps see a part of "
         "the data"},
    {"sft_weight", .expert = TRUE, NUMBER(preference.sft_weight, 0, 1000),
     .unset = "1 for orpo, else 0", .others = "rpo_alpha pref_ftx cpo_alpha dpo_ftx",
     .help = "preferences: weight of the loss of imitating chosen answers, beside the other"},
    {"simpo_gamma", .expert = TRUE, NUMBER(preference.gamma, 0, 1000), .unset = "0.5",
     .others = "gamma simpo_gamma_beta_ratio",
     .help = "simpo: margin by which the chosen answer is to win"},
    {"desirable_weight", .expert = TRUE, NUMBER(preference.desirable_weight, 0, 1000), .unset = "1",
     .others = "kto_chosen_weight kto_desirable_weight",
     .help = "kto: weight of the loss of desirable answers"},
    {"undesirable_weight", .expert = TRUE, NUMBER(preference.undesirable_weight, 0, 1000),
     .unset = "1", .others = "kto_rejected_weight kto_undesirable_weight",
     .help = "kto: weight of the loss of undesirable answers"},
    {"output", TEXT(output), .required = TRUE, .others = "output_dir",
     .help = "directory of the results; made if it is missing"},
    {"devices", TEXT(devices), .initial = "host:1", .flag = "--gpus",
     .help = "host:N: N devices on processor threads; cuda:N: the first N GPUs; cuda: all"},
    {"dtype", CHOICE(dtype_choice, dtypes), .unset = "the model's",
     .others = "bf16 fp16 torch_dtype pure_bf16 mixed_precision",
     .help = "numbers of weights, activations and gradients on devices"},
    {"matmul", CHOICE(matmul_choice, matmuls), .unset = "as dtype", .others = "fp8 enable_fp8",
     .help =
         "what matmuls of blocks read; fp8: codes of 8 bits with a scale (RTX 40, H100 and later); "
         "fp8-head: the head's, too"},
    {"fp8.format", .expert = TRUE, CHOICE(fp8.gradients, fp8_formats), .unset = "hybrid",
     .others = "fp8_format", .help = "fp8: codes of gradients; hybrid: e5m2, e4m3: as all else"},
    {"fp8.plain_blocks", .expert = TRUE, STAGES(fp8.plain), .unset = "0,0",
     .others = "num_layers_at_start_in_bf16 first_last_layers_bf16 num_layers_at_end_in_bf16",
     .help =
         "fp8: numbers of blocks at the start and at the end whose matmuls read numbers of dtype, "
         "as [1, 2]"},
    {"base", CHOICE(base_choice, bases), .unset = "as the model's file has it",
     .others = "load_in_4bit quantization quantization_bit",
     .help = "LoRA: the frozen model on the host and on its way to devices; bf16: 16 bits"},
    {"sequence_length", WHOLE(sequence_length, 2, RP_RUN_MAX_COUNT), .required = TRUE,
     .others = "cutoff_len max_seq_length seq_len sequence_len", .help = "tokens of a sequence"},
    {"packing", CHOICE(packing_choice, maybe), .initial = "auto",
     .others = "sample_packing multipack pad_to_sequence_len",
     .help = "samples share a sequence, and see nothing of each other; auto: where some are "
             "shorter than a sequence"},
    {"excess_length_strategy", CHOICE(excess_length_choice, excesses), .initial = "truncate",
     .others = "long_samples truncation_mode truncation",
     .help = "samples longer than a sequence: cut, left out, or refused"},
    {"micro_batch_size", WHOLE(micro_batch_size, 1, RP_RUN_MAX_COUNT), .initial = "1",
     .others = "batch batch_size per_device_train_batch_size",
     .help = "sequences of a micro-batch"},
    {"micro_batches", WHOLE(micro_batches, 1, RP_RUN_MAX_COUNT), .initial = "8",
     .help = "micro-batches of a call"},
    {"gradient_accumulation_steps", WHOLE(gradient_accumulation_steps, 1, 1024), .initial = "1",
     .others = "gradient_accumulation",
     .help = "calls of a step, whose gradients are summed before the update"},
    {"steps", WHOLE(steps, 1, 1e12), .unset = "as many as epochs take",
     .others = "max_steps num_steps",
     .help = "optimizer steps of the whole run; learning rates end there"},
    {"epochs", WHOLE(epochs, 1, 1e6), .others = "num_train_epochs num_epochs",
     .help = "how often the run has each sample, unless steps are given"},
    /* up to 2^53: the same number in every JSON reader */
    {"seed", .expert = TRUE, WHOLE(seed, 0, 9007199254740992.0), .initial = "0",
     .help = "the order of the data and random weights follow from it"},
    {"shuffle", .expert = TRUE, CHOICE(shuffle, booleans), .initial = "true",
     .help = "another order of the data in each epoch, or that of the file"},
    {"schedule", .expert = TRUE, .type = RP_SETTING_SCHEDULE,
     .offset = offsetof(RpRunSpec, schedule), .initial = "roundpipe",
     .help = "in which order devices run micro-batches"},
    {"schedule_file", .expert = TRUE, TEXT(schedule_file),
     .help = "instead: a file with a line for each device, as F0.0 B0.0 (docs/your-schedule.md)"},
    {"async", .expert = TRUE, CHOICE(async_choice, maybe + 1),
     .unset = "true for roundpipe, else false",
     .help = "the update runs beside the next step; weights are one step older when they are read"},
    {"round", .expert = TRUE, WHOLE(round_choice, 0, RP_RUN_MAX_COUNT), .choices = rounds,
     .initial = "all",
     .help = "roundpipe: micro-batches of a round; auto: chosen with the partition"},
    {"replicas", .expert = TRUE, WHOLE(replicas, 1, RP_RUN_MAX_COUNT), .initial = "1",
     .help =
         "roundpipe: equal groups of devices, which take rounds in turn: less bubble, but weights "
         "and gradients cross the links so many times"},
    {"partition", .expert = TRUE, CHOICE(partition_choice, partitions), .initial = "simulated",
     .help = "how layers are divided into stages, where no lists of stages are given"},
    {"stages", .expert = TRUE, STAGES(stages),
     .help = "bound schedules: blocks of each stage, as 3,3,2 or 4*7"},
    {"forward_stages", .expert = TRUE, STAGES(forward_stages),
     .help = "roundpipe: blocks of each forward stage; none: the fused stage has all"},
    {"backward_stages", .expert = TRUE, STAGES(backward_stages),
     .help = "roundpipe: blocks of each backward stage, the fused one first"},
    {"recompute", .expert = TRUE, CHOICE(recompute_choice, recomputes), .parts = saved_groups,
     .unset = "auto",
     .others = "gradient_checkpointing activation_checkpointing activation_offloading "
               "recompute_granularity",
     .help =
         "what backwards make again; full: all; selective: all but attention, which forwards "
         "save in host memory; none: nothing that they can save; auto: as is predicted to be "
         "fastest on GPUs; early, gated: all, from before the gradient comes or then on; a list, "
         "as attention,qkv: all but these groups, which forwards save"},
    {"dispatch", .expert = TRUE, CHOICE(dispatch, dispatches), .initial = "rotation",
     .help =
         "roundpipe: stages go to the devices in turn; free: to the one that is free first, where "
         "some are slower"},
    {"device_split", .expert = TRUE, STAGES(device_split),
     .help =
         "cuda:N, for tests and benchmarks: N devices that are parts of GPUs; equal, or how many "
         "multiprocessors each part of a GPU has, as 24,24,48 or 4*24"},
    {"host_slow", .expert = TRUE, STAGES(host_slow), .flag = "--slow",
     .help =
         "host:N, for tests and benchmarks: devices that rest after each action until it has taken "
         "so many times as long, as 1=1.5"},
    {"network_limit", .expert = TRUE, NUMBER(network_limit, 0, 100000), .initial = "0",
     .help = "several servers, for tests and benchmarks: Gbit/s that leave each at most, so that a "
             "slower network "
             "is emulated; 0: no limit"},
    {"transfers", .expert = TRUE, CHOICE(transfers, transfers), .initial = "windows",
     .help = "how copies are placed beside compute"},
    {"consistency", .expert = TRUE, CHOICE(consistency, consistencies), .initial = "events",
     .help = "how steps wait for weights and gradients"},
    {"resident", .expert = TRUE, CHOICE(resident_choice, residents), .initial = "auto",
     .help = "LoRA: frozen weights go up once and stay; auto: on GPUs with room, if not slower"},
    {"device_memory", .expert = TRUE, BYTES(device_memory_bytes), .initial = "0",
     .help = "limit of each device; 0: what a GPU has free, none for host:N"},
    {"host_memory", .expert = TRUE, BYTES(host_memory_bytes), .initial = "0",
     .help = "limit of everything in host memory; 0: what is available at the start"},
    {"head_chunk", .expert = TRUE, WHOLE(head_chunk, 0, RP_RUN_MAX_COUNT), .initial = "0",
     .help = "tokens whose logits exist at once; 0: chosen by memory"},
    {"accumulate", .expert = TRUE, CHOICE(half_sums, accumulates), .initial = "fp32",
     .help = "numbers in which matmuls of activations add up; fp16 needs dtype fp16, or fp8"},
    {"attention", .expert = TRUE, CHOICE(attention_choice, attentions), .initial = "auto",
     .others = "flash_attention flash_attn xformers_attention sdp_attention attn_implementation",
     .help =
         "attention on GPUs; auto: the fastest, or that of the profile; cudnn: cuDNN's forward, "
         "built-in backward"},
    {"profile", .expert = TRUE, TEXT(profile), .initial = "auto",
     .help = "layer times: a timing file; auto: an earlier run's on these devices, else measured; "
             "measure: measured anew; of a dry run a card's name (roundpipe gpus), predicted"},
    {"trace", .expert = TRUE, TEXT(trace),
     .help = "a file for the measured trace, for ui.perfetto.dev (--dry-run: the predicted one)"},
    {"plot_loss", CHOICE(plot_loss, booleans), .initial = "false",
     .help = "draws training_loss.png when the run ends; needs gnuplot"},
    {"tensorboard", CHOICE(tensorboard, booleans), .initial = "false",
     .others = "report_to logging_dir wandb wandb_project wandb_entity use_wandb run_name "
               "logging_steps",
     .help = "writes metrics also as an event file for TensorBoard into output"},
    {"freeze", .expert = TRUE, STAGES(freeze), .others = "frozen_parameters freeze_layers",
     .help = "tensors that are not trained, as [embed_tokens, model.layers.0.*]"},
    {"neftune_alpha", .expert = TRUE, NUMBER(neftune_alpha, 0, 1000), .initial = "0",
     .others = "neftune_noise_alpha",
     .help = "NEFTune: noise of alpha / sqrt(tokens x hidden size) on embeddings while training"},
    {"loss", .expert = TRUE, TEXT(loss), .unset = "cross_entropy",
     .help = "the loss: cross_entropy, or the name of one that a program adds (library.md)"},
    {"label_smoothing", .expert = TRUE, NUMBER(label_smoothing, 0, 1), .below = TRUE,
     .initial = "0", .others = "label_smoothing_factor",
     .help = "share of each target that is spread evenly over the vocabulary while training; dpo, "
             "simpo: share of pairs that are taken to be labelled the wrong way round"},
    {"router_aux_loss_coef", .expert = TRUE, NUMBER(router_aux_loss, 0, 1000),
     .unset = "the model's, where its config has output_router_logits; else 0",
     .others = "moe_aux_loss_coef moe_aux_loss_coeff output_router_logits aux_loss_alpha",
     .help = "mixtures of experts: coefficient of the loss that is least where all experts get as "
             "many tokens"},
    {"optimizer.mode", .expert = TRUE, CHOICE(optimizer.mode, modes), .initial = "fused",
     .flag = "--optimizer",
     .help = "the update; lean: a second pass instead of a second copy of the weights"},
    {"optimizer.early_steps", .expert = TRUE, CHOICE(optimizer.early, earlies), .initial = "auto",
     .flag = "--early-steps",
     .help = "synchronous: weights are written before it is known whether to clip; auto: where the "
             "profile says which"},
    {"optimizer.name", CHOICE(optimizer.rule, rules), .initial = "adamw", .others = "optim",
     .help = "the update; lion: one moment a parameter, and steps of one size"},
    {"optimizer.state", CHOICE(optimizer.moments, moments), .initial = "fp32",
     .others = "optim_bits",
     .help = "how moments are kept, AdamW's two and Lion's one: 4, 2 or 1 bytes each"},
    {"optimizer.master", CHOICE(optimizer.master, masters), .initial = "fp32",
     .help = "how the optimizer keeps weights: 4 or 2 bytes; bf16 is rounded stochastically"},
    {"optimizer.learning_rate", NUMBER(optimizer.learning_rate, 0, 1000), .initial = "1e-4",
     .others = "lr", .help = "the learning rate at its highest"},
    {"optimizer.schedule", CHOICE(optimizer.schedule, rates), .initial = "cosine",
     .others = "lr_scheduler lr_scheduler_type",
     .help = "how the learning rate falls; cosine and linear until the last step, wsd at the end"},
    {"optimizer.min_lr_ratio", NUMBER(optimizer.min_lr_ratio, 0, 1), .initial = "0",
     .others = "min_lr min_lr_rate cosine_min_lr_ratio",
     .help = "where the learning rate ends, as a share of its highest"},
    {"optimizer.decay_steps", .expert = TRUE, WHOLE(optimizer.decay_steps, 1, 1e12),
     .unset = "a tenth of the steps", .others = "num_decay_steps",
     .help = "wsd: in so many steps before the end the learning rate falls"},
    {"optimizer.warmup_steps", WHOLE(optimizer.warmup_steps, 0, 1e12), .initial = "0",
     .others = "warmup", .help = "steps in which the learning rate rises from 0"},
    {"optimizer.warmup_ratio", NUMBER(optimizer.warmup_ratio, 0, 1), .below = TRUE, .initial = "0",
     .others = "warmup_ratio", .help = "the same as a share of the steps, rounded up"},
    {"optimizer.weight_decay", NUMBER(optimizer.weight_decay, 0, 1000), .initial = "0.01",
     .help = "decoupled; norms and biases have none"},
    {"optimizer.beta1", .expert = TRUE, NUMBER(optimizer.beta1, 0, 1), .below = TRUE,
     .others = "adam_beta1", .initial = "0.9",
     .help = "decay of the mean of gradients; lion: in what the step has the sign of"},
    {"optimizer.beta2", .expert = TRUE, NUMBER(optimizer.beta2, 0, 1), .below = TRUE,
     .others = "adam_beta2", .initial = "0.999",
     .help =
         "decay of the mean of their squares; lion: of the mean that is kept, 0.99 in its paper"},
    /* more than 0, as an fp32 too */
    {"optimizer.epsilon", .expert = TRUE, NUMBER(optimizer.epsilon, 1e-30, 1), .initial = "1e-8",
     .help = "added to the root of the mean of squares; lion has none"},
    {"optimizer.max_grad_norm", NUMBER(optimizer.max_grad_norm, 0, 1e9), .initial = "1.0",
     .help = "norm to which the mean loss's gradient is clipped; 0: no clipping"},
    {"optimizer.threads", .expert = TRUE, WHOLE(optimizer.threads, 0, 1024), .initial = "0",
     .help =
         "threads of the optimizer; 0: 1 with host:N, with GPUs all processors but one for each"},
    {"loss_scale.initial", .expert = TRUE, NUMBER(loss_scale.initial, 1, 16777216),
     .initial = "65536", .help = "fp16: where dynamic loss scaling begins"},
    {"loss_scale.max_skipped", .expert = TRUE, WHOLE(loss_scale.max_skipped, 0, 1e9),
     .initial = "32", .help = "fp16: so many skipped steps in a row end the run; 0: never"},
    {"checkpoint.every", WHOLE(checkpoint.every, 0, 1e12), .initial = "0", .others = "save_steps",
     .help = "saves after so many steps; 0: not by steps"},
    {"checkpoint.minutes", NUMBER(checkpoint.minutes, 0, 1e6), .initial = "30",
     .help = "saves after so many minutes since the last checkpoint; 0: not by time"},
    {"checkpoint.keep", WHOLE(checkpoint.keep, 0, 1e6), .initial = "3",
     .others = "save_total_limit", .help = "how many of the last checkpoints stay; 0: all"},
    {"checkpoint.final", .expert = TRUE, CHOICE(checkpoint.final, booleans), .initial = "true",
     .others = "save_strategy save_model", .help = "saves after the last step"},
    {"checkpoint.beside", .expert = TRUE, CHOICE(checkpoint.beside, maybe), .initial = "auto",
     .help = "writes checkpoints while training goes on; auto: where there is memory for a copy"},
    {"eval.data", STAGES(eval.data),
     .others = "eval_dataset test_datasets validation_file eval_file",
     .help = "validation: samples whose loss is told and from which nothing is learned"},
    {"eval.split", NUMBER(eval.split, 0.000001, 1), .below = TRUE,
     .others = "val_size val_set_size test_size",
     .help = "validation: this share of the samples of data instead, chosen by the seed"},
    {"eval.every", WHOLE(eval.every, 1, 1e12), .unset = "a tenth of the steps",
     .others = "eval_steps evals_per_epoch eval_strategy evaluation_strategy",
     .help = "validation: after so many steps, and after the last"},
    {"eval.keep_best", CHOICE(eval.keep_best, booleans), .unset = "false",
     .others = "load_best_model_at_end save_best metric_for_best_model",
     .help = "validation: saves a checkpoint whenever the loss is the lowest so far, keeps it "
             "whatever checkpoint.keep is, and links it as best"},
    {"eval.patience", WHOLE(eval.patience, 1, 1e6), .unset = "none: the run goes on",
     .others = "early_stopping_patience early_stopping",
     .help = "validation: ends the run after so many evaluations in a row without a lower loss"},
    {"lora.rank", WHOLE(lora.rank, 1, RP_LORA_MOST_RANK), .unset = "none: everything is trained",
     .others = "lora_r lora_rank r adapter finetuning_type use_peft",
     .help = "LoRA: rank of adapters, which are trained instead of the model"},
    {"lora.alpha", NUMBER(lora.alpha, 1e-6, 1e6), .unset = "twice the rank", .others = "lora_alpha",
     .help = "LoRA: what adapters add is multiplied by alpha / rank"},
    {"lora.targets", STAGES(lora.targets), .unset = RP_LORA_ALL_LINEAR,
     .others = "lora_target lora_target_modules target_modules",
     .help = "LoRA: matrices with adapters: all-linear, or names as [q_proj, model.layers.3.*]"},
    {"lora.rslora", .expert = TRUE, CHOICE(lora.rslora, booleans), .unset = "false",
     .others = "use_rslora", .help = "LoRA: divides alpha by the rank's square root instead"},
    {"lora.save", .expert = TRUE, STAGES(lora.save),
     .others = "modules_to_save lora_modules_to_save",
     .help = "LoRA: modules that are trained whole, as [lm_head, norm]"},
    {"lora.dropout", NUMBER(lora.dropout, 0, RP_LORA_MOST_DROPOUT), .unset = "0",
     .others = "lora_dropout", .help = "LoRA: dropout of an adapter's input while training"},
    {"lora.start", .expert = TRUE, TEXT(lora.start),
     .others = "lora_model_dir adapter_name_or_path",
     .help = "LoRA: a directory whose adapters the run begins with; all else of lora is theirs"},
    {"lora.any_base", .expert = TRUE, .flag = "--any-base", CHOICE(lora.any_base, booleans),
     .unset = "false",
     .help =
         "LoRA: takes adapters that were trained on a base with other values or another config"},
    {NULL},
};

const RpSetting *
rp_settings(void)
{
    return settings;
}

/* ---- lookups ---- */

/* No machine has more. */
#define MOST_GIB 65536

G_DEFINE_QUARK(rp_run_error, rp_run_error)

const RpSetting *
rp_setting_find(const char *key)
{
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++)
        if (strcmp(setting->key, key) == 0)
            return setting;
    return NULL;
}

static const char *
option_of_key(const char *key)
{
    g_autofree char *own = g_strconcat("--", key, NULL);

    return g_intern_string(g_strdelimit(own, "._", '-'));
}

const char *
rp_setting_option(const RpSetting *setting)
{
    return setting->flag != NULL ? setting->flag : option_of_key(setting->key);
}

const RpSetting *
rp_setting_of_option(const char *name)
{
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++)
        if (strcmp(rp_setting_option(setting) + strlen("--"), name) == 0 ||
            strcmp(option_of_key(setting->key) + strlen("--"), name) == 0)
            return setting;
    return NULL;
}

gboolean
rp_setting_is_flag(const RpSetting *setting)
{
    return setting->type == RP_SETTING_CHOICE && strcmp(setting->choices->name, "false") == 0;
}

/* Length of the group in @key: 9 of "optimizer.mode"; 0: none. */
static gsize
group_length(const char *key)
{
    const char *dot = strrchr(key, '.');

    return dot != NULL ? (gsize)(dot - key) : 0;
}

static const char *
own_word(const char *key)
{
    const gsize group = group_length(key);

    return group > 0 ? key + group + 1 : key;
}

gboolean
rp_setting_is_group(const char *key)
{
    const gsize length = strlen(key);

    for (const RpSetting *setting = rp_settings(); length > 0 && setting->key != NULL; setting++)
        if (group_length(setting->key) == length && strncmp(setting->key, key, length) == 0)
            return TRUE;
    return FALSE;
}

static gboolean
has_other_name(const RpSetting *setting, const char *word)
{
    g_auto(GStrv) others = g_strsplit(setting->others != NULL ? setting->others : "", " ", -1);

    return g_strv_contains((const char *const *)others, word);
}

char *
rp_setting_nearest(const char *key)
{
    g_autoptr(GPtrArray) siblings = g_ptr_array_new_with_free_func(g_free);
    g_autoptr(GPtrArray) all = g_ptr_array_new();
    const gsize group = group_length(key);
    const char *word = own_word(key), *same = NULL, *near;

    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++) {
        const char *own = own_word(setting->key);
        const gsize own_group = group_length(setting->key);

        if (has_other_name(setting, word))
            return g_strdup(setting->key);
        g_ptr_array_add(all, (gpointer)setting->key);
        if (own_group == group && strncmp(setting->key, key, group) == 0)
            g_ptr_array_add(siblings, g_strdup(own));
        else if (group == 0 && own_group > 0)
            g_ptr_array_add(siblings, g_strndup(setting->key, own_group));
        if (same == NULL && strcmp(own, word) == 0)
            same = setting->key;
    }
    g_ptr_array_add(siblings, NULL);
    g_ptr_array_add(all, NULL);
    near = rp_nearest_name(word, (const char *const *)siblings->pdata);
    if (near != NULL)
        return g_strdup_printf("%.*s%s%s", (int)group, key, group > 0 ? "." : "", near);
    return g_strdup(same != NULL ? same : rp_nearest_name(key, (const char *const *)all->pdata));
}

const char *
rp_setting_value_name(const char *key, int value)
{
    const RpSettingChoice *choice = rp_setting_find(key)->choices;

    while (choice->name != NULL && choice->value != value)
        choice++;
    return choice->name;
}

static void
add_names(GPtrArray *names, const RpSettingChoice *choices)
{
    for (const RpSettingChoice *c = choices; c != NULL && c->name != NULL; c++)
        g_ptr_array_add(names, (gpointer)c->name);
}

const char **
rp_setting_names(const RpSetting *setting)
{
    GPtrArray *names = g_ptr_array_new();

    add_names(names, setting->choices);
    add_names(names, setting->parts);
    for (const RpScheduleOps *const *s = rp_schedules(); *s != NULL; s++)
        if (setting->type == RP_SETTING_SCHEDULE && rp_schedule_is_trained(*s))
            g_ptr_array_add(names, (gpointer)(*s)->name);
    g_ptr_array_add(names, NULL);
    return (const char **)g_ptr_array_free(names, FALSE);
}

static char *
join_names(const RpSetting *setting)
{
    g_autofree const char **names = rp_setting_names(setting);

    return g_strjoinv(", ", (char **)names);
}

char *
rp_setting_expects(const RpSetting *setting)
{
    const RpSetting alone = {.type = setting->type, .choices = setting->choices};
    const RpSetting listed = {.choices = setting->parts};
    g_autofree char *words = join_names(&alone);
    g_autofree char *parts = setting->parts != NULL ? join_names(&listed) : NULL;

    switch (setting->type) {
    case RP_SETTING_TEXT:
    case RP_SETTING_STAGES:
        return g_strdup_printf("text of 1 to %d bytes", RP_SETTING_MAX_TEXT);
    case RP_SETTING_BYTES:
        return g_strdup("a size such as 24GiB or 800GB");
    case RP_SETTING_CHOICE:
    case RP_SETTING_SCHEDULE:
        return parts == NULL ? g_strdup_printf("one of %s", words)
                             : g_strdup_printf("one of %s; or a list of %s", words, parts);
    case RP_SETTING_WHOLE:
    case RP_SETTING_NUMBER:
        break;
    }
    return g_strdup_printf("%s%sa %snumber from %.16g to %s%.16g", words,
                           *words != '\0' ? " or " : "",
                           setting->type == RP_SETTING_WHOLE ? "whole " : "", setting->least,
                           setting->below ? "less than " : "", setting->most);
}

const char *
rp_setting_default(const RpSetting *setting)
{
    return setting->required          ? "required"
           : setting->initial != NULL ? setting->initial
           : setting->unset != NULL   ? setting->unset
                                      : "-";
}

char *
rp_setting_meaning(const RpSetting *setting)
{
    g_autofree char *expects = rp_setting_expects(setting);

    return setting->type == RP_SETTING_TEXT || setting->type == RP_SETTING_STAGES
               ? g_strdup(setting->help)
               : g_strdup_printf("%s (%s)", setting->help, expects);
}

static gboolean
in_range(const RpSetting *setting, double number)
{
    return number >= setting->least && number <= setting->most && /* NaN is in no range */
           !(setting->below && number == setting->most);
}

static gboolean
store_number(const RpSetting *setting, const char *text, double *number)
{
    char *end = NULL;

    errno = 0;
    *number = g_ascii_strtod(text, &end);
    return end != text && *end == '\0' && errno == 0 && !g_ascii_isspace(*text) &&
           in_range(setting, *number);
}

static gboolean
store_schedule(const char *text, const char **name)
{
    const RpScheduleOps *schedule = rp_schedule_find(text, NULL);

    if (schedule == NULL || !rp_schedule_is_trained(schedule))
        return FALSE;
    *name = schedule->name;
    return TRUE;
}

static gboolean
store_text(const char *text, char **field)
{
    if (*text == '\0' || strlen(text) > RP_SETTING_MAX_TEXT)
        return FALSE;
    g_free(*field);
    *field = g_strdup(text);
    return TRUE;
}

/* The name that choices have for @text: "bf16" for "bfloat16"; @text itself if there is no other. */
static const char *
plain_word(const char *text)
{
    RpDtype dtype;

    return rp_dtype_parse(text, rp_dtype_torch_name, &dtype) ? rp_dtype_name(dtype) : text;
}

static const RpSettingChoice *
find_choice(const RpSettingChoice *choices, const char *name)
{
    for (const RpSettingChoice *c = choices; c != NULL && c->name != NULL; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

gboolean
rp_setting_choose(const RpSetting *setting, const char *text, int *value)
{
    const RpSettingChoice *choice = find_choice(setting->choices, plain_word(text));
    g_auto(GStrv) names = choice == NULL ? g_strsplit(text, ",", -1) : NULL;
    int sum = choice != NULL ? choice->value : 0;

    for (char **name = names; name != NULL && *name != NULL; name++) {
        choice = find_choice(setting->parts, g_strstrip(*name));
        if (choice == NULL)
            return FALSE;
        sum |= choice->value;
    }
    if (choice != NULL)
        *value = sum;
    return choice != NULL;
}

gboolean
rp_setting_store(const RpSetting *setting, const char *text, void *run)
{
    void *field = (char *)run + setting->offset;
    int value;

    if (rp_setting_choose(setting, text, &value)) {
        if (setting->type == RP_SETTING_WHOLE)
            *(gint64 *)field = value;
        else
            *(int *)field = value;
        return TRUE;
    }
    switch (setting->type) {
    case RP_SETTING_TEXT:
    case RP_SETTING_STAGES:
        return store_text(text, field);
    case RP_SETTING_BYTES: /* a number alone that may be meant in GiB needs its unit */
        return rp_bytes_parse(text, field) &&
               (*(guint64 *)field > MOST_GIB || strcmp(text, "0") == 0 ||
                !g_ascii_isdigit(text[strlen(text) - 1]));
    case RP_SETTING_WHOLE:
        /* 010 is 8 in YAML 1.1 and 10 in YAML 1.2 */
        return !(text[0] == '0' && text[1] != '\0') &&
               g_ascii_string_to_signed(text, 10, G_MININT64, G_MAXINT64, field, NULL) &&
               in_range(setting, (double)*(gint64 *)field);
    case RP_SETTING_NUMBER:
        return store_number(setting, text, field);
    case RP_SETTING_SCHEDULE:
        return store_schedule(text, field);
    case RP_SETTING_CHOICE:
        break;
    }
    return FALSE;
}

void
rp_setting_clear(const RpSetting *setting, void *run)
{
    void *field = (char *)run + setting->offset;

    if (setting->type == RP_SETTING_TEXT || setting->type == RP_SETTING_STAGES)
        g_clear_pointer((char **)field, g_free);
}

/* ---- options ---- */

void
rp_run_spec_init(RpRunSpec *run)
{
    for (const RpSetting *setting = rp_settings(); setting->key != NULL; setting++)
        if (setting->type == RP_SETTING_CHOICE && setting->initial != NULL)
            (void)!rp_setting_store(setting, setting->initial, run);
}

gboolean
rp_run_spec_set(RpRunSpec *run, const RpSetting *setting, const char *text)
{
    const gsize place = (gsize)(setting - rp_settings());

    g_assert(place < RP_RUN_MOST_SETTINGS);
    run->given[place] = g_intern_string(text);
    if (setting->type == RP_SETTING_TEXT || setting->type == RP_SETTING_STAGES)
        *(const char **)(void *)((char *)run + setting->offset) = run->given[place];
    else
        return rp_setting_store(setting, text, run);
    return TRUE;
}

const char *
rp_run_spec_given(const RpRunSpec *run, const char *key)
{
    return run->given[rp_setting_find(key) - rp_settings()];
}

void
rp_run_spec_forget(RpRunSpec *run, const char *key)
{
    const RpSetting *setting = rp_setting_find(key);
    static const gsize sizes[] = {
        [RP_SETTING_TEXT] = sizeof(char *),     [RP_SETTING_STAGES] = sizeof(char *),
        [RP_SETTING_WHOLE] = sizeof(gint64),    [RP_SETTING_NUMBER] = sizeof(double),
        [RP_SETTING_BYTES] = sizeof(guint64),   [RP_SETTING_CHOICE] = sizeof(int),
        [RP_SETTING_SCHEDULE] = sizeof(char *),
    };

    run->given[setting - rp_settings()] = NULL;
    memset((char *)run + setting->offset, 0, sizes[setting->type]);
    if (setting->type == RP_SETTING_CHOICE && setting->initial != NULL)
        (void)!rp_setting_store(setting, setting->initial, run);
}

void
rp_run_spec_plan(RpRunSpec *run)
{
    RpPlanOptions *plan = &run->plan;

    plan->replicas = (guint)run->replicas;
    plan->recompute = RP_SETTING_RECOMPUTE_START(run->recompute_choice);
    plan->dispatch = (RpDispatch)run->dispatch;
    plan->transfers = (RpTransfers)run->transfers;
    plan->consistency = (RpConsistency)run->consistency;
    plan->optimizer = (RpOptimizerMode)run->optimizer.mode;
    plan->early_steps = (RpEarlySteps)run->optimizer.early;
    plan->form = rp_run_optimizer_form(&run->optimizer);
    plan->reference_copy = run->preference.reference == RP_REFERENCE_COPY;
}
