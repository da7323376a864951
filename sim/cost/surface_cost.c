#include "sim/cost/roofline.h"
#include "sim/cost/surface_law.h"

#include <math.h>

static enum bt_code make_law(struct bt_surface_library *library, const char *stack,
                             enum bt_source_without without, const struct bt_step_opts *o,
                             bool draft, struct bt_law *out, struct bt_error *err)
{
    struct bt_surface_law_opts lo = {
        .library = library,
        .gpu = o->gpu,
        .stack = stack,
        .model = draft ? &o->draft : &o->target,
        .tp = draft ? bt_step_draft_tp(o) : o->tp,
        .medusa = !draft && o->spec == BT_SPEC_MEDUSA,
        .without = without,
    };
    return bt_surface_law_create(&lo, out, err);
}

enum bt_code bt_surface_cost_create(struct bt_surface_library *library, const char *stack,
                                    enum bt_source_without without, const struct bt_step_opts *opts,
                                    struct bt_cost *out, struct bt_error *err)
{
    *out = (struct bt_cost){0};
    struct bt_step_opts o = *opts;
    BT_TRY(bt_roofline_check_units(&o, err));
    if (!(o.peak_flops_per_s > 0)) {
        o.peak_flops_per_s = bt_roofline_peak(&o);
    }
    struct bt_law law = {0};
    struct bt_law draft = {0};
    BT_TRY(make_law(library, stack, without, &o, false, &law, err));
    bool has_draft = o.spec == BT_SPEC_DRAFT;
    if (has_draft) {
        enum bt_code code = make_law(library, stack, without, &o, true, &draft, err);
        if (code != BT_OK) {
            law.ops->destroy(law.self);
            return code;
        }
    }
    /* The model takes the laws over, and keeps them: so their origins stay. */
    const struct bt_op_origin *target = bt_surface_law_origins(&law);
    const struct bt_op_origin *of_draft = has_draft ? bt_surface_law_origins(&draft) : NULL;
    BT_TRY(bt_step_cost_create(&o, law, draft, out, err));
    int32_t draft_steps = o.spec == BT_SPEC_NONE ? 0 : o.spec_k;
    bt_step_trust_fill(out, target, of_draft, o.max_seqs, draft_steps);
    out->step_error = hypot(out->step_error, BT_STEP_ASSEMBLY_ERROR);
    out->step_error_by_op = true;
    return BT_OK;
}

double bt_surface_cost_mix_error(const struct bt_cost *cost, const struct bt_step_mix *mix)
{
    if (!cost->step_error_by_op) {
        return cost->step_error;
    }
    const struct bt_law *draft = bt_step_cost_draft_law(cost);
    double error = bt_step_mix_error(cost, mix, bt_surface_law_origins(bt_step_cost_law(cost)),
                                     draft != NULL ? bt_surface_law_origins(draft) : NULL);
    return error < 0 ? cost->step_error : hypot(error, BT_STEP_ASSEMBLY_ERROR);
}

double bt_surface_cost_ratio_error(const struct bt_cost *a, const struct bt_cost *b,
                                   const struct bt_batch *batch)
{
    return bt_step_ratio_error(a, bt_surface_law_origins(bt_step_cost_law(a)), b,
                               bt_surface_law_origins(bt_step_cost_law(b)), batch);
}
