#include "core/catalogue/paper-equations.h"

double
rp_paper_activation_bytes(const RpModel *model, double b, double s)
{
    double h = model->hidden;
    double m = model->intermediate;
    double k_over_a = (double)model->kv_heads / model->heads;

    return (12 + 4 * k_over_a) * s * b * h + 6 * s * b * m * model->active_experts;
}

double
rp_paper_forward_flops(const RpModel *model, double b, double s)
{
    double h = model->hidden;
    double m = model->intermediate;
    double k_over_a = (double)model->kv_heads / model->heads;

    return 4 * s * b * h * h + 4 * s * b * h * h * k_over_a + 4 * s * s * b * h +
           6 * s * b * h * m * model->active_experts;
}

double
rp_paper_forward_upload_bytes(const RpModel *model, double b, double s)
{
    double h = model->hidden;
    double m = model->intermediate;
    double k_over_a = (double)model->kv_heads / model->heads;

    return 4 * h * h + 4 * h * h * k_over_a + 6 * h * m * model->experts + 2 * b * s * h;
}

double
rp_paper_forward_intensity(const RpModel *model, double b, double s)
{
    return rp_paper_forward_flops(model, b, s) / rp_paper_forward_upload_bytes(model, b, s);
}

double
rp_paper_ridge_intensity(const RpGpu *gpu)
{
    return gpu->fp16_accumulate_tflops * 1e12 / (gpu->interconnect_gb_per_s * 1e9);
}

double
rp_paper_recompute_s(const RpModel *model, const RpGpu *gpu, double b, double s)
{
    return rp_paper_forward_flops(model, b, s) / (gpu->fp16_accumulate_tflops * 1e12);
}

double
rp_paper_reload_s(const RpModel *model, const RpGpu *gpu, double b, double s)
{
    return rp_paper_activation_bytes(model, b, s) / (gpu->interconnect_gb_per_s * 1e9);
}
