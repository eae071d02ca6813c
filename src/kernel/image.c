/* The GPU code that the build embedded: images.def, which the build writes into a folder of its own, names those of image.def that there are. */
#include "kernel/kernel.h"

#include <string.h>

#define IMAGE(stem) extern const uint8_t image_##stem[], image_##stem##_end[];
#include <images.def>
#undef IMAGE

typedef struct image { const char *stem; const uint8_t *begin, *end; } image;

static const image images[] = {
#define IMAGE(stem) {#stem, image_##stem, image_##stem##_end},
#include <images.def>
#undef IMAGE
    {NULL, NULL, NULL},
};

const char *kernel_lacks_images(void) {
    return images[0].stem != NULL ? NULL : "this build of Deepwell has no GPU code: it was configured with DEEPWELL_NVCC empty, for CPUs alone";
}

const void *kernel_image(const char *stem, size_t *bytes, const char **why) {
    *bytes = 0;
    *why = kernel_lacks_images() != NULL ? kernel_lacks_images() : "this build of Deepwell has no such image";
    for (int i = 0; images[i].stem != NULL; i++) {
        if (strcmp(images[i].stem, stem) != 0) continue;
        *bytes = (size_t)(images[i].end - images[i].begin);
        return images[i].begin;
    }
    return NULL;
}

int kernel_image_count(void) { return (int)COUNT_OF(images) - 1; }
const char *kernel_image_name(int index) { return images[index].stem; }
