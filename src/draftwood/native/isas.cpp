// The instruction sets of this processor, and the one that computes.
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "engine.h"

namespace draftwood {
// DRAFTWOOD_ISAS is ISA(name) for each one that was compiled, the best one last.
#define ISA(name) extern const Kernels kernels_##name##_Float32, kernels_##name##_Portable, kernels_##name##_Bfloat16;
DRAFTWOOD_ISAS
#undef ISA

namespace {
struct Isa {
    const char* name;
    const Kernels* kernels[3];  // of the formats
};
#define ISA(name) {#name, {&kernels_##name##_Float32, &kernels_##name##_Portable, &kernels_##name##_Bfloat16}},
const Isa ISAS[] = {DRAFTWOOD_ISAS};
#undef ISA

bool may_use_tiles() {
#if defined(DRAFTWOOD_EMULATED_TILES)
    return true;
#elif defined(__linux__) && defined(__x86_64__)
    unsigned a, b, c, d;
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
    const int request = 0x1023, data = 18;                   // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted && !syscall(SYS_arch_prctl, request, data);
#else
    return false;
#endif
}

#if defined(__x86_64__)
// A bit of EAX or of ECX.
bool cpuid_bit(unsigned leaf, unsigned subleaf, bool in_ecx, int bit) {
    unsigned a, b, c, d;
    return __get_cpuid_count(leaf, subleaf, &a, &b, &c, &d) && (in_ecx ? c : a) >> bit & 1;
}
#endif

#if defined(__aarch64__)
// Whether there are dot products of integers, or products of their matrices.
bool has_products(bool of_matrices) {
#if defined(__linux__)
    return (of_matrices ? getauxval(AT_HWCAP2) >> 13 : getauxval(AT_HWCAP) >> 20) & 1;  // HWCAP2_I8MM, HWCAP_ASIMDDP
#elif defined(__APPLE__)
    int found = 0;
    size_t size = sizeof found;
    const char* name = of_matrices ? "hw.optional.arm.FEAT_I8MM" : "hw.optional.arm.FEAT_DotProd";
    return !sysctlbyname(name, &found, &size, nullptr, 0) && found;
#else
    return false;
#endif
}
#endif

bool is_here(const std::string& name) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpuid_bit(1, 0, true, 29);
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    bool vnni = avx512 && __builtin_cpu_supports("avx512vnni"), bf16 = vnni && __builtin_cpu_supports("avx512bf16");
    if (name == "avx2") return avx2;
    if (name == "avxvnni") return avx2 && cpuid_bit(7, 1, false, 4);
    if (name == "avx512") return avx512;
    if (name == "avx512vnni") return vnni;
    if (name == "avx512bf16") return bf16;
    if (name == "amx") return bf16 && may_use_tiles();
#endif
#if defined(__aarch64__)
    if (name == "dotprod") return has_products(false);
    if (name == "i8mm") return has_products(false) && has_products(true);
#endif
    return name == "generic";
}

std::atomic<const Isa*> in_use{nullptr};
}  // namespace

std::string instruction_sets() {
    std::string names;
    for (const Isa& one : ISAS)
        if (is_here(one.name)) names += (names.empty() ? "" : " ") + std::string(one.name);
    return names;
}

void use_instruction_set(const std::string& wanted) {
    for (const Isa& one : ISAS)
        if (wanted == one.name && is_here(wanted)) return (void)(in_use = &one);
    throw std::invalid_argument("this processor does not have it");
}

const Kernels& kernels(const Facts* facts) {
    return *in_use.load()->kernels[!facts || !facts->bfloat16 ? 0 : facts->activations == 8 ? 1 : 2];
}
}  // namespace draftwood
