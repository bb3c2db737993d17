/* mp_core.h for extension modules of Python: the functions come from the installed package, and nothing is linked.
 *
 *     #include <Python.h>
 *     #include <mp_core_python.h>           (mp_core.get_include() is where it is)
 *
 *     PyMODINIT_FUNC PyInit_mine(void) {
 *         if (import_mp_core() < 0) return NULL;
 *         ...
 *     }
 *
 * Then mp_core_api->multiply(&product, NULL, 1) and so on, in this source file; another one imports it too. */
#ifndef MP_CORE_PYTHON_H
#define MP_CORE_PYTHON_H

#include <Python.h>

#include "mp_core.h"

static const mp_core_table *mp_core_api;

/* Import the table; returns 0, or -1 with an ImportError that says which versions do not fit. Needs the interpreter
 * lock. */
static inline int import_mp_core(void) {
    const mp_core_table *found = (const mp_core_table *)PyCapsule_Import("mp_core.core._C_API", 0);
    if (!found) return -1;
    if (found->abi_version != MP_CORE_ABI_VERSION) {
        PyErr_Format(
            PyExc_ImportError,
            "this module was compiled for version %d of the ABI of mp_core, and mp_core %s has version %d: compile "
            "the module again",
            MP_CORE_ABI_VERSION, found->version(), found->abi_version);
        return -1;
    }
    if (found->api_version < MP_CORE_API_VERSION) {
        PyErr_Format(
            PyExc_ImportError,
            "this module needs version %d of the C API of mp_core, and mp_core %s has version %d: install a newer "
            "mp_core",
            MP_CORE_API_VERSION, found->version(), found->api_version);
        return -1;
    }
    mp_core_api = found;
    return 0;
}

#endif
