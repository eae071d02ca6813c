/* Measured choices (plan_tuning) for the device that a model is planned for: what they are good for, and whether a text is good for it. Measures nothing. */
#include <inttypes.h>
#include <string.h>

#include "engine/engine.h"

uint64_t engine_build_hash(void) {
    uint64_t hash = 0;
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        hash = base_hash(row->name, strlen(row->name), hash);
        for (int k = 0; k < row->way_count; k++) hash = base_hash(row->ways[k].name, strlen(row->ways[k].name), hash);
    }
    for (int i = 0; i < kernel_image_count(); i++) {
        size_t bytes;
        const char *why;
        const void *image = kernel_image(kernel_image_name(i), &bytes, &why);
        if (image != NULL) hash = base_hash(image, bytes, hash);
    }
    return hash;
}

dw_status engine_tuning_key(const dw_model *model, arena *arena, plan_tuning *key) {
    char driver[64];
    device *device = model->device;
    if (device == NULL && model->chip.kind == CHIP_GPU)
        return base_fail(model->context, DW_UNSUPPORTED, "a plan for another machine's %s is by estimates: measured choices are for the GPU itself, --device cuda", model->chip.name);
    if (device == NULL) return base_fail(model->context, DW_UNSUPPORTED, "the CPU's kernels are chosen by estimates, and none of them has variants: name a GPU, --device cuda");
    if (device->calls->driver == NULL || !device->calls->driver(device, driver, sizeof driver))
        return base_fail(model->context, DW_UNSUPPORTED, "%s is simulated, and a simulation says nothing of time: tune on the GPU itself", device->caps.model);
    key->chip = arena_text(arena, device->caps.model);
    key->driver = arena_text(arena, driver);
    key->kernels = arena_printf(arena, "%016" PRIx64, engine_build_hash());
    return key->chip && key->driver && key->kernels ? DW_OK : DW_NO_MEMORY;
}

bool engine_tuning_is_same_key(const plan_tuning *a, const plan_tuning *b) {
    return strcmp(a->chip, b->chip) == 0 && strcmp(a->driver, b->driver) == 0 && strcmp(a->kernels, b->kernels) == 0;
}

dw_status engine_tuning_parse(arena *arena, const char *name, const char *words, plan_tuning *tuning) {
    dw_status status = plan_tuning_parse(arena, name != NULL ? name : "tuning", words, strlen(words), tuning);
    return status == DW_SYNTAX ? base_fail_at(arena->context, status, "measured choices: put this text away, and tune anew") : status;
}

dw_status engine_tuning_read(dw_model *model, const char *words, const char *name, plan_tuning **result) {
    plan_tuning key = {0};
    arena scratch;
    *result = NULL;
    if (words == NULL) return DW_OK;
    TRY_NEW(*result, &model->arena, 1);
    arena_init(&scratch, model->context);
    dw_status status = engine_tuning_parse(&model->arena, name, words, *result);
    if (status == DW_OK) status = engine_tuning_key(model, &scratch, &key);
    if (status == DW_OK && !engine_tuning_is_same_key(*result, &key))
        status = base_fail(model->context, DW_MISMATCH, "%s: the tuning is of %s under %s, kernels %s; this is %s under %s, kernels %s: tune again", name != NULL ? name : "tuning",
                           (*result)->chip, (*result)->driver, (*result)->kernels, key.chip, key.driver, key.kernels);
    arena_free(&scratch);
    return status;
}
