/* Functions as numbers: what a pointer to one holds, and which function an address is. */
#include "machine.h"

uint64_t sim_function_address(const ptx_module *module, const ptx_function *function) {
    size_t i = 0;
    while (i < module->function_count && module->functions[i] != function) i++;
    return SIM_CODE_WINDOW + 16 * (i + 1);
}

ptx_function *sim_function_at(const ptx_module *module, uint64_t address) {
    const uint64_t number = (address - SIM_CODE_WINDOW) / 16;
    if (address % 16 != 0 || number < 1 || number > module->function_count) return NULL;
    return module->functions[number - 1];
}
