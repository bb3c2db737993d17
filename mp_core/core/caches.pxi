# Included by cpu.pyx: the family of this CPU and the sizes of its caches.

CPU_FAMILIES = {"zen4": MP_CPU_ZEN4, "zen5": MP_CPU_ZEN5, "intel_amx": MP_CPU_INTEL_AMX, "other": MP_CPU_OTHER}


def cpu_family():
    """Return the key of `CPU_FAMILIES` for the CPUs with which this one shares tuned constants (core/tuning.h)."""
    return list(CPU_FAMILIES)[<int>mp_cpu_family_here()]


def cache_bytes():
    """Return the bytes of the data caches of the first, second and third level that serve this CPU.

    The CPU says it (CPUID), or else Linux (sysfs). If neither does, they are 32 KiB, 512 KiB and 8 MiB.
    """
    return tuple(mp_cpu_cache_bytes(level) or _linux_cache(level) or usual
                 for level, usual in ((1, 1 << 15), (2, 1 << 19), (3, 1 << 23)))


def _linux_cache(level):
    """Return the bytes of the data cache of a level as Linux says, or None."""
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            found = {name: (folder / name).read_text().strip() for name in ("level", "type", "size")}
        except OSError:
            continue
        if found["level"] == str(level) and found["type"] != "Instruction" and found["size"].endswith("K"):
            return int(found["size"].removesuffix("K")) << 10
    return None
