# Included by cpu.pyx: the family of this CPU and the sizes of its caches.

CPU_FAMILIES = {"zen4": MP_CPU_ZEN4, "intel_amx": MP_CPU_INTEL_AMX}


def cpu_family():
    """Return the key of `CPU_FAMILIES` for the CPUs with which this one shares tuned constants (library/tuning.h)."""
    return list(CPU_FAMILIES)[<int>mp_cpu_family_here()]


def cache_bytes():
    """Return the bytes of the data caches of the first, second and third level that serve this CPU.

    The CPU says it (CPUID), or else Linux (sysfs). If neither does, they are 32 KiB, 512 KiB and 8 MiB.
    """
    return mp_cpu_cache_bytes(1), mp_cpu_cache_bytes(2), mp_cpu_cache_bytes(3)
