/* What faults of GPU kernels say: the words that a host kernel's error would have. */
#include "kernel/kernel.h"

void kernel_fault_print(text *text, const kernel_fault *fault) {
    switch (fault->kind) {
#define FAULT(name, words) \
    case KERNEL_FAULT_##name: text_printf(text, words, (long long)fault->value, (long long)fault->limit); return;
#include "kernel/fault.def"
#undef FAULT
    default: text_printf(text, "fault %u (%lld, %lld)", (unsigned)fault->kind, (long long)fault->value, (long long)fault->limit); return;
    }
}
